"""Entries that come one by one: members of a held group, its copies, and pages beside it."""

import numpy as np
import pytest
from support import PASSAGE_DIM, passages, prose

from ragshield_core import Batch
from ragshield_core.calibration.arrivals import Arrivals, Counted
from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups.evidence import GroupEvidence
from ragshield_core.detectors.groups.judging import judge
from ragshield_core.model.entries import concatenate
from ragshield_core.model.p_values import JointCalibration
from ragshield_core.model.support import Support

KNOWN = passages(600, 1)


def at_distances(*distances, seed=4):
    """Return entries in other words, each at a given distance from a pair of twins."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(PASSAGE_DIM, len(distances) + 3)))[0].T
    near = np.sqrt(1.0 - 0.02)  # twins are at a distance of .02
    rows = [near * basis[0] + np.sqrt(1.0 - near**2) * basis[i] for i in (1, 2)]
    for number, distance in enumerate(distances):
        towards = (1.0 - distance) / near
        rows.append(towards * basis[0] + np.sqrt(1.0 - towards**2) * basis[3 + number])
    ids = ["twin-0", "twin-1", *(f"later-{i}" for i in range(len(distances)))]
    batch = Batch.of(ids=ids, texts=[prose(rng) for _ in ids], embeddings=rows, lineages=ids)
    return batch.take([0, 1]), [batch.take([row]) for row in range(2, len(ids))]


@pytest.mark.slow
def test_a_member_is_nearer_to_a_held_group_than_to_its_surroundings():
    twins, (member, aside) = at_distances(0.06, 0.5)
    detector, without = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    detector.remember_held(twins)
    # Three times as far as the twins from each other, and all else is far off.
    assert detector.score(member)[0] > without.score(member)[0] + 2.0
    assert detector.score(aside)[0] == pytest.approx(without.score(aside)[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 9])
def test_a_batch_is_judged_again_without_its_suspects_where_that_makes_a_difference(
    seed, monkeypatch
):
    known = CliqueDetector().fit(KNOWN)._known
    twins, others = at_distances(0.03, 0.04, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, seed=seed)
    batch = concatenate([twins, *others, passages(20, 50 + seed, "new")])
    overlay = known.graph.overlay(batch)
    first = judge(known, overlay)
    suspects = np.flatnonzero(first.scores > known.suspicious)
    again = judge(known, overlay, None, (suspects, first))
    assert {5, 6, 7} <= set(suspects.tolist())  # beside the group
    assert again.scores[[6, 7]].max() < known.suspicious < again.scores[:4].min()
    assert (again.why != first.why).any()
    monkeypatch.setattr(GroupEvidence, "changed", lambda _, rows: rows)
    whole = judge(known, overlay, None, (suspects, first))
    np.testing.assert_array_equal(again.scores, whole.scores)
    np.testing.assert_array_equal(again.why, whole.why)


def copies(n, text, seed):
    """Return entries at one place that share a text, each with some words of its own."""
    rng = np.random.default_rng(seed)
    centre = np.linalg.qr(rng.normal(size=(PASSAGE_DIM, n + 1)))[0].T
    ids = [f"copy-{i}" for i in range(n)]
    return Batch.of(
        ids=ids,
        texts=[f"{text} {prose(rng, 3)}" for _ in range(n)],
        embeddings=[np.sqrt(0.97) * centre[0] + np.sqrt(0.03) * centre[1 + i] for i in range(n)],
        lineages=ids,
    )


@pytest.mark.slow
def test_words_copied_from_held_entries_explain_no_resemblance():
    text = prose(np.random.default_rng(9), 12)
    batch = copies(3, text, 5)
    first, last = batch.take([0, 1]), batch.take([2])
    held, admitted = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    held.remember_held(first)
    admitted.learn(first)
    assert held.score(last)[0] > admitted.score(last)[0] + 5.0


@pytest.mark.slow
def test_common_words_still_explain_resemblance_to_held_entries():
    text = prose(np.random.default_rng(9), 12)
    batch = copies(9, text, 5)
    standing, held, last = batch.take(range(6)), batch.take([6, 7]), batch.take([8])
    detector, without = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    for one in (detector, without):
        one.learn(standing)
    detector.remember_held(held)
    assert detector.score(last)[0] < without.score(last)[0] + 2.0


@pytest.mark.slow
def test_held_entries_make_no_group_look_usual():
    # Two texts of an attack, among six of another one that is held, on the same topic.
    rng = np.random.default_rng(6)
    basis = np.linalg.qr(rng.normal(size=(PASSAGE_DIM, 10)))[0].T
    around = [np.sqrt(0.85) * basis[0] + np.sqrt(0.15) * row for row in basis[1:8]]
    pair = [np.sqrt(0.92) * around[-1] + np.sqrt(0.08) * row for row in basis[8:]]
    ids = [*(f"other-{i}" for i in range(6)), "first", "second"]
    texts = [prose(rng) for _ in ids]
    batch = Batch.of(ids=ids, texts=texts, embeddings=[*around[:6], *pair], lineages=ids)
    alone, among = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    among.remember_held(batch.take(range(6)))
    for detector in (alone, among):
        detector.remember_held(batch.take([6]))
    second = batch.take([7])
    assert among.score(second)[0] > alone.score(second)[0] - 1.0


def test_unusual_original_is_recalled_with_its_imitations():
    text = prose(np.random.default_rng(9), 12)
    batch = copies(3, text, 5)
    original, imitations = batch.take([0]), batch.take([1, 2])
    detector = CliqueDetector().fit(KNOWN)
    detector.learn(original)
    condemned = np.ones(2, dtype=np.bool_)
    assert detector.retroactive(imitations, condemned)[0] == []
    assert detector.retroactive(imitations, condemned, {"copy-0"})[0] == ["copy-0"]
    assert detector.retroactive(imitations, ~condemned, {"copy-0"})[0] == []
    detector.trust(["copy-0"])
    assert detector.retroactive(imitations, condemned, {"copy-0"})[0] == []


def test_one_clean_entry_in_fifty_is_unusual():
    rng = np.random.default_rng(0)
    joint = JointCalibration({name: rng.normal(size=2_000) for name in "abc"})
    thresholds = joint.thresholds(0.01, 0.9)
    support = Support(joint, thresholds, joint.ranks(0.01, 0.9)[1])
    later = {name: rng.normal(size=20_000) for name in "abc"}
    alone = {name: np.full(20_000, limit) for name, limit in thresholds.items()}
    assert support.unusual(later, alone).mean() == pytest.approx(0.02, abs=0.005)
    others = {"without a calibration": np.full(3, 9.0)}
    assert support.unusual(others, others).tolist() == [False] * 3


def counted(ids, held):
    return Counted(
        ids=tuple(ids),
        sources=(None,) * len(ids),
        held=np.array(held),
        scores={},
        held_by={},
        at=0.0,
    )


def test_admitted_entries_are_remembered_as_unusual_until_they_come_again():
    arrivals = Arrivals()
    arrivals.note_unusual(counted("abc", [False, True, False]), np.array([True, True, False]))
    assert list(arrivals.unusual) == ["a"]
    again = Arrivals.restored(*arrivals.state())
    assert list(again.unusual) == ["a"]
    again.note_unusual(counted("a", [False]), np.array([False]))
    assert list(again.unusual) == []
