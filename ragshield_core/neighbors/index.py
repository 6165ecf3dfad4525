"""Nearest entries by cosine: an index for a knowledge base that changes, and whole-corpus passes.

:class:`NeighborIndex` answers for new entries, exactly up to a size and through an HNSW graph above
it; :func:`all_neighbors` and :func:`pairs_above` compare a whole corpus with itself, exactly. All
take float32 rows of unit length, so that an inner product is a cosine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError, StateError
from ragshield_core.neighbors.chunks import Chunks, Column
from ragshield_core.neighbors.hnsw import REBUILD_AT, Graph
from ragshield_core.neighbors.rows import (
    DAMAGE,
    MERGED_CHUNKS,
    RERANK_CANDIDATES,
    RERANK_ROWS,
    Neighbors,
    check_k,
    check_rows,
    load_faiss,
    merged,
    none_found,
    raise_damaged,
)

# Two cores search a batch of 100 among 100,000 entries exactly in about the time in which they
# search it in a graph and add it there (benchmarks/results/neighbor_index.md); below, the graph
# costs more than it saves, and misses some.
EXACT_UP_TO = 100_000

# Share of slots whose entries were removed at which the others are renumbered: callers' arrays are
# a third longer than need be, at the most, and renumbering costs little for each removal.
SPARSE_AT = 0.25


FORMAT = 1


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


class NeighborIndex:
    """Nearest entries by cosine: exact (flat inner product) up to a size, HNSW above it.

    Every entry gets a slot: slots are counted up, so that they tell who came first, and callers may
    keep arrays of their own by slot (``capacity`` long). Those of entries that were removed are not
    handed out again; once there are many, :meth:`compact` renumbers the entries.

    Parameters
    ----------
    dim
        Length of a vector.
    exact_up_to
        Number of entries up to which every search compares with every entry. Above, a graph is
        built (once, by the :meth:`add` that crosses the line, which takes about a minute at the
        default) and searches are approximate; below half of it the graph is dropped again.
    seed
        Of the levels of the graph. With more than one thread the links still depend on timing.

    Notes
    -----
    Vectors are kept once, in float32, in chunks that are never copied to grow. The graph keeps
    float16 copies and finds candidates only: similarities are always those of the float32 vectors.
    Vectors that are equal in float16 share one node, because a graph falls apart into islands
    where more entries coincide than a node has links; clones are an attack, so they must not
    unhinge the index. Entries that were removed stay in the graph as way-points until they are a
    quarter of it. Queries for which the graph finds too few entries are answered exactly.

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
        self.dim = dim
        self.exact_up_to = exact_up_to
        self.seed = seed
        self._slots: dict[str, int] = {}
        # Rows are dense, the last one moves into the gap of one that is removed; slots are not.
        self._rows = Chunks(dim)
        self._ids: list[str] = []  # by row
        self._slot_of_row = Column(np.int64)
        self._row_of_slot = Column(np.int64)  # -1 where removed
        self._graph: Graph | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slots

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return len(self._row_of_slot)

    @property
    def sparse(self) -> bool:
        """Whether so many slots are of entries that were removed that :meth:`compact` pays."""
        return self.capacity - len(self) > SPARSE_AT * self.capacity

    @property
    def exact(self) -> bool:
        """Whether searches compare with every entry."""
        return self._graph is None

    @property
    def bytes_per_entry(self) -> float:
        """Memory per entry present, in bytes: vectors, graph and tables; 0.0 if there is none.

        The ids themselves are not counted: they are the caller's strings. Tables of Python objects
        are estimated.
        """
        if not self._ids:
            return 0.0
        # An entry of a dict with its int value takes about 130 bytes, a pointer in a list 8.
        total = 138 * len(self)
        total += self._rows.nbytes + self._slot_of_row.nbytes + self._row_of_slot.nbytes
        total += 0 if self._graph is None else self._graph.nbytes
        return total / len(self)

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
        self._check_new(ids)
        first_row, first_slot = len(self), self.capacity
        slots = np.arange(first_slot, first_slot + len(ids), dtype=np.int64)
        self._rows.append(embeddings)
        self._ids.extend(ids)
        self._slot_of_row.append(slots)
        self._row_of_slot.append(np.arange(first_row, first_row + len(ids), dtype=np.int64))
        self._slots.update(zip(ids, slots.tolist(), strict=True))
        if self._graph is not None:
            self._graph.add(slots, embeddings)
        elif len(self) > self.exact_up_to:
            self._build()
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
        if len(set(ids)) != len(ids):
            msg = f"id {_repeated(ids)!r} is duplicated in ids, expected unique ids."
            raise InvalidBatchError(msg)
        unknown = next((entry_id for entry_id in ids if entry_id not in self._slots), None)
        if unknown is not None:
            msg = f"id {unknown!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        slots = self.slots_of(ids)
        for entry_id, slot in zip(ids, slots.tolist(), strict=True):
            self._drop_row(int(self._row_of_slot.values[slot]))
            self._row_of_slot.values[slot] = -1
            del self._slots[entry_id]
        if self._graph is not None:
            self._graph.remove(slots)
            # Half, not all of it, so that a size that swings around the line does not rebuild.
            if 2 * len(self) <= self.exact_up_to or not self._ids:
                self._graph = None
            elif self._graph.share_gone > REBUILD_AT:
                self._build()
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in the order in which they came.

        Returns
        -------
        NDArray[np.int64]
            Shape (n,): the slots that they had, by the new ones. Of an array by slot, callers keep
            these rows.
        """
        before = np.flatnonzero(self._row_of_slot.values >= 0)
        numbers = np.full(self.capacity, -1, dtype=np.int64)
        numbers[before] = np.arange(len(before))
        rows = self._row_of_slot.values[before]
        self._row_of_slot = Column(np.int64)
        self._row_of_slot.append(rows)
        self._slot_of_row.values[:] = numbers[self._slot_of_row.values]
        self._slots = dict(zip(self._ids, self._slot_of_row.values.tolist(), strict=True))
        if self._graph is not None:
            self._graph.renumber(before, numbers)
        return before

    def slots_of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        get = self._slots.get
        return np.array([get(entry_id, -1) for entry_id in ids], dtype=np.int64)

    def ids_of(self, slots: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the id of each slot.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        ids = self._ids
        return [ids[row] for row in self._rows_of(slots).tolist()]

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return copies of the vectors of the given slots, shape (n, dim), float32.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        return self._rows.take(self._rows_of(slots))

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
        if self._graph is None:
            return self._search_rows(queries, k)
        parts = [
            self._search_graph(self._graph, queries[start : start + RERANK_ROWS], k)
            for start in range(0, len(queries), RERANK_ROWS)
        ]
        if not parts:
            return none_found(0, k)
        return Neighbors(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays without objects."""
        rows = np.arange(len(self))
        values: dict[str, Any] = {
            "format": FORMAT,
            "dim": self.dim,
            "exact_up_to": self.exact_up_to,
            "seed": self.seed,
            "capacity": self.capacity,
            "ids": list(self._ids),
        }
        arrays: dict[str, NDArray[Any]] = {
            "vectors": self._rows.take(rows),
            "slots": self._slot_of_row.values.copy(),
        }
        if self._graph is not None:
            graph_values, graph_arrays = self._graph.state(arrays["slots"])
            values["graph"] = {**graph_values, "sha256": _checksum(graph_arrays)}
            arrays |= graph_arrays
        return values, arrays

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the index whose :meth:`state` this is.

        Raises
        ------
        StateError
            A :class:`ValueError`, if something is missing, damaged, does not fit together or is of
            a newer format. Links of the graph are checked before FAISS follows them: wrong ones
            would end the process.
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
        if values["format"] > FORMAT:
            raise_damaged(f"it is of format {values['format']}, this version reads {FORMAT}")
        index = cls(
            _whole(values["dim"]),
            exact_up_to=_whole(values["exact_up_to"]),
            seed=_whole(values["seed"]),
        )
        ids, capacity = values["ids"], _whole(values["capacity"])
        if not isinstance(ids, list) or not all(isinstance(entry_id, str) for entry_id in ids):
            raise_damaged("its ids are not a list of str")
        vectors, slots = arrays["vectors"], _integers(arrays["slots"])
        if slots.shape != (len(ids),) or vectors.shape != (len(ids), index.dim):
            raise_damaged("ids, slots and vectors do not have the same length")
        in_range = not len(slots) or (slots.min() >= 0 and slots.max() < capacity)
        if not in_range or len(np.unique(slots)) != len(slots):
            raise_damaged("its slots are repeated or out of range")
        if len(set(ids)) != len(ids):
            raise_damaged(f"id {_repeated(ids)!r} stands in it more than once")
        check_rows("vectors", vectors, index.dim, ids)
        index._rows.append(vectors)
        index._ids = list(ids)
        index._slots = dict(zip(ids, slots.tolist(), strict=True))
        index._slot_of_row.append(slots)
        row_of_slot = np.full(capacity, -1, dtype=np.int64)
        row_of_slot[slots] = np.arange(len(ids))
        index._row_of_slot.append(row_of_slot)
        if "graph" in values:
            saved = {name: arrays[name] for name in Graph.ARRAYS}
            if _checksum(saved) != values["graph"]["sha256"]:
                raise_damaged("its graph does not match its checksum")
            index._graph = Graph.restored(
                _whole(values["graph"]["entry"]), saved, slots, index._rows, index.seed
            )
        elif len(index) > index.exact_up_to:
            index._build()
        return index

    def _check_new(self, ids: Sequence[str]) -> None:
        present = next((entry_id for entry_id in ids if entry_id in self._slots), None)
        if present is not None:
            msg = f"id {present!r} is in this index already; remove it first to replace its vector."
            raise InvalidBatchError(msg)
        if len(set(ids)) != len(ids):
            msg = f"id {_repeated(ids)!r} is duplicated in ids, expected unique ids."
            raise InvalidBatchError(msg)

    def _rows_of(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        chosen = np.asarray(slots, dtype=np.int64)
        known = (chosen >= 0) & (chosen < self.capacity)
        rows = np.full(chosen.shape, -1, dtype=np.int64)
        rows[known] = self._row_of_slot.values[chosen[known]]
        if (rows < 0).any():
            slot = int(chosen[rows < 0][0])
            msg = f"slot {slot} holds no entry, expected slots of entries that are present."
            raise InvalidBatchError(msg)
        return rows

    def _drop_row(self, row: int) -> None:
        last = len(self._ids) - 1
        if row != last:
            slot = int(self._slot_of_row.values[last])
            self._ids[row] = self._ids[last]
            self._slot_of_row.values[row] = slot
            self._row_of_slot.values[slot] = row
            self._rows.move(last, row)
        self._ids.pop()
        self._slot_of_row.pop()
        self._rows.pop()

    def _build(self) -> None:
        self._graph = None  # frees the old one first
        graph = Graph(self.dim, self.seed)
        for start, rows in self._rows.filled():
            graph.add(self._slot_of_row.values[start : start + len(rows)], rows)
        self._graph = graph

    def _search_rows(self, queries: NDArray[np.float32], k: int) -> Neighbors:
        faiss = load_faiss()

        best = none_found(len(queries), k)
        if not len(queries):
            return best
        parts = []  # of several chunks, so that they are sorted once
        for start, rows in self._rows.filled():
            similarities, found = faiss.knn(
                queries, rows, min(k, len(rows)), metric=faiss.METRIC_INNER_PRODUCT
            )
            parts.append(Neighbors(found + start, similarities))
            if len(parts) == MERGED_CHUNKS:
                best, parts = merged([best, *parts], k), []
        best = merged([best, *parts], k)
        slots = np.full(best.slots.shape, -1, dtype=np.int64)
        there = best.slots >= 0
        slots[there] = self._slot_of_row.values[best.slots[there]]
        return Neighbors(slots, best.similarities)

    def _search_graph(self, graph: Graph, queries: NDArray[np.float32], k: int) -> Neighbors:
        query, slots = graph.candidates(queries, k)
        similarities = np.empty(len(slots), dtype=np.float32)
        for start in range(0, len(slots), RERANK_CANDIDATES):
            part = slice(start, start + RERANK_CANDIDATES)
            vectors = self._rows.take(self._row_of_slot.values[slots[part]])
            similarities[part] = np.einsum("ij,ij->i", queries[query[part]], vectors)
        order = np.lexsort((-similarities, query))
        query, slots, similarities = query[order], slots[order], similarities[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        top = rank < k
        best = none_found(len(queries), k)
        best.slots[query[top], rank[top]] = slots[top]
        best.similarities[query[top], rank[top]] = similarities[top]
        wanted = min(k, len(self))
        short = np.flatnonzero(best.slots[:, wanted - 1] < 0)
        if len(short):
            exact = self._search_rows(queries[short], k)
            best.slots[short], best.similarities[short] = exact
        return best


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _repeated(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    for entry_id in ids:
        if entry_id in seen:
            return entry_id
        seen.add(entry_id)
    raise AssertionError  # pragma: no cover


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise_damaged(f"it holds {value!r} where a whole number belongs")
        raise AssertionError  # pragma: no cover
    return value


def _integers(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype != np.int64 or array.ndim != 1:
        raise_damaged(f"it holds an array of {array.dtype} where whole numbers belong")
    return array
