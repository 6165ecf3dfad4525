"""Find texts that are copies of each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import EMPTY, SKETCH

# Texts with this share of three-word phrases in common are copies of each other, and count once.
SAME_TEXT = 0.5


def same_texts(
    sketches: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of rows, enough to join the texts that are copies of each other."""
    first = second = [np.empty(0, dtype=np.int64)]
    filled = sketches != EMPTY
    for column in range(SKETCH if len(sketches) > 1 else 0):
        order = np.argsort(sketches[:, column], kind="stable")
        ordered = sketches[order, column]
        at = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != EMPTY))
        if not len(at):
            continue
        a, b = order[at], order[at + 1]
        same = np.count_nonzero((sketches[a] == sketches[b]) & filled[a], axis=1)
        either = np.count_nonzero(filled[a] | filled[b], axis=1)
        alike = same >= SAME_TEXT * either
        first, second = [*first, a[alike]], [*second, b[alike]]
    return np.concatenate(first), np.concatenate(second)


def copies_among(sketches: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the rows of all texts but the first of those that are copies, ascending."""
    _, first = np.unique(joined(len(sketches), *same_texts(sketches)), return_index=True)
    return np.setdiff1d(np.arange(len(sketches)), first)


def joined(n: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each of n rows, the same for those that pairs join."""
    if not len(first):
        return np.arange(n)
    from scipy.sparse import coo_array  # noqa: PLC0415 - keeps `import ragshield_core` quick
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
