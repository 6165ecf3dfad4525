"""Graph of the nearest neighbours of every entry, up to date as entries come and go.

Each entry has a slot (its number in the :class:`~ragshield_core.neighbors.index.NeighborIndex`, in
order of arrival) and a list of its nearest entries. Screening a batch makes an :class:`Overlay`:
the lists of the new entries, and the stored lists that a new entry would join; the graph itself is
not changed. Learning the batch writes the overlay into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.listers import Listers
from ragshield_core.detectors.groups.words import ENTRIES_AT_ONCE, EntryWords, Words
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.index import (
    FixedVectors,
    NeighborIndex,
    all_neighbors,
    neighbors_in_turn,
)
from ragshield_core.neighbors.known import cosines, rows_within
from ragshield_core.neighbors.search import InvertedLists, Neighbors, merged, none_found
from ragshield_core.neighbors.slots import Columns
from ragshield_core.neighbors.stored import EntryIndex, StoredIndex, VectorTable, Where
from ragshield_core.state import part_of
from ragshield_core.text.copies import content_words

# Texts are compared only if vectors are at least this similar: copies of half a text exceed it far.
COMPARE_ABOVE = 0.6
# If all entries are copies of each other, their distance says nothing about the model.
LEAST_UNRELATED = 0.01
# Neighbours that are searched beyond the lists, for detectors that need a few more.
SPARE = 8
# Similarities of a search vary by less than this with the shape of its products. A list prefers the
# oldest of the entries tied for its last place; this many candidates are then compared exactly.
ROUNDING, TIED = 2e-6, 256
# Neighbours whose vectors are compared at once: 50 MB of 384 dimensions.
RANKED = 32_768
# A search takes as long as filling so many cells of a table.
CELLS = 128
# Marks an entry without a document id: it shares no document with any other.
NO_LINEAGE = -1
# Cosines, shares and figures are rounded when they are computed, so that results are the same in a
# process that computed them, one that read them, and one that learned the same entries. Steps per
# unit of cosines: errors up to 8e-6.
COSINE_STEPS = 2**16 - 1

Rows = slice | NDArray[np.intp]
# Functions that return a property of entries by their numbers, in the same shape; that of -1 is
# ignored.
Marks = Callable[[NDArray[np.integer[Any]]], NDArray[np.bool_]]
Codes = Callable[[NDArray[np.integer[Any]]], NDArray[np.integer[Any]]]


class Lists(NamedTuple):
    """Neighbour lists of some rows, nearest first; shape (n, k) each."""

    slots: NDArray[Any]  # int32 in the graph's own, else int64; padded with -1
    similarities: NDArray[np.float32]  # cosines; padded with -inf
    copied: NDArray[np.float32]  # [0, 1]: share of the shorter text that is in the other

    @classmethod
    def empty(cls, n: int, k: int) -> Lists:
        """Return lists without an entry."""
        return cls(*none_found(n, k), np.zeros((n, k), dtype=np.float32))

    @classmethod
    def of(cls, found: Neighbors, k: int) -> Lists:
        """Return lists of k found neighbours; copied shares are still 0."""
        n, width = found.slots.shape
        lists = cls.empty(n, max(k, width))
        lists.slots[:, :width], lists.similarities[:, :width] = found
        return lists.ranked().take(np.s_[:, :k])

    def ranked(self) -> Lists:
        """Return the lists with rounded cosines, ties in the order of the slots.

        The cosines of copies differ by how a product was computed, before they are rounded.
        """
        lists = self._replace(similarities=rounded(self.similarities, COSINE_STEPS))
        order = np.lexsort((lists.slots, -lists.similarities), axis=1)
        return Lists(*(np.take_along_axis(column, order, 1) for column in lists))

    def take(self, rows: Any) -> Lists:
        """Return the lists of some rows."""
        return Lists(*(column[rows] for column in self))

    def put(self, rows: Any, other: Lists) -> None:
        """Replace the lists of some rows."""
        for mine, theirs in zip(self, other, strict=True):
            mine[rows] = theirs


class SimilarityGraph:
    """Neighbour lists, of ``k`` each, of a growing knowledge base.

    Neighbours are found in the store of a ``table``, or by an index in memory. ``beside`` has
    further columns of entries, see :class:`~ragshield_core.neighbors.slots.Columns`.
    """

    def __init__(
        self,
        dim: int,
        k: int,
        *,
        table: VectorTable | None = None,
        **beside: Any,
    ) -> None:
        self.index: EntryIndex = NeighborIndex(dim) if table is None else StoredIndex(dim, table)
        self.k = k
        self.unrelated: float | None = None  # see unrelated_distance; None before it is measured
        self.words = EntryWords()  # by slot
        self.columns = Columns(
            slots=np.full(k, -1, dtype=np.int32),
            similarities=np.full(k, -np.inf, dtype=np.float32),
            copied=np.zeros(k, dtype=np.float32),
            lineage=np.int32(NO_LINEAGE),
            gone=np.False_,
            **beside,
        )
        self.lineages: dict[str | None, int] = {None: NO_LINEAGE}  # codes by name
        self.version = 0  # grows with every change
        self._listers: Listers | None = None  # made when entries first leave
        self._last: tuple[Batch, Neighbors] | None = None
        self._nothing = Batch.of(ids=[], texts=[], embeddings=np.empty((0, dim)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def n_slots(self) -> int:
        """Number of slots, including those of removed entries."""
        return len(self.columns)

    @property
    def present(self) -> NDArray[np.int64]:
        """Slots of the present entries."""
        return np.flatnonzero(~self.columns["gone"])

    @property
    def lists(self) -> Lists:
        """The lists of all slots; they can be written to."""
        return Lists(*(self.columns[name] for name in Lists._fields))

    @classmethod
    def fixed(cls, batch: Batch, k: int, **beside: Any) -> SimilarityGraph:
        """Return the graph of a read-only knowledge base: its vectors are not copied.

        It cannot search, learn or remove entries.
        """
        graph = cls(batch.dim, k, **beside)
        graph.index = cast("NeighborIndex", FixedVectors(batch.ids, batch.embeddings))
        graph._connect(batch)
        return graph

    @classmethod
    def assembled(
        cls,
        index: FixedVectors,
        words: list[NDArray[np.uint32]],
        lineage: NDArray[np.int64],
        lists: Lists,
        unrelated: float,
    ) -> SimilarityGraph:
        """Return a read-only graph whose neighbours were found elsewhere.

        ``index`` has ids and vectors of n entries; ``lists`` are the lists of the first ones, or of
        all. ``lineage`` has codes of documents, shape (n,), which are the same in all graphs that
        are parts of one knowledge base.
        """
        graph = cls(index.dim, lists.slots.shape[1])
        graph.index = cast("NeighborIndex", index)
        graph.columns.grow(len(words))
        graph.columns["lineage"][:] = lineage
        graph.unrelated = unrelated
        graph.words = EntryWords()
        graph.words.append(words)
        graph.lists.put(np.s_[: len(lists.slots)], lists.ranked())
        return graph

    def use_table(self, table: VectorTable, where: Where | None) -> None:
        """Find neighbours in a store, or in memory, from now on; ``None`` leaves it as it is."""
        before = self.index
        if isinstance(before, StoredIndex):
            before.connect(table)
            if where == "memory":
                self.index = before.into_memory()
        elif where == "store" and isinstance(before, NeighborIndex):
            self.index = StoredIndex.of(before, table)
        self._last = None

    def sort(self) -> None:
        """Make or renew the lists in which neighbours are searched, if that is due."""
        if isinstance(self.index, NeighborIndex):
            self.index.sort()

    def sorted_by(self, earlier: SimilarityGraph) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the lists that an earlier copy has made since, nothing if it made none."""
        if isinstance(self.index, NeighborIndex) and isinstance(earlier.index, NeighborIndex):
            return self.index.lists_from(earlier.index)
        return {}, {}

    def take_sorted(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the result of :meth:`sorted_by`."""
        if values and isinstance(self.index, NeighborIndex):
            self.index.take_lists(values, arrays)

    def copied(
        self, numbers: NDArray[np.int64], lists: Lists, new: Sequence[NDArray[np.uint32]] = ()
    ) -> NDArray[np.float32]:
        """Return, for each edge of the lists, the share of the shorter text that is in the other.

        0 unless the vectors are more similar than :data:`COMPARE_ABOVE`. ``new`` has the words
        of entries whose numbers follow the slots.
        """
        copied = np.zeros(lists.slots.shape, dtype=np.float32)
        near = self.relative(lists.similarities) > COMPARE_ABOVE
        words = Words(self.words, new)
        copied[near] = words.copied(numbers[np.nonzero(near)[0]], lists.slots[near])
        return copied

    def relative(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return cosines rescaled so that unrelated entries have 0; shape as ``cosines``, >= -1.

        Some models give all texts a common direction: then unrelated ones have cosines of .8.
        Relative cosines do not depend on that.
        """
        relative = 1.0 - (1.0 - cosines) / np.float32(self.unrelated or 1.0)
        return np.asarray(np.maximum(relative, np.float32(-1.0)), dtype=np.float32)

    def absolute(self, relative: float) -> float:
        """Return the cosine for a relative one."""
        return 1.0 - (1.0 - relative) * (self.unrelated or 1.0)

    def fit(self, keys: Sequence[str], batch: Batch) -> None:
        """Insert a whole knowledge base at once, under unique keys."""
        self._changed()
        self.index.add(keys, batch.embeddings)
        self._connect(batch, self.index.lists if isinstance(self.index, NeighborIndex) else None)

    def _connect(self, batch: Batch, lists: InvertedLists | None = None) -> None:
        """Find the neighbours of a whole knowledge base, by its own slots, and store its words.

        It works in parts, so that working memory does not grow with the knowledge base.
        """
        self.unrelated = unrelated_distance(batch.embeddings)
        for start in range(0, len(batch), ENTRIES_AT_ONCE):
            texts = batch.texts[start : start + ENTRIES_AT_ONCE]
            self.words.append(list(map(content_words, texts)))
        n, done = len(batch), 0
        self.columns.grow(n)
        k = min(self.k + SPARE, max(1, n - 1))
        for found in neighbors_in_turn(batch.embeddings, k, lists):
            own = np.arange(done, done + len(found.slots))
            done += len(own)
            new = Lists.of(found, self.k)
            self.lists.put(own, new._replace(copied=self.copied(own, new)))
        self.columns["lineage"][:] = self._noted(batch.lineages)

    def overlay(
        self, batch: Batch, replaced: Sequence[str] = (), lists: Lists | None = None
    ) -> Overlay:
        """Return the part of the graph that the batch would change, with the batch in it.

        Entries with ``replaced`` keys do not count: the batch brings new revisions of them.
        ``lists`` are those of the batch, if they are known.
        """
        words = list(map(content_words, batch.texts))
        gone = self.index.slots_of(replaced)
        gone = gone[gone >= 0]
        own = self.n_slots + np.arange(len(batch), dtype=np.int64)
        new = self._lists_of(batch, gone) if lists is None else lists
        if lists is None:
            new.copied[:] = self.copied(own, new, words)
        touched, stored = self._touched(own, new, gone)
        return Overlay(
            graph=self,
            batch=batch,
            numbers=np.concatenate([own, touched]),
            lists=Lists(*map(np.concatenate, zip(new, stored, strict=True))),
            words=words,
        )

    def _lists_of(self, batch: Batch, gone: NDArray[np.int64]) -> Lists:
        """Return the lists of a batch; copied shares are still 0, ``gone`` slots do not count."""
        n, m, k = self.n_slots, len(batch), self.k
        parts = [none_found(m, k)]
        if len(self):
            # Each entry of the batch has few older revisions, and they are near it.
            found = self.nearest(batch, k + min(len(gone), 2 * k))
            hidden = np.isin(found.slots, gone)
            slots = np.where(hidden, -1, found.slots)
            similarities = np.where(hidden, np.float32(-np.inf), found.similarities)
            parts.append(merged([Neighbors(slots, similarities)], k))
        if m > 1:
            inside = all_neighbors(batch.embeddings, min(k + SPARE, m - 1))
            inside.slots[inside.slots >= 0] += n
            parts.append(inside)
        # Rounded before they are merged: of equal ones, known entries come first.
        near = [
            each._replace(similarities=rounded(each.similarities, COSINE_STEPS)) for each in parts
        ]
        return Lists.of(merged(near, k + SPARE), k)

    def fits(self, lists: Lists, n: int) -> bool:
        """Whether lists may be those of ``n`` entries that come next."""
        shapes = {column.shape for column in lists}
        last = self.n_slots + n
        return shapes == {(n, self.k)} and bool(((lists.slots >= -1) & (lists.slots < last)).all())

    def nearest(self, batch: Batch, k: int) -> Neighbors:
        """Return the nearest known entries of a batch: k of them, or more if more were found.

        The last search is remembered, so that further calls for the same entries, or some of
        them, cost nothing.
        """
        wanted = min(k, len(self))
        if self._last is not None and self._last[1].slots.shape[1] >= wanted:
            if self._last[0] is batch:
                return self._last[1]
            rows = rows_within(batch, self._last[0])
            if rows is not None:
                found = self._last[1]
                return Neighbors(found.slots[rows], found.similarities[rows])
        found = self._search(batch.embeddings, min(max(k, self.k + SPARE), len(self)))
        self._last = (batch, found)
        return found

    def _search(self, embeddings: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest entries; a list does not depend on the other entries searched for.

        The learned state must not depend on the batch in which an entry was screened before.
        """
        found = self._ranked(embeddings, self.index.search(embeddings, k).slots)
        more = min(TIED, len(self))
        if more > k > 0:
            last = found.similarities[:, min(self.k, k) - 1]
            tied = np.flatnonzero(last - found.similarities[:, -1] < ROUNDING)
            if tied.size:
                wider = self.index.search(embeddings[tied], more).slots
                found.slots[tied], found.similarities[tied] = (
                    column[:, :k] for column in self._ranked(embeddings[tied], wider)
                )
        return found

    def _ranked(self, embeddings: NDArray[np.float32], slots: NDArray[np.int64]) -> Neighbors:
        """Return neighbours ordered by exact pairwise similarities, then by slot."""
        similarities = np.empty(slots.shape, dtype=np.float32)
        rows = max(1, RANKED // max(1, slots.shape[1]))
        for start in range(0, len(slots), rows):
            part = np.s_[start : start + rows]
            similarities[part] = cosines(
                embeddings[part], slots[part], slots[part] >= 0, self.index
            )
        return Neighbors(slots, similarities).taken(np.lexsort((slots, -similarities), axis=1))

    def same_lists(self, earlier: SimilarityGraph, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return in which slots of an earlier state the same entries have the same lists now."""
        same = self.index.slots_of(earlier.index.ids_of(slots)) == slots
        there = slots[same]
        pairs = zip(self.lists.take(there), earlier.lists.take(there), strict=True)
        same[same] = np.all([(mine == theirs).all(axis=1) for mine, theirs in pairs], axis=0)
        return np.asarray(same)

    def part(self, slots: NDArray[np.int64]) -> Overlay:
        """Return some entries of the graph as an overlay without a batch."""
        lists = self.lists.take(slots)
        return Overlay(graph=self, batch=self._nothing, numbers=slots, lists=lists, words=[])

    def learn(self, keys: Sequence[str], overlay: Overlay) -> NDArray[np.int64]:
        """Write an overlay of this graph into it; return the new slots."""
        self._changed()
        self.index.add(keys, overlay.batch.embeddings)
        start = self.n_slots
        slots = start + np.arange(len(keys))
        self.words.append(overlay.words)
        self.columns.grow(self.n_slots + len(keys))
        self.lists.put(overlay.numbers, overlay.lists)
        self.columns["lineage"][slots] = self._noted(overlay.batch.lineages)
        if self._listers is not None:
            # Lists of other entries have nothing new but these.
            listed = overlay.lists.slots
            new = (listed >= start) | (overlay.numbers >= start)[:, None]
            rows, places = np.nonzero((listed >= 0) & new)
            self._listers.note(overlay.numbers[rows], listed[rows, places], self.n_slots)
        return slots

    def remove(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries, and return the slots whose lists contained them."""
        self._changed()
        gone = self.index.remove(keys)
        lists = self.lists
        if self._listers is None:
            self._listers = Listers(lists.slots)
        rows = self._listers.of(gone)
        rows = rows[np.isin(lists.slots[rows], gone).any(axis=1)]
        left = lists.take(rows)
        away = np.isin(left.slots, gone)
        left.slots[away], left.similarities[away] = -1, -np.inf
        order = np.argsort(-left.similarities, axis=1, kind="stable")
        lists.put(rows, Lists(*(np.take_along_axis(column, order, 1) for column in left)))
        lists.put(gone, Lists.empty(len(gone), self.k))
        self.words.wipe(gone)
        self.columns["gone"][gone] = True
        return rows

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps; return their old slots, by the new ones."""
        self._changed()
        self._listers = None
        numbers = np.full(self.n_slots + 1, -1, dtype=np.int32)  # the last one is for slot -1
        before = self.index.compact()
        numbers[before] = np.arange(len(before))
        self.columns.keep(before)
        self.columns["slots"][:] = numbers[self.columns["slots"]]
        self.words.keep(before)
        codes, names = self.columns["lineage"], list(self.lineages)
        used = np.union1d([NO_LINEAGE], codes)  # others are forgotten
        codes[codes != NO_LINEAGE] = np.searchsorted(used, codes[codes != NO_LINEAGE])
        kept = {names[code]: number for number, code in enumerate(used[1:].tolist(), start=1)}
        self.lineages = {None: NO_LINEAGE, **kept}
        return before

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values, arrays = self.index.state()
        return (
            {
                "index": values,
                "k": self.k,
                "unrelated": self.unrelated,
                "lineages": list(self.lineages)[1:],
            },
            {f"index.{key}": array for key, array in arrays.items()}
            | self.columns.state()
            | {f"words.{key}": array for key, array in self.words.state().items()},
        )

    @classmethod
    def restored(
        cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], **beside: Any
    ) -> SimilarityGraph:
        """Return the graph that :meth:`state` described; the arrays are copied."""
        saved = values["index"], part_of(arrays, "index.")
        stored = "store" in values["index"]
        index = StoredIndex.restored(*saved) if stored else NeighborIndex.restored(*saved)
        graph = cls(index.dim, int(values["k"]), **beside)
        graph.index = index
        graph.unrelated = values["unrelated"]
        graph.lineages |= {name: code for code, name in enumerate(values["lineages"], start=1)}
        graph.columns.restore(arrays)
        graph.words = EntryWords.restored(part_of(arrays, "words."))
        return graph

    def _changed(self) -> None:
        self.version += 1
        self._last = None

    def _noted(self, lineages: Sequence[str | None]) -> NDArray[np.int64]:
        """Return codes of documents; new names are noted."""
        codes, new = codes_of(lineages, self.lineages)
        self.lineages |= new
        return codes

    def _touched(
        self, own: NDArray[np.int64], new: Lists, gone: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Lists]:
        """Return the stored slots near new entries, and their lists with the new entries."""
        n, k = self.n_slots, self.k
        row, column = np.nonzero((new.slots >= 0) & (new.slots < n))
        near = new.slots[row, column]
        touched, group = np.unique(near, return_inverse=True)
        old = self.lists.take(touched)
        there = (old.slots >= 0) & ~np.isin(old.slots, gone)
        # All edges of a touched slot, old and new, in one long list: best first within each slot.
        group = np.concatenate([np.nonzero(there)[0], group])
        slot = np.concatenate([old.slots[there], own[row]])
        similarity = np.concatenate([old.similarities[there], new.similarities[row, column]])
        copied = np.concatenate([old.copied[there], new.copied[row, column]])
        # By one key that mostly ascends already: a seventh of the time of two keys. On ties, old
        # entries come first.
        order = np.argsort(4.0 * group - similarity, kind="stable")
        group, sizes = group[order], np.bincount(group, minlength=len(touched))
        rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        best = rank < k
        where, rank, order = group[best], rank[best], order[best]
        lists = Lists.empty(len(touched), k)
        lists.slots[where, rank] = slot[order]
        lists.similarities[where, rank] = similarity[order]
        lists.copied[where, rank] = copied[order]
        return touched, lists


class Overlay:
    """The part of a graph that a batch would change.

    Numbers name entries: slots of the graph, followed by the rows of the batch. ``numbers`` are the
    entries whose lists, with the batch in them, the overlay has: the new ones first.
    """

    def __init__(
        self,
        *,
        graph: SimilarityGraph,
        batch: Batch,
        numbers: NDArray[np.int64],
        lists: Lists,
        words: list[NDArray[np.uint32]],
    ) -> None:
        self.graph, self.batch = graph, batch
        self.numbers, self.lists = numbers, lists
        self.words, self.all_words = words, Words(graph.words, words)
        self._start = graph.n_slots
        self._lineage, self._new_lineages = codes_of(batch.lineages, graph.lineages)

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.argsort(self.numbers, kind="stable")

    def places(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        """Return the places of entries in :attr:`numbers`, -1 for others; shape as ``numbers``."""
        place = find(self.numbers[self._order], numbers)
        return np.where(place >= 0, self._order[place], -1) if len(self._order) else place

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dim); zeros for a number of -1."""
        new, standing = numbers >= self._start, (numbers >= 0) & (numbers < self._start)
        if not standing.any():
            found = np.zeros((len(numbers), self.graph.index.dim), dtype=np.float32)
        else:  # one look-up for all; other rows look up a present entry
            found = self.graph.index.vectors(np.where(standing, numbers, numbers[standing][0]))
            found[~standing] = 0.0
        found[new] = self.batch.embeddings[numbers[new] - self._start]
        return found

    def lineage_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return codes of documents, :data:`NO_LINEAGE` for none; shape as ``numbers``."""
        codes = np.empty(numbers.shape, dtype=np.int64)
        new = numbers >= self._start
        codes[~new] = self.graph.columns["lineage"][numbers[~new]]
        codes[new] = self._lineage[numbers[new] - self._start]
        return codes

    def with_kin(self) -> NDArray[np.bool_]:
        """Return which entries have one of their own document in their lists, shape (n,)."""
        mine = self.lineage_of(self.numbers)[:, None]
        theirs = self.lineage_of(np.maximum(self.lists.slots, 0))
        kin = (mine == theirs) & (mine != NO_LINEAGE) & (self.lists.slots >= 0)
        return np.asarray(kin.any(axis=1))

    def lineage_codes(self, lineages: Sequence[str]) -> NDArray[np.int64]:
        """Return the codes of the documents that are known, or come with the batch."""
        known, new = self.graph.lineages, self._new_lineages
        codes = [known.get(name, new.get(name)) for name in lineages]
        return np.array([code for code in codes if code is not None], dtype=np.int64)

    def words_of(self, number: int) -> NDArray[np.uint32]:
        """Return the hashes of an entry's words, in order."""
        return self.all_words.take(np.array([number]))[0]


def find(among: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places of numbers among others, which ascend; -1 for a missing one."""
    if not len(among):
        return np.full(numbers.shape, -1, dtype=np.intp)
    size = int(among[-1]) + 2
    if size < CELLS * numbers.size:  # looking into a table takes nanoseconds
        table = np.full(size, -1, dtype=np.intp)
        table[among] = np.arange(len(among))
        return np.asarray(table[np.minimum(numbers, size - 1)])
    place = np.minimum(np.searchsorted(among, numbers), len(among) - 1)
    return np.where(among[place] == numbers, place, -1)


def codes_of(
    names: Sequence[str | None], known: Mapping[str | None, int]
) -> tuple[NDArray[np.int64], dict[str | None, int]]:
    """Return a code for each name, new names after the known ones; and the new names."""
    new: dict[str | None, int] = {}
    codes = (
        known[name] if name in known else new.setdefault(name, len(known) + len(new))
        for name in names
    )
    return np.fromiter(codes, np.int64, len(names)), new


def rounded(values: NDArray[Any], steps: int) -> NDArray[np.float32]:
    """Return numbers rounded to multiples of 1 / ``steps``."""
    scale = np.float32(steps)
    return np.asarray(np.rint(np.asarray(values, dtype=np.float32) * scale) / scale)


def unrelated_distance(vectors: NDArray[np.float32]) -> float:
    """Return the cosine distance of unrelated entries.

    It is the mean over all pairs, including each entry with itself: 1 minus the square of the mean
    vector. ``vectors`` are unit rows, shape (n, dim).
    """
    if not len(vectors):
        return 1.0
    return distance_of(vectors.sum(axis=0, dtype=np.float64) / len(vectors))


def distance_of(mean: NDArray[np.float64]) -> float:
    """Return :func:`unrelated_distance` by the mean vector, rounded to hide summation order."""
    return round(float(np.clip(1.0 - mean @ mean, LEAST_UNRELATED, 1.0)), 4)
