"""Graph of the nearest neighbours of every entry, up to date as entries come and go.

Each entry has a slot (its number in the :class:`~ragshield_core.neighbors.index.NeighborIndex`,
which tells who came first) and a list of its nearest entries. Screening a batch makes an
:class:`Overlay`: the lists of the new entries, and those standing lists into which a new entry
would come; the graph itself is not touched. Learning the batch writes the overlay into the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.rounded import COSINES, SHARES
from ragshield_core.detectors.groups.words import ENTRIES_AT_ONCE, EntryWords, Words
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.index import (
    EXACT_UP_TO,
    EntryIndex,
    FixedVectors,
    NeighborIndex,
    all_neighbors,
    neighbors_in_turn,
)
from ragshield_core.neighbors.known import cosines, rows_within
from ragshield_core.neighbors.search import InvertedLists, Neighbors
from ragshield_core.neighbors.stored import StoredIndex, VectorTable, Where
from ragshield_core.state import part_of
from ragshield_core.text.copies import word_hashes

# Text is compared only where vectors are at least this alike: copies of half a text lie far above.
COMPARE_ABOVE = 0.6
# Where all entries are copies of each other, their distance says nothing of the model.
LEAST_UNRELATED = 0.01
# Neighbours that are looked up beyond the lists, for detectors that ask for a few more.
SPARE = 8
# Similarities of a search differ by less than this with the shape of its products. Of entries as
# near as the last of a list but for that, the oldest are in it: of so many, all are compared.
ROUNDING, TIED = 2e-6, 256
# Neighbours whose vectors are compared at once: 50 MB of 384 dimensions.
RANKED = 32_768
# Marks an entry of no lineage: it is a stranger to every other.
NO_LINEAGE = -1

Rows = slice | NDArray[np.intp]


class Lists(NamedTuple):
    """Neighbour lists of some rows, nearest first.

    Attributes
    ----------
    slots
        Shape (n, k), int32 in the graph's own, as there are fewer than 2^31, else int64; -1 where
        there are fewer.
    similarities
        Shape (n, k), float32, cosine; -inf where there are fewer.
    copied
        Shape (n, k), float32, [0, 1]: how much of the shorter text is in the other.
    """

    slots: NDArray[Any]
    similarities: NDArray[np.float32]
    copied: NDArray[np.float32]

    @classmethod
    def empty(cls, n: int, k: int, dtype: type[np.int64 | np.int32] = np.int64) -> Lists:
        """Return lists without an entry, with slots of a type."""
        return cls(
            np.full((n, k), -1, dtype=dtype),
            np.full((n, k), -np.inf, dtype=np.float32),
            np.zeros((n, k), dtype=np.float32),
        )

    def take(self, rows: Any) -> Lists:
        """Return the lists of some rows."""
        return Lists(*(column[rows] for column in self))

    def sorted(self) -> Lists:
        """Return the lists with the nearest first again."""
        order = np.argsort(-self.similarities, axis=1, kind="stable")
        return Lists(*(np.take_along_axis(column, order, 1) for column in self))

    def put(self, rows: Any, other: Lists) -> None:
        """Replace the lists of some rows."""
        for mine, theirs in zip(self, other, strict=True):
            mine[rows] = theirs

    def grown(self, n: int) -> Lists:
        """Return the same lists, with room for n in all."""
        lists = Lists.empty(n, self.slots.shape[1], np.int32)
        lists.put(np.s_[: len(self.slots)], self)
        return lists

    def rounded(self) -> Lists:
        """Return the lists as a graph of rounded ones has them, in the order that they have."""
        near = np.where(self.slots >= 0, COSINES(self.similarities), np.float32(-np.inf))
        return Lists(self.slots, near, SHARES(self.copied))


class SimilarityGraph:
    """Neighbour lists of a growing knowledge base.

    Parameters
    ----------
    dim
        Of the vectors.
    k
        Length of the lists.
    exact_up_to
        Size above which the index is approximate; ``None`` for the index's own default.
    table
        Of the store in which neighbours are found; ``None`` for an index in memory.
    rounded
        Whether similarities and shares are rounded, the same in all lists of the graph: good for
        groups, not for a rule that goes by the last digits.
    """

    def __init__(
        self,
        dim: int,
        k: int,
        *,
        exact_up_to: int | None = None,
        table: VectorTable | None = None,
        rounded: bool = False,
    ) -> None:
        up_to = EXACT_UP_TO if exact_up_to is None else exact_up_to
        self.index: EntryIndex = (
            NeighborIndex(dim, exact_up_to=up_to)
            if table is None
            else StoredIndex(dim, table, exact_up_to=up_to)
        )
        self.k, self.rounded = k, rounded
        self.unrelated: float | None = None  # see unrelated_distance; None before it is measured
        self.words = EntryWords()  # by slot
        self._lineages: dict[str, int] = {}
        self._lists = Lists.empty(0, k, np.int32)
        self._lineage = np.empty(0, dtype=np.int32)
        self._gone = np.empty(0, dtype=np.bool_)
        self.version = 0  # grows with every change
        self._last: tuple[Batch, Neighbors] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def n_slots(self) -> int:
        """How many slots there are, those of removed entries included."""
        return len(self.words)

    @property
    def present(self) -> NDArray[np.int64]:
        """Slots of the entries that are there."""
        return np.flatnonzero(~self.gone)

    @property
    def gone(self) -> NDArray[np.bool_]:
        """By slot: whether its entry was removed."""
        return self._gone[: self.n_slots]

    @property
    def lists(self) -> Lists:
        """The lists of all slots."""
        return self._lists.take(np.s_[: self.n_slots])

    @classmethod
    def fixed(cls, batch: Batch, k: int, *, rounded: bool = False) -> SimilarityGraph:
        """Return the graph of a knowledge base that is only looked at: its vectors are not copied.

        Nothing can be searched, learned or removed.
        """
        graph = cls(batch.dim, k, rounded=rounded)
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
        """Return a graph whose neighbours were found elsewhere, rounded; it is only looked at.

        Parameters
        ----------
        index
            Ids and vectors of n entries.
        words
            Their words.
        lineage
            Their lineage codes, shape (n,); the same for the same lineage in all graphs that are
            parts of one knowledge base.
        lists
            Of the first ones of them, or of all.
        unrelated
            See :func:`unrelated_distance`.
        """
        graph = cls(index.dim, lists.slots.shape[1], rounded=True)
        graph.index = cast("NeighborIndex", index)
        graph.words.append(words)
        graph.unrelated = unrelated
        graph._grow(len(words))
        graph._lists.put(np.s_[: len(lists.slots)], lists.rounded())
        graph._lineage[: len(words)] = lineage
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

    def copied(
        self, numbers: NDArray[np.int64], lists: Lists, new: Sequence[NDArray[np.uint32]] = ()
    ) -> NDArray[np.float32]:
        """Return how much of the shorter text is in the other, along the edges of lists of entries.

        Only where vectors are more alike than :data:`COMPARE_ABOVE`, else 0. ``new`` has the words
        of entries whose numbers come behind the slots.
        """
        copied = np.zeros(lists.slots.shape, dtype=np.float32)
        near = self.relative(lists.similarities) > COMPARE_ABOVE
        words = Words(self.words, new)
        copied[near] = words.copied(numbers[np.nonzero(near)[0]], lists.slots[near])
        return self.share(copied)

    def relative(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return cosines as if unrelated entries had one of 0, as ``cosines``; -1 at least.

        Some models give all texts a direction in common: unrelated ones have cosines of .8 then.
        Relative ones do not depend on that.
        """
        relative = 1.0 - (1.0 - cosines) / np.float32(self.unrelated or 1.0)
        return np.asarray(np.maximum(relative, np.float32(-1.0)), dtype=np.float32)

    def absolute(self, relative: float) -> float:
        """Return the cosine of a relative one."""
        return 1.0 - (1.0 - relative) * (self.unrelated or 1.0)

    def share(self, copied: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return shares of copied text as the graph has them."""
        return SHARES(copied) if self.rounded else copied

    def fit(self, keys: Sequence[str], batch: Batch) -> None:
        """Take over a whole knowledge base at once.

        Parameters
        ----------
        keys
            One unique name per entry.
        batch
            The entries.
        """
        self._changed()
        self.index.add(keys, batch.embeddings)
        self._connect(batch, self.index.lists if isinstance(self.index, NeighborIndex) else None)

    def _connect(self, batch: Batch, lists: InvertedLists | None = None) -> None:
        """Find the neighbours of a whole knowledge base, by its own slots, and take its words.

        Part by part, so that what is needed beside does not grow with it.
        """
        self.unrelated = unrelated_distance(batch.embeddings)
        for start in range(0, len(batch), ENTRIES_AT_ONCE):
            texts = batch.texts[start : start + ENTRIES_AT_ONCE]
            self.words.append([word_hashes(text) for text in texts])
        n, done = len(batch), 0
        self._grow(n)
        for found in neighbors_in_turn(batch.embeddings, min(self.k, max(1, n - 1)), lists):
            own = np.arange(done, done + len(found.slots))
            done += len(own)
            new = Lists.empty(len(own), self.k)
            width = found.slots.shape[1]
            new.slots[:, :width], new.similarities[:, :width] = found
            if self.rounded:
                new = new.rounded()
            new.copied[:] = self.copied(own, new)
            self._lists.put(own, new)
        self._lineage[:n], self._lineages = self._codes(batch)

    def overlay(self, batch: Batch, replaced: Sequence[str] = ()) -> Overlay:
        """Return what the graph would be with the batch in it; changes nothing.

        Parameters
        ----------
        batch
            New entries.
        replaced
            Keys of entries that the batch brings new revisions of, and which do not count.
        """
        n, m = self.n_slots, len(batch)
        words = [word_hashes(text) for text in batch.texts]
        gone = self.index.slots_of(replaced)
        gone = gone[gone >= 0]
        standing = self._but(gone, batch) if len(self) else None
        inside = all_neighbors(batch.embeddings, min(self.k, m - 1)) if m > 1 else None
        new = self._merge(m, standing, inside, offset=n)
        if self.rounded:
            new = new.rounded()
        own = n + np.arange(m, dtype=np.int64)
        new.copied[:] = self.copied(own, new, words)
        touched, lists = self._touched(own, new, gone)
        lineage, lineages = self._codes(batch)
        return Overlay(
            graph=self,
            batch=batch,
            numbers=np.concatenate([own, touched]),
            lists=Lists(*map(np.concatenate, zip(new, lists, strict=True))),
            words=words,
            lineage=lineage,
            lineages=lineages,
        )

    def nearest(self, batch: Batch, k: int) -> Neighbors:
        """Return the nearest known entries of a batch: k of them, or more that are there anyway.

        The last search is remembered, so that whoever asks about the same entries, or some of
        them, costs nothing.
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
        """Return k nearest entries; those of a list do not depend on who else is searched for.

        What is learned must not depend on whether it was screened in the same company before.
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
        """Return neighbours by similarities that depend on the two vectors only, then by slot."""
        similarities = np.empty(slots.shape, dtype=np.float32)
        rows = max(1, RANKED // max(1, slots.shape[1]))
        for start in range(0, len(slots), rows):
            part = np.s_[start : start + rows]
            similarities[part] = cosines(
                embeddings[part], slots[part], slots[part] >= 0, self.index
            )
        order = np.lexsort((slots, -similarities), axis=1)
        return Neighbors(
            np.take_along_axis(slots, order, 1), np.take_along_axis(similarities, order, 1)
        )

    def _but(self, gone: NDArray[np.int64], batch: Batch) -> Neighbors:
        """Return the k nearest entries but those that are gone."""
        # Each entry of the batch has a few older revisions at most, and they are near to it.
        found = self.nearest(batch, self.k + min(len(gone), 2 * self.k))
        hidden = np.isin(found.slots, gone)
        similarities = np.where(hidden, np.float32(-np.inf), found.similarities)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, : self.k]
        slots = np.where(hidden, -1, found.slots)
        return Neighbors(
            np.take_along_axis(slots, order, 1), np.take_along_axis(similarities, order, 1)
        )

    def part(self, slots: NDArray[np.int64]) -> Overlay:
        """Return some of the graph's own entries as an overlay without a batch."""
        nothing = Batch.of(ids=[], texts=[], embeddings=np.empty((0, self.index.dim)))
        return Overlay(
            graph=self,
            batch=nothing,
            numbers=slots,
            lists=self._lists.take(slots),
            words=[],
            lineage=np.empty(0, dtype=np.int64),
            lineages=self._lineages,
        )

    def learn(self, keys: Sequence[str], overlay: Overlay) -> None:
        """Write an overlay that was made of this very graph into it."""
        self._changed()
        self.index.add(keys, overlay.batch.embeddings)
        start, m = self.n_slots, len(overlay.batch)
        self.words.append(overlay.words)
        self._grow(start + m)
        self._lists.put(overlay.numbers, overlay.lists)
        self._lineage[start : start + m], self._lineages = self._codes(overlay.batch)

    def remove(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Take entries out, and return the slots in whose lists they were."""
        self._changed()
        gone = self.index.remove(keys)
        rows = np.flatnonzero(np.isin(self._lists.slots[: self.n_slots], gone).any(axis=1))
        lists = self._lists.take(rows)
        left = np.isin(lists.slots, gone)
        lists.similarities[left] = -np.inf
        lists.slots[left] = -1
        self._lists.put(rows, lists.sorted())
        self.words.wipe(gone)
        self._gone[gone] = True
        self._lists.put(gone, Lists.empty(len(gone), self.k))
        return rows

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps; return their slots so far, by the new ones."""
        self._changed()
        n = self.n_slots
        before = self.index.compact()
        numbers = np.full(n + 1, -1, dtype=np.int32)  # the last one stands for none
        numbers[before] = np.arange(len(before))
        kept = self._lists.take(before)
        self._lists = kept._replace(slots=numbers[kept.slots])
        self.words.keep(before)
        self._gone = np.zeros(len(before), dtype=np.bool_)
        names, codes = list(self._lineages), self._lineage[before]
        used = np.unique(codes[codes != NO_LINEAGE])
        renumbered = np.where(codes == NO_LINEAGE, NO_LINEAGE, np.searchsorted(used, codes))
        self._lineage = renumbered.astype(np.int32)
        self._lineages = {names[code]: number for number, code in enumerate(used.tolist())}
        return before

    def lineage_of(self, slots: Any) -> NDArray[np.int64]:
        """Return lineage codes, :data:`NO_LINEAGE` where there is none; shape as ``slots``."""
        return np.asarray(self._lineage[slots], dtype=np.int64)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values, arrays = self.index.state()
        n = self.n_slots
        return (
            {
                "index": values,
                "k": self.k,
                "unrelated": self.unrelated,
                "rounded": self.rounded,
                "lineages": list(self._lineages),
                "gone": np.flatnonzero(self.gone).tolist(),
            },
            {f"index.{key}": array for key, array in arrays.items()}
            | self.lists._asdict()
            | {"lineage": self._lineage[:n]}
            | {f"words.{key}": array for key, array in self.words.state().items()},
        )

    @classmethod
    def restored(
        cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> SimilarityGraph:
        """Return the graph that :meth:`state` described; it takes copies of the arrays."""
        kind = StoredIndex if "stored" in values["index"] else NeighborIndex
        index = kind.restored(values["index"], part_of(arrays, "index."))
        graph = cls(index.dim, int(values["k"]), rounded=bool(values["rounded"]))
        graph.index = index
        graph.unrelated = values["unrelated"]
        graph._lineages = {name: code for code, name in enumerate(values["lineages"])}
        graph._lists = Lists(*(arrays[name].copy() for name in Lists._fields))
        graph._lineage = arrays["lineage"].astype(np.int32)
        graph._gone = np.zeros(len(graph._lineage), dtype=np.bool_)
        graph._gone[values["gone"]] = True
        graph.words = EntryWords.restored(part_of(arrays, "words."))
        return graph

    def _changed(self) -> None:
        self.version += 1
        self._last = None

    def _grow(self, n: int) -> None:
        """Make room for ``n`` slots; by a half more at a time, so that growing costs little."""
        have = len(self._lineage)
        if n <= have:
            return
        size = max(n, have + have // 2)
        lineage = np.full(size, NO_LINEAGE, dtype=np.int32)
        lineage[:have] = self._lineage
        gone = np.zeros(size, dtype=np.bool_)
        gone[:have] = self._gone
        self._lists, self._lineage, self._gone = self._lists.grown(size), lineage, gone

    def _codes(self, batch: Batch) -> tuple[NDArray[np.int64], dict[str, int]]:
        """Return one lineage code per entry, and all codes with the new ones."""
        known = dict(self._lineages)
        return _codes_of(batch.lineages, known), known

    def _merge(
        self, m: int, standing: Neighbors | None, inside: Neighbors | None, *, offset: int
    ) -> Lists:
        """Return the k best of two lists; numbers of the batch are lifted by ``offset``."""
        merged = Lists.empty(m, self.k)
        slots, similarities = [merged.slots], [merged.similarities]
        if standing is not None:
            slots.append(standing.slots)
            similarities.append(standing.similarities)
        if inside is not None:
            slots.append(np.where(inside.slots < 0, -1, inside.slots + offset))
            similarities.append(inside.similarities)
        all_slots, all_similarities = np.concatenate(slots, 1), np.concatenate(similarities, 1)
        order = np.argsort(-all_similarities, axis=1, kind="stable")[:, : self.k]
        return Lists(
            np.take_along_axis(all_slots, order, 1),
            np.take_along_axis(all_similarities, order, 1),
            merged.copied,
        )

    def _touched(
        self, own: NDArray[np.int64], new: Lists, gone: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Lists]:
        """Return the standing slots near to new entries, with the new ones in their lists."""
        n, k = self.n_slots, self.k
        row, column = np.nonzero((new.slots >= 0) & (new.slots < n))
        near = new.slots[row, column]
        touched, group = np.unique(near, return_inverse=True)
        old = self._lists.take(touched)
        there = (old.slots >= 0) & ~np.isin(old.slots, gone)
        # All edges of a touched slot, old and new, in one long list: best first within each slot.
        group = np.concatenate([np.nonzero(there)[0], group])
        slot = np.concatenate([old.slots[there], own[row]])
        similarity = np.concatenate([old.similarities[there], new.similarities[row, column]])
        copied = np.concatenate([old.copied[there], new.copied[row, column]])
        order = np.lexsort((-similarity, group))  # of equals, the old ones first
        group = group[order]
        rank = np.arange(len(group)) - np.searchsorted(group, group, side="left")
        best = rank < k
        where, rank, order = group[best], rank[best], order[best]
        lists = Lists.empty(len(touched), k)
        lists.slots[where, rank] = slot[order]
        lists.similarities[where, rank] = similarity[order]
        lists.copied[where, rank] = copied[order]
        return touched, lists


def _codes_of(lineages: Sequence[str | None], known: dict[str, int]) -> NDArray[np.int64]:
    """Return one lineage code per entry; ``known`` gets those that are new."""
    codes = (NO_LINEAGE if i is None else known.setdefault(i, len(known)) for i in lineages)
    return np.fromiter(codes, np.int64, len(lineages))


class Overlay:
    """The part of a graph that a batch would change.

    Numbers name entries: slots of the graph, and behind them the rows of the batch.

    Attributes
    ----------
    numbers
        Shape (n_new + n_touched,): the entries whose lists are here, the new ones first.
    lists
        Their lists with the batch in them.
    """

    def __init__(
        self,
        *,
        graph: SimilarityGraph,
        batch: Batch,
        numbers: NDArray[np.int64],
        lists: Lists,
        words: list[NDArray[np.uint32]],
        lineage: NDArray[np.int64],
        lineages: Mapping[str, int],
    ) -> None:
        self._lineages = lineages
        self.graph, self.batch = graph, batch
        self.numbers, self.lists = numbers, lists
        self.words = words
        self.all_words = Words(graph.words, words)
        self._start = graph.n_slots
        self._lineage = lineage

    @property
    def new(self) -> slice:
        """Rows of :attr:`numbers` that are the batch."""
        return np.s_[: len(self.batch)]

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dim); zeros where a number is -1."""
        new, standing = numbers >= self._start, (numbers >= 0) & (numbers < self._start)
        if not standing.any():
            found = np.zeros((len(numbers), self.graph.index.dim), dtype=np.float32)
        else:  # one look-up for all, of an entry that is there where none is wanted
            found = self.graph.index.vectors(np.where(standing, numbers, numbers[standing][0]))
            found[~standing] = 0.0
        found[new] = self.batch.embeddings[numbers[new] - self._start]
        return found

    def lineage_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return lineage codes, shape as ``numbers``."""
        codes = np.empty(numbers.shape, dtype=np.int64)
        new = numbers >= self._start
        codes[~new] = self.graph.lineage_of(numbers[~new])
        codes[new] = self._lineage[numbers[new] - self._start]
        return codes

    def with_kin(self) -> NDArray[np.bool_]:
        """Return which entries have one of their own lineage in their lists, shape (n,)."""
        mine = self.lineage_of(self.numbers)[:, None]
        theirs = self.lineage_of(np.maximum(self.lists.slots, 0))
        kin = (mine == theirs) & (mine != NO_LINEAGE) & (self.lists.slots >= 0)
        return np.asarray(kin.any(axis=1))

    def lineage_codes(self, lineages: Sequence[str]) -> NDArray[np.int64]:
        """Return the codes of those lineages that are known, or come with the batch."""
        codes = [self._lineages[name] for name in lineages if name in self._lineages]
        return np.array(codes, dtype=np.int64)

    def words_of(self, number: int) -> NDArray[np.uint32]:
        """Return the hashes of an entry's words, in order."""
        return self.all_words.take(np.array([number]))[0]

    def copied(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return how much of the shorter text of each pair is in the other."""
        return self.graph.share(self.all_words.copied(first, second))


def unrelated_distance(vectors: NDArray[np.float32]) -> float:
    """Return the cosine distance of entries that have nothing to do with each other.

    The mean over all pairs, each with itself included: 1 less the square of the mean vector.

    Parameters
    ----------
    vectors
        Shape (n, dim), unit rows.
    """
    if not len(vectors):
        return 1.0
    return distance_of(vectors.sum(axis=0, dtype=np.float64) / len(vectors))


def distance_of(mean: NDArray[np.float64]) -> float:
    """Return :func:`unrelated_distance` by the mean vector; rounded, whatever it was summed by."""
    return round(float(np.clip(1.0 - mean @ mean, LEAST_UNRELATED, 1.0)), 4)
