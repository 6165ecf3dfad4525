"""Entries without vectors: text is judged, and detectors that need vectors are skipped by name."""

from dataclasses import replace

import pytest
from support import Scripted, guard_of, knowledge_base, scored

from ragshield_core import Batch
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.quarantine import batches_of

KNOWN = knowledge_base(12)


def bare(scores, prefix="s"):
    batch = scored(scores, prefix)
    return Batch.of(ids=batch.ids, texts=batch.texts, embeddings=None, labels=["a"] * len(batch))


@pytest.fixture
def guard():
    return guard_of(LabelCentroidDetector(), Scripted()).fit(KNOWN)


def test_a_batch_without_vectors_has_no_dimension():
    batch = bare([0.1, 0.2])
    assert (batch.dim, batch.embeddings.shape) == (0, (2, 0))
    assert batch.take([1]).dim == 0
    assert batch[0].embedding.size == 0


def test_detectors_that_need_vectors_are_skipped_by_name_and_others_judge(guard):
    report = guard.screen(bare([-0.5, 0.5]))
    assert [skipped.detector for skipped in report.skipped] == ["label_centroid"]
    assert "vectors" in report.skipped[0].reason
    assert [decision.entry_id for decision in report.quarantined] == ["s1"]


def test_release_puts_entries_without_vectors_in_their_own_batch(guard):
    flipped = replace(KNOWN.take([0]), ids=("wrong",), labels=("shipping",))
    guard.hold(guard.screen(bare([0.5])))
    guard.hold(guard.screen(flipped))
    given = batches_of(guard.quarantine.release(["s0", "wrong"]))
    assert [(batch.ids, batch.dim) for batch in given] == [(("wrong",), 12), (("s0",), 0)]


def test_detectors_that_need_vectors_cannot_learn_without_them(guard):
    with pytest.raises(InvalidBatchError, match=r"'s0' has no vector.*label_centroid"):
        guard.learn(bare([0.1]))
    with pytest.raises(InvalidBatchError, match="no vector"):
        guard.fit(bare([0.1]))


def test_text_only_guard_needs_no_vectors():
    guard = guard_of(Scripted())
    guard.fit(bare([-0.01 * i for i in range(200)], "k")).calibrate(fpr=0.05)
    report = guard.hold(guard.screen(bare([-5.0, 5.0])))
    guard.admit(report)
    assert [decision.entry_id for decision in report.quarantined] == ["s1"]
    assert guard.writes.known(["s0", "s1"]) == ["s0"]
