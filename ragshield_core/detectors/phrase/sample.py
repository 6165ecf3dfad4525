"""A sample of the knowledge base for a phrase detector: its usual texts and vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import PAIRS, Background, Grams, order_of
from ragshield_core.detectors.phrase.similarities import Similarities
from ragshield_core.model.entries import Batch
from ragshield_core.model.ragged import divided, joined
from ragshield_core.neighbors.slots import Columns

# Size of the sample of the knowledge base: its quantiles are exact to .02.
SIZE = 1_000
# Pairs of words kept of each entry in the sample: their shares are exact to .04.
KEPT_PAIRS = 128
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
        self._similarities = Similarities(dim)
        # The pairs of all entries, and their number by entry, None after changes; usual values.
        self._pairs: tuple[NDArray[np.uint32], NDArray[np.int64]] | None = None
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
            self._pairs = None
        self._texts = None

    def forget(self, ids: Iterable[str]) -> None:
        """Remove entries from the sample."""
        gone = set(ids)
        kept = [entry_id not in gone for entry_id in self.columns["id"].tolist()]
        self._keep(np.array(kept, dtype=np.bool_))

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            self.columns.keep(np.flatnonzero(kept))
            self._pairs = self._texts = None

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
            similarities, but = self._followed(), self._of_one_document(batch.lineages)
            first, found["near"] = similarities.nearest(batch.embeddings, but)
            found["proxy"] = self.columns["vector"][first]
            found["mean"], found["spread"] = similarities.spread_of(first)
        return found

    def likeness(
        self, places: Places, shared: NDArray[np.int64], background: Background
    ) -> NDArray[np.float64]:
        """Return the likeness of n entries to the knowledge base, phrases aside, shape (n,).

        It is the share of the knowledge base that is less usual, by nearness and words. ``shared``,
        shape (n,), counts unknown pairs of words that belong to the phrases under test: they do not
        make an entry unlike the knowledge base.
        """
        mine = self._followed().near
        near = np.sort(mine)
        if self._texts is None:
            if self._pairs is None:
                hashes, ends = joined(self.columns["pairs"].tolist(), np.uint32)
                self._pairs = hashes, np.diff(ends, prepend=0)
            hashes, sizes = self._pairs
            rows = np.repeat(np.arange(len(self)), sizes)
            alone = np.bincount(rows[background.of(hashes) <= 1.0], minlength=len(self))
            shares = 1.0 - alone / np.maximum(1, sizes)
            both = _rank(np.sort(shares), shares) + _rank(near, mine)
            self._texts = np.sort(shares), np.sort(both)
        usual_shares, usual = self._texts
        unknown = np.maximum(0, places["unknown"] - shared)
        left = places["pairs"] - shared
        words = _rank(usual_shares, 1.0 - unknown / np.maximum(1, np.maximum(left, unknown)))
        by_vector = np.where(np.isnan(places["near"]), words, _rank(near, places["near"]))
        # A short text has few words beside the phrase: its vector says more.
        words = np.where(left < FEWEST_PAIRS, by_vector, words)
        return _rank(usual, words + by_vector)

    def _followed(self) -> Similarities:
        """Return the similarities of the present entries."""
        lineages = self.columns["lineage"]
        self._similarities.follow(
            self.columns["key"],
            self.columns["vector"],
            lambda rows: self._of_one_document(lineages[rows].tolist()),
        )
        return self._similarities

    def _of_one_document(self, lineages: Sequence[str | None]) -> NDArray[np.bool_]:
        """Mark the pairs of an entry and a sample entry of the same document."""
        named = enumerate(lineages)
        numbers: dict[str | None, int] = {name: row for row, name in named if name is not None}
        if not numbers:
            return np.zeros((len(lineages), len(self)), dtype=np.bool_)
        theirs = np.array([numbers.get(name, -2) for name in self.columns["lineage"].tolist()])
        mine = np.array([numbers.get(name, -1) for name in lineages])
        return np.asarray(mine[:, None] == theirs)

    def copy(self) -> Self:
        """Return a copy that changes by itself."""
        again = copy.copy(self)
        again.columns = self.columns.copy()
        again._similarities = copy.copy(self._similarities)  # noqa: SLF001 - of the same class
        return again

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        values, arrays = saved(self.columns, "pairs")
        return values | {"n_seen": self.n_seen}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        restore(self.columns, "pairs", values, arrays)
        self.n_seen = int(values["n_seen"])


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
