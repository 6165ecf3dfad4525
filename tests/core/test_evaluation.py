"""Intervals of rates."""

import math

import pytest
from rates import mean_interval


def test_interval_of_shares_stays_between_zero_and_one():
    low, high = mean_interval([0.0, 0.0, 0.04]), mean_interval([0.96, 1.0, 1.0])
    assert (low.low, high.high) == (0.0, 1.0)
    assert 0.0 < low.high < 1.0
    assert 0.0 < high.low < 1.0


def test_differences_have_bounds_of_their_own():
    assert mean_interval([-0.1, 0.0, 0.1], (-1.0, 1.0)).low == pytest.approx(-0.248, abs=1e-3)
    assert mean_interval([-1.0, -0.9], (-1.0, 1.0)).low == -1.0
    with pytest.raises(ValueError, match=r"-0.1 to 0.1, expected 0 to 1; pass bounds="):
        mean_interval([-0.1, 0.0, 0.1])


def test_empty_sample_has_no_interval():
    assert math.isnan(mean_interval([]).mean)
    assert math.isnan(mean_interval([0.5]).low)
