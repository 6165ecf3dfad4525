"""A whole corpus compared with itself: the nearest of every row, and all pairs above a cosine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError, TooManyPairsError
from ragshield_core.neighbors.rows import (
    CHUNK_ROWS,
    QUERY_ROWS,
    RERANK_ROWS,
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


# All pairs of this many rows take a minute or two on two cores, and a hundred times as many a week.
ALL_EXACT_UP_TO = 100_000


# Clusters looked into per row, rounds and rows per cluster of k-means. With half as many probes,
# .96 of the two nearest and .92 of the 16 nearest of 45,581 real passages were found, and all of
# synthetic clusters. Poisoned groups are near to each other, so that they share clusters.
PROBES, CLUSTER_ROUNDS, SAMPLE_PER_CLUSTER = 24, 5, 40


def all_neighbors(
    embeddings: NDArray[np.float32],
    k: int,
    *,
    exact_up_to: int = ALL_EXACT_UP_TO,
    progress: Callable[[int], object] | None = None,
) -> Neighbors:
    """Return the k nearest *other* rows of every row.

    Exactly up to a number of rows, since every row is compared with every other; above it, rows
    are put into clusters, and each is compared with those of the :data:`PROBES` nearest clusters.

    A row is left out of its own neighbours by its number, not as the best hit: among exact
    duplicates the best hit may be any of them.

    Parameters
    ----------
    embeddings
        Shape (n, dim), float32, rows of unit length.
    k
        How many, at least 1.
    exact_up_to
        The number of rows. The default takes a minute or two on two cores.
    progress
        Called with the number of rows done since the last call.

    Returns
    -------
    Neighbors
        Row numbers as ``slots``; shape (n, k). Beside it and the input, about 20 MB are needed,
        and half the size of the input where rows are clustered.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`, if a row is not a unit vector or k is below 1.
    """
    faiss = load_faiss()

    check_k(k)
    check_rows("embeddings", embeddings)
    rows = np.ascontiguousarray(embeddings)
    n = len(rows)
    result = none_found(n, k)
    fetched = min(k + 1, n)
    clusters = _clustered(rows) if n > exact_up_to else None
    for start in range(0, n, QUERY_ROWS):
        block = rows[start : start + QUERY_ROWS]
        if clusters is None:
            similarities, found = faiss.knn(block, rows, fetched, metric=faiss.METRIC_INNER_PRODUCT)
        else:
            similarities, found = _exactly(block, rows, clusters.search(block, fetched)[1])
        itself = found == np.arange(start, start + len(block))[:, None]
        # Where more than k others are as near as the row itself, it may be missing from the list;
        # then the last one is too many.
        surplus = np.where(itself.any(axis=1), itself.argmax(axis=1), fetched - 1)
        kept = np.arange(fetched) != surplus[:, None]
        shape = (len(block), fetched - 1)
        result.slots[start : start + len(block), : fetched - 1] = found[kept].reshape(shape)
        result.similarities[start : start + len(block), : fetched - 1] = similarities[kept].reshape(
            shape
        )
        if progress is not None:
            progress(len(block))
    return result


def _clustered(rows: NDArray[np.float32]) -> Any:
    """Return a FAISS index of clusters, in which vectors take half their size."""
    faiss = load_faiss()

    n, dim = rows.shape
    n_clusters = int(4 * np.sqrt(n))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(dim),
        dim,
        n_clusters,
        faiss.ScalarQuantizer.QT_fp16,
        faiss.METRIC_INNER_PRODUCT,
        False,  # noqa: FBT003 - by_residual: the vectors themselves are kept
    )
    index.cp.niter, index.cp.seed, index.cp.spherical = CLUSTER_ROUNDS, 0, True
    sample = np.random.default_rng(0).choice(
        n, min(n, SAMPLE_PER_CLUSTER * n_clusters), replace=False
    )
    index.train(rows[np.sort(sample)])
    for start in range(0, n, CHUNK_ROWS):
        index.add(rows[start : start + CHUNK_ROWS])
    index.nprobe = PROBES
    return index


def _exactly(
    block: NDArray[np.float32], rows: NDArray[np.float32], found: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return found rows with their exact similarities, best first."""
    similarities = np.empty(found.shape, dtype=np.float32)
    for start in range(0, len(block), RERANK_ROWS):
        part = slice(start, start + RERANK_ROWS)
        vectors = rows[np.maximum(found[part], 0)]
        similarities[part] = np.einsum("ijk,ik->ij", vectors, block[part])
    similarities[found < 0] = -np.inf
    order = np.argsort(-similarities, axis=1, kind="stable")
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(found, order, 1)


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
