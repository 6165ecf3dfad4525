"""p-values and thresholds: the definition, each other, and coverage in simulations."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from ragshield_core.model.errors import CalibrationError
from ragshield_core.model.p_values import (
    Calibration,
    JointCalibration,
    clean_entries_needed,
)

# Multiples of 1/64 tie often, and exactly.
GRID = st.integers(-128, 128).map(lambda i: i / 64)
SCORES = st.floats(-2, 2, allow_subnormal=False)


def threshold(clean, alpha, confidence):
    """Return the threshold of one detector alone."""
    joint = JointCalibration({"one": np.asarray(clean)})
    return joint.thresholds(alpha, confidence)["one"]


RATES = st.floats(0.001, 0.9)


@given(st.lists(GRID, max_size=20), st.lists(GRID, min_size=1, max_size=30))
def test_p_values_are_the_share_of_clean_scores_as_high(scores, clean):
    naive = [(1 + sum(c >= s for c in clean)) / (1 + len(clean)) for s in scores]
    np.testing.assert_allclose(Calibration.of(np.array(clean)).p_values(np.array(scores)), naive)


def test_rounding_in_the_last_bits_does_not_make_an_equal_score_rare():
    clean = np.full(99, 0.3)
    above = np.nextafter(0.3, 1)
    assert Calibration.of(np.asarray(clean)).p_values(np.array([above])) == [1.0]
    assert threshold(clean, 0.01, 0.5) > above


@given(st.lists(SCORES, min_size=1, max_size=200), RATES, RATES, st.floats(0, 2))
def test_a_score_above_the_threshold_is_rare_enough(clean, alpha, confidence, further):
    calibration = Calibration.of(np.array(clean))
    try:
        found = threshold(clean, alpha, confidence)
    except CalibrationError:
        reject()
    above = np.array([np.nextafter(found, math.inf), found + further + 1e-6])
    assert (calibration.p_values(above) <= alpha * (1 + 1e-9)).all()


@given(st.lists(SCORES, min_size=1, max_size=60), RATES, RATES)
def test_more_confidence_and_smaller_rates_never_lower_the_threshold(clean, alpha, confidence):
    assume(len(clean) >= clean_entries_needed(alpha / 2))
    assert threshold(clean, alpha, confidence) <= threshold(clean, alpha, 0.95)
    assert threshold(clean, alpha, confidence) <= threshold(clean, alpha / 2, confidence)


@given(st.floats(0.0005, 0.99))
def test_the_size_named_by_a_refusal_is_the_smallest_that_is_accepted(alpha):
    needed = clean_entries_needed(alpha)
    threshold(np.zeros(needed), alpha, 0.9)
    if needed > 1:
        with pytest.raises(CalibrationError, match=f"pass at least {needed}\\."):
            threshold(np.zeros(needed - 1), alpha, 0.9)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("n", [499, 1000])
@pytest.mark.slow
def test_thresholds_keep_the_rate_with_the_confidence(alpha, confidence, n):
    """Scores are uniform, so that the realised rate of a threshold t is exactly 1 - t."""
    rng = np.random.default_rng(n)
    draws = 1000
    realised = np.array([1 - threshold(rng.random(n), alpha, confidence) for _ in range(draws)])
    slack = 3 * math.sqrt(confidence * (1 - confidence) / draws)
    assert realised.mean() <= alpha + 3 * realised.std() / math.sqrt(draws)
    assert (realised <= alpha).mean() >= confidence - slack
    assert realised.mean() > alpha / 4  # and it is not kept by catching nothing


@pytest.mark.slow
def test_a_sample_too_small_for_the_confidence_keeps_the_rate_in_expectation():
    rng = np.random.default_rng(0)
    realised = [1 - threshold(rng.random(19), 0.05, 0.99) for _ in range(4000)]
    assert np.mean(realised) == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize("clean", [[], [0.1] * 200 + [np.nan] * 5, [0.1, np.inf]])
def test_clean_scores_that_say_nothing_are_refused(clean):
    with pytest.raises(CalibrationError, match="clean_scores"):
        Calibration.of(np.array(clean))


@pytest.mark.parametrize("alike", [0.0, 0.7, 1.0])
@pytest.mark.slow
def test_detectors_together_keep_the_rate_and_use_it(alike):
    """The budget is spent and not exceeded, whether or not they suspect the same entries."""
    rng = np.random.default_rng(0)

    def scores(n):
        common = rng.normal(size=n)
        return {
            f"d{i}": np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.normal(size=n)
            for i in range(8)
        }

    realised = []
    for _ in range(30):
        thresholds = JointCalibration(scores(5000)).thresholds(0.01, 0.9)
        new = scores(20000)
        realised.append(
            np.mean(np.any([new[name] > thresholds[name] for name in thresholds], axis=0))
        )
    assert 0.006 < np.mean(realised) < 0.01
    assert np.mean(np.array(realised) > 0.0105) <= 0.2


def test_a_detector_that_finds_nothing_leaves_its_part_to_the_others():
    rng = np.random.default_rng(0)
    one = rng.random(2000)
    alone = JointCalibration({"one": one}).thresholds(0.01, 0.9)
    idle = np.where(rng.random(2000) < 0.5, 0.0, 0.2)
    both = JointCalibration({"one": one, "idle": idle}, {"idle": 0.2}).thresholds(0.01, 0.9)
    assert both["one"] == alone["one"]
    assert both["idle"] == pytest.approx(0.2, abs=1e-6)


def test_detector_that_judges_few_entries_flags_the_same_share():
    rng = np.random.default_rng(0)
    some = np.where(rng.random(20_000) < 0.1, rng.random(20_000), np.nan)
    thresholds = JointCalibration({"all": rng.random(20_000), "some": some}).thresholds(0.01, 0.9)
    assert 1 - thresholds["some"] == pytest.approx(1 - thresholds["all"], rel=0.3)


def test_a_detector_that_judged_too_few_is_left_out():
    rng = np.random.default_rng(0)
    few = np.full(20_000, np.nan)
    few[:50] = rng.random(50)
    everything = rng.random(20_000)
    joint = JointCalibration({"all": everything, "few": few})
    thresholds = joint.thresholds(0.01, 0.9)
    assert set(thresholds) == {"all"}
    assert (everything > thresholds["all"]).mean() == pytest.approx(0.01, abs=0.001)


def test_the_smallest_rate_is_accepted_and_a_smaller_one_refused():
    rng = np.random.default_rng(3)
    joint = JointCalibration({f"d{i}": rng.random(300) for i in range(5)})
    rate = joint.smallest_rate
    assert rate == pytest.approx(5 / 301)
    held = joint.thresholds(rate, 0.9)
    acting = np.any(
        [joint.scores[name] > threshold - 1e-8 for name, threshold in held.items()], axis=0
    )
    assert acting.sum() == 5
    with pytest.raises(CalibrationError, match="pass at least"):
        joint.thresholds(0.99 * rate, 0.9)


def test_entries_judged_by_no_detector_do_not_count():
    with pytest.raises(CalibrationError, match="no detector judged"):
        JointCalibration({"one": np.full(5, np.nan)})
    nothing = np.concatenate([np.full(1000, np.nan), np.arange(150.0)])
    threshold = JointCalibration({"one": nothing}).thresholds(0.01, 0.9)["one"]
    assert threshold == pytest.approx(149.0, abs=1e-6)


@pytest.mark.parametrize("n_doubtful", [0, 2, 6])
def test_a_sample_as_large_as_the_error_asks_for_is_enough(n_doubtful):
    def joint(n_judged, n_tops=6):
        """Return scores of detectors each of which finds another entry the rarest."""
        columns = np.tile(np.arange(n_judged, dtype=float), (n_tops, 1))
        columns[np.arange(n_tops), np.arange(n_tops)] = n_judged
        columns[np.arange(n_tops), -1] = np.arange(n_tops)
        scores = {str(number): column for number, column in enumerate(columns)}
        return JointCalibration(scores, n_doubtful=n_doubtful)

    with pytest.raises(CalibrationError) as error:
        joint(500).thresholds(0.01, 0.9)
    needed = int(re.search(r"at least (\d+)", str(error.value))[1])
    joint(needed - n_doubtful).thresholds(0.01, 0.9)
    with pytest.raises(CalibrationError, match=f"pass at least {needed}"):
        joint(needed - n_doubtful - 1).thresholds(0.01, 0.9)
    few = joint(500)
    few.thresholds(few.smallest_rate, 0.9)
