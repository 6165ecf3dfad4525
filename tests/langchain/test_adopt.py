"""A store that was filled without a guard gets one."""

import logging

import numpy as np
import pytest
from store_kinds import KINDS
from support import PASSAGE_DIM, CountingEmbeddings, Scripted, group, join, passages

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.errors import CalibrationError, InvalidBatchError
from ragshield_core.store import opening
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

KNOWN = passages(600, 1)
POISON = group(5, 3)


def guard_of(*detectors):
    return Guard(detectors or [CliqueDetector()], quarantine=Quarantine("sqlite://"))


@pytest.fixture
def filled(make_store):
    """Return a function that fills a bare store, without any guard."""

    def fill(kind="memory", batch=KNOWN):
        inner = make_store(kind, CountingEmbeddings(), PASSAGE_DIM)
        access_to(inner).write(batch, [{"source": lineage} for lineage in batch.lineages])
        inner.embeddings.calls.clear()
        return inner

    return fill


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_adopted_guard_knows_and_is_calibrated_on_stored_entries(filled, kind):
    store = GuardedVectorStore.adopt(filled(kind), guard=guard_of(), batch_size=70, progress=False)
    embedded = {text for call in store.embeddings.calls for text in call}
    assert embedded.isdisjoint(KNOWN.texts)  # only groups that are planted to see what is found
    assert sorted(store.guard.writes.known(KNOWN.ids)) == sorted(KNOWN.ids)
    assert store.guard.calibrated
    store.add_embeddings(
        zip(POISON.texts, POISON.vectors.tolist(), strict=True),
        [{"source": lineage} for lineage in POISON.lineages],
        POISON.ids,
    )
    assert store.quarantine.held_ids(POISON.ids) == set(POISON.ids)


@pytest.mark.slow
def test_adopting_a_store_equals_adopting_its_entries_directly(filled):
    store = GuardedVectorStore.adopt(filled(), guard=guard_of(), batch_size=7, progress=False)
    direct = guard_of().adopt(KNOWN)
    assert store.guard.calibration.thresholds == pytest.approx(direct.calibration.thresholds)
    new = join(passages(60, 5, "new"), group(4, 9))
    for name, scores in direct.screen(new).scores.items():
        np.testing.assert_allclose(store.guard.screen(new).scores[name], scores, atol=1e-5)


@pytest.mark.slow
def test_trusted_documents_set_the_threshold(filled):
    store = GuardedVectorStore.adopt(
        filled(), guard=guard_of(), clean_ids=KNOWN.ids, progress=False
    )
    assert store.guard.calibrated
    assert sorted(store.guard.writes.known(KNOWN.ids)) == sorted(KNOWN.ids)
    # Whole documents were held out: thresholds come from those, not from chunks of known ones.
    assert (
        store.guard.calibration.thresholds
        != guard_of().fit(KNOWN).calibrate().calibration.thresholds
    )
    with pytest.raises(CalibrationError, match="pass at least"):
        GuardedVectorStore.adopt(
            filled(), guard=guard_of(), clean_ids=KNOWN.ids[:20], progress=False
        )
    with pytest.raises(InvalidBatchError, match="1 of 2 clean_ids are not in the store"):
        GuardedVectorStore.adopt(
            filled(), guard=guard_of(), clean_ids=[KNOWN.ids[0], "nobody"], progress=False
        )


@pytest.mark.slow
def test_poison_that_is_inside_stays_until_a_scan_takes_it_out(filled):
    inner = filled("faiss", join(KNOWN, POISON))
    store = GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
    assert len(store.get_by_ids(list(POISON.ids))) == 5
    assert set(store.guard.writes.known(POISON.ids)) == set(POISON.ids)
    store.scan(quarantine=True)
    assert store.get_by_ids(list(POISON.ids)) == []
    assert store.guard.writes.known(POISON.ids) == []


def test_a_small_store_starts_collecting(filled, caplog):
    with caplog.at_level(logging.WARNING, "ragshield"):
        store = GuardedVectorStore.adopt(
            filled("memory", KNOWN.take(range(12))), guard=guard_of(), progress=False
        )
    assert not store.guard.calibrated
    assert len(store.guard.writes.known(KNOWN.ids)) == 12
    assert "not calibrated yet: " in caplog.text
    report = store.guard.screen(POISON)
    assert report.admitted.all()
    (skipped,) = report.skipped
    assert skipped.detector == "clique"
    assert skipped.reason.startswith("collecting:")
    assert "1000 entries (12 now)" in skipped.reason


def test_progress_goes_to_standard_error(filled, capsys):
    GuardedVectorStore.adopt(filled(), guard=guard_of(Scripted()))
    captured = capsys.readouterr()
    assert captured.out == ""


def test_a_document_that_cannot_be_judged_is_named(make_store):
    inner = make_store("memory", CountingEmbeddings(), PASSAGE_DIM)
    inner.store["culprit"] = {"id": "culprit", "vector": [0.0] * 4, "text": "x", "metadata": {}}
    with pytest.raises(InvalidBatchError, match="'culprit'"):
        GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)


@pytest.mark.slow
def test_a_restart_learns_nothing_anew(filled, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'guard.db'}"
    inner = filled(batch=KNOWN.take(range(300)))
    fits = []
    learn = opening.learn_store
    monkeypatch.setattr(opening, "learn_store", lambda *args: (fits.append(1), learn(*args)))

    def restarted():
        guard = Guard.open(url, detectors=[CliqueDetector()])
        return GuardedVectorStore.adopt(inner, guard=guard, progress=False)

    store = restarted()
    new = passages(20, 5, "new")
    sources = [{"source": lineage} for lineage in new.lineages]
    store.add_embeddings(zip(new.texts, new.vectors.tolist(), strict=True), sources, new.ids)
    came = [i for i, kept in zip(new.ids, store.last_report.admitted, strict=True) if kept]
    assert came
    again = restarted()  # later entries count as clean no more than before
    assert len(fits) == 1
    assert again.guard.calibration.thresholds == store.guard.calibration.thresholds
    assert set(again.guard.writes.known(new.ids)) == set(came)
    inner.delete(came[:1])
    access_to(inner).write(passages(1, 9, "other"), [{"source": "other"}])
    assert restarted().guard.writes.known(["other-0"])
    assert len(fits) == 2
