"""Rows in lists around centroids, of which a search looks into the nearest; list by list.

An inverted file ([1]_) without codes: rows are kept as they are, sorted into lists, and every
similarity that is computed is final. A batch of queries is answered list by list and not query by
query: one matrix product of a list with all queries that ask for it, as in FAISS's
``big_batch_search``. Measured on 250,000 vectors with one thread, 1,000 queries take .65 s so,
.90 s in FAISS's lists of float16 or of 8 bits, and .2 s in those of 4-bit codes, whose candidates
take .5 to .8 s more to rank rightly; the more queries, the better for the product. Lists are filled
and emptied row by row at no other cost, are trained in a minute for a million rows (a graph takes
half an hour or more) and need no second copy of the vectors.

How many lists a query looks into is not a constant: texts need many of them, clusters few. What is
needed to find :data:`RECALL` of the nearest is measured when the lists are made, on a sample of the
rows themselves (:meth:`InvertedLists.measure`). It is a distance, not a number of lists, and
counted from the nearest centroid where that is far: queries and new rows of a topic for which there
is no list yet are compared with more, up to all, until the lists are made anew. With passages of
Wikipedia in lists and 9,000 pages of a manual added, .99 of the latters' nearest are found so; .65
where only the nearest rows set the distance, and .94 by a fixed number of lists.

References
----------
.. [1] Jégou, Douze, Schmid, "Product quantization for nearest neighbor search", IEEE TPAMI 33(1),
   2011, section IV (the inverted file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.rows import Neighbors, merged, none_found
from ragshield_core.neighbors.threads import in_threads

# Comparing with the centroids and with the rows of lists then cost about the same: half as many
# lists let a search of 53,000 real passages multiply nearly twice as often, twice as many a third
# less, but take about three times as long to train.
LISTS_PER_ROOT = 4

# Shorter lists cost more to visit than to multiply.
LEAST_ROWS = 16

# Rounds of k-means, and rows for each list.
ROUNDS, ROWS_PER_LIST = 5, 32

# Lists that every query looks into; how near the k-th best in them is tells how far to go on.
FIRST = 8

# Share of the nearest to be found, and by what it is measured: so many rows and their 16 nearest.
# Going from .990 to .995 takes half as much work again.
RECALL = 0.993
MEASURED_ROWS, MEASURED_K = 512, 16

# Where rows lie in tight clusters, no reach is needed, until something comes that belongs to none
# of them: it is about as near to all centroids, within a few of these deviations of a cosine, which
# is 1 / sqrt(dim) by chance.
LEAST_DEVIATIONS = 3.0

# No two cosines differ by more.
EXACT_REACH = 2.0

# Queries that are answered together: 130 MB of similarities to the centroids of a million rows.
TOGETHER = 8_192

# Of them so many at once with one list: a product of 32 MB with the longest piece of a list.
QUERIES = 1_024

Block = tuple[NDArray[np.int64], NDArray[np.float32]]
Visit = tuple[int, slice]


class Found(NamedTuple):
    """Candidates: which query asked, the number of a row, their cosine; each shape (n,)."""

    query: NDArray[np.int64]
    number: NDArray[np.int64]
    similarity: NDArray[np.float32]


class Contents(Protocol):
    """The rows that stand in lists, as whoever keeps them tells."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many rows there are in each list."""
        ...

    def blocks(self, number: int) -> Sequence[Block]:
        """Return numbers and rows of a list, in pieces."""
        ...

    def list_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lists of rows by their numbers."""
        ...


class InvertedLists:
    """Where rows belong, and which lists a query looks into.

    Parameters
    ----------
    centroids
        Shape (n_lists, dim), float32.
    reach
        A query goes on to lists whose centroid is at most this much less near, as a difference of
        cosines, than the k-th best of its first lists and than the nearest centroid; see
        :meth:`measure`. 2, the most there can be, is exact.
    """

    def __init__(self, centroids: NDArray[np.float32], reach: float = EXACT_REACH) -> None:
        self.centroids, self.reach = centroids, reach

    def __len__(self) -> int:
        return len(self.centroids)

    @classmethod
    def trained(
        cls, n: int, take: Callable[[NDArray[np.int64]], NDArray[np.float32]], seed: int
    ) -> Self:
        """Return lists for n rows, of which some are taken by their numbers to train them.

        Spherical k-means, by products that each have a thread of their own: threads that shared
        them would wait for each other on a busy machine.
        """
        rng = np.random.default_rng(seed)
        n_lists = n_lists_for(n)
        size = min(n, ROWS_PER_LIST * n_lists)
        sample = take(np.sort(rng.choice(n, size, replace=False)))
        lists = cls(sample[rng.choice(size, n_lists, replace=False)])
        for _ in range(ROUNDS):
            number = lists.nearest(sample)
            order = np.argsort(number, kind="stable")
            used, starts = np.unique(number[order], return_index=True)
            # Lists that nothing fell into begin again somewhere else.
            means = sample[rng.choice(size, n_lists, replace=False)]
            for one, rows in zip(used.tolist(), np.split(order, starts[1:]), strict=True):
                mean = sample[rows].sum(axis=0)
                length = np.linalg.norm(mean)
                if length > 0:
                    means[one] = mean / length
            lists = cls(means)
        return lists

    def nearest(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the list of each row, shape (n,)."""

        def assign(start: int) -> NDArray[np.int64]:
            near = rows[start : start + QUERIES] @ self.centroids.T
            return np.asarray(near.argmax(axis=1), dtype=np.int64)

        found = in_threads(assign, range(0, len(rows), QUERIES))
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def search(self, queries: NDArray[np.float32], k: int, contents: Contents) -> Neighbors:
        """Return the k nearest rows of each query.

        Parameters
        ----------
        queries
            Shape (n, dim), float32, rows of unit length.
        k
            How many.
        contents
            The rows.
        """
        parts = [
            self._search(queries[start : start + TOGETHER], k, contents)
            for start in range(0, len(queries), TOGETHER)
        ]
        if not parts:
            return none_found(0, k)
        return Neighbors(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def measure(self, queries: NDArray[np.float32], contents: Contents) -> float:
        """Set the reach by which :data:`RECALL` of the nearest of rows in the lists is found.

        Parameters
        ----------
        queries
            Shape (n, dim): some of the rows in the lists. Each is left out of its own neighbours.
        contents
            All rows.

        Returns
        -------
        float
            The share of all rows that such a query is compared with.
        """
        self.reach = EXACT_REACH
        truth = self.search(queries, MEASURED_K + 1, contents).slots
        near = self._nearness(queries, contents)
        first = _first(near)
        # Of one more than wanted, since each row finds itself.
        least, _ = self._look_first(queries, first, MEASURED_K + 1, contents)
        there = truth >= 0
        query = np.nonzero(there)[0]
        lists = contents.list_of(truth[there])
        least = np.minimum(least, near.max(axis=1))
        gaps = least[query] - near[query, lists]
        gaps[(first[query] == lists[:, None]).any(axis=1)] = -np.inf
        missed = int((1.0 - RECALL) * MEASURED_K * len(queries))
        least_reach = LEAST_DEVIATIONS / np.sqrt(queries.shape[1])
        reach = -np.partition(-gaps, missed)[missed] if len(gaps) > missed else least_reach
        self.reach = float(np.clip(reach, least_reach, EXACT_REACH))
        asked = near >= least[:, None] - self.reach
        np.put_along_axis(asked, first, values=True, axis=1)
        return float((asked @ contents.sizes).mean() / max(1, contents.sizes.sum()))

    def _search(self, queries: NDArray[np.float32], k: int, contents: Contents) -> Neighbors:
        near = self._nearness(queries, contents)
        first = _first(near)
        least, found = self._look_first(queries, first, k, contents)
        asked = near >= np.minimum(least, near.max(axis=1))[:, None] - np.float32(self.reach)
        asked &= contents.sizes > 0
        np.put_along_axis(asked, first, values=False, axis=1)
        lists, query = np.nonzero(asked.T)

        def look_into(visit: Visit) -> list[Found]:
            number, asking = visit
            parts = []
            pieces = contents.blocks(number)
            for which, numbers, products in _compared(queries, query[asking], pieces):
                row, column = _above(products, least[which], k)
                if len(row):
                    parts.append(Found(which[row], numbers[column], products[row, column]))
            return parts

        parts = [found, *chain.from_iterable(in_threads(look_into, _by_list(lists)))]
        return _best(Found(*map(np.concatenate, zip(*parts, strict=True))), len(queries), k)

    def _nearness(self, queries: NDArray[np.float32], contents: Contents) -> NDArray[np.float32]:
        near = queries @ self.centroids.T
        near[:, contents.sizes == 0] = -np.inf
        return near

    def _look_first(
        self,
        queries: NDArray[np.float32],
        first: NDArray[np.int64],
        k: int,
        contents: Contents,
    ) -> tuple[NDArray[np.float32], Found]:
        """Return the k-th best of each query in its first lists, and what is there as near."""
        n, width = first.shape
        best = none_found(n * width, k)
        order = np.argsort(first, axis=None, kind="stable")

        def look_into(visit: Visit) -> None:
            number, asking = visit
            where = order[asking]  # places in `best`: of a query and one of its lists
            pieces = contents.blocks(number)
            for places, numbers, products in _compared(queries, where, pieces, width):
                some = _highest(numbers, products, k)
                if len(pieces) > 1:
                    so_far = Neighbors(best.slots[places], best.similarities[places])
                    some = merged([so_far, some], k)
                best.slots[places, : some.slots.shape[1]] = some.slots
                best.similarities[places, : some.slots.shape[1]] = some.similarities

        in_threads(look_into, _by_list(first.ravel()[order]))
        slots = best.slots.reshape(n, width * k)
        similarities = best.similarities.reshape(n, width * k)
        least = np.partition(similarities, -k, axis=1)[:, -k]
        row, column = np.nonzero((similarities >= least[:, None]) & (slots >= 0))
        return least, Found(row, slots[row, column], similarities[row, column])


def n_lists_for(n: int) -> int:
    """Return into how many lists n rows are sorted."""
    return max(1, min(int(LISTS_PER_ROOT * np.sqrt(n)), n // LEAST_ROWS))


def training_work(n: int) -> int:
    """Return how many times rows are compared with centroids until n rows are in lists."""
    n_lists = n_lists_for(n)
    return n_lists * (ROUNDS * min(n, ROWS_PER_LIST * n_lists) + n)


def _first(near: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the nearest lists of each query, shape (n, FIRST) or fewer."""
    width = min(FIRST, near.shape[1])
    first = np.empty((len(near), width), dtype=np.int64)
    for start in range(0, len(near), QUERIES):  # all lists get a number, in eight bytes
        part = np.s_[start : start + QUERIES]
        first[part] = np.argpartition(near[part], -width, axis=1)[:, -width:]
    return first


def _by_list(lists: NDArray[np.int64]) -> list[Visit]:
    """Return each number in an ascending array, and where it stands."""
    starts = np.flatnonzero(np.diff(lists, prepend=-1))
    ends = [*starts[1:].tolist(), len(lists)]
    places = map(slice, starts.tolist(), ends)
    return list(zip(lists[starts].tolist(), places, strict=False))


def _compared(
    queries: NDArray[np.float32],
    asking: NDArray[np.int64],
    blocks: Sequence[Block],
    per_query: int = 1,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
    """Yield some of those who ask, the numbers of rows, and the product of both.

    ``asking`` holds numbers of queries, or of places of which each query has ``per_query``.
    """
    for start in range(0, len(asking), QUERIES):
        part = asking[start : start + QUERIES]
        left = queries[part if per_query == 1 else part // per_query]
        for numbers, rows in blocks:
            yield part, numbers, left @ rows.T


def _highest(numbers: NDArray[np.int64], products: NDArray[np.float32], k: int) -> Neighbors:
    """Return the k highest of each row of products, in no order; fewer if there are not as many."""
    if products.shape[1] <= k:
        return Neighbors(np.broadcast_to(numbers, products.shape), products)
    columns = np.argpartition(products, -k, axis=1)[:, -k:]
    return Neighbors(numbers[columns], np.take_along_axis(products, columns, axis=1))


def _above(
    products: NDArray[np.float32], least: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of what is above the least of its row; k of a row are enough."""
    hits = np.flatnonzero(products > least[:, None])
    if len(hits) > k * len(products):
        columns = np.argpartition(products, -k, axis=1)[:, -k:]
        return np.repeat(np.arange(len(products)), k), columns.ravel()
    row, column = np.divmod(hits, products.shape[1])
    return row, column


def _best(found: Found, n: int, k: int) -> Neighbors:
    """Return the k best candidates of each of n queries; among equals those of lower number."""
    order = np.lexsort((found.number, -found.similarity, found.query))
    query, number, similarity = (column[order] for column in found)
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    top = rank < k
    best = none_found(n, k)
    best.slots[query[top], rank[top]] = number[top]
    best.similarities[query[top], rank[top]] = similarity[top]
    return best
