"""Shared parts of benchmarks: results that name their code, natural forms, decisions, vectors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import results_files
import run_all
import sources
import vectors
from corpora import from_source
from decisions import arrive, chunks
from label_flipping import flip
from natural import FORMS, natural, question_of, reworded, topic_of
from own_texts import release_notes, tickets
from results_files import UNKNOWN, Parts, code_of, current, deciding_files, fingerprint
from support import gaussian, guard_of

from ragshield_core import Batch
from ragshield_core.detectors import LabelCentroidDetector

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(results_files, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture
def core(tmp_path):
    for name, text in {
        "guard.py": '"""A guard."""\n\n\ndef screen():\n    return 1\n',
        "detectors/rules.json": "[1]",
        "tools/review.py": "PAGE = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("guard.py", '"""Another docstring."""\n\ndef screen():\n    # a remark\n\n    return 1\n'),
        ("tools/review.py", "PAGE = 2\n"),
    ],
)
def test_a_fingerprint_is_of_code_that_decides(core, file, text):
    before = fingerprint(core)
    (core / file).write_text(text)
    assert fingerprint(core) == before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("guard.py", '"""A guard."""\n\n\ndef screen():\n    return 2\n'),
        ("detectors/rules.json", "[2]"),
        ("new.py", "N = 1\n"),
    ],
)
def test_changed_decision_changes_the_fingerprint(core, file, text):
    before = fingerprint(core)
    (core / file).write_text(text)
    assert fingerprint(core) != before


def test_fingerprint_covers_deciding_code_but_not_tools():
    there = {path.relative_to(results_files.CORE).parts[0] for path in deciding_files()}
    assert {"detectors", "text", "calibration", "neighbors", "guard.py", "model"} <= there
    assert not there & {"tools", "quarantine", "store", "cli.py"}


def test_text_that_is_no_docstring_is_code():
    assert code_of('def f():\n    """Say it."""\n    return """a\nb"""\n') == (
        'def f():\n    return """a\nb"""'
    )


@pytest.mark.slow
def test_a_result_names_its_code_once(results):
    results_files.write("new", "# New\n\nfigures\n")
    assert results_files.is_current("new")
    page = (results / "new.md").read_text()
    results_files.write("new", page, codes=["0a", "0b"])
    assert results_files.measured_by("new").codes == ("0a", "0b")
    results_files.write("new", page, partly=True)
    assert results_files.measured_by("new").codes == ("0a", "0b", current())
    assert (results / "new.md").read_text().count("Measured by") == 1
    assert not results_files.is_current("new")


@pytest.mark.slow
def test_result_without_a_fingerprint_is_of_unknown_code(results):
    (results / "old.md").write_text("# Old\n")
    assert results_files.measured_by("old").codes == (UNKNOWN,)
    assert not results_files.is_current("never run")


def test_interrupted_parts_resume_where_they_stopped(results):
    (results / "long.json").write_text('{"a": ["| a |"], "b": ["| b |"]}')
    parts = Parts("long", "# Long", ["a", "b"])
    assert parts.stale() == ["a", "b"]
    parts.put("a", ["| anew |"])
    again = Parts("long", "# Long", ["a", "b"])
    assert again.stale() == ["b"]
    assert again.lines("a") == ["| anew |"]
    assert results_files.measured_by("long").codes == (current(), UNKNOWN)
    assert (results / "long.md").read_text().startswith("# Long\n| anew |\n| b |\n")


@pytest.mark.usefixtures("results")
def test_only_stale_benchmarks_are_run(monkeypatch):
    ran = []
    results_files.write("growth", "# Growth")
    monkeypatch.setattr(run_all, "run", lambda name: ran.append(name) or True)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "growth", "stream"])
    run_all.main()
    assert ran == ["stream"]
    assert all((ROOT / "benchmarks" / script).exists() for script in run_all.SCRIPTS.values())


@pytest.mark.slow
def test_list_option_runs_nothing():
    shown = subprocess.run(
        [sys.executable, "benchmarks/run_all.py", "--list", "--only", "growth"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[1].startswith("growth ")


QUESTION, TEXT = "how many moons has mars", "Mars has three moons"


@pytest.mark.parametrize("form", FORMS)
def test_natural_forms_have_capitals_and_marks(form):
    text = FORMS[form](QUESTION, TEXT)
    assert text != f"{QUESTION}.{TEXT}"
    assert text.endswith("Mars has three moons.")
    if form != "reworded":
        assert "How many moons has mars?" in text


def test_rewordings_differ_and_keep_the_topic():
    assert natural(QUESTION, TEXT) == "How many moons has mars? Mars has three moons."
    assert len({reworded(QUESTION, TEXT, number) for number in range(6)}) == 6
    assert all("mars" in reworded(QUESTION, TEXT, number) for number in range(6))
    assert question_of("Who is it?") == "Who is it?"
    assert topic_of("who wrote emma") == "wrote emma"


@pytest.mark.slow
def test_own_texts_are_many_and_differ():
    for texts in (tickets(200), release_notes(200)):
        assert len(set(texts)) == 200
        assert texts == (tickets(200) if texts[0].startswith("Ticket") else release_notes(200))


def test_sources_are_named_where_batches_have_them():
    batch = from_source(gaussian(4, 0), "site")
    assert getattr(batch, "sources", ("site",) * 4) == ("site",) * 4
    several = from_source(batch, ["a", "b", "c", None])
    assert getattr(several, "sources", ("a", "b", "c", None)) == ("a", "b", "c", None)


def test_an_edit_of_a_year_changes_a_third_and_adds_pages():
    pages = [f"page {number // 4}" for number in range(80)]
    texts = [f"Line one of {n} is long enough to be taken.\nAnd version {n}." for n in range(80)]
    site = Batch.of(
        ids=[f"chunk {n}" for n in range(80)], texts=texts, embeddings=np.eye(80), lineages=pages
    )
    before, after = sources.a_year_later(site, lambda old, _: old.embeddings)
    assert len(before) == 72
    assert after.ids == site.ids
    changed = sum(new != old for new, old in zip(after.texts, site.texts, strict=True))
    assert 20 <= changed <= 24


def test_decisions_of_a_day_are_held_and_recalled():
    messages = gaussian(200, 0, spread=0.3)
    guard = guard_of(LabelCentroidDetector(), quarantine_at=0.05)
    guard.fit(messages.take(range(120))).calibrate()
    batch, flipped = flip(messages.take(range(120, 200)), 0.5, np.random.default_rng(0))
    found = arrive(guard, chunks(batch, 20), messages.take(range(120)))
    assert found.out.shape == (80,)
    assert found.out[flipped].mean() > found.out[~flipped].mean()
    assert [len(part) for part in chunks(batch, 30)] == [30, 30, 20]
    assert [len(part) for part in chunks(batch, None)] == [80]


def test_a_text_is_embedded_once(tmp_path, monkeypatch):
    asked = []
    rows = [{"id": "1", "text": "dddd"}]
    monkeypatch.setattr(vectors, "read_rows", lambda _: rows)
    np.savez(tmp_path / "made.npz", ids=np.array(["1"]), embeddings=np.eye(1, 2))

    class Model:
        def embed(self, texts, on_progress):
            asked.extend(texts)
            on_progress(len(texts))
            return [[float(len(text)), 1.0] for text in texts]

    monkeypatch.setenv(vectors.VARIABLE, str(tmp_path))
    monkeypatch.setattr(vectors, "MiniLM", Model)
    first = vectors.embedded("own", ["a", "bb", "a"])
    again = vectors.embedded("own", ["bb", "ccc"])
    assert asked == ["a", "bb", "ccc"]
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(first[1], again[0])
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv(vectors.VARIABLE, str(tmp_path / "kept"))
    vectors.take_over(tmp_path / "made.npz")
    np.testing.assert_array_equal(vectors.embedded("made", ["dddd"]), np.eye(1, 2))
    assert "dddd" not in asked
