"""What changed among the retrieved, told by ranks and ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rule = Literal["ragshield", "notebook"]


# Ranks that the growth test looks at; with a persistence of .8, those behind hold 7 % of the weight
# together, and every pattern of newcomers among so many can be enumerated.
HEAD = 12


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the Jaccard similarity of two lists as sets, in [0, 1]; 1 for two empty ones."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one or other else 1.0


def overlap_at_k(
    first: Sequence[str], second: Sequence[str], k: int, *, rule: Rule = "ragshield"
) -> float:
    """Return the share of the first k places that two lists have in common, in [0, 1].

    Parameters
    ----------
    first, second
        Ids, best first.
    k
        Places that are compared.
    rule
        ``"notebook"`` divides by k even where fewer than k entries exist: of two entries among six
        places, both back where they were, it says 1/3, which leaves .100 of anomaly after a perfect
        clean-up. The default divides by the places that are taken.

    Examples
    --------
    >>> round(overlap_at_k(["a", "b"], ["b", "a"], 6, rule="notebook"), 3)
    0.333
    >>> overlap_at_k(["a", "b"], ["b", "a"], 6)
    1.0
    """
    if k <= 0:
        return 1.0
    one, other = set(first[:k]), set(second[:k])
    places = k if rule == "notebook" else max(len(one), len(other))
    return len(one & other) / places if places else 1.0


def takeover(new: Sequence[bool], rate: float, persistence: float = 0.8) -> tuple[float, float]:
    """Return how much of the head newcomers hold, and how probable that is under mere growth.

    Parameters
    ----------
    new
        For each rank, whether its entry is new.
    rate
        Share of newcomers in the whole knowledge base, in (0, 1): if what was added is of the same
        kind as what was there, any rank is a newcomer's with this probability.
    persistence
        Each rank weighs so much of the one before.

    Returns
    -------
    tuple[float, float]
        The newcomers' share of the weight, in [0, 1]; and the probability that they hold so much
        or more.

    Examples
    --------
    >>> share, p = takeover([False, False, False, False, True], 0.1)  # the tail: growth
    >>> round(share, 2), round(p, 2)
    (0.12, 0.41)
    >>> share, p = takeover([True, True, True, False, False], 0.1)  # the head: takeover
    >>> round(share, 2), round(p, 4)
    (0.73, 0.0012)
    """
    length = min(len(new), HEAD)
    if not length:
        return 0.0, 1.0
    held, patterns = _patterns(length, persistence)
    flags = np.asarray(new[:length], dtype=np.float64)
    share = float(flags @ persistence ** np.arange(length)) / _weight(length, persistence)
    counts = patterns[held >= share - 1e-9]
    probability = float(np.sum(rate**counts * (1.0 - rate) ** (length - counts)))
    return share, min(1.0, probability)


@lru_cache(maxsize=32)
def _patterns(length: int, persistence: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return, for every pattern of newcomers, their share of the weight and their number."""
    bits = (np.arange(1 << length)[:, None] >> np.arange(length)) & 1
    weights = persistence ** np.arange(length) / _weight(length, persistence)
    return bits @ weights, bits.sum(axis=1)


def _weight(length: int, persistence: float) -> float:
    return (1.0 - persistence**length) / (1.0 - persistence)


def combined_p_value(*values: float, correlation: float = 0.0) -> float:
    """Return the p-value of several ones together.

    Parameters
    ----------
    values
        In (0, 1], two or more.
    correlation
        Between any two of -2 ln p, in [0, 1); 0 if they are independent.

    Returns
    -------
    float
        In [0, 1]; 0 if one of them is 0.

    References
    ----------
    Fisher, "Statistical Methods for Research Workers", 1932: the sum of -2 ln p has a chi-squared
    distribution. Brown, "A method for combining non-independent, one-sided tests of significance",
    Biometrics 31, 1975: of dependent ones, it is scaled to their variance.

    Examples
    --------
    >>> round(combined_p_value(0.05, 0.05), 4)
    0.0175
    >>> round(combined_p_value(0.05, 0.05, correlation=0.5), 4)
    0.0351
    """
    from scipy.special import chdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

    if min(values) <= 0.0:
        return 0.0
    n = len(values)
    # Each has mean 2 and variance 4.
    variance = 4.0 * n * (1.0 + (n - 1) * correlation)
    freedom = 2.0 * (2.0 * n) ** 2 / variance
    total = -2.0 * sum(map(math.log, values)) * freedom / (2.0 * n)
    return float(chdtrc(freedom, total))


def cosine(first: ArrayLike, second: ArrayLike) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms > 0.0 else 0.0
