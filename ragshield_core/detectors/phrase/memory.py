"""Memory of a phrase detector: phrases of the knowledge base, a sample of it, and recent entries.

Attackers plant a phrase in texts on various topics that could belong to the knowledge base. The
entries of a new source, language or product differ from the knowledge base even without the phrase,
or have a single topic: the sample shows how similar an entry is to the knowledge base, and whether
entries are scattered in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import (
    EMPTY,
    PAIRS,
    SKETCH,
    Background,
    Grams,
    found_in,
    order_of,
)
from ragshield_core.model.entries import Batch
from ragshield_core.model.ragged import divided, joined
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
# Size of the sample of the knowledge base: its quantiles are exact to .02.
SIZE = 1_000
# Pairs of words kept of each entry in the sample: their shares are exact to .04.
KEPT_PAIRS = 128
# Pairs of an entry and a phrase that are summed at once.
SUMMED = 4_096
# A phrase between two words makes new pairs of words with them and with their neighbours: six at
# most, some of which are known.
BORDER = 4
# Fewer pairs than three times that number give too coarse a share of unknown pairs.
FEWEST_PAIRS = 3 * BORDER
# Columns of objects.
NAMED = ("id", "lineage", "source")

# Positions of entries in the knowledge base, by name, a row for each: "near", the similarity to the
# nearest entry of the sample, NaN if unknown; "pairs", the number of distinct word pairs of the
# text; "unknown", the number of pairs in no entry of the knowledge base; "proxy", the vector of the
# nearest entry of the sample; "mean" and "spread" of that entry's similarities to the sample.
Places = Mapping[str, NDArray[Any]]
PLACES = ("near", "pairs", "unknown", "proxy", "mean", "spread")


class KnownSample:
    """A random sample of the knowledge base: its usual texts and vectors.

    It does not depend on the batches in which entries came.
    """

    def __init__(self, dim: int) -> None:
        self.columns = Columns(
            id=None, lineage=None, pairs=None, vector=np.zeros(dim, np.float16), key=np.uint64(0)
        )
        self.n_seen = 0
        self._vectors: tuple[NDArray[np.float32], ...] | None = None
        self._texts: tuple[NDArray[np.float64], ...] | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def add(
        self,
        ids: Sequence[str],
        lineages: Sequence[str | None],
        hashes: Sequence[NDArray[np.uint32]],
        vectors: NDArray[Any],
    ) -> None:
        """Offer entries of the knowledge base to the sample, which takes some."""
        columns = self.columns
        keys = _mixed(np.arange(self.n_seen, self.n_seen + len(ids), dtype=np.uint64))
        self.n_seen += len(ids)
        bound = np.sort(np.concatenate([columns["key"], keys]))[:SIZE][-1:]
        taken = np.flatnonzero(keys <= bound)
        self._keep(columns["key"] <= bound)
        start = len(self)
        columns.grow(start + len(taken))
        columns["key"][start:], columns["vector"][start:] = keys[taken], vectors[taken]
        for place, row in enumerate(taken.tolist(), start):
            columns["id"][place], columns["lineage"][place] = ids[row], lineages[row]
            pairs = hashes[row][order_of(hashes[row]) == PAIRS]
            columns["pairs"][place] = pairs[:KEPT_PAIRS].copy()
        self._vectors = self._texts = None

    def forget(self, ids: Iterable[str]) -> None:
        """Remove entries from the sample."""
        gone = set(ids)
        kept = [entry_id not in gone for entry_id in self.columns["id"].tolist()]
        self._keep(np.array(kept, dtype=np.bool_))

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            self.columns.keep(np.flatnonzero(kept))
            self._vectors = self._texts = None

    def changed(self) -> None:
        """Discard the usual values of texts: the phrases of the knowledge base have changed."""
        self._texts = None

    def places(self, batch: Batch, grams: Grams, background: Background) -> Places:
        """Return the positions of entries in the knowledge base."""
        n, dim = len(batch), self.columns["vector"].shape[1]
        mine = order_of(grams.hashes) == PAIRS
        rows = grams.rows[mine]
        new = background.of(grams.hashes[mine]) == 0.0
        found: dict[str, NDArray[Any]] = {
            "near": np.full(n, np.nan, dtype=np.float32),
            "pairs": np.bincount(rows, minlength=n),
            "unknown": np.bincount(rows[new], minlength=n),
            "proxy": np.zeros((n, dim), dtype=np.float16),
            "mean": np.zeros(n, dtype=np.float32),
            "spread": np.zeros(n, dtype=np.float32),
        }
        if n and len(self) > 1 and batch.dim == dim:
            vectors, mean, spread, _ = self._usual_vectors()
            alike = batch.embeddings @ vectors.T
            alike[self._of_one_document(batch.lineages)] = -np.inf
            first = alike.argmax(axis=1)
            found["near"], found["proxy"] = (
                alike[np.arange(n), first],
                self.columns["vector"][first],
            )
            found["mean"], found["spread"] = mean[first], spread[first]
        return found

    def likeness(
        self, places: Places, shared: NDArray[np.int64], background: Background
    ) -> NDArray[np.float64]:
        """Return the likeness of n entries to the knowledge base, phrases aside, shape (n,).

        It is the share of the knowledge base that is less usual, by nearness and words. ``shared``,
        shape (n,), counts unknown pairs of words that belong to the phrases under test: they do not
        make an entry unlike the knowledge base.
        """
        near = np.sort(self._usual_vectors()[3])
        if self._texts is None:
            sizes = np.fromiter(map(len, self.columns["pairs"]), np.int64, len(self))
            rows = np.repeat(np.arange(len(self)), sizes)
            held = background.of(np.concatenate([np.empty(0, np.uint32), *self.columns["pairs"]]))
            alone = np.bincount(rows[held <= 1.0], minlength=len(self))
            shares = 1.0 - alone / np.maximum(1, sizes)
            both = _rank(np.sort(shares), shares) + _rank(near, self._usual_vectors()[3])
            self._texts = np.sort(shares), np.sort(both)
        usual_shares, usual = self._texts
        unknown = np.maximum(0, places["unknown"] - shared)
        left = places["pairs"] - shared
        words = _rank(usual_shares, 1.0 - unknown / np.maximum(1, np.maximum(left, unknown)))
        by_vector = np.where(np.isnan(places["near"]), words, _rank(near, places["near"]))
        # A short text has few words beside the phrase: its vector says more.
        words = np.where(left < FEWEST_PAIRS, by_vector, words)
        return _rank(usual, words + by_vector)

    def _usual_vectors(self) -> tuple[NDArray[np.float32], ...]:
        """Return the vectors, and the mean, spread and maximum of each one's similarities."""
        if self._vectors is None:
            vectors = self.columns["vector"].astype(np.float32)
            mean, spread = _moments(vectors)
            alike = vectors @ vectors.T
            np.fill_diagonal(alike, -np.inf)
            alike[self._of_one_document(self.columns["lineage"].tolist())] = -np.inf
            near = alike.max(axis=1, initial=-np.inf)
            self._vectors = vectors, mean, spread, near
        return self._vectors

    def _of_one_document(self, lineages: Sequence[str | None]) -> NDArray[np.bool_]:
        """Mark the pairs of an entry and a sample entry of the same document."""
        named = enumerate(lineages)
        numbers: dict[str | None, int] = {name: row for row, name in named if name is not None}
        if not numbers:
            return np.zeros((len(lineages), len(self)), dtype=np.bool_)
        theirs = np.array([numbers.get(name, -2) for name in self.columns["lineage"].tolist()])
        mine = np.array([numbers.get(name, -1) for name in lineages])
        return np.asarray(mine[:, None] == theirs)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        values, arrays = saved(self.columns, "pairs")
        return values | {"n_seen": self.n_seen}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        restore(self.columns, "pairs", values, arrays)
        self.n_seen = int(values["n_seen"])


def _moments(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and the spread of each vector's similarities to all.

    In double precision: processes must agree to the last bit, on any number of cores.
    """
    exact = vectors.astype(np.float64)
    mean = exact @ exact.mean(axis=0)
    squares = np.einsum("ij,ij->i", exact @ (exact.T @ exact / len(exact)), exact)
    spread = np.sqrt(np.maximum(0.0, squares - mean**2))
    return mean.astype(np.float32), spread.astype(np.float32)


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
            recent["hashes"][row] = hashes.copy() if few is None else np.intersect1d(hashes, few)
        recent["sketch"][start:] = grams.sketches()
        recent["vector"][start:] = self._vectors(entries)
        for name in PLACES:
            recent[name][start:] = places[name]
        self._count(recent["hashes"][start:], 1)
        self.updating.difference_update(entries.ids)
        # Held entries and admitted ones have separate limits: neither displaces the other.
        gone = np.zeros(len(recent), dtype=np.bool_)
        window = min(MAX_RECENT, max(SMALLEST_WINDOW, self.background.n_entries))
        sizes = self.sizes
        for rows in (np.flatnonzero(recent["held"]), np.flatnonzero(~recent["held"])):
            fits = np.searchsorted(np.cumsum(sizes[rows[::-1]]), MAX_RECENT_GRAMS, side="right")
            gone[rows[: max(0, len(rows) - min(int(fits), window))]] = True
        self.make_background(self.leave(gone))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of n-grams of each recent entry."""
        return np.fromiter(map(len, self.recent["hashes"]), np.int64, len(self.recent))

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
        return np.searchsorted(np.cumsum(self.sizes), places, side="right"), which

    def _count(self, entries: NDArray[np.object_], sign: int) -> None:
        hashes = np.concatenate([np.empty(0, dtype=np.uint32), *entries])
        cells, occurrences = np.unique(_index_cells(hashes), return_counts=True)
        # Counts wrap around instead of saturating, so that additions can be undone.
        self._index[cells] += (sign * occurrences).astype(np.uint16)

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        recent, arrays = saved(self.recent, "hashes")
        sample, more = self.sample.state()
        parts = {"recent": arrays, "background": self.background.state(), "sample": more}
        return (
            {"recent": recent, "sample": sample, "lineages": dict(self.lineages)},
            {f"{part}.{k}": array for part, kept in parts.items() for k, array in kept.items()},
        )

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Memory:
        """Return the memory that :meth:`state` described."""
        recent = part_of(arrays, "recent.")
        memory = cls(recent["vector"].shape[1], 1)
        memory.background = Background.restored(part_of(arrays, "background."))
        restore(memory.recent, "hashes", values["recent"], recent)
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


def saved(columns: Columns, ragged: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return columns as JSON-ready values and arrays; ``ragged`` has arrays of any length."""
    arrays = columns.state()
    values = {name: arrays.pop(name).tolist() for name in NAMED if name in arrays}
    arrays[ragged], arrays["ends"] = joined(arrays.pop(ragged).tolist(), np.uint32)
    return values, arrays


def restore(
    columns: Columns,
    ragged: str,
    values: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Fill empty columns with the values and arrays that :func:`saved` returned."""
    parts = divided(arrays[ragged], arrays["ends"])
    columns.grow(len(parts))
    for name in columns.state():
        if name != ragged:
            columns[name][:] = values[name] if name in values else arrays[name]
    for row in range(len(columns)):
        columns[ragged][row] = parts[row].astype(np.uint32)


def _rank(usual: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of usual values below each value; equal ones count by half."""
    low = np.searchsorted(usual, values, side="left")
    high = np.searchsorted(usual, values, side="right")
    return np.asarray((low + high) / (2.0 * max(1, len(usual))))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a pseudo-random key for each number (splitmix64, Steele et al., OOPSLA 2014)."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _index_cells(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (hashes * np.uint32(0x9E3779B1)) >> np.uint32(10)
