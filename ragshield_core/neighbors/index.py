"""Nearest entries by cosine, in a knowledge base that changes.

:class:`NeighborIndex` answers exactly up to a size and through inverted lists above it. Vectors are
float32 rows of unit length, so that an inner product is a cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index as whole
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.neighbors.search import (
    SHRUNK,
    InvertedLists,
    Neighbors,
    check_rows,
    exact,
    joined,
)
from ragshield_core.neighbors.slots import Slots, packed, unpacked

# Up to about this many entries, comparing with all of them takes no longer than lists, which miss
# some neighbours.
EXACT_UP_TO = 25_000
# After the add of few entries, lists may be made later: from twice as many entries on, or in lists
# that are twice as long. Until then, a search takes up to twice as long.
LATE = 2.0
# An add of a larger share of the entries takes as long as making the lists.
MANY = 0.125
# Rows that are searched for at once, in threads.
QUERY_ROWS = 4_096


class FixedVectors:
    """Vectors that never change: the part of an index that an audit needs, without a copy.

    Shape (n, dim), float32, rows of unit length, with an id each; slots are row numbers.
    """

    def __init__(self, ids: Sequence[str], embeddings: NDArray[np.float32]) -> None:
        self._ids, self._rows = ids, embeddings
        self.dim = embeddings.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def ids_of(self, slots: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the ids of slots."""
        return [self._ids[slot] for slot in np.asarray(slots).tolist()]

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return the unit vectors of slots, shape (n, dim)."""
        return np.asarray(self._rows[np.asarray(slots, dtype=np.int64)])


class NeighborIndex(Slots):
    """Nearest entries by cosine: exact (flat inner product) up to a size, inverted lists above it.

    Parameters
    ----------
    dim
        Length of a vector.
    exact_up_to
        Number of entries up to which every search compares with every entry. Above it, entries are
        sorted into lists, and searches are approximate. This takes seconds for 100,000 entries and
        about a minute for a million. The :meth:`add` of a few entries leaves it to :meth:`sort`,
        or to a copy in the background (:meth:`lists_from`), until it is overdue; an add of many
        does it itself. Below half of the number, lists are dropped. ``None``: the default.

    Notes
    -----
    Vectors are kept once, in float32. Lists only select the entries to compare with a query:
    similarities are always those of the float32 vectors, and all clones are compared, as they share
    a list. A query is answered exactly if its lists hold too few entries.

    Searches may run in parallel, but not in parallel with :meth:`add` or :meth:`remove`.

    Examples
    --------
    >>> index = NeighborIndex(2)
    >>> slots = index.add(["a", "b"], np.array([[1, 0], [0, 1]], dtype=np.float32))
    >>> found = index.search(np.array([[0.6, 0.8]], dtype=np.float32), k=2)
    >>> index.ids_of(found.slots[0]), found.similarities.round(3).tolist()
    (['b', 'a'], [[0.800000011920929, 0.6000000238418579]])
    """

    # Counterparts of the attributes of :class:`.stored.StoredIndex`, whose vectors are in a store.
    store: None = None
    connected = True

    def __init__(self, dim: int, *, exact_up_to: int | None = None) -> None:
        exact_up_to = EXACT_UP_TO if exact_up_to is None else exact_up_to
        if dim < 1 or exact_up_to < 0:
            msg = (
                f"dim is {dim} and exact_up_to {exact_up_to}, expected the length of a vector, at "
                "least 1, and a number of entries, at least 0."
            )
            raise ValueError(msg)
        super().__init__(vector=np.full(dim, np.nan, dtype=np.float32))  # NaN where removed
        self.dim = dim
        self.exact_up_to = exact_up_to
        self.lists: InvertedLists | None = None
        self._n_sorted = 0  # entries when lists were made

    @property
    def exact(self) -> bool:
        """Whether searches compare with every entry."""
        return self.lists is None

    @property
    def n_local(self) -> int:
        """Number of vectors kept in this index."""
        return len(self)

    def let_go(self) -> int:
        """Drop the vectors that a store has by now; return their number."""
        return 0

    def add(self, ids: Sequence[str], embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """Add entries with unique new ids, and unit float32 rows; return their slots.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names a present or repeated id, or a row that is not a unit
            vector of this dimension; nothing was added then.
        """
        if len(embeddings) != len(ids):
            msg = f"embeddings has {len(embeddings)} rows for {len(ids)} ids, expected one per id."
            raise InvalidBatchError(msg)
        check_rows("embeddings", embeddings, self.dim, ids)
        slots = self.hand_out(ids)
        self.columns["vector"][slots] = embeddings
        if self.lists is not None:
            self.lists.add(slots, embeddings)
        self.sort(late=1.0 if len(ids) > MANY * len(self) else LATE)
        return slots

    def remove(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries and return their slots; refuse all if an id is unknown or repeated."""
        slots = self.take_back(ids)
        self.columns.own("vector")
        self.columns["vector"][slots] = np.nan
        self.sort(late=LATE)
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries without gaps, in the order of their arrival.

        Return the old slots, ordered by new slot: callers keep these rows of their arrays by slot.
        """
        before = self.renumber()
        if self.lists is not None:
            self.lists = self.lists.renumbered(before)
        return before

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return copies of the unit vectors of slots, shape (n, dim); refuse an empty slot."""
        chosen = np.asarray(slots, dtype=np.int64)
        there = (chosen >= 0) & (chosen < self.capacity)
        rows: NDArray[np.float32] = self.columns["vector"][chosen[there]]
        if not there.all() or np.isnan(rows[:, :1]).any():
            self.ids_of(chosen)  # names the slot
        return rows

    def search(self, embeddings: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest entries of each query; an entry of the index is its own nearest.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a row is not a unit vector of this dimension or k is below 1.
        """
        check_rows("embeddings", embeddings, self.dim, k=k)
        queries, rows = np.ascontiguousarray(embeddings), self.columns["vector"]
        return (
            exact(queries, rows, k) if self.lists is None else self.lists.search(queries, k, rows)
        )

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays without objects."""
        values: dict[str, Any] = {"dim": self.dim, "exact_up_to": self.exact_up_to}
        values["capacity"] = self.capacity
        slots = self.present
        # By slot, so that it needs no copy; NaN where an entry was removed.
        arrays: dict[str, NDArray[Any]] = {"slots": slots, "vectors": self.columns.lent("vector")}
        if self.lists is not None:
            values |= {"reach": self.lists.reach, "n_sorted": self._n_sorted}
            arrays |= self.lists.state(slots)
        return values, arrays | packed(self.ids)

    def lists_from(self, earlier: Self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the lists that an earlier copy has made since, nothing if it made none.

        Nor are there any if entries were renumbered meanwhile.
        """
        new = earlier.lists is not None and earlier._n_sorted != self._n_sorted
        ids = zip(self._ids, earlier._ids, strict=False)
        if not new or not all(mine is None or mine == theirs for mine, theirs in ids):
            return {}, {}
        assert earlier.lists is not None  # noqa: S101 - see above
        values = {"reach": earlier.lists.reach, "n_sorted": earlier._n_sorted}
        return values, earlier.lists.state(earlier.present)

    def take_lists(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the result of :meth:`lists_from`."""
        lists, present = InvertedLists.saved(values["reach"], arrays, self.dim), self.present
        later = present[present > arrays["slots"].max(initial=-1)]
        lists.add(later, self.columns["vector"][later])
        self.lists, self._n_sorted = lists, whole(values["n_sorted"])

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the index with this :meth:`state`; :class:`ValueError` if it does not fit."""
        index = cls(whole(values["dim"]), exact_up_to=whole(values["exact_up_to"]))
        slots, vectors = arrays["slots"], arrays["vectors"]
        index.take_over(unpacked(arrays), slots, values["capacity"])
        if len(vectors) != len(index.columns):
            msg = f"it has {len(vectors)} vectors for {len(index.columns)} slots"
            raise ValueError(msg)
        check_rows("vectors", vectors if len(slots) == len(vectors) else vectors[slots], index.dim)
        index.columns["vector"][:] = vectors
        index.columns["vector"][np.setdiff1d(np.arange(len(vectors)), slots)] = np.nan
        if "reach" in values:
            index.lists = InvertedLists.saved(values["reach"], arrays, index.dim)
            index._n_sorted = whole(values["n_sorted"])
        else:
            index.sort()
        return index

    def sort(self, *, late: float = 1.0) -> None:
        """Make, renew or drop the lists if the entries require it, ``late`` times over."""
        n = len(self)
        if self.lists is None:
            wanted = n > late * self.exact_up_to
        elif 2 * n <= self.exact_up_to or not n:
            # Half of it, so that a size that swings around the line does not sort again and again.
            self.lists, self._n_sorted, wanted = None, 0, False
        else:
            wanted = self.lists.outgrown(late) or n < SHRUNK * self._n_sorted
        if wanted:
            self.lists = InvertedLists.trained(self.columns["vector"], self.present)
            self._n_sorted = n


def all_neighbors(embeddings: NDArray[np.float32], k: int) -> Neighbors:
    """Return the k nearest *other* rows of every row, as row numbers; shape (n, k).

    The parameters are those of :func:`neighbors_in_turn`.
    """
    return joined(list(neighbors_in_turn(embeddings, k)), k)


def neighbors_in_turn(
    embeddings: NDArray[np.float32], k: int, lists: InvertedLists | None = None
) -> Iterator[Neighbors]:
    """Yield the nearest other rows of unit rows, for some thousand rows at a time.

    Few rows are searched exactly, more through lists; given ``lists`` hold row numbers. A row is
    excluded from its own neighbours by its number, not as the best hit: among exact duplicates the
    best hit may be any of them.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`, if a row is not a unit vector or k is below 1.
    """
    check_rows("embeddings", embeddings, k=k)
    rows, n = np.ascontiguousarray(embeddings), len(embeddings)
    if lists is None and n > EXACT_UP_TO:
        lists = InvertedLists.trained(rows, np.arange(n))
    for start in range(0, n, QUERY_ROWS):
        part = rows[start : start + QUERY_ROWS]
        found = exact(part, rows, k + 1) if lists is None else lists.search(part, k + 1, rows)
        itself = found.slots == np.arange(start, start + len(part))[:, None]
        # If more than k others are as near as the row itself, it may be missing from the list;
        # then the last neighbour is surplus.
        surplus = np.where(itself.any(axis=1), itself.argmax(axis=1), k)
        kept = np.arange(k + 1) != surplus[:, None]
        yield Neighbors(*(column[kept].reshape(-1, k) for column in found))
