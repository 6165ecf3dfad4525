"""``ragshield canary`` on the command line."""

import json
import re

import pytest
from canary_world import embed, joined, knowledge, poison, questions
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


def write(path, batch):
    rows = [
        {"id": e.id, "text": e.text, "embedding": vector.tolist()}
        for e, vector in zip(batch, embed(batch.texts), strict=True)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def poisoned(folder):
    bad = poison(questions()[5], 4)
    write(folder / "kb.jsonl", joined(knowledge(), bad))
    return bad


def run(command, *options):
    options = ["--data", "kb.jsonl", "--embedder", MODEL, *options]
    return CliRunner().invoke(app, ["canary", command, "suite.jsonl", *options])


def test_baseline_then_check_then_drift(folder):
    result = run("baseline")
    assert result.exit_code == 0, result.output
    assert "baseline 1 of suite 'suite': 32 canaries" in result.output
    assert run("check").exit_code == 0
    bad = poisoned(folder)
    result = run("check", "--json", "out.json", "--html", "out.html")
    assert result.exit_code == 1, result.output
    assert "1 of 32 canaries flagged" in result.output
    assert "overlap@k" in result.output
    report = json.loads((folder / "out.json").read_text())
    assert (report["flagged"], report["total"]) == (1, 32)
    assert set(report["canaries"][5]["newcomers"]) == set(bad.ids)
    page = (folder / "out.html").read_text()
    assert page.count("<svg") == 2
    assert not re.search(r"(src|href)=|<script|https?://", page)


def test_trace_and_quarantine(folder):
    run("baseline")
    bad = poisoned(folder)
    result = run("trace", "--json", "trace.json", "--quarantine")
    assert result.exit_code == 1, result.output
    assert set(json.loads((folder / "trace.json").read_text())["suspects"]) == set(bad.ids)
    held = {item.id for item in Quarantine().list()}
    assert held == set(bad.ids)
    assert run("check").exit_code == 0  # what is held is left out
    assert run("trace").exit_code == 0


def test_trace_one_answer_without_a_baseline(folder):
    bad = poisoned(folder)
    result = run("trace", "--query", questions()[5], "--answer", "false0 wrong", "--json", "t.json")
    assert result.exit_code == 1, result.output
    assert set(json.loads((folder / "t.json").read_text())["suspects"]) <= set(bad.ids)


def test_report_of_all_checks(folder):
    run("baseline")
    run("check")
    poisoned(folder)
    run("check")
    options = ["report", "suite", "--html", "r.html", "--json", "r.json"]
    result = CliRunner().invoke(app, ["canary", *options])
    assert result.exit_code == 0, result.output
    flagged = [check["flagged"] for check in json.loads((folder / "r.json").read_text())]
    assert flagged == [0, 1]
    assert "Anomaly over time" in (folder / "r.html").read_text()


def test_hostile_names_are_escaped(folder):
    line = json.dumps({"name": "<script>alert(1)</script>\x1b[2J", "query": questions()[5]})
    (folder / "suite.jsonl").write_text(line, encoding="utf-8")
    run("baseline")
    poisoned(folder)
    result = run("check", "--html", "out.html")
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    page = (folder / "out.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_an_own_retriever_and_answerer(folder):
    (folder / "app_of_mine.py").write_text(
        "from canary_world import knowledge, embed\n"
        "from ragshield_core.canary import MatrixRetriever\n"
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
        (["check", "suite.jsonl", "--retriever", "x:y", "--rule", "mine"], "--rule is"),
        (["trace", "suite.jsonl", "--data", "kb.jsonl", "--query", "q"], "belong together"),
        (["report", "suite"], "was never checked"),
    ],
)
def test_errors_have_a_code_of_their_own(folder, options, said):
    del folder
    result = CliRunner().invoke(app, ["canary", *options])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
