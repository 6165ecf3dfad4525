"""A graph of nearest entries (HNSW) that grows, forgets, and is rebuilt when much of it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Chunks, Column
from ragshield_core.neighbors.rows import CHUNK_ROWS, keys_of, load_faiss, raise_damaged

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


class Graph:
    """An HNSW graph over the distinct vectors, in float16; finds candidates."""

    ARRAYS = ("nodes", "gone_vectors", "levels", "links")

    def __init__(self, dim: int, seed: int, index: Any = None) -> None:
        faiss = load_faiss()

        self._index = _new_hnsw(dim) if index is None else index
        self._index.hnsw.efConstruction = EF_CONSTRUCTION
        # Not the same numbers again for what is added to a restored graph.
        self._index.hnsw.rng = faiss.RandomGenerator((seed + self._index.ntotal) % 2**31)
        self._node_of_key: dict[bytes, int] = {}
        self._slot_of_node = Column(np.int64)  # one of its entries; -1 where all are removed
        self._node_of_slot = Column(np.int64)  # -1 where not in the graph
        self._crowds: dict[int, dict[int, None]] = {}  # nodes of several slots, in order
        self._n_gone = 0

    @property
    def nbytes(self) -> int:
        """The memory that it takes, about."""
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
        """The share of nodes whose entries were removed."""
        return self._n_gone / max(1, len(self._slot_of_node))

    def add(self, slots: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Add rows under their slots."""
        fresh: list[int] = []
        known = len(self._slot_of_node)
        nodes = np.empty(len(slots), dtype=np.int64)
        first_slots: list[int] = []
        for number, (key, slot) in enumerate(zip(keys_of(rows), slots.tolist(), strict=True)):
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
        """Take slots out; their nodes stay as waypoints."""
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

    def renumber(self, before: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Take over new numbers of slots.

        Parameters
        ----------
        before
            The slots that are in use, by their new numbers.
        numbers
            The new numbers, by slot.
        """
        there = self._slot_of_node.values >= 0
        self._slot_of_node.values[there] = numbers[self._slot_of_node.values[there]]
        nodes = self._node_of_slot.values[before]
        self._node_of_slot = Column(np.int64)
        self._node_of_slot.append(nodes)
        self._crowds = {
            node: dict.fromkeys(numbers[list(crowd)].tolist())
            for node, crowd in self._crowds.items()
        }

    def candidates(
        self, queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs of a query's number and the slot of a candidate, each shape (n,).

        Queries ascend; for each there are at least k candidates where the graph finds them.
        """
        faiss = load_faiss()

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
        faiss = load_faiss()
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
        rows: Chunks,
        seed: int,
    ) -> Self:
        """Return the graph that was saved."""
        nodes, levels = arrays["nodes"], arrays["levels"]
        n_nodes = len(levels)
        if nodes.dtype != np.int64 or nodes.shape != slots.shape:
            raise_damaged("its nodes are not one whole number per entry")
        if len(nodes) and (nodes.min() < 0 or nodes.max() >= n_nodes):
            raise_damaged("its nodes are out of range")
        in_use, row_of_node = np.unique(nodes, return_index=True)
        gone = np.setdiff1d(np.arange(n_nodes), in_use, assume_unique=True)
        gone_vectors = arrays["gone_vectors"]
        if gone_vectors.dtype != np.float16 or gone_vectors.shape != (len(gone), rows.dim):
            raise_damaged("its graph does not hold the vector of every node")
        if not np.isfinite(gone_vectors).all():
            raise_damaged("its graph holds vectors with NaN or infinite values")
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
            for key, (node, slot) in zip(keys_of(chunk), members, strict=True):
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


def _new_hnsw(dim: int) -> Any:
    faiss = load_faiss()

    return faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)


def _read_hnsw(
    entry: int, levels: NDArray[Any], links: NDArray[Any], vectors: NDArray[np.float16]
) -> Any:
    """Return the graph, or raise before FAISS follows a link that leads out of it."""
    faiss = load_faiss()
    n, dim = vectors.shape
    index = _new_hnsw(dim)
    hnsw = index.hnsw
    # Slots for links of a node that stands on so many levels.
    sizes = faiss.vector_to_array(hnsw.cum_nneighbor_per_level).astype(np.int64)
    if levels.dtype != np.int32 or links.dtype != np.int32 or levels.ndim != 1 or links.ndim != 1:
        raise_damaged("its graph does not consist of whole numbers")
    if n and (levels.min() < 1 or levels.max() >= len(sizes)):
        raise_damaged("levels of its graph are out of range")
    offsets = np.concatenate([[0], np.cumsum(sizes[levels])])
    if not _links_lead_somewhere(levels, links, offsets, sizes):
        raise_damaged("links of its graph lead out of it")
    if not n:
        return index
    if entry >= n or levels[entry] != levels.max():
        raise_damaged("its graph has no entry at the top level")
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
