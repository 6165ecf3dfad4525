"""What is left of cosines, shares and figures, and that nobody sees anything else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import clones_of, group, join, passages

from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    SHARED_PARTS,
    SIZES,
    GroupEvidence,
    K,
    Kin,
)
from ragshield_core.detectors.groups.graph import SimilarityGraph
from ragshield_core.detectors.groups.rounded import COSINES, FIGURES, SHARES

KNOWN = passages(150, 1)
NEW = join(passages(12, 2, "new"), group(4, 3), clones_of(KNOWN[0], 3))


@pytest.mark.parametrize("scale", [COSINES, SHARES, FIGURES])
def test_what_is_left_stands_for_itself(scale):
    values = np.arange(scale.least, scale.most + 1, dtype=np.float32) / np.float32(scale.steps)
    np.testing.assert_array_equal(scale(values), values)


@given(st.floats(0, 1), st.floats(-5.4, 5.4))
def test_little_is_lost(share, figure):
    assert abs(COSINES(share) - share) <= 8e-6
    assert 0.0 <= share - SHARES(share) + 1e-5 <= 1 / 240 + 2e-5
    assert abs(FIGURES(figure) - figure) <= 9e-5


def test_what_is_out_of_reach_is_as_far_as_can_be():
    assert COSINES([-np.inf, -0.5, 1.000001]).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("threshold", [0.35, 0.5, 0.9])
def test_shares_stay_on_their_side_of_a_threshold(threshold):
    shares = [a / b for b in range(1, 400) for a in range(b + 1)]
    shares = np.array(shares, dtype=np.float32)
    np.testing.assert_array_equal(SHARES(shares) >= threshold, shares >= threshold)


def grown(*, rounded, k=6):
    graph = SimilarityGraph(KNOWN.dim, k, rounded=rounded)
    graph.fit(KNOWN.ids, KNOWN)
    for rows in (range(5), range(5, len(NEW))):
        part = NEW.take(rows)
        overlay = graph.overlay(part)
        graph.learn(part.ids, overlay)
        # What an overlay shows is what stays of it.
        kept = graph.lists.take(overlay.numbers)
        for name in ("slots", "similarities", "copied"):
            np.testing.assert_array_equal(getattr(overlay.lists, name), getattr(kept, name))
    graph.remove(NEW.ids[:2])
    return graph


def test_rounded_lists_are_those_of_an_exact_graph_but_for_the_last_digits():
    rounded, exact = grown(rounded=True).lists, grown(rounded=False).lists
    assert (rounded.slots == exact.slots).mean() > 0.99
    same = (rounded.slots == exact.slots) & (exact.slots >= 0)
    near = np.maximum(exact.similarities, 0.0)
    np.testing.assert_allclose(rounded.similarities[same], near[same], atol=8e-6)
    np.testing.assert_allclose(rounded.copied[same], exact.copied[same], atol=1 / 240)
    assert (rounded.similarities[rounded.slots < 0] == -np.inf).all()
    assert (exact.copied > 0.5).any(), "nothing is a copy"


def test_the_reference_rule_goes_by_all_digits():
    for rule, rounded in (("groups", True), ("cleanbase", False)):
        detector = CliqueDetector(rule=rule)
        detector.fit(KNOWN)
        near = detector.state()[1]["graph.similarities"]
        assert (COSINES(near) == near).all() == rounded


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_contrast_of_entries_beyond_an_overlay_is_told_from_their_lists(channel):
    graph = grown(rounded=True, k=K)
    kin = Kin(*np.tile(np.array([0.0, 10.0], np.float32), (2, 1)))
    exempt = np.empty(0, dtype=np.int64)
    whole = graph.part(graph.present)
    raw = GroupEvidence(whole, channel, None, exempt, kin=kin).raw
    everything = {}
    for name in SHARED_PARTS:
        everything[name] = np.zeros((graph.n_slots, len(SIZES)), dtype=np.float32)
        everything[name][whole.numbers] = getattr(raw, name)
        np.testing.assert_array_equal(FIGURES(everything[name]), everything[name])
    kept = {"tight": everything["tight"]}
    some = graph.present[::7]
    told, looked_up = (
        GroupEvidence(graph.part(some), channel, one, exempt, kin=kin).tied(np.s_[:])
        for one in (kept, everything)
    )
    for name in SHARED_PARTS:
        np.testing.assert_array_equal(getattr(told, name), getattr(looked_up, name))
    assert told.tight.any()
