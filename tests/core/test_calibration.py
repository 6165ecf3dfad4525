"""p-values and thresholds: the definition, each other, and coverage in simulations."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from ragshield_core.calibration import Calibration, clean_entries_needed, conformal_p_values
from ragshield_core.errors import CalibrationError

# Multiples of 1/64 tie often, and exactly.
GRID = st.integers(-128, 128).map(lambda i: i / 64)
SCORES = st.floats(-2, 2, allow_subnormal=False)
RATES = st.floats(0.001, 0.9)


@given(st.lists(GRID, max_size=20), st.lists(GRID, min_size=1, max_size=30))
def test_p_values_are_the_share_of_clean_scores_as_high(scores, clean):
    naive = [(1 + sum(c >= s for c in clean)) / (1 + len(clean)) for s in scores]
    np.testing.assert_allclose(conformal_p_values(np.array(scores), np.array(clean)), naive)


def test_rounding_in_the_last_bits_does_not_make_an_equal_score_rare():
    clean = np.full(99, 0.3)
    above = np.nextafter(0.3, 1)
    assert conformal_p_values(np.array([above]), clean) == [1.0]
    assert Calibration.of(clean).threshold(0.01, 0.5) > above


@given(st.lists(SCORES, min_size=1, max_size=200), RATES, RATES, st.floats(0, 2))
def test_a_score_above_the_threshold_is_rare_enough(clean, alpha, confidence, further):
    calibration = Calibration.of(np.array(clean))
    try:
        threshold = calibration.threshold(alpha, confidence)
    except CalibrationError:
        reject()
    above = np.array([np.nextafter(threshold, math.inf), threshold + further + 1e-6])
    assert (calibration.p_values(above) <= alpha * (1 + 1e-9)).all()


@given(st.lists(SCORES, min_size=1, max_size=60), RATES, RATES)
def test_more_confidence_and_smaller_rates_never_lower_the_threshold(clean, alpha, confidence):
    calibration = Calibration.of(np.array(clean))
    assume(len(clean) >= clean_entries_needed(alpha / 2))
    assert calibration.threshold(alpha, confidence) <= calibration.threshold(alpha, 0.95)
    assert calibration.threshold(alpha, confidence) <= calibration.threshold(alpha / 2, confidence)


@given(st.floats(0.0005, 0.99))
def test_the_size_named_by_a_refusal_is_the_smallest_that_is_accepted(alpha):
    needed = clean_entries_needed(alpha)
    Calibration.of(np.zeros(needed)).threshold(alpha, 0.9)
    if needed > 1:
        with pytest.raises(CalibrationError, match=f"pass at least {needed}\\."):
            Calibration.of(np.zeros(needed - 1)).threshold(alpha, 0.9)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("n", [499, 1000])
def test_thresholds_keep_the_rate_with_the_confidence(alpha, confidence, n):
    """Scores are uniform, so that the realised rate of a threshold t is exactly 1 - t."""
    rng = np.random.default_rng(n)
    draws = 1000
    realised = np.array(
        [1 - Calibration.of(rng.random(n)).threshold(alpha, confidence) for _ in range(draws)]
    )
    slack = 3 * math.sqrt(confidence * (1 - confidence) / draws)
    assert realised.mean() <= alpha + 3 * realised.std() / math.sqrt(draws)
    assert (realised <= alpha).mean() >= confidence - slack
    assert realised.mean() > alpha / 4  # and it is not kept by catching nothing


def test_a_sample_too_small_for_the_confidence_keeps_the_rate_in_expectation():
    rng = np.random.default_rng(0)
    realised = [1 - Calibration.of(rng.random(19)).threshold(0.05, 0.99) for _ in range(4000)]
    assert np.mean(realised) == pytest.approx(0.05, abs=0.003)


def test_no_clean_scores_are_refused():
    with pytest.raises(CalibrationError, match="empty"):
        conformal_p_values(np.array([0.1]), np.array([]))


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_clean_scores_that_would_put_the_threshold_out_of_reach_are_refused(broken):
    with pytest.raises(CalibrationError):
        Calibration.of(np.array([0.1] * 200 + [broken] * 5)).threshold(0.01, 0.9)
