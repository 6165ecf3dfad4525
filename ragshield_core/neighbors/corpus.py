"""A whole corpus compared with itself: the nearest others of every row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.index import EXACT_UP_TO
from ragshield_core.neighbors.lists import InvertedLists
from ragshield_core.neighbors.rows import (
    QUERY_ROWS,
    Neighbors,
    check_k,
    check_rows,
    exact,
    joined,
)


def all_neighbors(embeddings: NDArray[np.float32], k: int) -> Neighbors:
    """Return the k nearest *other* rows of every row, by their numbers; shape (n, k).

    Parameters as of :func:`neighbors_in_turn`.
    """
    return joined(list(neighbors_in_turn(embeddings, k)), k)


def neighbors_in_turn(
    embeddings: NDArray[np.float32], k: int, lists: InvertedLists | None = None
) -> Iterator[Neighbors]:
    """Yield the nearest other rows of some thousand rows after the other.

    Of few rows exactly, of more by lists. A row is left out of its own neighbours
    by its number, not as the best hit: among exact duplicates the best hit may be any of them.

    Parameters
    ----------
    embeddings
        Shape (n, dim), float32, rows of unit length.
    k
        How many, at least 1.
    lists
        In which the same rows stand, by their numbers, if there are any already.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`, if a row is not a unit vector or k is below 1.
    """
    check_k(k)
    check_rows("embeddings", embeddings)
    rows, n = np.ascontiguousarray(embeddings), len(embeddings)
    if lists is None and n > EXACT_UP_TO:
        lists = InvertedLists.trained(rows, np.arange(n), seed=0)
    for start in range(0, n, QUERY_ROWS):
        part = rows[start : start + QUERY_ROWS]
        found = exact(part, rows, k + 1) if lists is None else lists.search(part, k + 1, rows)
        itself = found.slots == np.arange(start, start + len(part))[:, None]
        # Where more than k others are as near as the row itself, it may be missing from the list;
        # then the last one is too many.
        surplus = np.where(itself.any(axis=1), itself.argmax(axis=1), k)
        kept = np.arange(k + 1) != surplus[:, None]
        yield Neighbors(*(column[kept].reshape(-1, k) for column in found))
