"""Memory of a phrase detector: phrases of the knowledge base, a sample of it, and recent entries.

Attackers plant a phrase in texts on various topics that could belong to the knowledge base. The
entries of a new source, language or product differ from the knowledge base even without the phrase,
or have a single topic: the sample shows how similar an entry is to the knowledge base, and whether
entries are scattered in it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import EMPTY, SKETCH, Background, Grams, found_in
from ragshield_core.detectors.phrase.sample import (
    NAMED,
    PLACES,
    KnownSample,
    Places,
    restore,
    saved,
)
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.slots import Columns
from ragshield_core.state import part_of

# Most recent entries that are kept and can be condemned.
MAX_RECENT = 4_096
# Most distinct n-grams of recent entries that are kept, 4 bytes each: 4,096 entries of 100 words
# have two million.
MAX_RECENT_GRAMS = 1 << 22
# The recent share of all text is a half at most, except in a small knowledge base.
SMALLEST_WINDOW = 1_000
# Entries of one document that share a phrase count as one, up to this quantile of document sizes
# in the knowledge base. A document id is a claim, and excuses no more parts than documents have.
LARGE_LINEAGE = 0.95
# Any document may have this many parts that share a running head; and fewer documents than the
# second number do not show usual sizes.
PARTS, FEWEST_LINEAGES = 10, 30
# Entries that are counted at a time.
CHUNK = 2_000
# Cells of an index of recent n-grams: a few million n-grams seldom share one.
INDEX_CELLS = 1 << 22
# Pairs of an entry and a phrase that are summed at once.
SUMMED = 4_096


class Memory:
    """Memory of a phrase detector, with at most :data:`MAX_RECENT` recent entries.

    Vectors of another dimension than ``dim`` are ignored; the background has ``n_cells`` cells per
    order.
    """

    def __init__(self, dim: int, n_cells: int) -> None:
        self.background = Background(n_cells)  # the phrases of the knowledge base
        # Entries that came lately or are held, the oldest first. "update": whether the entry
        # replaced a known entry of its document.
        self.recent = Columns(
            **dict.fromkeys(NAMED),
            update=np.False_,
            held=np.False_,
            hashes=None,
            size=np.int64(0),  # number of hashes
            sketch=np.full(SKETCH, EMPTY),
            vector=np.zeros(dim, dtype=np.float16),
            near=np.float32(np.nan),
            pairs=np.int64(0),
            unknown=np.int64(0),
            proxy=np.zeros(dim, dtype=np.float16),
            mean=np.float32(0.0),
            spread=np.float32(0.0),
        )
        self.sample = KnownSample(dim)
        self.lineages: Counter[str] = Counter()  # entries of the knowledge base
        self.updating: set[str] = set()  # forgotten entries: one that comes back is an update
        self._index = np.zeros(INDEX_CELLS, dtype=np.uint16)

    # The knowledge base

    def count(self, entries: Batch, sign: int) -> NDArray[np.uint32]:
        """Add entries to the background or subtract them, and return their sketches."""
        sketches = [np.empty((0, SKETCH), dtype=np.uint32)]
        for start in range(0, len(entries), CHUNK):
            part = np.s_[start : start + CHUNK]
            grams = Grams.of(entries.texts[part])
            self.background.add(grams.hashes, grams.n_rows, sign)
            sketches.append(grams.sketches())
            if sign > 0:
                ids, lineages = entries.ids[part], entries.lineages[part]
                self.sample.add(ids, lineages, grams.by_text(), self._vectors(entries)[part])
        self.sample.changed()
        return np.concatenate(sketches)

    def _vectors(self, entries: Batch) -> NDArray[np.float32]:
        """Return the vectors of entries; zeros if they have another dimension."""
        dim = self.recent["vector"].shape[1]
        if entries.dim == dim:
            return entries.embeddings
        return np.zeros((len(entries), dim), dtype=np.float32)

    def forget(self, entries: Batch) -> None:
        """Remove learned entries."""
        if len(self.updating) > MAX_RECENT:
            self.updating.clear()
        self.updating.update(entries.ids)
        self.lineages -= Counter(name for name in entries.lineages if name is not None)
        recent = self.forget_recent(entries.ids, held=False)
        rest = entries.take(np.array([i not in recent for i in entries.ids], dtype=np.bool_))
        self.sample.forget(rest.ids)
        self.count(rest, -1)

    @property
    def large_lineage(self) -> float:
        """Number of entries of a large document of the knowledge base."""
        sizes = list(self.lineages.values())
        if len(sizes) < FEWEST_LINEAGES:
            return PARTS
        return max(PARTS, float(np.quantile(sizes, LARGE_LINEAGE)))

    # Recent entries

    def fits(self, places: Places, n: int) -> bool:
        """Whether these may be the places of ``n`` entries."""
        columns = {name: self.recent[name] for name in PLACES}
        return places.keys() == columns.keys() and all(
            places[name].shape == (n, *column.shape[1:]) for name, column in columns.items()
        )

    def arrive(
        self,
        entries: Batch,
        judged: tuple[Grams, Places] | None = None,
        *,
        held: bool,
        only: Mapping[int, NDArray[np.uint32]] | None = None,
    ) -> None:
        """Add entries to the recent ones.

        ``judged`` has their n-grams and places, if known; ``only`` has, by row, the n-grams that
        count for an entry, if not all do.
        """
        if judged is None:
            grams = Grams.of(entries.texts)
            judged = grams, self.sample.places(entries, grams, self.background)
        grams, places = judged
        self.forget_recent(entries.ids, held=held)  # if the write is repeated
        recent, start = self.recent, len(self.recent)
        recent.grow(start + len(entries))
        for name, column in zip(
            NAMED, (entries.ids, entries.lineages, entries.sources), strict=True
        ):
            recent[name][start:] = column
        recent["update"][start:] = [not held and i in self.updating for i in entries.ids]
        recent["held"][start:] = held
        for row, hashes in enumerate(grams.by_text(), start):
            few = None if only is None else only.get(row - start)
            counting = hashes.copy() if few is None else np.intersect1d(hashes, few)
            recent["hashes"][row], recent["size"][row] = counting, len(counting)
        recent["sketch"][start:] = grams.sketches()
        recent["vector"][start:] = self._vectors(entries)
        for name in PLACES:
            recent[name][start:] = places[name]
        self._count(recent["hashes"][start:], 1)
        self.updating.difference_update(entries.ids)
        # Held entries and admitted ones have separate limits: neither displaces the other.
        gone = np.zeros(len(recent), dtype=np.bool_)
        window = min(MAX_RECENT, max(SMALLEST_WINDOW, self.background.n_entries))
        sizes = recent["size"]
        for rows in (np.flatnonzero(recent["held"]), np.flatnonzero(~recent["held"])):
            fits = np.searchsorted(np.cumsum(sizes[rows[::-1]]), MAX_RECENT_GRAMS, side="right")
            gone[rows[: max(0, len(rows) - min(int(fits), window))]] = True
        self.make_background(self.leave(gone))

    def leave(self, gone: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Remove the marked recent entries, and return their columns."""
        left = {name: column[gone] for name, column in self.recent.state().items()}
        if gone.any():
            self._count(left["hashes"], -1)
            self.recent.keep(np.flatnonzero(~gone))
        return left

    def recent_among(self, ids: Iterable[str], *, held: bool) -> NDArray[np.bool_]:
        """Mark the recent entries with one of the ids that are held, or that are not held."""
        wanted = set(ids)
        named = np.array([i in wanted for i in self.recent["id"].tolist()], dtype=np.bool_)
        return np.asarray(named & (self.recent["held"] == held))

    def forget_recent(self, ids: Iterable[str], *, held: bool) -> set[str]:
        """Remove recent entries by id, and return the removed ids."""
        return set(self.leave(self.recent_among(ids, held=held))["id"].tolist())

    def make_background(self, left: Mapping[str, NDArray[Any]], *, again: bool = False) -> None:
        """Add entries that are no longer recent to the background, unless they are held."""
        mine = ~left["held"]
        if not mine.any():
            return
        hashes = left["hashes"][mine]
        n_entries = 0 if again else int(mine.sum())
        self.background.add(np.concatenate(hashes.tolist()), n_entries, 1)
        self.sample.changed()
        if not again and left["vector"][mine].any():
            ids, lineages = left["id"][mine].tolist(), left["lineage"][mine].tolist()
            self.sample.add(ids, lineages, hashes.tolist(), left["vector"][mine])

    def at_most(self, hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return a quick upper limit of the number of recent entries with each n-gram."""
        return self._index[_index_cells(hashes)].astype(np.int64)

    def holders(self, wanted: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of a recent entry and an n-gram that it contains, as rows.

        ``wanted`` is ascending and distinct, and has at least one n-gram.
        """
        hashes = np.concatenate([np.empty(0, dtype=np.uint32), *self.recent["hashes"]])
        places, which = found_in(wanted, hashes)
        return np.searchsorted(np.cumsum(self.recent["size"]), places, side="right"), which

    def _count(self, entries: NDArray[np.object_], sign: int) -> None:
        hashes = np.concatenate([np.empty(0, dtype=np.uint32), *entries])
        cells, occurrences = np.unique(_index_cells(hashes), return_counts=True)
        # Counts wrap around instead of saturating, so that additions can be undone.
        self._index[cells] += (sign * occurrences).astype(np.uint16)

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        recent, arrays = saved(self.recent, "hashes")
        del arrays["size"]  # the ends of the hashes say it
        sample, more = self.sample.state()
        parts = {"recent": arrays, "background": self.background.state(), "sample": more}
        return (
            {"recent": recent, "sample": sample, "lineages": dict(self.lineages)},
            {f"{part}.{k}": array for part, kept in parts.items() for k, array in kept.items()},
        )

    def copy(self) -> Self:
        """Return a copy that changes by itself; no entry that comes back is an update in it."""
        again = copy.copy(self)
        again.background = Background.restored(self.background.state())
        again.recent, again.sample = self.recent.copy(), self.sample.copy()
        again.lineages, again.updating = Counter(self.lineages), set()
        again._index = self._index.copy()  # noqa: SLF001 - of the same class
        return again

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Memory:
        """Return the memory that :meth:`state` described."""
        recent = part_of(arrays, "recent.")
        memory = cls(recent["vector"].shape[1], 1)
        memory.background = Background.restored(part_of(arrays, "background."))
        sizes = np.diff(recent["ends"], prepend=0)
        restore(memory.recent, "hashes", values["recent"], {**recent, "size": sizes})
        memory._count(memory.recent["hashes"], 1)
        memory.sample.restore(values["sample"], part_of(arrays, "sample."))
        memory.lineages = Counter(values["lineages"])
        return memory


def closeness(
    places: Places, rows: NDArray[np.int64], which: NDArray[np.int64], n_grams: int
) -> NDArray[np.float64]:
    """Return how close the other holders of an n-gram are to each of them.

    An entry is represented by its nearest entry of the knowledge base, which lacks the phrase: a
    shared phrase makes texts similar that share nothing else.

    ``places`` has n entries; ``rows`` and ``which``, shape (n_pairs,) each, pair them with n-grams.
    The closeness of a pair is the mean similarity, in standard deviations of the similarities to
    the whole knowledge base, from their mean. About 0 for scattered entries; -inf without vectors.
    """
    if not len(rows):
        return np.full(len(rows), -np.inf)
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    proxies = places["proxy"].astype(np.float32)
    shape = (n_grams, len(proxies))
    holders = csr_array((np.ones(len(rows), dtype=np.float32), (which, rows)), shape=shape)
    total, number = holders @ proxies, np.bincount(which, minlength=n_grams)[which]
    sums = np.concatenate(
        [
            np.einsum("ij,ij->i", proxies[rows[at : at + SUMMED]], total[which[at : at + SUMMED]])
            for at in range(0, len(rows), SUMMED)
        ]
    )
    own = np.einsum("ij,ij->i", proxies, proxies)[rows]
    fellows = (sums - own) / np.maximum(1, number - 1)
    beyond = (fellows - places["mean"][rows]) / np.maximum(places["spread"][rows], 1e-3)
    return np.where((number > 1) & ~np.isnan(places["near"][rows]), beyond, -np.inf)


def _index_cells(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (hashes * np.uint32(0x9E3779B1)) >> np.uint32(10)
