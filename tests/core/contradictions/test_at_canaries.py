"""A monitor with a checker reports contradictions of newcomers with each check."""

import io
import json
import subprocess
import sys
from pathlib import Path

import canary_world
import pytest
from canary_world import World, batch, embed, joined, knowledge, questions
from rich.console import Console
from test_contradictions import FALSE, KNOWN, Scripted, clean_scores
from typer.testing import CliRunner

from ragshield_core import Quarantine
from ragshield_core.cli import app
from ragshield_core.model.errors import NotFittedError
from ragshield_core.tools.alerts import HEADING
from ragshield_core.tools.canary.telling import html_report, to_sarif, told_of_drift
from ragshield_core.tools.case_report import markdown
from ragshield_core.tools.contradictions import ContradictionChecker, KeptAlerts

QUERY = questions()[5]
BAD = batch([(f"bad-{n}", f"{QUERY} {QUERY} certainly {FALSE} <b>wrong{n}") for n in range(4)])


def checker(**options):
    options = {"clean_scores": clean_scores()} | options
    return ContradictionChecker(KNOWN, Scripted(), embedder=embed, k=2, **options)


@pytest.fixture
def world():
    made = World([QUERY], contradictions=checker())
    made.monitor.record_baseline()
    return made


def printed(shown):
    console = Console(file=io.StringIO(), width=200)
    console.print(shown)
    return console.file.getvalue()


@pytest.mark.slow
def test_a_check_reports_contradictions_of_newcomers_in_all_forms(world):
    assert world.monitor.check().contradictions.n_entries == 0
    world.add(BAD)
    report = world.monitor.check()
    found = report.contradictions.alerts
    assert {alert.entry_id for alert in found} == {*BAD.ids}
    forms = [
        printed(report),
        report.to_html(),
        report._repr_html_(),
        html_report(report),
        markdown(told_of_drift(report)),
    ]
    for form in forms:
        assert form.count(HEADING) == 1
        assert "bad-0 conflicts harbour" in form or "bad-0 conflicts orchard" in form
        assert f"certainly {FALSE}" in form
    assert not any("<b>wrong" in form for form in forms[1:4])
    levels = [one["level"] for one in json.loads(to_sarif(report))["runs"][0]["results"]]
    assert levels == ["warning", *["note"] * 4]
    assert len(json.loads(report.to_json())["contradictions"]["alerts"]) == 4


def test_the_history_has_the_contradictions(world):
    world.add(BAD)
    report = world.monitor.check()
    (again,) = world.monitor.history()
    assert again.contradictions == report.contradictions
    values = again.to_dict()
    del values["contradictions"]  # a check of an earlier version
    assert type(again).from_dict(values).contradictions is None


def test_a_monitor_without_a_checker_compares_nothing():
    made = World([QUERY])
    made.monitor.record_baseline()
    made.add(BAD)
    report = made.monitor.check()
    assert report.contradictions is None
    for form in (printed(report), report.to_html(), report._repr_html_()):
        assert HEADING not in form


def test_a_checker_that_was_not_calibrated_is_refused_at_the_first_check():
    made = World([QUERY], contradictions=ContradictionChecker(KNOWN, Scripted(), embedder=embed))
    made.monitor.record_baseline()
    with pytest.raises(NotFittedError, match="calibrate"):
        made.monitor.check()
    with pytest.raises(TypeError, match=r"contradictions is .*expected a ContradictionChecker"):
        World([QUERY], contradictions="altered copies")


def test_an_embedding_model_that_fails_costs_no_check_of_canaries():
    def fail(_texts):
        raise ConnectionError

    failing = ContradictionChecker(KNOWN, Scripted(), embedder=fail, clean_scores=clean_scores())
    made = World([QUERY], contradictions=failing)
    made.monitor.record_baseline()
    made.add(BAD)
    report = made.monitor.check()
    assert report.flagged
    assert set(report.contradictions.reasons) == {"the embedding model failed: ConnectionError"}
    assert "not compared: the embedding model failed" in printed(report)


def test_vectors_of_the_retriever_serve_where_no_model_embeds():
    made = World(
        [QUERY],
        contradictions=ContradictionChecker(KNOWN, Scripted(), k=2, clean_scores=clean_scores()),
    )
    made.monitor.record_baseline()
    made.add(BAD)
    assert len(made.monitor.check().contradictions.alerts) == 4


def test_alerts_of_scheduled_checks_are_kept_once():
    kept = KeptAlerts(Quarantine("sqlite://"))
    made = World([QUERY], contradictions=checker(kept=kept))
    made.monitor.record_baseline()
    made.add(BAD)
    for _ in range(2):
        assert len(made.monitor.check().contradictions.alerts) == 4
    assert len(kept.list()) == 4
    kept.close(1, by="anna", reason="read")
    assert len(made.monitor.check().contradictions.alerts) == 3


# The command

MODULE = """
from canary_world import embed, knowledge
from ragshield_core.tools.contradictions import Comparison, ContradictionChecker

class Model:
    name = "mine"

    def __call__(self, pairs):
        return [Comparison(0.9 * ("false" in one.claim), one.sentences[0]) for one in pairs]

def checker():
    known = knowledge()
    return ContradictionChecker(known, Model(), embedder=embed).calibrate(known)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_checker.py").write_text(MODULE)
    (tmp_path / "suite.jsonl").write_text(json.dumps({"name": "c", "query": QUERY}))
    write(tmp_path, knowledge())
    assert run("baseline").exit_code == 0
    return tmp_path


def write(folder, entries):
    rows = [
        {"id": one.id, "text": one.text, "embedding": vector.tolist()}
        for one, vector in zip(entries, entries.vectors, strict=True)
    ]
    (folder / "kb.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def arguments(command):
    given = ["--data", "kb.jsonl", "--embedder", "canary_world:embed"]
    return ["canary", command, "suite.jsonl", *given]


def run(command, *options):
    return CliRunner().invoke(app, [*arguments(command), *options])


@pytest.mark.slow
def test_the_command_shows_contradictions_on_request_and_keeps_them(folder):
    write(folder, joined(knowledge(), BAD))
    assert HEADING not in run("check").output
    done = run("check", "--contradictions", "my_checker:checker", "--output", "c.html")
    assert done.exit_code == 1, done.output
    assert f"{HEADING}:" in done.output
    assert "bad-0 conflicts" in done.output
    assert HEADING in (folder / "c.html").read_text()
    shown = CliRunner().invoke(app, ["canary", "report", "suite"])
    assert "bad-0 conflicts" in shown.output
    assert run("check", "--contradictions", "my_checker:Model").exit_code == 2


@pytest.mark.slow
def test_a_check_without_the_option_imports_no_comparison(folder):
    script = (
        f"import sys\nsys.path.append({str(Path(canary_world.__file__).parent)!r})\n"
        "from ragshield_core.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as done:\n    print('CODE', done.code)\n"
        "print('LOADED', [one for one in sys.modules if 'tools.contradictions' in one])"
    )
    del folder
    command = [sys.executable, "-c", script, *arguments("check")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "CODE 0" in done.stdout, done.stderr
    assert "LOADED []" in done.stdout
