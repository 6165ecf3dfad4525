"""A whole corpus compared with itself: the nearest of every row, and all pairs above a cosine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError, TooManyPairsError
from ragshield_core.neighbors.listed import ListedRows
from ragshield_core.neighbors.lists import (
    MEASURED_ROWS,
    TOGETHER,
    Block,
    InvertedLists,
    n_lists_for,
    training_work,
)
from ragshield_core.neighbors.rows import (
    CHUNK_ROWS,
    QUERY_ROWS,
    Neighbors,
    check_k,
    check_rows,
    load_faiss,
    none_found,
)

# A product of 1,024 x 4,096 float32 is 16 MB: large enough that threads of BLAS seldom wait for
# each other (on a busy machine products of 1,024 x 1,024 take 1.4 times as long), and small enough
# to be still in the last cache when it is compared. Below the diagonal half of 1,024 columns is
# wasted per strip.
LEFT_ROWS = 1_024


RIGHT_ROWS = 4_096


# 50 million pairs are 600 MB; 10,000 clones of one text alone make 50 million, less 5,000.
MAX_PAIRS = 50_000_000


# Lists must save two thirds of the comparisons, since they miss a few of the nearest.
WORTH = 3.0

# The share of all that a row is compared with, of which texts need at least about so much below
# 30,000: whether lists can be worth it is known before they are made, or a third of the work of
# comparing all would go into finding out.
LIKELY_SHARE = 0.15


def all_neighbors(
    embeddings: NDArray[np.float32],
    k: int,
    *,
    progress: Callable[[int], object] | None = None,
) -> Neighbors:
    """Return the k nearest *other* rows of every row.

    Exactly, or by :class:`~ragshield_core.neighbors.lists.InvertedLists` where they save much of
    the work: it is counted, on a sample, before it is done. Of real passages, lists are worth it
    from about 30,000 on, and find .99 of the nearest 16; of rows without any structure, never.

    A row is left out of its own neighbours by its number, not as the best hit: among exact
    duplicates the best hit may be any of them.

    Parameters
    ----------
    embeddings
        Shape (n, dim), float32, rows of unit length.
    k
        How many, at least 1.
    progress
        Called with the number of rows done since the last call.

    Returns
    -------
    Neighbors
        Row numbers as ``slots``; shape (n, k). Beside it and the input, about 20 MB are needed,
        and a few hundred where rows are sorted into lists.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`, if a row is not a unit vector or k is below 1.
    """
    result = none_found(len(embeddings), k)
    width = min(k, max(0, len(embeddings) - 1))
    for asking, found in neighbors_in_turn(embeddings, k):
        result.slots[asking, :width] = found.slots
        result.similarities[asking, :width] = found.similarities
        if progress is not None:
            progress(len(asking))
    return result


def neighbors_in_turn(
    embeddings: NDArray[np.float32], k: int, listed: ListedRows | None = None
) -> Iterator[tuple[NDArray[np.int64], Neighbors]]:
    """Yield some thousand rows after the other with the nearest other rows of each.

    As :func:`all_neighbors`, of which never more than a part is in memory so. Where there are
    lists, rows that lie near each other come together.

    Parameters
    ----------
    embeddings, k
        As of :func:`all_neighbors`.
    listed
        The same rows, under their numbers, if they are sorted into lists already.

    Yields
    ------
    tuple[NDArray[np.int64], Neighbors]
        Numbers of rows, shape (n_asking,), each row once in all; and the nearest others of these,
        shape (n_asking, k), fewer columns if there are not as many others.
    """
    check_k(k)
    check_rows("embeddings", embeddings)
    rows = np.ascontiguousarray(embeddings)
    fetched = min(k + 1, len(rows))
    for asking, found in _searched(rows, fetched, listed):
        itself = found.slots == asking[:, None]
        # Where more than k others are as near as the row itself, it may be missing from the list;
        # then the last one is too many.
        surplus = np.where(itself.any(axis=1), itself.argmax(axis=1), fetched - 1)
        kept = np.arange(fetched) != surplus[:, None]
        shape = (len(asking), fetched - 1)
        yield (
            asking,
            Neighbors(found.slots[kept].reshape(shape), found.similarities[kept].reshape(shape)),
        )


def _searched(
    rows: NDArray[np.float32], k: int, listed: ListedRows | None
) -> Iterator[tuple[NDArray[np.int64], Neighbors]]:
    """Yield numbers of rows and the k nearest of each, all rows in turn."""
    faiss = load_faiss()
    n = len(rows)
    sorted_rows = _Sorted.if_worth_it(rows, listed)
    if sorted_rows is not None:
        # Rows of one list look into the same others, so that few are visited for all of them.
        order = sorted_rows.order
        for start in range(0, n, TOGETHER):
            asking = order[start : start + TOGETHER]
            yield asking, sorted_rows.search(rows[asking], k)
        return
    for start in range(0, n, QUERY_ROWS):
        block = rows[start : start + QUERY_ROWS]
        similarities, found = faiss.knn(block, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
        yield np.arange(start, start + len(block)), Neighbors(found, similarities)


class _Sorted:
    """Rows that stay where they are, sorted into lists."""

    def __init__(self, rows: NDArray[np.float32], lists: InvertedLists) -> None:
        self._rows, self._lists = rows, lists
        self._list = lists.nearest(rows)
        self.order = np.argsort(self._list, kind="stable")
        self.sizes = np.bincount(self._list, minlength=len(lists))
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self.share = 1.0  # of all that a row is compared with

    @classmethod
    def if_worth_it(
        cls, rows: NDArray[np.float32], listed: ListedRows | None = None
    ) -> Self | ListedRows | None:
        """Return sorted rows, or None where comparing all pairs is not much more work.

        Of rows that are in lists already, these; else in lists that are made for them.
        """
        n = len(rows)
        before = training_work(n) / max(1, n) + n_lists_for(n) + MEASURED_ROWS
        if WORTH * (before + LIKELY_SHARE * n) >= n:
            return None
        found = listed if listed is not None and listed.lists is not None else cls._made(rows)
        return found if WORTH * (before + found.share * n) < n else None

    @classmethod
    def _made(cls, rows: NDArray[np.float32]) -> Self:
        n = len(rows)
        found = cls(rows, InvertedLists.trained(n, lambda some: rows[some], seed=0))
        sample = np.random.default_rng(0).choice(n, min(n, MEASURED_ROWS), replace=False)
        found.share = found._lists.measure(rows[sample], found)
        return found

    def search(self, queries: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest rows of each query."""
        return self._lists.search(queries, k, self)

    def list_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lists of rows."""
        return self._list[numbers]

    def blocks(self, number: int) -> list[Block]:
        """Return numbers and rows of a list, in pieces."""
        start, end = self._starts[number : number + 2].tolist()
        members = [
            self.order[piece : min(end, piece + CHUNK_ROWS)]
            for piece in range(start, end, CHUNK_ROWS)
        ]
        return [(some, self._rows[some]) for some in members]


def pairs_above(
    embeddings: NDArray[np.float32],
    threshold: float,
    *,
    progress: Callable[[int], object] | None = None,
    max_pairs: int = MAX_PAIRS,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """Return every unordered pair of rows whose cosine is above a threshold, exactly.

    Each pair of blocks is multiplied once, which takes half the time of a search for neighbours.

    Parameters
    ----------
    embeddings
        Shape (n, dim), float32, rows of unit length.
    threshold
        A cosine; pairs at the threshold are left out.
    progress
        Called with the number of rows done since the last call.
    max_pairs
        How many pairs at most; 12 bytes each, and as much again while they are put together.

    Returns
    -------
    tuple
        ``(i, j, similarities)`` of shape (n_pairs,), with i < j, in no particular order.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`, if a row is not a unit vector or the threshold is NaN.
    TooManyPairsError
        A :class:`ValueError`, if there are more than ``max_pairs``.

    Notes
    -----
    The last bit of a float32 product depends on the shape of the matrices; a pair within 1e-6 of
    the threshold may fall on either side.
    """
    if np.isnan(threshold):
        msg = "threshold is NaN, expected a cosine."
        raise InvalidBatchError(msg)
    check_rows("embeddings", embeddings)
    rows = np.ascontiguousarray(embeddings)
    n = len(rows)
    least = np.float32(threshold)
    if float(least) > threshold:  # rounded up: pairs between the two would be lost
        least = np.nextafter(least, np.float32(-np.inf))
    product = np.empty(LEFT_ROWS * RIGHT_ROWS, dtype=np.float32)
    above = np.empty(LEFT_ROWS * RIGHT_ROWS, dtype=np.bool_)
    parts: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]] = []
    n_pairs = 0
    for start in range(0, n, LEFT_ROWS):
        left = rows[start : start + LEFT_ROWS]
        for other in range(start, n, RIGHT_ROWS):
            right = rows[other : other + RIGHT_ROWS]
            size = len(left) * len(right)
            block = product[:size].reshape(len(left), len(right))
            np.matmul(left, right.T, out=block)
            mask = above[:size]
            np.greater(product[:size], least, out=mask)
            hits = np.flatnonzero(mask)
            i, j = np.divmod(hits, len(right))
            if other == start:
                upper = i < j
                hits, i, j = hits[upper], i[upper], j[upper]
            if not len(hits):
                continue
            n_pairs += len(hits)
            if n_pairs > max_pairs:
                msg = (
                    f"more than {max_pairs:,} pairs have a cosine above {threshold:g} (found in "
                    f"the first {start + len(left):,} of {n:,} rows); raise the threshold, merge "
                    "duplicates first, or raise max_pairs (24 bytes of memory each)."
                )
                raise TooManyPairsError(msg)
            parts.append(
                ((i + start).astype(np.int32), (j + other).astype(np.int32), product[hits])
            )
        if progress is not None:
            progress(len(left))
    if not parts:
        return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32)
    return (
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
    )
