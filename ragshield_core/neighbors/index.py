"""Nearest entries by cosine: an index for a knowledge base that changes, and whole-corpus passes.

:class:`NeighborIndex` answers for new entries, exactly up to a size and through inverted lists
above it; :func:`all_neighbors` and :func:`pairs_above` compare a whole corpus with itself. All take
float32 rows of unit length, so that an inner product is a cosine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError, StateError
from ragshield_core.neighbors.ids import packed, unpacked
from ragshield_core.neighbors.listed import ListedRows
from ragshield_core.neighbors.lists import EXACT_REACH, InvertedLists
from ragshield_core.neighbors.rows import (
    DAMAGE,
    MERGED_CHUNKS,
    Neighbors,
    check_k,
    check_rows,
    load_faiss,
    merged,
    none_found,
    raise_damaged,
)
from ragshield_core.neighbors.slots import Slots, repeated

# A batch of 1,000 is compared with so many in a tenth of a second by two cores; lists take about a
# third of that, and miss some (benchmarks/results/neighbor_index.md).
EXACT_UP_TO = 25_000

FORMAT = 1


class EntryIndex(ABC):
    """Nearest entries by cosine, wherever their vectors are.

    Every entry gets a slot: slots are counted up, so that they tell who came first, and callers may
    keep arrays of their own by slot (``capacity`` long). Those of entries that were removed are not
    handed out again; once there are many, :meth:`compact` renumbers the entries.

    Parameters
    ----------
    dim
        Length of a vector.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._slots = Slots()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slots

    @property
    def ids(self) -> list[str]:
        """The ids of all entries, in the order in which they came."""
        return self._slots.ids(self._slots.present)

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return self._slots.capacity

    @property
    def sparse(self) -> bool:
        """Whether so many slots are of entries that were removed that :meth:`compact` pays."""
        return self._slots.sparse

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

    def slots_of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        return self._slots.of(ids)

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids are in the index, each once."""
        return self._slots.among(ids)

    def ids_of(self, slots: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the id of each slot.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        return self._slots.ids(self._slots.known(slots))

    @abstractmethod
    def add(
        self, ids: Sequence[str], embeddings: NDArray[np.float32], *, more: bool = False
    ) -> NDArray[np.int64]:
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
    compared. :class:`~ragshield_core.neighbors.lists.InvertedLists` says how many are missed.
    Queries for which lists hold too few entries are answered exactly.

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
        self._rows = ListedRows(dim, seed)

    @property
    def exact(self) -> bool:
        """Whether searches compare with every entry."""
        return self._rows.lists is None

    @property
    def rows(self) -> ListedRows:
        """The vectors by slot, as they are kept."""
        return self._rows

    @property
    def bytes_per_entry(self) -> float:
        """Memory per entry present, in bytes: vectors, lists and tables; 0.0 if there is none.

        Python objects, for the ids, are estimated.
        """
        return (self._slots.nbytes + self._rows.nbytes) / len(self) if len(self) else 0.0

    def add(
        self, ids: Sequence[str], embeddings: NDArray[np.float32], *, more: bool = False
    ) -> NDArray[np.int64]:
        """Add entries and return their slots.

        Parameters
        ----------
        ids
            Unique, and none of them present.
        embeddings
            Shape (n, dim), float32, rows of unit length.
        more
            Whether others follow before anything is searched: lists are made with the last ones.

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
        self._slots.check_new(ids)
        slots = self._slots.add(ids)
        self._rows.append(embeddings)
        if more:
            return slots
        outgrown = len(self) > self.exact_up_to if self.exact else self._rows.outgrown
        if outgrown:
            self._rows.sort()
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
        slots = self._slots.remove(ids)
        self._rows.remove(slots)
        if not self.exact:
            # Half, not all of it, so that a size that swings around the line does not sort again.
            if 2 * len(self) <= self.exact_up_to or not len(self):
                self._rows.unsort()
            elif self._rows.outgrown:
                self._rows.sort()
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in the order in which they came.

        Returns
        -------
        NDArray[np.int64]
            Shape (n,): the slots that they had, by the new ones. Of an array by slot, callers keep
            these rows.
        """
        numbers = np.full(self.capacity, -1, dtype=np.int64)
        before = self._slots.compact()
        numbers[before] = np.arange(len(before))
        self._rows.renumber(before, numbers)
        return before

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return copies of the vectors of the given slots, shape (n, dim), float32.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        return self._rows.take(self._slots.known(slots))

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
        queries = np.ascontiguousarray(embeddings)
        return self._search_exactly(queries, k) if self.exact else self._rows.search(queries, k)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays without objects."""
        arrays = self._rows.state()
        values: dict[str, Any] = {
            "format": FORMAT,
            "dim": self.dim,
            "exact_up_to": self.exact_up_to,
            "seed": self.seed,
            "capacity": self.capacity,
        }
        if self._rows.lists is not None:
            values["lists"] = {"reach": self._rows.lists.reach}
        return values, arrays | packed(self._slots.ids(arrays["slots"]))

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
        vectors = arrays["vectors"]
        index._slots = saved_slots(values, arrays)
        slots = arrays["slots"]
        if vectors.shape != (len(slots), index.dim):
            raise_damaged("ids, slots and vectors do not have the same length")
        check_rows("vectors", vectors, index.dim)
        if "places" in arrays and _integers(arrays["places"]).shape != slots.shape:
            raise_damaged("its places are not one whole number per entry")
        lists = _saved_lists(values, arrays, vectors.shape)
        index._rows = ListedRows.restored(index.seed, index.capacity, arrays, lists)
        if lists is None and len(index) > index.exact_up_to:
            index._rows.sort()
        return index

    def _search_exactly(self, queries: NDArray[np.float32], k: int) -> Neighbors:
        faiss = load_faiss()

        best = none_found(len(queries), k)
        if not len(queries):
            return best
        parts = []  # of several chunks, so that they are sorted once
        for slots, rows in self._rows.filled():
            similarities, found = faiss.knn(
                queries, rows, min(k, len(rows)), metric=faiss.METRIC_INNER_PRODUCT
            )
            parts.append(Neighbors(slots[found], similarities))
            if len(parts) == MERGED_CHUNKS:
                best, parts = merged([best, *parts], k), []
        return merged([best, *parts], k)


def _saved_lists(
    values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> InvertedLists | None:
    """Return saved lists, once rows are known to stand in them; None if there are none."""
    if "lists" not in values:
        return None
    reach, numbers, centroids = values["lists"]["reach"], arrays["lists"], arrays["centroids"]
    if centroids.dtype != np.float32 or centroids.ndim != 2 or centroids.shape[1:] != shape[1:]:  # noqa: PLR2004
        raise_damaged("its centroids are not rows of float32, as long as its vectors")
    if not np.isfinite(centroids).all():
        raise_damaged("its centroids hold NaN or infinite values")
    if numbers.dtype != np.int32 or numbers.shape != shape[:1]:
        raise_damaged("its lists are not one whole number per entry")
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(centroids)):
        raise_damaged("its lists are out of range")
    if not isinstance(reach, float) or not 0.0 <= reach <= EXACT_REACH:
        raise_damaged(f"the reach of its lists is {reach!r}, not a difference of cosines")
    return InvertedLists(centroids, reach)


def saved_slots(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Slots:
    """Return the slots of a saved index, once they are known to fit together."""
    capacity, slots = _whole(values["capacity"]), _integers(arrays["slots"])
    ids = unpacked(arrays)
    if slots.shape != (len(ids),):
        raise_damaged("ids, slots and vectors do not have the same length")
    in_range = not len(slots) or (slots.min() >= 0 and slots.max() < capacity)
    if not in_range or len(np.unique(slots)) != len(slots):
        raise_damaged("its slots are repeated or out of range")
    if len(set(ids)) != len(ids):
        raise_damaged(f"id {repeated(ids)!r} stands in it more than once")
    return Slots.of_saved(ids, slots, capacity)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise_damaged(f"it holds {value!r} where a whole number belongs")
        raise AssertionError  # pragma: no cover
    return value


def _integers(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype != np.int64 or array.ndim != 1:
        raise_damaged(f"it holds an array of {array.dtype} where whole numbers belong")
    return array
