"""Common parts of the tables of peers: one rate for all, shares with intervals, times."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.tools.evaluate.rates import exact_interval

# Accepted false-positive rate of every method with a threshold.
FPR = 0.01
# Number of texts that are embedded to time the embedding.
EMBEDDED = 150

T = TypeVar("T")


class Judgement(NamedTuple):
    """Judgement of a method about some entries.

    Attributes
    ----------
    own
        Shape (n_entries,): mask of its findings by default; ``None`` if it has no default.
    scores
        Shape (n_entries,), higher is more suspicious; ``None`` if it has no scale.
    """

    own: NDArray[np.bool_] | None = None
    scores: NDArray[np.float64] | None = None


def threshold_at(clean: NDArray[np.float64], fpr: float = FPR) -> float:
    """Return the lowest threshold that at most a share of clean scores exceeds.

    Parameters
    ----------
    clean
        Shape (n_clean,), higher is more suspicious.
    fpr
        Share, [0, 1).

    Examples
    --------
    >>> threshold_at(np.arange(100.0), 0.02)
    97.0
    >>> threshold_at(np.array([0.0, 1.0, 1.0]), 0.34)  # ties stay on one side
    1.0
    """
    ordered = np.sort(np.asarray(clean, dtype=np.float64))
    return float(ordered[len(ordered) - 1 - math.floor(fpr * len(ordered) + 1e-9)])


class Counts:
    """Hits and trials by row and column of a table, and seconds by row."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        self._times: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.rows: list[str] = []

    def add(self, row: str, column: str, hits: NDArray[np.bool_]) -> None:
        """Count trials."""
        if row not in self.rows:
            self.rows.append(row)
        self._shares[row, column][0] += int(np.count_nonzero(hits))
        self._shares[row, column][1] += len(hits)

    def took(self, row: str, seconds: float, n: int) -> None:
        """Add the seconds for n entries."""
        self._times[row][0] += seconds
        self._times[row][1] += n

    def share(self, row: str, column: str) -> str:
        """Return a share with its exact 95 % interval (Clopper-Pearson)."""
        return str(exact_interval(*self._shares[row, column]))

    def rate(self, row: str, column: str) -> float:
        """Return a share."""
        hits, n = self._shares[row, column]
        return hits / n

    def milliseconds(self, row: str) -> float:
        """Return the time per entry; NaN if it was not measured."""
        seconds, n = self._times[row]
        return 1e3 * seconds / n if n else math.nan

    def to_dict(self) -> dict[str, list[int]]:
        """Return all counts of hits and trials."""
        return {" | ".join(key): count for key, count in self._shares.items()}

    def table(self, columns: Sequence[str], embedding: float, of: str = "embedding") -> list[str]:
        """Return the lines of the table; ``embedding`` is in milliseconds per entry."""
        lines = [
            f"| method | {' | '.join(columns)} | ms per entry | of {of} |",
            "|---" * (len(columns) + 3) + "|",
        ]
        for row in self.rows:
            cells = [self.share(row, column) for column in columns]
            took = self.milliseconds(row)
            times = ["–", "–"] if math.isnan(took) else [f"{took:.2f}", f"{took / embedding:.3f}"]
            lines.append(f"| {row} | {' | '.join([*cells, *times])} |")
        return lines


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and the seconds that it takes."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def embedding_cost(texts: Sequence[str]) -> float:
    """Return the milliseconds per text that MiniLM takes to embed these texts."""
    model, some = MiniLM(), list(texts[:EMBEDDED])
    model.embed(some[:16])  # warm-up: loads the model
    return 1e3 * timed(lambda: model.embed(some))[1] / len(some)
