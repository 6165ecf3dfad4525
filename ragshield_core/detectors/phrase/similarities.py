"""Similarities of vectors to a sample that changes, the same to the last bit in every process.

Vectors are rounded to whole numbers. Sums of their products are then exact, whatever their order:
it makes no difference whether similarities were computed at once or as entries came and went, in
one batch or in many, and on how many cores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Number for a length of 1. Single precision counts to 2**24, so products of vectors of up to 8,000
# dimensions are exact; rounding changes a cosine by a ten-thousandth.
ONE = np.float32(4_000.0)

Mask = Callable[[NDArray[np.intp]], NDArray[np.bool_]]


class Similarities:
    """Vectors of a sample, and the similarity of each to the nearest other one.

    Arrays are replaced, never written to: a copy of the sample may share this object's arrays.
    """

    def __init__(self, dim: int) -> None:
        self._keys = np.empty(0, dtype=np.uint64)
        self._points = np.empty((0, dim), dtype=np.float32)  # in units of 1 / ONE
        # In units of 1 / ONE ** 2; -inf without another vector.
        self._near = np.empty(0, dtype=np.float32)

    @property
    def near(self) -> NDArray[np.float32]:
        """Similarity of each vector to the nearest other one, shape (n,)."""
        return _cosines(self._near)

    def follow(
        self, keys: NDArray[np.uint64], vectors: NDArray[np.float16], of_one_document: Mask
    ) -> None:
        """Take over the vectors of a sample, of which some came or went since the last call.

        Parameters
        ----------
        keys
            Of the entries, shape (n,); entries that stay keep their order, and new ones follow.
        vectors
            Shape (n, dim), of length 1 at most.
        of_one_document
            Returns the pairs that do not count as neighbours, shape (n_rows, n), for some rows.
        """
        if np.array_equal(keys, self._keys):
            return
        kept = np.isin(self._keys, keys)
        n, old, gone = len(keys), int(np.count_nonzero(kept)), self._points[~kept]
        self._points = np.concatenate([self._points[kept], _whole(vectors[old:])])
        near = np.concatenate([self._near[kept], np.full(n - old, -np.inf, np.float32)])
        left = (self._points[:old] @ gone.T).max(axis=1, initial=-np.inf)
        alone = np.flatnonzero(left >= near[:old])  # their nearest ones may have left
        rows = np.concatenate([alone, np.arange(old, n)])
        alike = self._points[rows] @ self._points.T
        alike[np.arange(len(rows)), rows] = -np.inf
        alike[of_one_document(rows)] = -np.inf
        came = alike[len(alone) :]
        self._near = np.maximum(near, came.max(axis=0, initial=-np.inf))
        self._near[rows] = alike.max(axis=1, initial=-np.inf)
        self._keys = keys.copy()

    def nearest(
        self, vectors: NDArray[np.float32], but: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the nearest of the sample for each vector, and the similarity to it.

        ``but``, shape (n_vectors, n), marks pairs that do not count.
        """
        alike = _whole(vectors) @ self._points.T
        alike[but] = -np.inf
        nearest = alike.argmax(axis=1)
        return nearest, _cosines(alike[np.arange(len(alike)), nearest])

    def spread_of(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean and standard deviation of the similarities of some rows to all."""
        rows, place = np.unique(rows, return_inverse=True)
        alike = (self._points[rows] @ self._points.T).astype(np.float64)
        mean = alike.mean(axis=1) / ONE**2
        squares = np.square(np.rint(alike / ONE)).mean(axis=1) / ONE**2
        spread = np.sqrt(np.maximum(0.0, squares - mean**2))
        return mean.astype(np.float32)[place], spread.astype(np.float32)[place]


def _whole(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return vectors in units of 1 / ONE, as whole numbers."""
    whole: NDArray[np.float32] = np.rint(vectors.astype(np.float32) * ONE)
    return whole


def _cosines(whole: NDArray[np.float32]) -> NDArray[np.float32]:
    return whole / (ONE * ONE)
