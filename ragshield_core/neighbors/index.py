"""Nearest entries by cosine: an index for a knowledge base that changes, and whole-corpus passes.

:class:`NeighborIndex` answers for new entries, exactly up to a size and through an HNSW graph above
it; :func:`all_neighbors` and :func:`pairs_above` compare a whole corpus with itself, exactly. All
take float32 rows of unit length, so that an inner product is a cosine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError, RAGShieldError, StateError

# Rows that came through float16 are off by about 1e-3; anything further was never normalised.
UNIT_TOLERANCE = 5e-3

# 12 MB of 384 dimensions: growing never copies more than that, a matrix product over one chunk is
# large enough to run at full speed, and one query touches few chunks.
CHUNK_ROWS = 8_192

# faiss splits queries into blocks of 4,096 itself, so that smaller calls would only lose speed.
QUERY_ROWS = 4_096

# A product of 1,024 x 4,096 float32 is 16 MB: large enough that threads of BLAS seldom wait for
# each other (on a busy machine products of 1,024 x 1,024 take 1.4 times as long), and small enough
# to be still in the last cache when it is compared. Below the diagonal half of 1,024 columns is
# wasted per strip.
LEFT_ROWS = 1_024
RIGHT_ROWS = 4_096

# 50 million pairs are 600 MB; 10,000 clones of one text alone make 50 million, less 5,000.
MAX_PAIRS = 50_000_000

# Two cores search a batch of 100 among 100,000 entries exactly in about the time in which they
# search it in a graph and add it there (benchmarks/results/neighbor_index.md); below, the graph
# costs more than it saves, and misses some.
EXACT_UP_TO = 100_000
# All pairs of this many rows take a minute or two on two cores, and a hundred times as many a week.
ALL_EXACT_UP_TO = 100_000
# Clusters looked into per row, rounds and rows per cluster of k-means. With half as many probes,
# .96 of the two nearest and .92 of the 16 nearest of 45,581 real passages were found, and all of
# synthetic clusters. Poisoned groups are near to each other, so that they share clusters.
PROBES, CLUSTER_ROUNDS, SAMPLE_PER_CLUSTER = 24, 5, 40

# On 66,000 held-out real passages these find .998 of the 10 nearest; half the links and half the
# care (16, 80) find .995 and are built in half the time. A group is missed with its neighbours.
LINKS = 32
EF_CONSTRUCTION = 160
EF_SEARCH = 96

# A graph in which a quarter of the nodes are gone still answers as well (recall@10 of 20,000 real
# passages .998 before and after); a rebuild per n / 4 removals is as costly as adding 4 entries
# for each one removed.
REBUILD_AT = 0.25

# Candidates are ranked by float16 in the graph and by float32 afterwards; a few more than wanted
# let the second ranking correct the first.
SPARE = 8

# So many queries go through the graph at once, and exact similarities are computed for so many
# candidates at once: 50 MB of 384 dimensions, however many clones there are among them.
RERANK_ROWS = 1_024
# Chunks whose best rows are sorted together.
MERGED_CHUNKS = 16
RERANK_CANDIDATES = 32_768

FORMAT = 1

# What reading damaged values and arrays raises.
_DAMAGE = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(OverflowError, MemoryError),
)


class TooManyPairsError(RAGShieldError, ValueError):
    """More pairs are alike than the caller allowed for; none is returned rather than some."""


class Neighbors(NamedTuple):
    """The nearest entries of each query, best first.

    Attributes
    ----------
    slots
        Shape (n_queries, k), int64; -1 where there are fewer than k.
    similarities
        Shape (n_queries, k), float32, cosines, descending; -inf where the slot is -1. Rounding
        lets a cosine exceed 1 by about 1e-6.
    """

    slots: NDArray[np.int64]
    similarities: NDArray[np.float32]


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

    Every entry gets a slot, a number that stays its own for good: slots are counted up and never
    handed out a second time, so that callers may keep arrays of their own by slot (``capacity``
    long). A slot costs 8 bytes for ever, an entry that was removed nothing else.

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
        self._rows = _Chunks(dim)
        self._ids: list[str] = []  # by row
        self._slot_of_row = _Column(np.int64)
        self._row_of_slot = _Column(np.int64)  # -1 where removed
        self._graph: _Graph | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slots

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return len(self._row_of_slot)

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
        _check_rows("embeddings", embeddings, self.dim, ids)
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
        """Remove entries and return the slots that were theirs; these are not handed out again.

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
            msg = f"id {_repeated(ids)!r} stands more than once in ids, expected unique ids."
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
        _check_k(k)
        _check_rows("embeddings", embeddings, self.dim)
        queries = np.ascontiguousarray(embeddings)
        if self._graph is None:
            return self._search_rows(queries, k)
        parts = [
            self._search_graph(self._graph, queries[start : start + RERANK_ROWS], k)
            for start in range(0, len(queries), RERANK_ROWS)
        ]
        if not parts:
            return _nothing(0, k)
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
        except _DAMAGE as error:
            msg = (
                f"the saved neighbour index cannot be read ({type(error).__name__}: {error}); "
                "restore it from a backup or build it again."
            )
            raise StateError(msg) from error

    @classmethod
    def _restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        if values["format"] > FORMAT:
            _raise_damaged(f"it is of format {values['format']}, this version reads {FORMAT}")
        index = cls(
            _whole(values["dim"]),
            exact_up_to=_whole(values["exact_up_to"]),
            seed=_whole(values["seed"]),
        )
        ids, capacity = values["ids"], _whole(values["capacity"])
        if not isinstance(ids, list) or not all(isinstance(entry_id, str) for entry_id in ids):
            _raise_damaged("its ids are not a list of str")
        vectors, slots = arrays["vectors"], _integers(arrays["slots"])
        if slots.shape != (len(ids),) or vectors.shape != (len(ids), index.dim):
            _raise_damaged("ids, slots and vectors do not have the same length")
        in_range = not len(slots) or (slots.min() >= 0 and slots.max() < capacity)
        if not in_range or len(np.unique(slots)) != len(slots):
            _raise_damaged("its slots are repeated or out of range")
        if len(set(ids)) != len(ids):
            _raise_damaged(f"id {_repeated(ids)!r} stands in it more than once")
        _check_rows("vectors", vectors, index.dim, ids)
        index._rows.append(vectors)
        index._ids = list(ids)
        index._slots = dict(zip(ids, slots.tolist(), strict=True))
        index._slot_of_row.append(slots)
        row_of_slot = np.full(capacity, -1, dtype=np.int64)
        row_of_slot[slots] = np.arange(len(ids))
        index._row_of_slot.append(row_of_slot)
        if "graph" in values:
            saved = {name: arrays[name] for name in _Graph.ARRAYS}
            if _checksum(saved) != values["graph"]["sha256"]:
                _raise_damaged("its graph does not match its checksum")
            index._graph = _Graph.restored(
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
            msg = f"id {_repeated(ids)!r} stands more than once in ids, expected unique ids."
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
        graph = _Graph(self.dim, self.seed)
        for start, rows in self._rows.filled():
            graph.add(self._slot_of_row.values[start : start + len(rows)], rows)
        self._graph = graph

    def _search_rows(self, queries: NDArray[np.float32], k: int) -> Neighbors:
        faiss = _faiss()

        best = _nothing(len(queries), k)
        if not len(queries):
            return best
        parts = []  # of several chunks, so that they are sorted once
        for start, rows in self._rows.filled():
            similarities, found = faiss.knn(
                queries, rows, min(k, len(rows)), metric=faiss.METRIC_INNER_PRODUCT
            )
            parts.append(Neighbors(found + start, similarities))
            if len(parts) == MERGED_CHUNKS:
                best, parts = _merged([best, *parts], k), []
        best = _merged([best, *parts], k)
        slots = np.full(best.slots.shape, -1, dtype=np.int64)
        there = best.slots >= 0
        slots[there] = self._slot_of_row.values[best.slots[there]]
        return Neighbors(slots, best.similarities)

    def _search_graph(self, graph: _Graph, queries: NDArray[np.float32], k: int) -> Neighbors:
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
        best = _nothing(len(queries), k)
        best.slots[query[top], rank[top]] = slots[top]
        best.similarities[query[top], rank[top]] = similarities[top]
        wanted = min(k, len(self))
        short = np.flatnonzero(best.slots[:, wanted - 1] < 0)
        if len(short):
            exact = self._search_rows(queries[short], k)
            best.slots[short], best.similarities[short] = exact
        return best


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
    faiss = _faiss()

    _check_k(k)
    _check_rows("embeddings", embeddings)
    rows = np.ascontiguousarray(embeddings)
    n = len(rows)
    result = _nothing(n, k)
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
    faiss = _faiss()

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
    _check_rows("embeddings", embeddings)
    rows = np.ascontiguousarray(embeddings)
    n = len(rows)
    bar = np.float32(threshold)
    if float(bar) > threshold:  # rounded up: pairs between the two would be lost
        bar = np.nextafter(bar, np.float32(-np.inf))
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
            np.greater(product[:size], bar, out=mask)
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


class _Chunks:
    """Rows of float32 that grow without copying what is there: chunks of a fixed size."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._chunks: list[NDArray[np.float32]] = []
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def append(self, rows: NDArray[np.float32]) -> None:
        self._reserve(self._n + len(rows))
        done = 0
        while done < len(rows):
            number, offset = divmod(self._n, CHUNK_ROWS)
            part = rows[done : done + CHUNK_ROWS - offset]
            self._chunks[number][offset : offset + len(part)] = part
            self._n += len(part)
            done += len(part)

    def move(self, source: int, target: int) -> None:
        self._chunks[target // CHUNK_ROWS][target % CHUNK_ROWS] = self._chunks[
            source // CHUNK_ROWS
        ][source % CHUNK_ROWS]

    def pop(self) -> None:
        self._n -= 1
        # One chunk in reserve, so that a size at the border does not allocate at every turn.
        while len(self._chunks) > self._n // CHUNK_ROWS + 2:
            self._chunks.pop()

    def filled(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the number of the first row and the rows of each chunk."""
        for start in range(0, self._n, CHUNK_ROWS):
            yield start, self._chunks[start // CHUNK_ROWS][: self._n - start]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies of rows, shape (n, dim)."""
        if len(self._chunks) == 1:
            return self._chunks[0].take(rows, axis=0)
        taken = np.empty((len(rows), self.dim), dtype=np.float32)
        numbers = rows // CHUNK_ROWS
        order = np.argsort(numbers, kind="stable")
        used, starts = np.unique(numbers[order], return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        for number, start, end in zip(used.tolist(), starts.tolist(), ends, strict=False):
            where = order[start:end]
            taken[where] = self._chunks[number][rows[where] - number * CHUNK_ROWS]
        return taken

    def _reserve(self, n: int) -> None:
        if len(self._chunks) <= 1 and n <= CHUNK_ROWS:
            # A small index takes little: the first chunk doubles until it is of full size.
            have = len(self._chunks[0]) if self._chunks else 0
            if n > have:
                size = min(CHUNK_ROWS, max(n, 2 * have, 64))
                self._replace_first(size)
            return
        if self._chunks and len(self._chunks[0]) < CHUNK_ROWS:
            self._replace_first(CHUNK_ROWS)
        while len(self._chunks) * CHUNK_ROWS < n:
            self._chunks.append(np.empty((CHUNK_ROWS, self.dim), dtype=np.float32))

    def _replace_first(self, size: int) -> None:
        first = np.empty((size, self.dim), dtype=np.float32)
        if self._chunks:
            first[: self._n] = self._chunks[0][: self._n]
        self._chunks = [first]


class _Column:
    """A growing one-dimensional array."""

    def __init__(self, dtype: type[np.int64 | np.bool_]) -> None:
        self._array: NDArray[Any] = np.empty(64, dtype=dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def values(self) -> NDArray[Any]:
        """A view on what is filled; writing through it is meant."""
        return self._array[: self._n]

    def append(self, values: NDArray[Any]) -> None:
        n = self._n + len(values)
        if n > len(self._array):
            grown = np.empty(max(n, len(self._array) * 3 // 2), dtype=self._array.dtype)
            grown[: self._n] = self.values
            self._array = grown
        self._array[self._n : n] = values
        self._n = n

    def pop(self) -> None:
        self._n -= 1


class _Graph:
    """An HNSW graph over the distinct vectors, in float16; finds candidates."""

    ARRAYS = ("nodes", "gone_vectors", "levels", "links")

    def __init__(self, dim: int, seed: int, index: Any = None) -> None:
        faiss = _faiss()

        self._index = _new_hnsw(dim) if index is None else index
        self._index.hnsw.efConstruction = EF_CONSTRUCTION
        # Not the same numbers again for what is added to a restored graph.
        self._index.hnsw.rng = faiss.RandomGenerator((seed + self._index.ntotal) % 2**31)
        self._node_of_key: dict[bytes, int] = {}
        self._slot_of_node = _Column(np.int64)  # one of its entries; -1 where all are removed
        self._node_of_slot = _Column(np.int64)  # -1 where not in the graph
        self._crowds: dict[int, dict[int, None]] = {}  # nodes of several slots, in order
        self._n_gone = 0

    @property
    def nbytes(self) -> int:
        hnsw = self._index.hnsw
        n = int(self._index.ntotal)
        codes = n * int(self._index.storage.sa_code_size())
        links = 4 * int(hnsw.neighbors.size()) + 4 * n + 8 * (n + 1)
        tables = self._slot_of_node.nbytes + self._node_of_slot.nbytes
        # A key of 16 bytes with its entry in the dict, and the entries of crowds.
        objects = 200 * n + 130 * sum(map(len, self._crowds.values()))
        return codes + links + tables + objects

    @property
    def share_gone(self) -> float:
        return self._n_gone / max(1, len(self._slot_of_node))

    def add(self, slots: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        fresh: list[int] = []
        known = len(self._slot_of_node)
        nodes = np.empty(len(slots), dtype=np.int64)
        first_slots: list[int] = []
        for number, (key, slot) in enumerate(zip(_keys(rows), slots.tolist(), strict=True)):
            node = self._node_of_key.get(key)
            if node is None:
                node = known + len(fresh)
                self._node_of_key[key] = node
                fresh.append(number)
                first_slots.append(slot)
            elif node >= known:
                self._crowds.setdefault(node, {first_slots[node - known]: None})[slot] = None
            else:
                self._join(node, slot)
            nodes[number] = node
        if fresh:
            self._slot_of_node.append(np.array(first_slots, dtype=np.int64))
            self._index.add(rows if len(fresh) == len(rows) else rows[fresh])
        self._note(slots, nodes)

    def remove(self, slots: NDArray[np.int64]) -> None:
        for slot in slots.tolist():
            node = int(self._node_of_slot.values[slot])
            self._node_of_slot.values[slot] = -1
            crowd = self._crowds.get(node)
            if crowd is None:
                self._slot_of_node.values[node] = -1
                self._n_gone += 1
                continue
            del crowd[slot]
            self._slot_of_node.values[node] = next(iter(crowd))
            if len(crowd) == 1:
                del self._crowds[node]

    def candidates(
        self, queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs of a query's number and the slot of a candidate, each shape (n,).

        Queries ascend; for each there are at least k candidates where the graph finds them.
        """
        faiss = _faiss()

        wanted = min(k + SPARE, int(self._index.ntotal))
        options: dict[str, Any] = {"efSearch": max(EF_SEARCH, 2 * wanted)}
        if self._n_gone:
            alive = np.packbits(self._slot_of_node.values >= 0, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(alive)
        _, nodes = self._index.search(queries, wanted, params=faiss.SearchParametersHNSW(**options))
        query = np.repeat(np.arange(len(queries)), wanted)
        flat = nodes.ravel()
        query, flat = query[flat >= 0], flat[flat >= 0]
        slots = self._slot_of_node.values[flat]
        if not self._crowds:
            return query, slots
        crowded = np.isin(flat, np.fromiter(self._crowds, np.int64, len(self._crowds)))
        extra_query, extra_slots = [query], [slots]
        for node in np.unique(flat[crowded]).tolist():
            # The first of them is there already; all of them are equal in float16.
            members = np.fromiter(islice(self._crowds[node], k + 1), np.int64)
            members = members[members != self._slot_of_node.values[node]]
            asking = query[flat == node]
            extra_query.append(np.repeat(asking, len(members)))
            extra_slots.append(np.tile(members, len(asking)))
        query, slots = np.concatenate(extra_query), np.concatenate(extra_slots)
        order = np.argsort(query, kind="stable")
        return query[order], slots[order]

    def state(self, slots: NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the node of each slot and the graph; FAISS's own format cannot be read safely.

        A damaged length in it makes FAISS ask for any amount of memory. Vectors of nodes are those
        of their entries, and are needed only where all entries were removed.
        """
        faiss = _faiss()
        hnsw = self._index.hnsw
        gone = np.flatnonzero(self._slot_of_node.values < 0)
        vectors = np.empty((len(gone), self._index.d), dtype=np.float16)
        if len(gone):
            vectors[:] = faiss.downcast_index(self._index.storage).reconstruct_batch(gone)
        return {"entry": max(0, int(hnsw.entry_point))}, {
            "nodes": np.asarray(self._node_of_slot.values[slots], dtype=np.int64),
            "gone_vectors": vectors,
            "levels": faiss.vector_to_array(hnsw.levels).astype(np.int32),
            "links": faiss.vector_to_array(hnsw.neighbors).astype(np.int32),
        }

    @classmethod
    def restored(
        cls,
        entry: int,
        arrays: Mapping[str, NDArray[Any]],
        slots: NDArray[np.int64],
        rows: _Chunks,
        seed: int,
    ) -> Self:
        nodes, levels = arrays["nodes"], arrays["levels"]
        n_nodes = len(levels)
        if nodes.dtype != np.int64 or nodes.shape != slots.shape:
            _raise_damaged("its nodes are not one whole number per entry")
        if len(nodes) and (nodes.min() < 0 or nodes.max() >= n_nodes):
            _raise_damaged("its nodes are out of range")
        in_use, row_of_node = np.unique(nodes, return_index=True)
        gone = np.setdiff1d(np.arange(n_nodes), in_use, assume_unique=True)
        gone_vectors = arrays["gone_vectors"]
        if gone_vectors.dtype != np.float16 or gone_vectors.shape != (len(gone), rows.dim):
            _raise_damaged("its graph does not hold the vector of every node")
        if not np.isfinite(gone_vectors).all():
            _raise_damaged("its graph holds vectors with NaN or infinite values")
        vectors = np.empty((n_nodes, rows.dim), dtype=np.float16)
        vectors[gone] = gone_vectors
        for start in range(0, len(in_use), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            vectors[in_use[part]] = rows.take(row_of_node[part])
        graph = cls(rows.dim, seed, _read_hnsw(entry, levels, arrays["links"], vectors))
        graph._slot_of_node.append(np.full(n_nodes, -1, dtype=np.int64))
        graph._n_gone = n_nodes
        for start, chunk in rows.filled():
            part = slice(start, start + len(chunk))
            members = zip(nodes[part].tolist(), slots[part].tolist(), strict=True)
            for key, (node, slot) in zip(_keys(chunk), members, strict=True):
                graph._node_of_key.setdefault(key, node)
                graph._join(node, slot)
        graph._note(slots, nodes)
        return graph

    def _join(self, node: int, slot: int) -> None:
        first = int(self._slot_of_node.values[node])
        if first < 0:  # all its entries were removed: it serves again
            self._slot_of_node.values[node] = slot
            self._n_gone -= 1
        else:
            self._crowds.setdefault(node, {first: None})[slot] = None

    def _note(self, slots: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
        if not len(slots):
            return
        missing = int(slots.max()) + 1 - len(self._node_of_slot)
        if missing > 0:
            self._node_of_slot.append(np.full(missing, -1, dtype=np.int64))
        self._node_of_slot.values[slots] = nodes


def _faiss() -> Any:
    """Import FAISS where it is first needed: it takes as long as all the rest together."""
    import faiss  # noqa: PLC0415 - see above

    return faiss  # its stubs do not know half of what it has


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _new_hnsw(dim: int) -> Any:
    faiss = _faiss()

    return faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)


def _read_hnsw(
    entry: int, levels: NDArray[Any], links: NDArray[Any], vectors: NDArray[np.float16]
) -> Any:
    """Return the graph, or raise before FAISS follows a link that leads out of it."""
    faiss = _faiss()
    n, dim = vectors.shape
    index = _new_hnsw(dim)
    hnsw = index.hnsw
    # Slots for links of a node that stands on so many levels.
    sizes = faiss.vector_to_array(hnsw.cum_nneighbor_per_level).astype(np.int64)
    if levels.dtype != np.int32 or links.dtype != np.int32 or levels.ndim != 1 or links.ndim != 1:
        _raise_damaged("its graph does not consist of whole numbers")
    if n and (levels.min() < 1 or levels.max() >= len(sizes)):
        _raise_damaged("levels of its graph are out of range")
    offsets = np.concatenate([[0], np.cumsum(sizes[levels])])
    if not _links_lead_somewhere(levels, links, offsets, sizes):
        _raise_damaged("links of its graph lead out of it")
    if not n:
        return index
    if entry >= n or levels[entry] != levels.max():
        _raise_damaged("its graph has no entry at the top level")
    for start in range(0, n, CHUNK_ROWS):
        index.storage.add(vectors[start : start + CHUNK_ROWS].astype(np.float32))
    index.ntotal = n
    faiss.copy_array_to_vector(levels, hnsw.levels)
    faiss.copy_array_to_vector(offsets.astype(np.uint64), hnsw.offsets)
    faiss.copy_array_to_vector(links, hnsw.neighbors)
    hnsw.entry_point = entry
    hnsw.max_level = int(levels[entry]) - 1
    return index


def _links_lead_somewhere(
    levels: NDArray[Any], links: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]
) -> bool:
    if len(links) != offsets[-1]:
        return False
    if not len(links):
        return True
    if links.min() < -1 or links.max() >= len(levels):
        return False
    for level in range(1, int(levels.max())):
        holders = np.flatnonzero(levels > level)
        span = np.arange(sizes[level], sizes[level + 1])
        there = links[offsets[holders][:, None] + span]
        if (levels[there[there >= 0]] <= level).any():
            return False
    return True


def _keys(rows: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield a key of each row that is the same for rows that are equal in float16."""
    # Adding zero makes the two zeros one.
    half = rows.astype(np.float16) + np.float16(0)
    for row in half:
        yield hashlib.blake2b(row, digest_size=16).digest()


def _merged(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """Return the k best of several lists of neighbours; among equals the first."""
    slots = np.concatenate([part.slots for part in parts], axis=1)
    similarities = np.concatenate([part.similarities for part in parts], axis=1)
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return Neighbors(
        np.take_along_axis(slots, order, axis=1), np.take_along_axis(similarities, order, axis=1)
    )


def _nothing(n: int, k: int) -> Neighbors:
    return Neighbors(
        np.full((n, k), -1, dtype=np.int64), np.full((n, k), -np.inf, dtype=np.float32)
    )


def _check_k(k: int) -> None:
    if k < 1:
        msg = f"k is {k}, expected how many neighbours to find, at least 1."
        raise InvalidBatchError(msg)


def _check_rows(
    name: str,
    rows: NDArray[np.float32],
    dim: int | None = None,
    ids: Sequence[str] | None = None,
) -> None:
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
    # Written so that NaN fails as well.
    wrong = np.flatnonzero(~(np.abs(squares - 1.0) <= 2 * UNIT_TOLERANCE))
    if len(wrong):
        row = int(wrong[0])
        whose = "" if ids is None else f" (entry {ids[row]!r})"
        msg = (
            f"{name}[{row}]{whose} has L2 norm {np.sqrt(squares[row]):.3f}, expected 1.000; "
            "normalise it first."
        )
        raise InvalidBatchError(msg)


def _repeated(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    for entry_id in ids:
        if entry_id in seen:
            return entry_id
        seen.add(entry_id)
    raise AssertionError  # pragma: no cover


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _raise_damaged(f"it holds {value!r} where a whole number belongs")
        raise AssertionError  # pragma: no cover
    return value


def _integers(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype != np.int64 or array.ndim != 1:
        _raise_damaged(f"it holds an array of {array.dtype} where whole numbers belong")
    return array


def _raise_damaged(what: str) -> None:
    msg = (
        f"the saved neighbour index cannot be used: {what}; restore it from a backup or build it "
        "again."
    )
    raise StateError(msg)
