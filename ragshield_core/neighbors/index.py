"""Nearest entries by cosine, in a knowledge base that changes.

:class:`NeighborIndex` answers exactly up to a size and through inverted lists above it. Vectors are
float32 rows of unit length, so that an inner product is a cosine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError, StateError
from ragshield_core.neighbors.ids import packed, unpacked
from ragshield_core.neighbors.lists import SHRUNK, InvertedLists
from ragshield_core.neighbors.rows import (
    DAMAGE,
    QUERY_ROWS,
    Neighbors,
    check_k,
    check_rows,
    exact,
    joined,
    raise_damaged,
)
from ragshield_core.neighbors.slots import Slots

# A batch of 1,000 is compared with so many in a tenth of a second by two cores; lists take about a
# third of that, and miss some (benchmarks/results/neighbor_index.md).
EXACT_UP_TO = 25_000

FORMAT = 1


class EntryIndex(Slots, ABC):
    """Nearest entries by cosine, wherever their vectors are.

    Parameters
    ----------
    dim
        Length of a vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @property
    def store(self) -> str | None:
        """Name of the store that keeps the vectors; ``None`` where they are here."""
        return None

    @property
    def connected(self) -> bool:
        """Whether that store is at hand."""
        return True

    @property
    def n_local(self) -> int:
        """How many vectors are kept here."""
        return len(self)

    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return how many."""
        return 0

    @abstractmethod
    def add(self, ids: Sequence[str], embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """Add entries and return their slots."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries and return the slots that were theirs."""

    @abstractmethod
    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in their order; return the slots they had."""

    @abstractmethod
    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return the unit vectors of slots, shape (n, dim)."""

    @abstractmethod
    def search(self, embeddings: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest entries of each query."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays."""


class FixedVectors:
    """Vectors that stay as they are: what an audit needs of an index, without a copy of them.

    Parameters
    ----------
    ids
        One per row.
    embeddings
        Shape (n, dim), float32, rows of unit length. Slots are row numbers.
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


class NeighborIndex(EntryIndex):
    """Nearest entries by cosine: exact (flat inner product) up to a size, inverted lists above it.

    Parameters
    ----------
    dim
        Length of a vector.
    exact_up_to
        Number of entries up to which every search compares with every entry. Above, they are sorted
        into lists (by the :meth:`add` that crosses the line, and again when they have outgrown
        them, which takes seconds for 100,000 and about a minute for a million), and searches are
        approximate; below half of it they are put together again.
    seed
        Of the sample by which lists are made.

    Notes
    -----
    Vectors are kept once, in float32. Lists decide only which entries a query is compared with:
    similarities are always those of the float32 vectors, and clones, which share a list, are all
    compared. Queries for which lists hold too few entries are answered exactly.

    Searches may run beside each other, but not beside :meth:`add` or :meth:`remove`.

    Examples
    --------
    >>> index = NeighborIndex(2)
    >>> slots = index.add(["a", "b"], np.array([[1, 0], [0, 1]], dtype=np.float32))
    >>> found = index.search(np.array([[0.6, 0.8]], dtype=np.float32), k=2)
    >>> index.ids_of(found.slots[0]), found.similarities.round(3).tolist()
    (['b', 'a'], [[0.800000011920929, 0.6000000238418579]])
    """

    def __init__(self, dim: int, *, exact_up_to: int = EXACT_UP_TO, seed: int = 0) -> None:
        if dim < 1:
            msg = f"dim is {dim}, expected the length of a vector, at least 1."
            raise ValueError(msg)
        if exact_up_to < 0:
            msg = f"exact_up_to is {exact_up_to}, expected a number of entries, at least 0."
            raise ValueError(msg)
        super().__init__(dim)
        self.exact_up_to = exact_up_to
        self.seed = seed
        self._rows = np.empty((0, dim), dtype=np.float32)  # by slot; NaN where removed
        self.lists: InvertedLists | None = None
        self._n_sorted = 0  # entries when lists were made

    @property
    def exact(self) -> bool:
        """Whether searches compare with every entry."""
        return self.lists is None

    def add(self, ids: Sequence[str], embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """Add entries and return their slots.

        Parameters
        ----------
        ids
            Unique, and none of them present.
        embeddings
            Shape (n, dim), float32, rows of unit length.

        Returns
        -------
        NDArray[np.int64]
            Shape (n,), ascending.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names the id that is present or repeated, or the row that is
            not a unit vector of this dimension; nothing was added then.
        """
        if len(embeddings) != len(ids):
            msg = f"embeddings has {len(embeddings)} rows for {len(ids)} ids, expected one per id."
            raise InvalidBatchError(msg)
        check_rows("embeddings", embeddings, self.dim, ids)
        slots = self.hand_out(ids)
        if self.capacity > len(self._rows):
            # A new array: a search that a time limit left behind may still read the old one.
            room = max(self.capacity, len(self._rows) * 9 // 8)
            grown = np.empty((room, self.dim), dtype=np.float32)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[slots] = embeddings
        if self.lists is not None:
            self.lists.add(slots, embeddings)
        self._sort_if_needed()
        return slots

    def remove(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries and return the slots that were theirs.

        Parameters
        ----------
        ids
            Unique, and all of them present.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names the id that is unknown or repeated; nothing was
            removed then.
        """
        slots = self.take_back(ids)
        self._rows[slots] = np.nan
        self._sort_if_needed()
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in the order in which they came.

        Returns
        -------
        NDArray[np.int64]
            Shape (n,): the slots that they had, by the new ones. Of an array by slot, callers keep
            these rows.
        """
        before = self.renumber()
        self._rows = self._rows[before]
        if self.lists is not None:
            self.lists = self.lists.renumbered(before)
        return before

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return copies of the vectors of the given slots, shape (n, dim), float32.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        chosen = np.asarray(slots, dtype=np.int64)
        there = (chosen >= 0) & (chosen < self.capacity)
        rows = self._rows[np.where(there, chosen, 0)] if len(self._rows) else self._rows[:0]
        if not there.all() or np.isnan(rows[:, :1]).any():
            self.ids_of(chosen)  # names the slot
        return rows

    def search(self, embeddings: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest entries of each query.

        Parameters
        ----------
        embeddings
            Shape (n_queries, dim), float32, rows of unit length.
        k
            How many, at least 1; an entry of the index is its own nearest.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a row is not a unit vector of this dimension or k is below 1.
        """
        check_k(k)
        check_rows("embeddings", embeddings, self.dim)
        queries, rows = np.ascontiguousarray(embeddings), self._rows[: self.capacity]
        if self.lists is None:
            return exact(queries, rows, k)
        return self.lists.search(queries, k, rows)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays without objects."""
        slots = self.present
        values: dict[str, Any] = {
            "format": FORMAT,
            "dim": self.dim,
            "exact_up_to": self.exact_up_to,
            "seed": self.seed,
            "capacity": self.capacity,
        }
        arrays: dict[str, NDArray[Any]] = {"slots": slots, "vectors": self._rows[slots]}
        arrays |= packed(self.ids)
        if self.lists is not None:
            values |= {"reach": self.lists.reach, "n_sorted": self._n_sorted}
            arrays["lists"] = self.lists.numbers_of(slots)
            arrays["centroids"] = self.lists.centroids.copy()
        return values, arrays

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the index whose :meth:`state` this is.

        Raises
        ------
        StateError
            A :class:`ValueError`, if something is missing, damaged, does not fit together or is of
            another format.
        """
        try:
            return cls._restored(values, arrays)
        except StateError:
            raise
        except DAMAGE as error:
            msg = (
                f"the saved neighbour index cannot be read ({type(error).__name__}: {error}); "
                "restore it from a backup or build it again."
            )
            raise StateError(msg) from error

    @classmethod
    def _restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        if values["format"] != FORMAT:
            raise_damaged(f"it is of format {values['format']}, this version reads {FORMAT}")
        index = cls(
            _whole(values["dim"]),
            exact_up_to=_whole(values["exact_up_to"]),
            seed=_whole(values["seed"]),
        )
        take_saved_slots(index, values, arrays)
        vectors, slots = arrays["vectors"], arrays["slots"]
        if vectors.shape != (len(slots), index.dim):
            raise_damaged("ids, slots and vectors do not have the same length")
        check_rows("vectors", vectors, index.dim)
        index._rows = np.full((index.capacity, index.dim), np.nan, dtype=np.float32)
        index._rows[slots] = vectors
        if "reach" in values:
            index.lists = _saved_lists(values, arrays, index.dim)
            index._n_sorted = _whole(values["n_sorted"])
        else:
            index._sort_if_needed()
        return index

    def _sort_if_needed(self) -> None:
        """Make lists, or make them anew, or put all entries together, where their number asks."""
        n = len(self)
        if self.lists is None:
            wanted = n > self.exact_up_to
        elif 2 * n <= self.exact_up_to or not n:
            # Half, not all of it, so that a size that swings around the line does not sort again.
            self.lists, wanted = None, False
        else:
            wanted = self.lists.outgrown or n < SHRUNK * self._n_sorted
        if wanted:
            rows = self._rows[: self.capacity]
            self.lists = InvertedLists.trained(rows, self.present, self.seed)
            self._n_sorted = n


def _saved_lists(
    values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], dim: int
) -> InvertedLists:
    """Return saved lists, once rows are known to stand in them."""
    slots, numbers, centroids = arrays["slots"], arrays["lists"], arrays["centroids"]
    if centroids.dtype != np.float32 or centroids.ndim != 2 or centroids.shape[1] != dim:  # noqa: PLR2004
        raise_damaged("its centroids are not rows of float32, as long as its vectors")
    if not np.isfinite(centroids).all():
        raise_damaged("its centroids hold NaN or infinite values")
    if numbers.dtype != np.int32 or numbers.shape != slots.shape:
        raise_damaged("its lists are not one whole number per entry")
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(centroids)):
        raise_damaged("its lists are out of range")
    if not isinstance(reach := values["reach"], float) or not np.isfinite(reach):
        raise_damaged(f"the reach of its lists is {reach!r}, not a difference of cosines")
    return InvertedLists(centroids.copy(), reach, slots, numbers.astype(np.int64))


def take_saved_slots(
    index: EntryIndex, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Give an index the slots of a saved one, once they are known to fit together."""
    capacity, slots = _whole(values["capacity"]), arrays["slots"]
    ids = unpacked(arrays)
    if slots.dtype != np.int64 or slots.ndim != 1:
        raise_damaged(f"it holds an array of {slots.dtype} where whole numbers belong")
    if slots.shape != (len(ids),):
        raise_damaged("ids, slots and vectors do not have the same length")
    in_range = not len(slots) or (slots.min() >= 0 and slots.max() < capacity)
    if not in_range or len(np.unique(slots)) != len(slots):
        raise_damaged("its slots are repeated or out of range")
    if len(set(ids)) != len(ids):
        raise_damaged("an id stands in it more than once")
    index.take_over(ids, slots, capacity)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise_damaged(f"it holds {value!r} where a whole number belongs")
        raise AssertionError  # pragma: no cover
    return value


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
        Lists that have some of the rows already, by their numbers.

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
