"""Search among rows of unit vectors: exactly, or in lists around centroids.

Rows are compared by matrix products; the heaps of FAISS keep the nearest. Above some size, an
inverted file ([1]_) uses the k-means of FAISS as well. FAISS's own index of this kind answers query
by query: for 1,000 queries among 100,000 rows it takes two to three times as long as one matrix
product per list with all the queries that look into it.

The number of lists that a query looks into varies: texts need many lists, clusters few. When the
lists are made, a sample of the rows gives the reach that finds :data:`RECALL` of the nearest rows.
The reach is a distance, not a number of lists, and counts from the nearest centroid if that one is
far: queries and new rows of a topic without a list are compared with more rows, up to all, until
the lists are made anew. When pages of a manual join passages of Wikipedia, a fixed number of lists
misses a tenth to a fifth of the nearest rows of the manual.

References
----------
.. [1] Jégou, Douze, Schmid, "Product quantization for nearest neighbor search", IEEE TPAMI 33(1),
   2011, section IV (the inverted file).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.neighbors.threads import in_threads

# Rows that passed through float16 are off by about 1e-3; a larger error means no normalisation.
UNIT_TOLERANCE = 5e-3
# Rows of the longest matrix product with one list: 12 MB of 384 dimensions.
CHUNK_ROWS = 8_192
# With this many, comparing with the centroids costs about as much as with the rows of lists.
LISTS_PER_ROOT = 4
# In shorter lists, the visit costs more than the product.
LEAST_ROWS = 16
# Rounds of k-means, and training rows per list.
ROUNDS, ROWS_PER_LIST = 5, 32
# Share of the nearest rows to find, measured on this many rows and their 16 nearest.
RECALL = 0.993
MEASURED_ROWS, MEASURED_K = 512, 16
# Lists that every query looks into; the similarity of the k-th best in them sets the further range.
FIRST = 8
# Rows in tight clusters need no reach, until a row arrives that belongs to no cluster: it is about
# as near to all centroids, within a few of these deviations of a cosine, which is 1 / sqrt(dim) by
# chance.
LEAST_DEVIATIONS = 3.0
# Queries in one call: a product of 32 MB with the longest piece of a list.
QUERIES = 1_024
# Queries in one call without lists: a 16 MB product, and a share of the work for each thread.
COMPARED = 512
# Lists are made anew once an eighth of the rows are in lists that have more than doubled (the
# knowledge base has grown, or a new topic has come), or three quarters of the rows were removed.
# Copies that all go into one list count once each time they double, not with every batch.
OUTGROWN, SHRUNK = 0.125, 0.25


class Neighbors(NamedTuple):
    """The nearest entries of each query, best first; shape (n_queries, k) each."""

    slots: NDArray[np.int64]  # -1 where there are fewer than k
    similarities: NDArray[np.float32]  # cosines, up to 1e-6 above 1; -inf where the slot is -1

    def taken(self, columns: NDArray[np.intp]) -> Neighbors:
        """Return the neighbours in these columns, shape (n_queries, k)."""
        return Neighbors(
            np.take_along_axis(self.slots, columns, axis=1),
            np.take_along_axis(self.similarities, columns, axis=1),
        )


def load_faiss() -> Any:
    """Import FAISS on first use: it takes as long as all other imports together."""
    import faiss  # noqa: PLC0415 - see above

    return faiss  # its stubs lack half of its functions


def exact(queries: NDArray[np.float32], rows: NDArray[np.float32], k: int) -> Neighbors:
    """Return the k nearest rows of each query; rows that hold NaN are never found.

    The product is NumPy's: FAISS's own search multiplies query by query unless there are hundreds,
    and takes seven times as long for a hundred queries.
    """
    parts = [queries[start : start + COMPARED] for start in range(0, len(queries), COMPARED)]
    return joined(in_threads(lambda part: _exact(part, rows, k), parts), k)


def _exact(queries: NDArray[np.float32], rows: NDArray[np.float32], k: int) -> Neighbors:
    heap, everyone = _heap(len(queries), k), np.arange(len(queries))
    for start in range(0, len(rows), CHUNK_ROWS):
        some = rows[start : start + CHUNK_ROWS]
        heap.add_result_subset(everyone, queries @ some.T, np.arange(start, start + len(some)))
    return _emptied(heap)


def _heap(n: int, k: int) -> Any:
    """Return FAISS's heaps of the k nearest rows of each of n queries."""
    return load_faiss().ResultHeap(n, k, keep_max=True)


def _emptied(heap: Any) -> Neighbors:
    """Return the contents of the heaps, best first."""
    heap.finalize()
    heap.D[heap.I < 0] = -np.inf
    return Neighbors(heap.I, heap.D)


def joined(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """Return the neighbours of several groups of queries as one."""
    return Neighbors(*map(np.concatenate, zip(none_found(0, k), *parts, strict=True)))


def merged(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """Return the k best of several lists of neighbours; ties keep their order."""
    slots, similarities = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return Neighbors(slots, similarities).taken(order)


def none_found(n: int, k: int) -> Neighbors:
    """Return an empty result: no neighbour found for any query."""
    return Neighbors(
        np.full((n, k), -1, dtype=np.int64), np.full((n, k), -np.inf, dtype=np.float32)
    )


def check_rows(
    name: str,
    rows: NDArray[np.float32],
    dim: int | None = None,
    ids: Sequence[str] | None = None,
    k: int = 1,
) -> None:
    """Raise unless rows are unit vectors of the wanted dimension and k is at least 1."""
    if k < 1:
        msg = f"k is {k}, expected how many neighbours to find, at least 1."
        raise InvalidBatchError(msg)
    if (
        rows.ndim != 2  # noqa: PLR2004
        or rows.dtype != np.float32
        or (dim is not None and rows.shape[1] != dim)
    ):
        msg = (
            f"{name} has shape {rows.shape} and dtype {rows.dtype}, expected "
            f"(n, {'dim' if dim is None else dim}) and float32."
        )
        raise InvalidBatchError(msg)
    squares = np.einsum("ij,ij->i", rows, rows)
    # In this form NaN fails as well.
    wrong = np.flatnonzero(~(np.abs(squares - 1.0) <= 2 * UNIT_TOLERANCE))
    if len(wrong):
        row = int(wrong[0])
        whose = "" if ids is None else f" (entry {ids[row]!r})"
        msg = (
            f"{name}[{row}]{whose} has L2 norm {np.sqrt(squares[row]):.3f}, expected 1.000; "
            "normalise it first."
        )
        raise InvalidBatchError(msg)


class InvertedLists:
    """Assignment of rows to lists, and choice of the lists that a query looks into.

    Removed rows stay in their list: they hold NaN, which no search finds. Built from centroids,
    shape (n_lists, dim), the slots of rows, and the list of each; ``sizes_then`` are the sizes of
    the lists when they were made, by default those of now. After its first lists, a query looks
    into lists whose centroid is at most ``reach`` less near, as a difference of cosines, than the
    k-th best of the first lists or than the nearest centroid, the less near of these two.
    """

    def __init__(
        self,
        centroids: NDArray[np.float32],
        reach: float,
        slots: NDArray[np.int64],
        numbers: NDArray[np.int64],
        sizes_then: NDArray[np.int64] | None = None,
    ) -> None:
        self.centroids, self.reach = centroids, reach
        self._members = [np.empty(0, dtype=np.int64)] * len(centroids)
        self._add(slots, numbers)
        self._sizes_then = self._sizes if sizes_then is None else sizes_then

    @classmethod
    def trained(cls, rows: NDArray[np.float32], slots: NDArray[np.int64]) -> Self:
        """Return lists made for the rows in some slots."""
        faiss = load_faiss()
        rng = np.random.default_rng(0)
        n = len(slots)
        n_lists = max(1, min(int(LISTS_PER_ROOT * np.sqrt(n)), n // LEAST_ROWS))
        options = {"niter": ROUNDS, "spherical": True, "min_points_per_centroid": 1}
        kmeans = faiss.Kmeans(rows.shape[1], n_lists, seed=0, **options)
        sample = rng.choice(slots, min(n, ROWS_PER_LIST * n_lists), replace=False)
        kmeans.train(rows[np.sort(sample)])
        centroids = np.ascontiguousarray(kmeans.centroids)
        numbers = np.empty(len(rows), dtype=np.int64)  # by slot
        for start in range(0, n, CHUNK_ROWS):
            part = slots[start : start + CHUNK_ROWS]
            numbers[part] = exact(rows[part], centroids, 1).slots[:, 0]
        lists = cls(centroids, -np.inf, slots, numbers[slots])
        lists._measure(rows[rng.choice(slots, min(n, MEASURED_ROWS), replace=False)], rows, numbers)
        return lists

    def _measure(
        self, queries: NDArray[np.float32], rows: NDArray[np.float32], numbers: NDArray[np.int64]
    ) -> None:
        """Set the reach that finds :data:`RECALL` of the nearest rows of a sample."""
        k = MEASURED_K + 1  # each row finds itself
        truth = exact(queries, rows, k).slots
        near = queries @ self.centroids.T
        least = self.search(queries, k, rows).similarities[:, -1]  # in the first lists
        theirs = np.take_along_axis(near, numbers[truth], axis=1)
        gaps = np.minimum(least, near.max(axis=1))[:, None] - theirs
        gaps[np.take_along_axis(_first(near), numbers[truth], axis=1)] = -np.inf
        reach = np.quantile(gaps[truth >= 0], RECALL, method="higher")
        self.reach = float(max(reach, LEAST_DEVIATIONS / np.sqrt(queries.shape[1])))

    @classmethod
    def saved(cls, reach: float, arrays: Mapping[str, NDArray[Any]], dim: int) -> Self:
        """Return the lists of a saved index; :class:`ValueError` if they do not fit."""
        slots, numbers, centroids = arrays["slots"], arrays["lists"], arrays["centroids"]
        if not (
            centroids.dtype == np.float32
            and centroids.shape[1:] == (dim,)
            and np.isfinite(centroids).all()
            and np.isfinite(reach)
        ):
            msg = "its centroids are not finite rows of float32, as long as its vectors"
            raise ValueError(msg)
        if numbers.dtype != np.int32 or numbers.shape != slots.shape:
            msg = "its lists are not one whole number per entry"
            raise ValueError(msg)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(centroids):
            msg = "its lists are out of range"
            raise ValueError(msg)
        sizes = arrays["sizes_then"]
        if sizes.dtype != np.int64 or sizes.shape != centroids.shape[:1]:
            msg = "its lists had not one size each when they were made"
            raise ValueError(msg)
        return cls(centroids.copy(), reach, slots, numbers.astype(np.int64), sizes.copy())

    def state(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what :meth:`saved` needs, beside the reach, for the rows in some slots."""
        return {
            "slots": slots,
            "lists": self.numbers_of(slots),
            "centroids": self.centroids.copy(),
            "sizes_then": self._sizes_then,
        }

    def outgrown(self, times: float = 1.0) -> bool:
        """Whether the lists no longer fit the rows; ``times`` as long ones count as too long."""
        sizes, then = self._sizes, self._sizes_then
        long = sizes > 2 * times * np.maximum(then, then.mean())
        return bool(sizes[long].sum() > OUTGROWN * sizes.sum())

    def add(self, slots: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Put rows into the nearest lists."""
        self._add(slots, exact(rows, self.centroids, 1).slots[:, 0])

    def numbers_of(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the list of each slot."""
        numbers = np.full(1 + max(part.max(initial=-1) for part in self._members), -1, np.int32)
        for number, members in enumerate(self._members):
            numbers[members] = number
        return numbers[slots]

    def renumbered(self, before: NDArray[np.int64]) -> InvertedLists:
        """Return the lists for rows that had these slots and now have slots 0, 1, 2, ..."""
        numbers = self.numbers_of(before).astype(np.int64)
        slots = np.arange(len(before))
        return InvertedLists(self.centroids, self.reach, slots, numbers, self._sizes_then)

    def search(self, queries: NDArray[np.float32], k: int, rows: NDArray[np.float32]) -> Neighbors:
        """Return the k nearest rows of each query, exactly if the lists hold too few."""
        parts = [queries[start : start + QUERIES] for start in range(0, len(queries), QUERIES)]
        found = joined(in_threads(lambda part: self._search(part, k, rows), parts), k)
        short = np.flatnonzero((found.slots < 0).any(axis=1))
        if short.size:
            found.slots[short], found.similarities[short] = exact(queries[short], rows, k)
        return found

    def _search(self, queries: NDArray[np.float32], k: int, rows: NDArray[np.float32]) -> Neighbors:
        near = queries @ self.centroids.T
        heap, first = _heap(len(queries), k), _first(near)
        self._look(first, heap, queries, rows)
        least = np.minimum(heap.D[:, 0], near.max(axis=1))  # the k-th best is the root of a heap
        self._look((near >= least[:, None] - self.reach) & ~first, heap, queries, rows)
        return _emptied(heap)

    def _look(
        self,
        asked: NDArray[np.bool_],  # (n_queries, n_lists)
        heap: Any,
        queries: NDArray[np.float32],
        rows: NDArray[np.float32],
    ) -> None:
        """Compare queries with the rows of their lists."""
        numbers, asking = np.nonzero(asked.T)
        bounds = np.searchsorted(numbers, np.arange(len(self.centroids) + 1)).tolist()
        for number in np.unique(numbers).tolist():
            mine, members = asking[bounds[number] : bounds[number + 1]], self._members[number]
            for start in range(0, len(members), CHUNK_ROWS):
                some = members[start : start + CHUNK_ROWS]
                heap.add_result_subset(mine, queries[mine] @ rows[some].T, some)

    @property
    def _sizes(self) -> NDArray[np.int64]:
        return np.fromiter(map(len, self._members), np.int64, len(self._members))

    def _add(self, slots: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self._members) + 1)).tolist()
        for number in np.unique(numbers).tolist():
            more = slots[order[bounds[number] : bounds[number + 1]]]
            self._members[number] = np.concatenate([self._members[number], more])


def _first(near: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark the nearest lists of each query, shape as ``near``."""
    width = min(FIRST, near.shape[1])
    first = np.zeros(near.shape, dtype=np.bool_)
    nearest = np.argpartition(near, -width, axis=1)[:, -width:]
    np.put_along_axis(first, nearest, values=True, axis=1)
    return first
