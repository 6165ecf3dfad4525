"""Entries that an update replaces are not evidence against it."""

import numpy as np
import pytest
from support import group, guard_of, join, knowledge_base, passages, saved, topical, vector_of

from ragshield_core import Batch
from ragshield_core.detectors import (
    CanaryDisplacementDetector,
    CliqueDetector,
    LabelModelDetector,
    LabelNeighborDetector,
    TriggerPhraseDetector,
)

PAIR = group(2, 3, spread=0.05)
OLD, NEW = PAIR.take([0]), PAIR.take([1])


@pytest.fixture
def crowd():
    """Return a guard that has learned the old version of a page, and watches it."""
    guard = guard_of(CliqueDetector()).fit(passages(300, 1)).calibrate(fpr=0.05)
    guard.learn(OLD)
    return guard


def test_a_new_version_is_no_group_with_the_one_that_it_replaces(crowd):
    assert crowd.screen(NEW).quarantined
    report = crowd.screen(NEW, replacing=OLD.ids)
    assert not report.quarantined
    assert not report.retroactive
    assert crowd.screen(NEW).quarantined  # again, where it replaces nothing


@pytest.mark.slow
def test_the_old_version_is_not_recalled_with_the_new_one():
    guard = guard_of(CliqueDetector()).fit(passages(300, 1)).calibrate(fpr=0.01)
    four = group(4, 3)
    guard.learn(four.take([0]))
    held = four.take([1])
    guard.hold(guard.screen(held))
    rest = four.take([2, 3])
    assert [d.entry_id for d in guard.screen(rest).retroactive] == [four.ids[0]]
    report = guard.screen(rest, replacing=[four.ids[0]])
    assert len(report.quarantined) == 2  # by each other, and by the held entry
    assert not report.retroactive


def test_screening_a_replacement_changes_no_state(crowd, tmp_path):
    before = saved(crowd, tmp_path / "before")
    crowd.screen(NEW, replacing=OLD.ids)
    assert saved(crowd, tmp_path / "after") == before


def test_unknown_id_replaces_nothing(crowd):
    assert crowd.screen(NEW, replacing=["nowhere", *NEW.ids]).quarantined


def test_phrases_of_replaced_entries_do_not_count():
    def notes(prefix, numbers, phrase=""):
        texts = [f"order {i} has been sent to customer {i}{phrase}" for i in numbers]
        ids = [f"{prefix}{i}" for i in numbers]
        return Batch.of(ids=ids, texts=texts, embeddings=None, lineages=ids)

    guard = guard_of(TriggerPhraseDetector()).fit(notes("kb", range(300)))
    old = notes("old", range(300, 310), " blue heron at noon")
    guard.learn(old)
    new = notes("new", range(300, 301), " blue heron at noon")
    assert guard.screen(new).quarantined
    assert not guard.screen(new, replacing=old.ids).quarantined


@pytest.mark.parametrize("borrowed", [False, True])
@pytest.mark.parametrize("detector", [LabelNeighborDetector, LabelModelDetector])
def test_replaced_entries_have_no_vote(detector, borrowed):
    known = knowledge_base(40)
    others = [CliqueDetector()] if borrowed else []
    guard = guard_of(*others, detector()).fit(known)
    old = topical("billing", 40, prefix="old", label="shipping")
    guard.learn(old)
    new = topical("billing", 3, prefix="new")
    name = guard.detectors[-1].name
    beside, instead = guard.screen(new), guard.screen(new, replacing=old.ids)
    assert (instead.scores[name] < beside.scores[name]).all()


def test_a_new_version_may_take_the_place_of_the_old_one_in_retrieval():
    vector = vector_of("billing")
    guard = guard_of(CanaryDisplacementDetector(["billing"], [vector], k=1))
    old = Batch.of(ids=["old"], texts=["page"], embeddings=[vector + 0.1])
    guard.fit(join(knowledge_base(10), old))
    new = Batch.of(ids=["new"], texts=["page 2"], embeddings=[vector])
    np.testing.assert_allclose(guard.screen(new).scores["canary_displacement"], [1.0])
    replaced = guard.screen(new, replacing=["old"])
    np.testing.assert_allclose(replaced.scores["canary_displacement"], [0.0])
