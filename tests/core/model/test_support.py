"""Suspicions of several detectors add up: rates, limits, and verdicts of a guard."""

from unittest import mock

import numpy as np
import pytest
from support import Scripted, guard_of, loaded

from ragshield_core import Batch, Verdict
from ragshield_core.detectors.base import Traits
from ragshield_core.model.p_values import JointCalibration
from ragshield_core.model.support import SUPPORTS, Support

NAMES = "abcdef"
RNG = np.random.default_rng(0)


def drawn(n, alike, rng):
    """Return scores of six more or less correlated detectors."""
    common = rng.normal(size=n)
    own = np.sqrt(1 - alike**2)
    return {name: alike * common + own * rng.normal(size=n) for name in NAMES}


def found(support, thresholds, scores):
    """Return the entries found by one detector, and those found by several together."""
    n = len(next(iter(scores.values())))
    alone = {name: np.full(n, threshold) for name, threshold in thresholds.items()}
    limits = support.limits(scores, alone)
    by_one = np.any([scores[name] > alone[name] for name in alone], axis=0)
    above = np.array([scores[name] > limits[name] for name in alone])
    return by_one, above


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("n", [300, 2_000])
@pytest.mark.slow
def test_the_rate_is_kept_however_alike_detectors_are(alike, n):
    held = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        joint = JointCalibration(drawn(n, alike, rng))
        thresholds = joint.thresholds(0.02, 0.5)
        support = Support(joint, thresholds, joint.ranks(0.02, 0.5)[1])
        by_one, above = found(support, thresholds, drawn(4_000, alike, rng))
        held.append((by_one | above.any(axis=0)).mean())
    assert np.mean(held) == pytest.approx(0.02, abs=0.004)


def test_two_weak_suspicions_together_find_an_entry():
    joint = JointCalibration(drawn(2_000, 0.0, RNG))
    thresholds = joint.thresholds(0.01, 0.9)
    support = Support(joint, thresholds, joint.ranks(0.01, 0.9)[1])
    attacks = {name: np.full(3, -1.0) for name in NAMES}
    attacks["a"][:] = np.sort(joint.scores["a"])[-12]  # twelve of 2,000 clean entries reach it
    attacks["b"][1] = np.sort(joint.scores["b"])[-12]
    attacks["b"][2] = np.nan
    by_one, above = found(support, thresholds, attacks)
    assert not by_one.any()
    assert above[:2].tolist() == [[False, True, False]] * 2  # both say so of the second
    assert not above[2:].any()


def test_a_score_up_to_the_floor_supports_nothing():
    scores = {name: RNG.normal(size=1_000) for name in "ab"}
    for floor, together in ((None, True), (10.0, False)):
        joint = JointCalibration(scores, {} if floor is None else {"b": floor})
        thresholds = {name: float(np.sort(scores[name])[-3]) for name in "ab"}
        high = {name: np.sort(scores[name])[[-8]] for name in "ab"}
        _, above = found(Support(joint, thresholds, 30), thresholds, high)
        assert above.all() == together


def test_common_scores_or_a_single_detector_give_no_support():
    scores = {name: RNG.normal(size=1_000) for name in "ab"}
    joint = JointCalibration(scores)
    thresholds = {name: float(np.sort(scores[name])[-3]) for name in "ab"}
    support = Support(joint, thresholds, 30)
    usual = int(1_000 * SUPPORTS) + 2
    high = {"a": np.sort(scores["a"])[[-4]], "b": np.sort(scores["b"])[[-usual]]}
    assert not found(support, thresholds, high)[1].any()
    alone = {"a": np.full(1, thresholds["a"])}
    assert support.limits({"a": high["a"]}, alone) == alone


class Half(Scripted):
    """Reads its score out of its own half of the text."""

    traits = Traits(taxonomy=())

    def score(self, batch):
        return np.array([float(text.split()[self.name == "second"]) for text in batch.texts])


class CannotExplain(Half):
    def explain(self, batch, rows):
        raise RuntimeError(batch.texts[rows[0]])


def pairs(first, second, prefix="s", **columns):
    n = len(first)
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[f"{one} {two}" for one, two in zip(first, second, strict=True)],
        embeddings=np.ones((n, 2)),
        **columns,
    )


KNOWN = pairs(
    RNG.permutation(2_000), RNG.permutation(2_000), lineages=[f"l{i}" for i in range(2_000)]
)
# Ten in 2,000 reach each of these scores: neither detector holds it.
BOTH, ONE = pairs([1_990], [1_990], "both"), pairs([1_990], [7], "one")


@pytest.fixture
def guard():
    guard = guard_of(Half("first"), Half("second"))
    guard.fit(KNOWN)
    return guard.calibrate()


def test_guard_holds_entries_that_two_detectors_suspect(guard):
    decision = guard.screen(BOTH).decisions[0]
    assert decision.verdict is Verdict.QUARANTINE
    assert [finding.detector for finding in decision.findings] == ["first", "second"]
    for finding in decision.findings:
        assert finding.threshold < finding.score < guard.calibration.thresholds[finding.detector]
        assert finding.evidence.endswith("; other detectors suspect it, too")
        assert finding.p_value == pytest.approx(11 / 2_001, rel=0.2)
    assert guard.screen(ONE).decisions[0].verdict is Verdict.ADMIT
    swapped = guard.screen(pairs([7], [1_990], "other"))
    assert swapped.decisions[0].verdict is Verdict.ADMIT


def test_guard_remembers_unusual_entries_it_admitted(guard, tmp_path):
    usual = pairs([5], [7], "usual")
    for batch in (ONE, usual, BOTH):
        guard.admit(guard.hold(guard.screen(batch)))
    again = [Half("first"), Half("second")]
    guard.save(tmp_path, detectors=again)
    for one in (guard, loaded(tmp_path, detectors=again)):
        assert list(one.state.calibrator.arrivals.unusual) == list(ONE.ids)


def test_nothing_is_unusual_in_a_source_that_a_person_adopted(guard):
    guard.hold(guard.screen(pairs([1_990], [1_990], "mine", sources=["mine"])))
    guard.sources.adopt("mine", by="anna")
    guard.admit(guard.hold(guard.screen(pairs([1_990], [7], "more", sources=["mine"]))))
    guard.admit(guard.hold(guard.screen(pairs([1_990], [7], "other", sources=["other"]))))
    assert list(guard.state.calibrator.arrivals.unusual) == ["other0"]


def test_a_batch_that_no_calibrated_detector_judged_is_counted(guard):
    batch = pairs([5, 6], [7, 8], "new")
    with mock.patch.object(Half, "score", side_effect=OSError("broken")):
        report = guard.hold(guard.screen(batch))
    assert report.admitted.sum() == 0
    assert list(guard.state.calibrator.arrivals.unusual) == []


def test_an_explanation_that_fails_lets_nothing_pass():
    guard = guard_of(Half("first"), CannotExplain("second"))
    guard.fit(KNOWN)
    decision = guard.calibrate().screen(BOTH).decisions[0]
    assert decision.verdict is Verdict.QUARANTINE
    assert "RuntimeError while explaining it" in decision.findings[1].evidence


def test_default_thresholds_ignore_support():
    guard = guard_of(Half("first"), Half("second")).fit(KNOWN)
    findings = guard.screen(BOTH).decisions[0].findings
    assert len(findings) == 2
    assert all(finding.evidence.startswith("its text says") for finding in findings)
    assert not any("too" in finding.evidence for finding in findings)


def test_detectors_act_alone_in_an_adopted_source(guard):
    guard.hold(guard.screen(pairs([1_990], [1_990], "mine", sources=["mine"])))
    (freed,) = guard.sources.adopt("mine", by="anna")
    assert freed == "mine0"
    again = pairs([1_991, 1_999.5], [1_991, 7], "more", sources=["mine"] * 2)
    verdicts = [decision.verdict for decision in guard.screen(again).decisions]
    assert verdicts == [Verdict.ADMIT, Verdict.QUARANTINE]
    other = guard.screen(pairs([1_991], [1_991], "other", sources=["other"])).decisions[0]
    assert other.verdict is Verdict.QUARANTINE
