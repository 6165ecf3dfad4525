"""Surprisal of evidence: how rare it is in a knowledge base, for groups of each size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import PARTS, SIZES, WEIGHTS, Raw

# Beyond this quantile of the reference, few values are left to count; the tail goes on
# exponentially, as maxima of many weak similarities do.
TAIL = 0.98


# Where up to a twentieth of the reference may be poisoned: points below that, and an exponential
# through them.
ROBUST_TAIL = (0.8, 0.93)


# A small reference's tail is evened out with the decay from this point on, which counts like so
# many values beyond TAIL.
STEADY_FROM, STEADY = 0.8, 20


# Slowest decay of a tail, where the reference has none to measure.
LEAST_SCALE = 0.05


# By chance, a log-likelihood ratio exceeds x nats in a share of about exp(-x): agreement is not
# rarer than it says itself. In a small sample next to nothing agrees, and by the slowest decay
# above a clean entry that does would be the rarest thing in the world.
LEAST_SCALES = {"agreed": 1.0}


# Points kept of a reference distribution; more change no threshold that matters.
MAX_POINTS = 20_000


class Surprisal:
    """How rare a value is: -log of the share of reference values that are as high.

    Empirical up to the 98 % point, exponential beyond it.

    Parameters
    ----------
    reference
        Values of clean entries, shape (n,).
    robust
        Whether some of the reference may be poisoned: then the tail is laid through the
        :data:`ROBUST_TAIL` points, which a few poisoned entries hardly move.
    least_scale
        The tail falls at least this slowly.
    """

    def __init__(
        self, reference: NDArray[Any], *, robust: bool = False, least_scale: float = LEAST_SCALE
    ) -> None:
        ordered = np.sort(np.asarray(reference, dtype=np.float64))
        if robust:
            low, high = ROBUST_TAIL
            start, end = np.quantile(ordered, [low, high])
            self.share = 1.0 - low
            scale = (end - start) / np.log((1.0 - low) / (1.0 - high))
        else:
            start = ordered[int(TAIL * len(ordered))]
            beyond = ordered[ordered > start]
            self.share = 1.0 - TAIL
            # Few values lie beyond in a small reference: they are evened out with how quickly
            # values grow rarer below.
            usual = (start - np.quantile(ordered, STEADY_FROM)) / np.log(
                (1.0 - STEADY_FROM) / (1.0 - TAIL)
            )
            usual = max(usual, least_scale)
            scale = ((beyond - start).sum() + STEADY * usual) / (len(beyond) + STEADY)
        self.tail_from, self.scale = float(start), max(float(scale), least_scale)
        if len(ordered) > MAX_POINTS:
            ordered = ordered[np.linspace(0, len(ordered) - 1, MAX_POINTS).round().astype(np.intp)]
        self.points = _narrow(ordered)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return surprisals, shape as ``values``."""
        given = np.asarray(values, dtype=np.float64)
        n = len(self.points)
        share = 1.0 - np.searchsorted(self.points, given, side="left") / (n + 1.0)
        beyond = -np.log(self.share) + (given - self.tail_from) / self.scale
        return np.where(given > self.tail_from, beyond, -np.log(share))

    def state(self) -> NDArray[np.float64]:
        """Return everything in one array."""
        return np.concatenate([[self.tail_from, self.scale, self.share], self.points])

    @classmethod
    def restored(cls, array: NDArray[np.float64]) -> Surprisal:
        """Return what :meth:`state` described."""
        surprisal = cls.__new__(cls)
        surprisal.tail_from, surprisal.scale, surprisal.share = array[:3].tolist()
        surprisal.points = _narrow(array[3:])
        return surprisal


def _narrow(points: NDArray[np.float64]) -> NDArray[Any]:
    """Return points in float32 if that is what they were, else a copy."""
    narrow = points.astype(np.float32)
    return narrow if (narrow == points).all() else points.copy()


class Reference:
    """What evidence looks like in a knowledge base: surprisals per part and group size."""

    def __init__(
        self,
        parts: dict[tuple[str, int], Surprisal],
        sizes: list[Surprisal],
        usual: list[float],
        usual_share: float,
    ) -> None:
        self._parts, self._sizes = parts, sizes
        self.usual_tightness, self.usual_share = usual, usual_share

    @classmethod
    def of(cls, tied: Raw, *, robust: bool = False) -> Reference:
        """Learn from the evidence of the entries of a knowledge base; see :class:`Surprisal`."""
        columns = range(len(SIZES))
        parts = {
            (name, c): Surprisal(
                getattr(tied, name)[:, c],
                robust=robust,
                least_scale=LEAST_SCALES.get(name, LEAST_SCALE),
            )
            for name in PARTS
            for c in columns
        }
        share = ROBUST_TAIL[1] if robust else 0.99
        usual = [float(np.quantile(tied.tight[:, c], share)) for c in columns]
        sizes = [Surprisal(weighted(parts, tied, c), robust=robust) for c in columns]
        return cls(parts, sizes, usual, share)

    def surprisals(self, tied: Raw) -> NDArray[np.float64]:
        """Return how surprising each entry is per group size, shape (n, len(SIZES))."""
        columns = range(len(SIZES))
        return np.stack([self._sizes[c](weighted(self._parts, tied, c)) for c in columns], axis=1)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return everything as arrays."""
        return (
            {f"{name}.{column}": s.state() for (name, column), s in self._parts.items()}
            | {f"size.{column}": s.state() for column, s in enumerate(self._sizes)}
            | {"usual": np.array([self.usual_share, *self.usual_tightness])}
        )

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Reference:
        """Return what :meth:`state` described."""
        columns = range(len(SIZES))
        parts = {
            (name, c): Surprisal.restored(arrays[f"{name}.{c}"]) for name in PARTS for c in columns
        }
        sizes = [Surprisal.restored(arrays[f"size.{c}"]) for c in columns]
        share, *usual = arrays["usual"].tolist()
        return cls(parts, sizes, usual, share)


def weighted(
    parts: Mapping[tuple[str, int], Surprisal], tied: Raw, column: int
) -> NDArray[np.float64]:
    """Return the weighted surprisals of one group size, shape (n,).

    Parameters
    ----------
    parts
        By part of the evidence and place in :data:`SIZES`.
    tied
        Evidence of n entries.
    column
        The place in :data:`SIZES`.
    """
    total = np.zeros(len(tied.tight))
    for name, weight in WEIGHTS.items():
        if (name, column) in parts:
            share = (SIZES[column] - 1) / (SIZES[-1] - 1) if name == "agreed" else 1.0
            total += share * weight * parts[name, column](getattr(tied, name)[:, column])
    return total
