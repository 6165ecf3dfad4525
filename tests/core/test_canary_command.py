"""``ragshield canary`` on the command line."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from canary_world import batch, embed, joined, knowledge, poison, questions
from typer.testing import CliRunner

from ragshield_core import Quarantine
from ragshield_core.cli import app

MODEL = "canary_world:embed"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    canaries = [{"name": f"c{n}", "query": q} for n, q in enumerate(questions())]
    lines = "\n".join(json.dumps(canary) for canary in canaries)
    (tmp_path / "suite.jsonl").write_text(lines, encoding="utf-8")
    write(tmp_path / "kb.jsonl", knowledge())
    return tmp_path


def write(path, entries):
    rows = [
        {"id": e.id, "text": e.text, "embedding": vector.tolist()}
        for e, vector in zip(entries, embed(entries.texts), strict=True)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def poisoned(folder):
    bad = poison(questions()[5], 4)
    write(folder / "kb.jsonl", joined(knowledge(), bad))
    return bad


def run(command, *options):
    options = ["--data", "kb.jsonl", "--embedder", MODEL, *options]
    return CliRunner().invoke(app, ["canary", command, "suite.jsonl", *options])


@pytest.mark.slow
def test_baseline_then_check_then_drift(folder):
    result = run("baseline")
    assert result.exit_code == 0, result.output
    assert "baseline 1 of suite 'suite': 32 canaries" in result.output
    assert run("check").exit_code == 0
    bad = poisoned(folder)
    result = run("check", "--output", "out.json", "--output", "out.html")
    assert result.exit_code == 1, result.output
    assert "1 of 32 canaries flagged" in result.output
    assert "overlap@k" in result.output
    report = json.loads((folder / "out.json").read_text())
    assert (report["flagged"], report["total"]) == (1, 32)
    assert set(report["canaries"][5]["newcomers"]) == set(bad.ids)
    page = (folder / "out.html").read_text()
    assert page.count("Checks, the latest first") == 1
    assert not re.search(r"(src|href)=|<script|https?://", page)


@pytest.mark.slow
def test_check_and_trace_reports_show_texts_and_next_steps(folder):
    run("baseline")
    calm = run("check", "--format", "markdown").output
    assert "**None of 32 watched questions has changed more than growth explains.**" in calm
    bad = poisoned(folder)
    run("check", "--output", "c.html", "--output", "c.md", "--output", "c.sarif")
    page = (folder / "c.html").read_text()
    assert "1 of 32 watched questions has changed more than growth explains." in page
    assert page.index("What to do next") < page.index("to blame (4)") < page.index("Checks, ")
    assert all(text.split(".")[0] in page for text in bad.texts)
    assert "canary trace --quarantine" in (folder / "c.md").read_text()
    (one,) = json.loads((folder / "c.sarif").read_text())["runs"]
    assert [r["ruleId"] for r in one["results"]] == ["canary_drift", *["canary_traceback"] * 4]
    assert one["results"][0]["message"]["text"].startswith("canary c5: ")
    assert "threshold" not in one["results"][0]["properties"]
    result = run("trace", "--output", "t.html", "--format", "sarif")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["runs"][0]["results"]) == 4
    assert (folder / "t.html").read_text().count('class="case"') == 4
    command = ["canary", "report", "suite", "--format", "sarif"]
    (told,) = json.loads(CliRunner().invoke(app, command).stdout)["runs"]
    assert [r["ruleId"] for r in told["results"]] == ["canary_drift"]


@pytest.mark.slow
def test_growth_that_may_hide_a_takeover_is_reported(folder):
    run("baseline")
    assert "may hide a takeover" not in run("check").output
    more = knowledge(seed=7)
    new = batch([(f"new-{i}", text) for i, text in zip(more.ids, more.texts, strict=True)])
    write(folder / "kb.jsonl", joined(knowledge(), new))
    output = " ".join(run("check").output.split())
    assert (
        "growth alone would give 50% of all places to newcomers: so much may hide a takeover"
        in output
    )


@pytest.mark.slow
def test_trace_and_quarantine(folder):
    run("baseline")
    bad = poisoned(folder)
    assert "and 3 more: --limit, or --output suspects.json" in run("trace", "--limit", "1").output
    result = run("trace", "--output", "trace.json", "--quarantine")
    assert result.exit_code == 1, result.output
    assert "more: --limit" not in result.output
    assert "remove them there" in " ".join(result.output.split())
    assert set(json.loads((folder / "trace.json").read_text())["suspects"]) == set(bad.ids)
    held = {item.id for item in Quarantine().list()}
    assert held == set(bad.ids)
    result = run("check")  # held entries are left out, but the file still has them
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "0 of 32 canaries flagged; 4 entries in quarantine are still retrieved" in said
    assert bad.ids[0] in said
    assert run("trace").exit_code == 0
    write(folder / "kb.jsonl", knowledge())
    assert run("check").exit_code == 0


@pytest.mark.slow
def test_trace_one_answer_without_a_baseline(folder):
    bad = poisoned(folder)
    result = run(
        "trace", "--query", questions()[5], "--answer", "false0 wrong", "--output", "t.json"
    )
    assert result.exit_code == 1, result.output
    assert set(json.loads((folder / "t.json").read_text())["suspects"]) <= set(bad.ids)


@pytest.mark.slow
def test_report_of_all_checks(folder):
    run("baseline")
    run("check")
    poisoned(folder)
    run("check")
    options = ["report", "suite", "--output", "r.html", "--output", "r.json"]
    result = CliRunner().invoke(app, ["canary", *options])
    assert result.exit_code == 0, result.output
    flagged = [check["flagged"] for check in json.loads((folder / "r.json").read_text())]
    assert flagged == [0, 1]
    assert "1 of 32" in (folder / "r.html").read_text().partition("Checks, the latest first")[2]


@pytest.mark.slow
def test_hostile_names_are_escaped(folder):
    line = json.dumps({"name": "<script>alert(1)</script>\x1b[2J", "query": questions()[5]})
    (folder / "suite.jsonl").write_text(line, encoding="utf-8")
    run("baseline")
    poisoned(folder)
    result = run("check", "--output", "out.html")
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    page = (folder / "out.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.slow
def test_an_own_retriever_and_answerer(folder):
    (folder / "app_of_mine.py").write_text(
        "from canary_world import knowledge, embed\n"
        "from ragshield_core.tools.canary import MatrixRetriever\n"
        "def make():\n    return MatrixRetriever(knowledge(), embed)\n"
        "def answer(query, texts):\n    return texts[0]\n",
        encoding="utf-8",
    )
    options = ["suite.jsonl", "--retriever", "app_of_mine:make", "--answerer", "app_of_mine:answer"]
    for command in ("baseline", "check"):
        result = CliRunner().invoke(app, ["canary", command, *options])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["check", "suite.jsonl"], "either --data"),
        (["check", "suite.jsonl", "--data", "kb.jsonl", "--embedder", MODEL], "no baseline"),
        (["check", "absent.yaml", "--data", "kb.jsonl"], "absent.yaml"),
        (["check", "suite.jsonl", "--data", "absent.jsonl", "--embedder", MODEL], "does not exist"),
        (["check", "suite.jsonl", "--retriever", "no_such:thing"], "cannot be imported"),
        (["trace", "suite.jsonl", "--data", "kb.jsonl", "--query", "q"], "belong together"),
        (["report", "suite"], "was never checked"),
    ],
)
@pytest.mark.slow
def test_errors_have_a_code_of_their_own(folder, options, said):
    del folder
    result = CliRunner().invoke(app, ["canary", *options])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.slow
def test_a_check_that_compares_nothing_does_not_pass(folder):
    run("baseline")
    renamed = [json.dumps({"name": f"other{n}", "query": q}) for n, q in enumerate(questions())]
    (folder / "suite.jsonl").write_text("\n".join(renamed), encoding="utf-8")
    for command in ("check", "trace"):
        result = run(command)
        assert result.exit_code == 2
        assert "nothing was compared" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["canary", "report", "suite"])
    assert (result.exit_code, "never checked" in " ".join(result.output.split())) == (2, True)
    known = json.dumps({"name": "c0", "query": questions()[0]})
    (folder / "suite.jsonl").write_text("\n".join([known, *renamed]), encoding="utf-8")
    result = run("check")
    assert result.exit_code == 0
    assert "32 are not in the baseline" in result.output


@pytest.mark.slow
def test_a_retriever_that_finds_nothing_does_not_pass(folder):
    (folder / "lost.py").write_text("def find(query):\n    return found\n\nfound = ['x']\n")
    options = ["suite.jsonl", "--retriever", "lost:find"]
    assert CliRunner().invoke(app, ["canary", "baseline", *options]).exit_code == 0
    sys.modules["lost"].found = []
    result = CliRunner().invoke(app, ["canary", "check", *options])
    assert result.exit_code == 2
    assert "nothing is retrieved" in " ".join(result.output.split())


@pytest.mark.slow
def test_an_absent_folder_is_named_before_the_work(folder):
    del folder
    run("baseline")
    for command, ending in [("check", "json"), ("check", "html"), ("trace", "json")]:
        result = run(command, "--output", f"absent/out.{ending}")
        assert result.exit_code == 2
        assert "is not a folder" in " ".join(result.output.split())
    assert CliRunner().invoke(app, ["canary", "report", "suite"]).exit_code == 2  # no check yet


@pytest.mark.slow
def test_trace_against_an_earlier_baseline(folder):
    run("baseline")
    bad = poisoned(folder)
    run("baseline")
    assert run("trace").exit_code == 0
    result = run("trace", "--baseline", "1", "--output", "trace.json")
    assert result.exit_code == 1
    assert set(json.loads((folder / "trace.json").read_text())["suspects"]) == set(bad.ids)
    run("check")
    shown = CliRunner().invoke(app, ["canary", "report", "suite"]).output
    assert len(re.findall(r"baseline \d: \d{4}-\d\d-\d\d \d\d:\d\d UTC", shown)) == 2
    assert run("check", "--baseline", "1").exit_code == 1


@pytest.mark.slow
def test_trace_of_one_answer_since_it_was_right(folder):
    rows = [
        {"id": i, "text": f"{questions()[5]}? It is Vale Royal", "ingested_at": at}
        for i, at in [("old", "2026-01-01"), ("new", "2026-03-01")]
    ]
    rows += [{"id": e.id, "text": e.text} for e in knowledge()]
    vectors = embed([row["text"] for row in rows]).tolist()
    lines = [json.dumps(r | {"embedding": v}) for r, v in zip(rows, vectors, strict=True)]
    (folder / "kb.jsonl").write_text("\n".join(lines), encoding="utf-8")
    asked = ["--query", questions()[5], "--answer", "Vale Royal", "--output", "t.json"]
    run("trace", *asked, "--since", "2026-02-01")
    assert json.loads((folder / "t.json").read_text())["suspects"] == ["new"]


def test_a_retriever_may_import_its_neighbours_when_it_is_asked(folder):
    (folder / "neighbour_of_mine.py").write_text("def find():\n    return ['x']\n")
    (folder / "lazy_app.py").write_text(
        "def find(query):\n    import neighbour_of_mine\n    return neighbour_of_mine.find()\n"
    )
    before = list(sys.path)
    options = ["suite.jsonl", "--retriever", "lazy_app:find"]
    result = CliRunner().invoke(app, ["canary", "baseline", *options])
    assert result.exit_code == 0, result.output
    assert sys.path == before


def test_suite_name_does_not_move_the_vector_cache(folder, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "ragshield_core.tools.canary.command.cached_embedder",
        lambda _name, where: kept.append(where) or SimpleNamespace(chunks=lambda t: [embed(t)]),
    )
    (folder / "named.yaml").write_text("name: ../elsewhere\ncanaries: [what is it]\n")
    (folder / "found.py").write_text("def find(query):\n    return ['x']\n")
    options = ["named.yaml", "--retriever", "found:find", "--embedder", "mine"]
    assert CliRunner().invoke(app, ["canary", "baseline", *options]).exit_code == 0
    assert kept == [Path("named.yaml.ragshield")]
