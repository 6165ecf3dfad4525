"""The audit of a whole knowledge base, from Python and from the command line."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support import CountingEmbeddings, Scripted, knowledge_base, scored, topical
from typer.testing import CliRunner

from ragshield_core import Batch, Quarantine, Verdict
from ragshield_core.cli import app
from ragshield_core.detectors import (
    Evidence,
    LabelCentroidDetector,
    Need,
)
from ragshield_core.detectors.base import Audits
from ragshield_core.model.errors import CalibrationError, InvalidBatchError
from ragshield_core.model.findings import finding_to_dict
from ragshield_core.tools.audit import command as scan_command
from ragshield_core.tools.audit import scan
from ragshield_core.tools.audit.embedding_cache import CHUNK_TEXTS
from ragshield_core.tools.audit.judging import EXTREME
from ragshield_core.tools.rules import Rules


class Told(Scripted, Audits):
    """Reads its audit score out of the text; NaN is no opinion."""

    def __init__(self, name="told", *, threshold=1.0, crash=None):
        super().__init__(name)
        self.threshold = threshold
        self.crash = crash
        self.asked = []

    def audit(self, entries, seed=0):
        self.asked.append(seed)
        if self.crash == "audit":
            message = f"hostile: {entries.texts[0]}"
            raise RuntimeError(message)
        return self.score(entries)

    def audit_threshold(self, fpr):
        self.asked.append(fpr)
        return self.threshold

    def explain_audit(self, entries, rows):
        if self.crash == "explain":
            raise RuntimeError
        return [
            Evidence(sentence=f"row {row} of {len(entries)}", related_ids=("=a",)) for row in rows
        ]


def uniform(n, *, high=(), seed=3):
    """Return entries with scores in [0, 1), and then some higher ones."""
    scores = np.random.default_rng(seed).uniform(size=n).round(6)
    return scored([*scores.tolist(), *high])


def test_findings_come_worst_first_with_their_evidence():
    batch = scored([0.1, 5.0, 0.2, 9.0, 1.0])
    report = scan(batch, [Told()])
    assert [d.entry_id for d in report.found] == ["s3", "s1"]
    assert [d.verdict for d in report.found] == [Verdict.QUARANTINE] * 2
    (finding,) = report.found[0].findings
    assert (finding.score, finding.threshold, finding.p_value) == (9.0, pytest.approx(1.0), None)
    assert finding.evidence == "row 3 of 5"
    assert report.admitted.tolist() == [True, False, True, False, True]
    assert report.scores["told"].tolist() == [0.1, 5.0, 0.2, 9.0, 1.0]
    assert report.timings["told"] > 0


def test_an_estimate_that_finds_too_much_gives_way_to_the_accepted_rate():
    """The detector takes a fifth of these pages for poison, and forty others beyond doubt."""

    class Estimating(Told):
        def audit_threshold(self, fpr):
            return 5.0 if fpr == EXTREME else 0.8

    report = scan(uniform(2_000, high=[9.0] * 40), [Estimating()], fpr=0.02, seed=11)
    assert {d.entry_id for d in report.found} >= {f"s{i}" for i in range(2_000, 2_040)}
    assert 0 < len(report.found) - 40 <= 0.02 * 2_000
    few = scan(uniform(90), [Estimating()], fpr=0.02)  # a person looks through a few in any case
    assert len(few.found) == sum(few.scores["told"] > 0.8) > 0.02 * 90
    assert all(d.findings[0].p_value is None for d in report.found)  # nobody vouches for them
    assert report.n_clean == 0
    assert "much poison" in report.note  # more than the rate, since some is beyond doubt
    assert report.note in rendered(report)
    clean = scan(uniform(2_000), [Estimating()], fpr=0.02)
    assert 0 < len(clean.found) <= 0.02 * 2_000
    assert "Thresholds come from the knowledge base itself" in clean.note


def test_too_few_entries_are_judged_by_estimates():
    detector = Told()
    scan(uniform(40), [detector], fpr=0.02, seed=11)
    assert detector.asked[0] == 11
    assert 0.02 in detector.asked
    both = [Told("one"), Told("two")]
    scan(uniform(40), both, fpr=0.02)
    assert all(0.01 in detector.asked for detector in both)  # they share the rate


def test_trusted_entries_never_raise_a_threshold():
    """If a few trusted entries happen to score high, the whole store is the better sample."""
    scores = np.random.default_rng(5).uniform(size=4_000) / 2
    scores[:200:20] = 0.9999  # ten of the 200 trusted ones
    batch = scored([*scores.round(6).tolist(), *[0.9998] * 3])
    without = scan(batch, [Told(threshold=0.7)], fpr=0.01)
    with_trusted = scan(batch, [Told(threshold=0.7)], fpr=0.01, clean_ids=batch.ids[:200])
    assert with_trusted.thresholds["told"] <= without.thresholds["told"]
    assert {f"s{i}" for i in range(4_000, 4_003)} <= {d.entry_id for d in with_trusted.found}
    assert not {d.entry_id for d in with_trusted.found} & {*batch.ids[:200]}


def test_detectors_with_default_thresholds_are_named():
    batch = knowledge_base(20)
    report = scan(batch, [Told(), LabelCentroidDetector()])
    assert report.by_rule == ("label_centroid",)
    assert "Default thresholds are in force for label_centroid, whatever the rate" in report.note
    trusted = scan(batch, [LabelCentroidDetector()], fpr=0.05, clean_ids=batch.ids[:40])
    assert trusted.by_rule == ()
    assert "Default thresholds" not in trusted.note
    # Trusted entries say nothing about a detector that cannot be compared with them.
    by_rule = LabelCentroidDetector(level="batch")
    trusted = scan(batch, [Told(), by_rule], fpr=0.05, clean_ids=batch.ids[:40])
    assert trusted.by_rule == (by_rule.name,)
    assert f"Default thresholds are in force for {by_rule.name}" in trusted.note


def test_thresholds_from_trusted_entries_keep_the_rate():
    batch = uniform(20_000, high=[2.0] * 20)
    clean = batch.ids[:2000]
    report = scan(batch, [Told(threshold=-1.0)], fpr=0.05, clean_ids=clean)
    found = {d.entry_id for d in report.found}
    assert found >= set(batch.ids[-20:])
    assert not found & set(clean)
    false = (len(found) - 20) / 18_000
    assert 0.03 < false <= 0.055  # a little stricter than 0.05 in nine draws of ten
    p_values = [d.findings[0].p_value for d in report.found]
    assert p_values[0] == pytest.approx(1 / 2001)
    assert max(p_values) <= 0.05
    assert p_values == sorted(p_values)
    assert "Thresholds from 2000 trusted entries" in report.note


def test_trusted_entries_that_are_too_few_or_not_there_are_refused():
    batch = uniform(500)
    with pytest.raises(CalibrationError, match=r"told together.*98 .*pass at least 99"):
        scan(batch, [Told()], clean_ids=batch.ids[:98])
    assert scan(batch, [Told()], clean_ids=batch.ids[:99]).n_clean == 99
    with pytest.raises(InvalidBatchError, match=r"1 of 101 trusted ids .*'stranger'"):
        scan(batch, [Told()], clean_ids=[*batch.ids[:100], "stranger"])


def test_a_detector_that_judged_too_few_trusted_entries_is_set_aside():
    batch = uniform(300, high=[float("nan")] * 100)
    other = Told("other")
    other.score = lambda entries: np.where(np.arange(len(entries)) < 295, np.nan, 3.0)
    clean = batch.ids[:200]
    report = scan(batch, [Told(), other], clean_ids=clean)
    assert [s.detector for s in report.skipped] == ["other"]
    assert "none of the trusted" in report.skipped[0].reason
    with pytest.raises(CalibrationError, match="trusted entries can be judged by other"):
        scan(batch, [other], clean_ids=clean)
    report = scan(batch, [Told(), other], clean_ids=[*clean[:198], *batch.ids[298:300]])
    assert [(s.detector, s.reason) for s in report.skipped] == [
        ("other", "not calibrated: it could judge 2 of the trusted entries, too few")
    ]
    assert set(report.thresholds) == set(report.scores) == {"told"}


def test_detectors_whose_needs_are_missing_are_skipped_and_named():
    class Asks(Told):
        needs = frozenset({Need.QUERY})

    blind = Told("blind")
    blind.score = lambda entries: np.full(len(entries), np.nan)
    blind.unjudged = lambda entries: dict.fromkeys(range(len(entries)), "too few")
    report = scan(uniform(30), [LabelCentroidDetector(), Asks("asks"), blind, Told()])
    reasons = {s.detector: s.reason for s in report.skipped}
    assert reasons == {
        "label_centroid": "needs labels, and no entry has one",
        "asks": "needs queries, and an audit has none",
        "blind": "it could judge none of the entries: too few",
    }
    assert set(report.scores) == {"told"}
    assert report.failed == ()
    report = scan(scored([0.5, float("nan"), 3.0]), [Told()])
    assert [d.entry_id for d in report.found] == ["s2"]
    assert report.summary() == (
        "3 entries audited, 1 of them judged by no detector: 1 found suspicious"
    )


def test_a_crash_costs_one_detector_and_never_shows_the_text():
    batch = scored([9.0, 0.0])
    report = scan(batch, [Told("broken", crash="audit"), Told()])
    assert report.failed == ("broken",)
    assert "the detector failed with RuntimeError at test_scan.py" in report.skipped[0].reason
    assert "hostile" not in report.skipped[0].reason
    assert [d.entry_id for d in report.found] == ["s0"]
    report = scan(batch, [Told(crash="explain")])
    assert "RuntimeError while explaining" in report.found[0].findings[0].evidence
    for scores in ([0.0], [0.0, np.inf]):  # of the wrong shape, or no numbers
        detector = Told()
        detector.score = lambda _entries, scores=scores: np.array(scores)
        assert scan(batch, [detector]).failed == ("told",)


def test_empty_audit_is_reported_and_is_not_a_pass():
    report = scan(uniform(10), [LabelCentroidDetector()])
    assert not report.audited
    assert report.note == "Nothing was audited: every detector was skipped."
    assert scan(uniform(0), [Told()]).found == ()


def test_detectors_of_different_units_are_ranked_by_how_rare_their_scores_are():
    batch = scored([0.0] * 100)
    often, rare = Told("often", threshold=100.0), Told("rare", threshold=0.01)
    often.score = lambda entries: np.where(np.arange(len(entries)) < 50, 999.0, 0.0)
    rare.score = lambda entries: np.where(np.arange(len(entries)) == 49, 0.02, 0.0)
    report = scan(batch, [often, rare])
    assert report.found[0].entry_id == "s49"
    assert report.strongest(report.found[0]).detector == "rare"
    assert len(report.found) == 50


def test_json_is_strict_and_holds_no_text():
    batch = scored([5.0, 0.0])
    report = scan(batch, [Told()])
    content = json.loads(report.to_json())
    (found,) = content["findings"]
    assert found["entry_id"] == "s0"
    assert found["findings"] == [
        json.loads(json.dumps(finding_to_dict(report.found[0].findings[0])))
    ]
    assert content["entries"] == 2
    assert content["calibrated"] is False
    assert batch.texts[0] not in report.to_json()
    endless = scan(batch, [Told(threshold=float("inf"))])
    assert json.loads(endless.to_json())["thresholds"] == {"told": None}


def planted(n=400, size=5, dim=32):
    """Return random entries and one group that is alike in meaning and not in wording."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(n + size, dim))
    vectors[n:] = vectors[n] + rng.normal(scale=0.15, size=(size, dim))
    texts = [" ".join(rng.choice(list("abcdefghijklmnopq"), 12)) for _ in range(n + size)]
    ids = [f"e{i}" for i in range(n)] + [f"bad{i}" for i in range(size)]
    return Batch.of(ids=ids, texts=texts, embeddings=vectors)


# The command line

HOSTILE = "=cmd|'/c calc'!A1\x1b[2J[bold]"


def rendered(shown):
    console = Console(file=io.StringIO(), width=300, color_system=None)
    console.print(shown)
    return console.file.getvalue()


@pytest.fixture
def told(monkeypatch):
    """Have the command line use one detector that reads scores out of texts."""
    settings = {}
    registry = "ragshield_core.detectors.registry"
    monkeypatch.setattr(f"{registry}.built_in_detectors", lambda: ([Told(**settings)], []))
    monkeypatch.setattr(f"{registry}.detector_class", lambda _kind: lambda: Told(**settings))
    monkeypatch.setattr(scan_command, "console", Console(width=300))
    return settings


@pytest.fixture
def kb(tmp_path):
    """Return a function that writes entries as JSON Lines."""

    def write(scores, *, ids=None, vectors=True, name="kb.jsonl"):
        rows = [
            {"id": entry_id, "text": f"secret score={score}", "source": "doc", "page": 1}
            | ({"embedding": [3.0, 4.0]} if vectors else {})
            for entry_id, score in zip(
                ids or [f"e{i}" for i in range(len(scores))], scores, strict=True
            )
        ]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def run(*arguments):
    return CliRunner().invoke(app, ["scan", *map(str, arguments)])


@pytest.mark.slow
def test_exit_codes(kb, told):
    assert run(kb([0.0, 0.5])).exit_code == 0
    assert run(kb([0.0, 5.0])).exit_code == 1
    assert run(kb([0.0, 5.0]), "--fpr", "1.5").exit_code == 2
    assert run("/nowhere.jsonl").exit_code == 2
    told["crash"] = "audit"
    crashed = run(kb([0.0, 5.0]))
    assert crashed.exit_code == 3
    assert "Nothing was found, but not enough was judged" in crashed.stdout


def test_a_knowledge_base_too_small_for_a_detector_is_not_said_to_be_clean(kb):
    result = run(kb([0.0]))
    assert result.exit_code == 3
    assert "not enough was judged of 1 entries" in result.stdout


def test_a_crash_of_our_own_has_not_the_exit_code_of_a_finding(kb, told, monkeypatch):  # noqa: ARG001
    def broken(*_, **__):
        message = "out of \x1b luck"
        raise ZeroDivisionError(message)

    monkeypatch.setattr("ragshield_core.tools.audit.audit.scan", broken)
    result = run(kb([0.0]))
    assert result.exit_code == 2
    assert "ZeroDivisionError at test_scan.py" in result.stderr
    assert "\x1b luck" not in result.stderr


@pytest.mark.slow
def test_the_real_detectors(tmp_path, monkeypatch):
    batch, path = planted(), tmp_path / "kb.parquet"
    monkeypatch.setattr(scan_command, "console", Console(width=300))
    columns = {"id": batch.ids, "text": batch.texts, "embedding": batch.vectors.tolist()}
    pq.write_table(pa.table(columns), path)
    result = run(path, "--output", tmp_path / "out.json")
    assert result.exit_code == 1
    assert "skipped label_centroid: needs labels" in result.stdout
    assert "suspected attacks found in 7 of 405 entries: 1 critical" in result.stdout
    findings = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert {f["entry_id"] for f in findings[:5]} == {f"bad{i}" for i in range(5)}
    assert not (tmp_path / "kb.parquet.ragshield").exists()
    assert run(path, "--detector", "label_centroid").exit_code == 3  # it was not looked at
    unknown = run(path, "--detector", "nonsense")
    assert unknown.exit_code == 2
    assert "no detector of kind 'nonsense'" in unknown.stderr


def test_the_table_is_limited_and_escaped(kb, told):  # noqa: ARG001
    result = run(kb([9.0, 8.0, 7.0], ids=[HOSTILE, "second", "third"]), "--limit", "2")
    assert "=cmd|'/c calc'!A1\\u{1b}[2J[bold]" in result.stdout
    assert "second" in result.stdout
    assert "third" not in result.stdout
    assert "and 1 more" in result.stdout
    assert "told suspects an entry: secret score=9.0" in result.stdout
    assert "\x1b[2J" not in result.stdout + result.stderr
    as_json = run(kb([9.0], ids=[HOSTILE]), "--format", "json").stdout
    assert [one["entry_id"] for one in json.loads(as_json)["findings"]] == [HOSTILE]


def test_sarif_names_entries_and_detectors_and_keeps_a_finding_the_same(kb, told, tmp_path):
    def written(scores, ids):
        run(kb(scores, ids=ids), "--output", tmp_path / "out.sarif")
        content = (tmp_path / "out.sarif").read_text(encoding="utf-8")
        assert "secret" not in content
        assert "\\u001b" not in content
        assert "\x1b" not in content
        document = json.loads(content)
        assert document["version"] == "2.1.0"
        (audit,) = document["runs"]
        rules = audit["tool"]["driver"]["rules"]
        for result in audit["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            assert place.endswith(".jsonl")
            assert " " not in place
        return audit

    first = written([0.0, 9.0, 8.0], ["fine", HOSTILE, "second"])
    assert first["invocations"][0]["executionSuccessful"] is True
    assert [r["properties"]["score"] for r in first["results"]] == [9.0, 8.0]
    assert "=cmd" in first["results"][0]["message"]["text"]
    marks = [r["partialFingerprints"]["detectorAndEntry/v1"] for r in first["results"]]
    assert len(set(marks)) == 2
    later = written([0.0, 3.0, 7.0], ["fine", HOSTILE, "second"])
    assert {r["partialFingerprints"]["detectorAndEntry/v1"] for r in later["results"]} == set(marks)
    told["crash"] = "audit"
    failed = written([0.0, 9.0], ["fine", "second"])["invocations"][0]
    assert failed["executionSuccessful"] is False
    assert "error" in {note["level"] for note in failed["toolExecutionNotifications"]}


def test_trusted_ids_from_a_file(kb, told, tmp_path):  # noqa: ARG001
    path, clean = kb([*np.linspace(0, 0.9, 300).tolist(), 3.0]), tmp_path / "clean.txt"
    clean.write_text("".join(f"e{i}\n" for i in range(0, 300, 2)))
    content = json.loads(run(path, "--clean", clean, "--format", "json").stdout)
    assert content["trusted_entries"] == 150
    assert content["findings"][0]["findings"][0]["p_value"] == pytest.approx(1 / 151)
    clean.write_text("e0\ne1\n")
    result = run(path, "--clean", clean)
    assert result.exit_code == 2
    assert "pass at least 99" in result.stderr


@pytest.mark.slow
def test_only_the_flag_puts_findings_into_quarantine(kb, told, tmp_path, monkeypatch):  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'held.db'}"
    path = kb([0.0, 9.0])
    assert run(path).exit_code == 1
    assert not list(tmp_path.glob("*.db"))
    result = run(path, "--quarantine", "--database", url)
    assert result.exit_code == 1
    assert "1 entries are in quarantine" in result.stderr
    quarantine = Quarantine(url)
    (held,) = quarantine.list()
    assert (held.id, held.entry.lineage, held.held_by) == ("e1", "doc", "ragshield scan")
    assert dict(held.entry.metadata) == {"source": "doc", "page": 1}
    np.testing.assert_allclose(held.vector, [3.0, 4.0], rtol=1e-6)
    assert held.findings[0].evidence == "row 1 of 2"
    quarantine.release(["e1"])
    assert run(path, "--quarantine", "--database", url).exit_code == 0  # a person has decided
    assert quarantine.count() == 0


@pytest.mark.slow
def test_findings_excused_by_rules_are_not_quarantined(kb, told, tmp_path):  # noqa: ARG001
    quarantine = Quarantine(f"sqlite:///{tmp_path / 'held.db'}")
    rules = Rules(quarantine)
    how = {"reason": "ours", "by": "anna", "expires_at": "never"}
    other = rules.add("another", **how)
    path = kb([0.0, 9.0])
    result = run(path, "--quarantine", "--database", quarantine.database.url)
    assert (result.exit_code, quarantine.count()) == (1, 1)
    quarantine.purge(["e1"])
    rules.revoke(other.number, by="anna", reason="wrong")
    rules.add("doc", **how)
    assert run(path).exit_code == 1  # a scan that holds nothing lists all that it finds
    result = run(path, "--quarantine", "--database", quarantine.database.url)
    assert (result.exit_code, quarantine.count()) == (0, 0)
    assert "1 entries are excused by rules" in result.stderr
    copy = Batch.of(
        ids=["e1"], texts=["secret score=9.0"], embeddings=[[3.0, 4.0]], lineages=["doc"]
    )
    quarantine.hold(copy, by="anna")
    quarantine.confirm(["e1"])
    result = run(path, "--quarantine", "--database", quarantine.database.url)
    assert "excused" not in result.stdout + result.stderr  # confirmed entries are not excused


@pytest.mark.slow
def test_unwritable_output_is_an_error_before_the_scan(kb, told, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr("ragshield_core.tools.audit.knowledge_base.load", None)
    for name in ("out.json", "out.sarif", "out.html", "out.md"):
        result = run(kb([9.0]), "--output", f"/nowhere/{name}")
        assert result.exit_code == 2
        assert "/nowhere is not a folder" in result.stderr
    assert run(kb([9.0]), "--quarantine", "--database", "no/such/folder.db").exit_code == 2


# Embedding from the command line


class Failing(CountingEmbeddings):
    def embed_documents(self, texts):
        if len(self.calls) == 1:
            raise OSError
        return super().embed_documents(texts)


@pytest.fixture
def models(monkeypatch):
    """Return the installed models by name: functions that return an embedder."""
    installed = {}

    def points(group):
        assert group == "ragshield.embedders"
        return [
            SimpleNamespace(name=name, value=f"package:{name}", load=lambda m=model: lambda: m)
            for name, model in installed.items()
        ]

    monkeypatch.setattr(scan_command, "entry_points", points)
    return installed


def test_texts_are_embedded_and_an_interrupted_scan_goes_on(
    kb,
    told,  # noqa: ARG001
    models,
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    path = kb(np.linspace(0, 0.9, 2 * CHUNK_TEXTS).tolist(), vectors=False)
    failing, whole = Failing(), CountingEmbeddings()
    models["minilm"] = failing.embed_documents
    assert run(path).exit_code == 2
    models["minilm"] = whole.embed_documents
    assert run(path).exit_code == 0
    assert len(failing.texts) + len(whole.texts) == 2 * CHUNK_TEXTS


def test_work_dir_and_embedder_can_be_chosen(kb, told, models, tmp_path):  # noqa: ARG001
    models["mine"] = CountingEmbeddings().embed_documents
    work = tmp_path / "work"
    assert run(kb([0.5], vectors=False), "--embedder", "mine", "--work-dir", work).exit_code == 0
    assert len(list(work.glob("*.sqlite"))) == 1
    assert not (tmp_path / "kb.jsonl.ragshield").exists()
    result = run(kb([0.5], vectors=False))
    assert result.exit_code == 2
    assert "ragshield[langchain,minilm]" in " ".join(result.stderr.split())


def test_columns_by_option(tmp_path, told, monkeypatch):  # noqa: ARG001
    seen = []
    monkeypatch.setattr(
        "ragshield_core.tools.audit.audit.scan", lambda batch, *_, **__: seen.append(batch)
    )
    row = {"key": "a", "body": "x", "kind": "k", "doc": "d", "v": [1.0]}
    (tmp_path / "kb.jsonl").write_text(json.dumps(row))
    names = {"id": "key", "text": "body", "label": "kind", "lineage": "doc", "embedding": "v"}
    options = [part for role, name in names.items() for part in (f"--{role}-column", name)]
    run(tmp_path / "kb.jsonl", *options)
    (entry,) = seen[0]
    assert (entry.id, entry.text, entry.label, entry.lineage) == ("a", "x", "k", "d")


def test_a_report_shows_itself_worst_first():
    report = scan(topical("billing", 3), [Told(threshold=-2.0)])
    assert "kb-billing-0" in rendered(report)
    assert "3 entries audited: 3 found suspicious" in rendered(report)
    page = report._repr_html_()
    heads = re.findall("<th>(.*?)</th>", page)
    for row in page.split("<tr>")[2:]:
        cells = dict(zip(heads, re.findall("<td>(.*?)</td>", row), strict=True))
        assert (cells["verdict"], cells["found by"], cells["p"]) == ("quarantine", "told", "")
        assert float(cells["score"]) > float(cells["threshold"])
