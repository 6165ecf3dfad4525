"""Contradictions in an audit: a section of its report, and no finding."""

import datetime as dt
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from canary_world import batch, joined
from test_contradictions import FALSE, KNOWN, Scripted
from typer.testing import CliRunner

from ragshield_core import Batch
from ragshield_core.cli import app
from ragshield_core.detectors import CliqueDetector, InstructionDetector
from ragshield_core.tools.alerts import HEADING, PER_DAY
from ragshield_core.tools.audit import Parts, scan
from ragshield_core.tools.audit.command import exit_code
from ragshield_core.tools.audit.output import case_report
from ragshield_core.tools.audit.sarif import to_sarif
from ragshield_core.tools.canary import MatrixRetriever
from ragshield_core.tools.case_report import html_page, markdown

FACT = "The keeper of the lantern on the Norrholm rocks is called Ingrid Vestergaard."
HOSTILE = "\x1b[2J <b>bold [x](http://y.z)"
ALTERED = f"{HOSTILE} {FACT.replace('Ingrid Vestergaard', 'Peter Lund')}"
ROWS = [*zip(KNOWN.ids, KNOWN.texts, strict=True), ("fact", FACT), ("altered", ALTERED)]
WHOLE = batch(ROWS)
TRUSTED = WHOLE.ids[:-1]


@pytest.fixture(scope="module")
def reports():
    """An audit without contradictions, and with them."""
    pair = []
    for asked in (None, True):
        options = {"clean_ids": TRUSTED, "contradictions": asked}
        pair.append(scan(WHOLE, [InstructionDetector(), CliqueDetector()], **options))
    return pair


@pytest.mark.slow
def test_an_audit_quotes_both_sides_and_counts_no_attack(reports):
    without, report = reports
    assert without.contradictions is None
    (alert,) = report.contradictions.alerts
    assert (alert.entry_id, alert.passage_id, alert.passage) == ("altered", "fact", FACT)
    assert "Peter Lund" in alert.claim
    for value in ("verdict", "enough", "note", "cases"):
        assert getattr(report, value) == getattr(without, value)
    assert exit_code(report) == exit_code(without) == 0


@pytest.mark.slow
def test_all_forms_have_the_section(reports):
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    for report in reports:
        asked = report.contradictions is not None
        told = case_report(report, "kb", at)
        page, text = html_page(told), markdown(told)
        values, sarif = json.loads(report.to_json()), json.loads(to_sarif(report, "kb"))
        results = sarif["runs"][0]["results"]
        assert [one["level"] for one in results] == ["note"] * asked
        assert ("contradictions" in values) is asked
        for shown in (page, text):
            assert (HEADING in shown) is asked
        if asked:
            assert "\x1b" not in page + text
            assert "<b>bold" not in page
            assert "&lt;b&gt;bold" in page
            assert re.search(r"says: `[^`]*\[x\]\(http://y.z\)[^`]*`", text)  # as code: no link
            for shown in (page, text, results[0]["message"]["text"]):
                assert "Peter Lund" in shown
                assert "Ingrid Vestergaard" in shown
            (alert,) = values["contradictions"]["alerts"]
            assert alert["claim"] == report.contradictions.alerts[0].claim
            assert values["contradictions"]["over_budget"] == 0


@pytest.mark.slow
def test_alerts_beyond_the_budget_are_counted():
    some = batch([(f"bad-{number}", f"{FACT} {FALSE} {number}") for number in range(25)])
    whole = joined(KNOWN, some)
    checked = scan(whole, [], clean_ids=KNOWN.ids, contradictions=Scripted()).contradictions
    more = 4  # two of the 25 contradict each other, which is told once
    assert (len(checked.alerts), len(checked.over_budget)) == (PER_DAY, more)
    assert checked.to_report()["over_budget"] == more
    assert f"20 alerts and {more} beyond the budget" in checked.section().markdown()


@pytest.mark.slow
def test_neighbours_of_the_audit_serve_again(monkeypatch):
    searched = []
    search = MatrixRetriever.search

    def counted(self, queries, vectors, k):
        searched.append(len(queries))
        return search(self, queries, vectors, k)

    monkeypatch.setattr(MatrixRetriever, "search", counted)
    for detectors, n_searches in (([CliqueDetector()], []), ([InstructionDetector()], [202])):
        searched.clear()
        report = scan(WHOLE, detectors, clean_ids=TRUSTED, contradictions=True)
        assert [one.passage_id for one in report.contradictions.alerts] == ["fact"]
        assert searched == n_searches


def test_every_entry_is_compared_once_with_the_model_that_was_given():
    model = Scripted()
    scan(WHOLE, [], clean_ids=TRUSTED, contradictions=model)
    assert len(model.asked) == len(set(model.asked)) > len(WHOLE)


def test_too_few_entries_are_told_and_cost_no_finding():
    report = scan(WHOLE.take(range(50)), [InstructionDetector()], contradictions=True)
    checked = report.contradictions
    assert checked.alerts == ()
    (reason,) = checked.reasons
    assert "50 clean entries were compared, expected at least 99" in reason
    assert checked.reasons[reason] == 50
    assert "50 entries" in checked.section().markdown()
    assert report.enough


def test_a_scan_without_trusted_entries_says_what_alerts_are_worth():
    told = []
    for clean in (None, TRUSTED):
        checked = scan(WHOLE, [], clean_ids=clean, contradictions=Scripted()).contradictions
        told.append("a share of about 0.01 has an alert in a clean knowledge base" in checked.note)
        assert (checked.note in checked.lines()) is told[-1]
        assert checked.note in checked.section().markdown()
    assert told == [True, False]


def test_entries_that_are_not_in_memory_are_refused(tmp_path):
    with pytest.raises(TypeError, match="in place of Parts"):
        scan(Parts(path=tmp_path / "kb.parquet"), [], contradictions=True)
    done = CliRunner().invoke(app, ["scan", str(tmp_path), "--engine", "local", "--contradictions"])
    assert done.exit_code == 2
    assert "--contradictions" in done.output


@pytest.fixture
def data(tmp_path):
    rows = zip(ROWS, WHOLE.vectors.tolist(), strict=True)
    lines = [json.dumps({"id": i, "text": one, "embedding": vector}) for (i, one), vector in rows]
    (tmp_path / "kb.jsonl").write_text("\n".join(lines))
    (tmp_path / "clean.txt").write_text("\n".join(TRUSTED))
    options = ["--clean", str(tmp_path / "clean.txt"), "--detector", "clique"]
    return ["scan", str(tmp_path / "kb.jsonl"), "--work-dir", str(tmp_path), *options]


@pytest.mark.slow
def test_the_command_shows_the_section_on_request(data):
    plain = CliRunner().invoke(app, data)
    assert (plain.exit_code, HEADING in plain.output) == (0, False)
    done = CliRunner().invoke(app, [*data, "--contradictions"])
    assert done.exit_code == 0, done.output
    assert f"{HEADING}:" in done.output
    assert "altered conflicts fact" in done.output
    assert "\x1b" not in done.output
    quiet = CliRunner().invoke(app, [*data, "--contradictions", "--quiet"])
    assert quiet.output == CliRunner().invoke(app, [*data, "--quiet"]).output


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_only_a_scan_with_the_option_imports_the_comparison(data, asked):
    script = (
        "import sys\nfrom ragshield_core.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('LOADED', 'ragshield_core.tools.contradictions.checker' in sys.modules)"
    )
    options = [*data, "--format", "json", *(["--contradictions"] if asked else [])]
    command = [sys.executable, "-c", script, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"LOADED {asked}" in done.stdout, done.stderr


def test_copies_among_the_nearest_take_no_place():
    copies = batch([*ROWS[:-1], *((f"copy-{n}", ALTERED) for n in range(12)), ROWS[-1]])
    near = np.array([[len(copies) - 2 - n for n in range(12)] + [200]] * len(copies))
    report = scan(copies, [Near(near)], clean_ids=TRUSTED, contradictions=True)
    assert "fact" in {one.passage_id for one in report.contradictions.alerts}


class Near(InstructionDetector):
    """A detector that knows the nearest entries."""

    def __init__(self, near):
        super().__init__()
        self.audited_neighbors = near


def test_an_empty_knowledge_base_has_no_contradictions():
    nothing = Batch.of(ids=[], texts=[], embeddings=np.empty((0, 4)))
    assert scan(nothing, [], contradictions=True).contradictions.alerts == ()
