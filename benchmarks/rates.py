"""Detection rates against known truth, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, t

from ragshield_core.tools.evaluate.rates import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRates:
    """Rates of quarantined against poisoned entries; NaN if a rate has no entries."""

    precision: float  # poisoned share of the quarantined entries
    recall: float  # quarantined share of the poisoned entries
    f1: float
    fpr: float  # quarantined share of the clean entries

    @classmethod
    def of(cls, poisoned: NDArray[np.bool_], quarantined: NDArray[np.bool_]) -> DetectionRates:
        """Return the rates of decisions against the truth, both of shape (n_entries,).

        Examples
        --------
        >>> DetectionRates.of(np.array([True, True, False]), np.array([True, False, False]))
        DetectionRates(precision=1.0, recall=0.5, f1=0.6666666666666666, fpr=0.0)
        """
        hits = int(np.count_nonzero(poisoned & quarantined))
        n_poisoned, n_held = int(np.count_nonzero(poisoned)), int(np.count_nonzero(quarantined))
        return cls(
            precision=_ratio(hits, n_held),
            recall=_ratio(hits, n_poisoned),
            f1=_ratio(2 * hits, n_held + n_poisoned) if n_poisoned else math.nan,
            fpr=_ratio(n_held - hits, len(poisoned) - n_poisoned),
        )


def proportion_interval(hits: int, n: int) -> Interval:
    """Return a share with its 95 % interval (Wilson), for independent trials.

    Examples
    --------
    >>> str(proportion_interval(9, 10))
    '0.900 [0.596, 0.982]'
    """
    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan)
    bounds = binomtest(hits, n).proportion_ci(method="wilson")
    return Interval(mean=hits / n, low=float(bounds.low), high=float(bounds.high))


def mean_interval(values: Sequence[float], bounds: tuple[float, float] = (0.0, 1.0)) -> Interval:
    """Return mean and 95 % t-interval over repetitions; NaN values are left out.

    Parameters
    ----------
    values
        One per repetition, e.g. per random split.
    bounds
        Bounds of the values: those of shares by default, (-1, 1) for differences of shares. The
        interval is cut there, because the mean cannot lie beyond.

    Raises
    ------
    ValueError
        If a value lies outside the bounds.

    Examples
    --------
    >>> str(mean_interval([0.90, 0.92, 0.94]))
    '0.920 [0.870, 0.970]'
    >>> str(mean_interval([0.96, 1.0, 1.0]))
    '0.987 [0.929, 1.000]'
    """
    given = np.asarray([value for value in values if not math.isnan(value)])
    if given.size == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan)
    lowest, highest = bounds
    if given.min() < lowest or given.max() > highest:
        msg = (
            f"values go from {given.min():g} to {given.max():g}, expected {lowest:g} to "
            f"{highest:g}; pass bounds=."
        )
        raise ValueError(msg)
    mean = float(given.mean())
    if given.size == 1:
        return Interval(mean=mean, low=math.nan, high=math.nan)
    half = float(t.ppf(0.975, given.size - 1) * given.std(ddof=1) / math.sqrt(given.size))
    return Interval(mean=mean, low=max(lowest, mean - half), high=min(highest, mean + half))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
