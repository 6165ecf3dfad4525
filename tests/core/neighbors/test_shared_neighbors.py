"""One search per batch: detectors that need neighbours share one index."""

from dataclasses import replace

import numpy as np
import pytest
from support import clones_of, entries, gaussian, guard_of, join, loaded

from ragshield_core.detectors import (
    CliqueDetector,
    GroupDetector,
    LabelModelDetector,
    LabelNeighborDetector,
)
from ragshield_core.neighbors.index import NeighborIndex

KNOWN = replace(gaussian(400, 1, prefix="k"), texts=tuple(f"entry {i}" for i in range(400)))
NEW = replace(gaussian(60, 2, prefix="n"), texts=tuple(f"new {i}" for i in range(60)))
LABELS = ("label_neighbors", "label_model")


def sharing(known=KNOWN):
    # The borrowers first: the order in which they are given must not matter.
    return guard_of(LabelNeighborDetector(), LabelModelDetector(), CliqueDetector()).fit(known)


def alone(known=KNOWN):
    return [guard_of(LabelNeighborDetector()).fit(known), guard_of(LabelModelDetector()).fit(known)]


def same_scores(shared, separate, batch):
    scores = shared.screen(batch).scores
    for guard in separate:
        ((name, expected),) = guard.screen(batch).scores.items()
        np.testing.assert_allclose(scores[name], expected, atol=1e-9)


@pytest.mark.slow
def test_borrowed_neighbours_give_the_same_scores():
    shared, separate = sharing(), alone()
    same_scores(shared, separate, NEW)
    for guard in (shared, *separate):
        guard.learn(NEW)
        guard.forget(KNOWN.take(range(40)))
    same_scores(shared, separate, gaussian(30, 3))
    same_scores(shared, separate, replace(KNOWN.take(range(50, 90)), labels=("ham",) * 40))


@pytest.mark.slow
def test_held_out_scores_are_the_same_as_well():
    shared = sharing()
    for guard in alone():
        (name,) = (detector.name for detector in guard.detectors)
        np.testing.assert_allclose(
            shared.state.calibrator.held_out[name], guard.state.calibrator.held_out[name], atol=1e-6
        )


@pytest.mark.parametrize("unlabelled", [0, 20])
@pytest.mark.slow
def test_a_batch_is_searched_once(monkeypatch, unlabelled):
    # The owner of the index searches first; borrowers reuse its result.
    detectors = (CliqueDetector(), LabelModelDetector(), LabelNeighborDetector())
    guard, searched = guard_of(*detectors).fit(KNOWN), []
    search = NeighborIndex.search
    monkeypatch.setattr(
        NeighborIndex, "search", lambda self, rows, k: searched.append(k) or search(self, rows, k)
    )
    labels = (None,) * unlabelled + NEW.labels[unlabelled:]
    report = guard.screen(replace(NEW, labels=labels))
    assert np.isfinite(report.scores["label_model"]).sum() == len(NEW) - unlabelled
    assert len(searched) == 1


@pytest.mark.slow
def test_borrowers_keep_no_vectors_of_their_own():
    guard = sharing()
    for detector, own in zip(guard.detectors[:2], alone(), strict=True):
        kept, all_of_it = (
            sum(a.nbytes for a in d.state()[1].values()) for d in (detector, *own.detectors)
        )
        assert all_of_it - kept >= KNOWN.vectors.nbytes


@pytest.mark.slow
def test_held_entries_have_no_vote():
    guard = sharing()
    before = guard.screen(NEW.take([0])).scores["label_neighbors"]
    label = "ham" if NEW.labels[0] == "spam" else "spam"
    held = replace(clones_of(NEW[0], 8, "held"), labels=(label,) * 8)
    for detector in guard.detectors:
        if isinstance(detector, GroupDetector):
            detector.remember_held(held)
    after = guard.screen(NEW.take([0])).scores["label_neighbors"]
    np.testing.assert_allclose(after, before)
    guard.writes.forget_held(held.ids)
    guard.learn(held)
    assert guard.screen(NEW.take([0])).scores["label_neighbors"] > before


@pytest.mark.slow
def test_saved_and_loaded_they_still_share(tmp_path):
    guard = sharing()
    guard.save(tmp_path)
    again = loaded(tmp_path)
    for name, scores in guard.screen(NEW).scores.items():
        np.testing.assert_array_equal(again.screen(NEW).scores[name], scores)
    again.learn(NEW)
    guard.learn(NEW)
    batch = gaussian(20, 9)
    for name, scores in guard.screen(batch).scores.items():
        np.testing.assert_allclose(again.screen(batch).scores[name], scores, atol=1e-9)


@pytest.mark.slow
def test_entries_without_a_label_are_known_to_the_index_and_cast_no_vote():
    texts = [f"stranger {i}" for i in range(30)]
    strangers = entries(texts, "x", embeddings=np.repeat(NEW.vectors[:1], 30, axis=0))
    known = join(KNOWN, strangers)
    shared, separate = sharing(known), alone(known)
    same_scores(shared, separate, NEW.take(range(1, 30)))
