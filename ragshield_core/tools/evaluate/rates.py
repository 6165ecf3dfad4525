"""Rates with their confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def exact_interval(hits: int, n: int) -> Interval:
    """Return a share with its exact 95 % interval, for independent trials.

    It covers every true share in at least 95 % of cases, and is therefore wider than Wilson's
    (Clopper and Pearson, Biometrika 26, 1934).

    Examples
    --------
    >>> str(exact_interval(0, 100))
    '0.000 [0.000, 0.036]'
    """
    from scipy.stats import binomtest  # noqa: PLC0415 - slow to import, and not needed to guard

    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan)
    bounds = binomtest(hits, n).proportion_ci(method="exact")
    return Interval(mean=hits / n, low=float(bounds.low), high=float(bounds.high))
