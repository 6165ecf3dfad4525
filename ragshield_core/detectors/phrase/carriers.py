"""Measure how much an entry is like the knowledge base, and whether entries scatter in it.

Who plants a phrase puts it into texts that the knowledge base could hold, about different things.
The entries of a new source, language or product are unlike the knowledge base without the phrase
as well, or are about one thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import PAIRS, Background, Grams, Place, order_of
from ragshield_core.model.entries import Batch

# Entries of the knowledge base that stand for all of it: quantiles of so many are exact to .02.
SIZE = 1_000
# Pairs of words of each of them that are kept: a share of so many is exact to .04.
KEPT_PAIRS = 128
# Sums over pairs of an entry and a phrase are taken for so many at once.
CHUNK = 4_096
# A phrase between two words makes new pairs of words with them and with those beside them: six at
# most, of which some are known.
BORDER = 4
# A share of fewer pairs than three times those is too coarse to say how foreign a text is.
FEWEST_PAIRS = 3 * BORDER


class KnownSample:
    """A random sample of the knowledge base: which texts and vectors are usual in it.

    It does not depend on how the entries were batched.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.lineages: list[str | None] = []
        self.pairs: list[NDArray[np.uint32]] = []
        self.vectors = np.empty((0, 0), dtype=np.float16)
        self.keys = np.empty(0, dtype=np.uint64)
        self.n_seen = 0
        self._measured: _Usual | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def add(
        self,
        ids: Sequence[str],
        lineages: Sequence[str | None],
        hashes: Sequence[NDArray[np.uint32]],
        vectors: NDArray[Any],
    ) -> None:
        """Show entries of the knowledge base to the sample: it takes some."""
        self._measured = None
        if len(self) and self.vectors.shape[1] != vectors.shape[1]:
            self._drop(np.ones(len(self), dtype=np.bool_))
        keys = _mixed(np.arange(self.n_seen, self.n_seen + len(ids), dtype=np.uint64))
        self.n_seen += len(ids)
        bound = np.sort(np.concatenate([self.keys, keys]))[:SIZE][-1:]
        taken = np.flatnonzero(keys <= bound)
        self._drop(self.keys > bound)
        self.ids += [ids[row] for row in taken.tolist()]
        self.lineages += [lineages[row] for row in taken.tolist()]
        self.pairs += [_kept_pairs(hashes[row]) for row in taken.tolist()]
        self.keys = np.concatenate([self.keys, keys[taken]])
        chosen = vectors[taken].astype(np.float16)
        self.vectors = np.concatenate([self.vectors, chosen]) if len(self.vectors) else chosen

    def forget(self, ids: Sequence[str]) -> None:
        """Take entries out of the sample."""
        gone = set(ids)
        self._drop(np.array([entry_id in gone for entry_id in self.ids], dtype=np.bool_))

    def changed(self) -> None:
        """Measure again what is usual: the knowledge base holds other phrases than before."""
        if self._measured is not None:
            self._measured = self._measured._replace(likeness=None)

    def _drop(self, gone: NDArray[np.bool_]) -> None:
        if not gone.any():
            return
        self._measured = None
        kept = np.flatnonzero(~gone)
        for name in ("ids", "lineages", "pairs"):
            column = getattr(self, name)
            setattr(self, name, [column[row] for row in kept.tolist()])
        self.keys, self.vectors = self.keys[kept], self.vectors[kept]

    def places(self, batch: Batch, grams: Grams, background: Background) -> Place:
        """Return where entries lie in the knowledge base."""
        n = len(batch)
        mine = order_of(grams.hashes) == PAIRS
        rows = grams.rows[mine]
        new = background.of(grams.hashes[mine]) == 0.0
        near = np.full(n, np.nan, dtype=np.float32)
        proxies = np.zeros((n, batch.dim), dtype=np.float16)
        mean, spread = np.zeros((2, n), dtype=np.float32)
        if n and len(self) > 1 and batch.dim and batch.dim == self.vectors.shape[1]:
            usual = self._usual(background)
            alike = batch.embeddings @ usual.vectors.T
            alike[usual.documents.same(batch.lineages)] = -np.inf
            first = alike.argmax(axis=1)
            near = alike[np.arange(n), first]
            proxies, mean, spread = self.vectors[first], usual.mean[first], usual.spread[first]
        return Place(
            near,
            np.bincount(rows, minlength=n),
            np.bincount(rows[new], minlength=n),
            proxies,
            mean,
            spread,
        )

    def likeness(
        self, places: Place, shared: NDArray[np.int64], background: Background
    ) -> NDArray[np.float64]:
        """Return how much entries are like the knowledge base, phrases aside.

        Parameters
        ----------
        places
            Of n entries.
        shared
            Shape (n,): unknown pairs of words that are part of what is looked at. They do not make
            an entry unlike the knowledge base.
        background
            What the knowledge base holds.

        Returns
        -------
        NDArray[np.float64]
            Shape (n,): the share of the knowledge base that is less usual, by nearness and words.
        """
        usual = self._usual(background)
        assert usual.likeness is not None  # noqa: S101
        unknown = np.maximum(0, places.unknown - shared)
        known = 1.0 - unknown / np.maximum(1, np.maximum(places.pairs - shared, unknown))
        words = _rank(usual.known, known)
        if not len(usual.near):
            return _rank(usual.likeness, words)
        near = np.where(np.isnan(places.near), words, _rank(usual.near, places.near))
        # Of a short text little is left beside the phrase: its vector says more.
        words = np.where(places.pairs - shared < FEWEST_PAIRS, near, words)
        return _rank(usual.likeness, words + near)

    def _usual(self, background: Background) -> _Usual:
        if self._measured is None:
            vectors = self.vectors.astype(np.float32)
            alike = vectors @ vectors.T
            mean, spread = alike.mean(axis=1), alike.std(axis=1)
            np.fill_diagonal(alike, -np.inf)
            documents = _Documents.of(self.lineages)
            alike[documents.same(self.lineages)] = -np.inf
            has_vectors = vectors.shape[1] > 0 and len(self) > 1
            near = alike.max(axis=1) if has_vectors else np.empty(0, dtype=np.float32)
            self._measured = _Usual(vectors, documents, mean, spread, near, np.empty(0), None)
        if self._measured.likeness is None:
            sizes = np.array([len(pairs) for pairs in self.pairs], dtype=np.int64)
            rows = np.repeat(np.arange(len(self)), sizes)
            held = background.of(np.concatenate([np.empty(0, np.uint32), *self.pairs]))
            alone = np.bincount(rows[held <= 1.0], minlength=len(self))
            known = 1.0 - alone / np.maximum(1, sizes)
            near = np.sort(self._measured.near)
            rank = _rank(np.sort(known), known)
            if len(near):
                rank = rank + _rank(near, self._measured.near)
            self._measured = self._measured._replace(known=np.sort(known), likeness=np.sort(rank))
        return self._measured._replace(near=np.sort(self._measured.near))

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        values = {"ids": self.ids, "lineages": self.lineages, "n_seen": self.n_seen}
        return values, {
            "pairs": np.concatenate([np.empty(0, dtype=np.uint32), *self.pairs]),
            "sizes": np.array([len(pairs) for pairs in self.pairs], dtype=np.int64),
            "vectors": self.vectors,
            "keys": self.keys,
        }

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> KnownSample:
        """Return the one that :meth:`state` described."""
        again = cls()
        again.ids, again.lineages = list(values["ids"]), list(values["lineages"])
        again.n_seen = int(values["n_seen"])
        ends = np.cumsum(arrays["sizes"])[:-1]
        pairs = arrays["pairs"].astype(np.uint32)
        again.pairs = [part.copy() for part in np.split(pairs, ends)] if again.ids else []
        again.vectors = np.array(arrays["vectors"], dtype=np.float16)
        again.keys = np.array(arrays["keys"], dtype=np.uint64)
        return again


class _Documents(NamedTuple):
    """Numbers the documents that the entries of the sample are parts of."""

    numbers: Mapping[str | None, int]  # by lineage; -1 for none
    own: NDArray[np.int64]  # (n,)

    @classmethod
    def of(cls, lineages: Sequence[str | None]) -> _Documents:
        """Return the documents of a sample, numbered."""
        numbers: dict[str | None, int] = {None: -1}
        own = [numbers.setdefault(name, len(numbers)) for name in lineages]
        return cls(numbers, np.array(own, dtype=np.int64))

    def same(self, lineages: Sequence[str | None]) -> NDArray[np.bool_]:
        """Mark which entries of the sample are parts of the same document as others."""
        other = np.array([self.numbers.get(name, -1) for name in lineages])
        other[other < 0] = -2
        return np.asarray(other[:, None] == self.own[None, :])


class _Usual(NamedTuple):
    """What is usual in the sample."""

    vectors: NDArray[np.float32]
    documents: _Documents
    mean: NDArray[np.float32]  # (n,): of the similarities of each entry to the others
    spread: NDArray[np.float32]
    near: NDArray[np.float32]  # (n,): similarity to the nearest entry of another document
    known: NDArray[np.float64]  # (n,): shares of pairs that others hold, ascending
    likeness: NDArray[np.float64] | None  # (n,): sums of both ranks, ascending


def closeness(
    places: Place, rows: NDArray[np.int64], which: NDArray[np.int64], n_grams: int
) -> NDArray[np.float64]:
    """Return how close the other holders of an n-gram are to each of them.

    An entry stands for itself by its nearest entry of the knowledge base, which does not hold the
    phrase: a shared phrase makes texts alike that have nothing else in common.

    Parameters
    ----------
    places
        Of n entries.
    rows, which
        Shape (n_pairs,): which entry holds which n-gram.
    n_grams
        How many n-grams there are.

    Returns
    -------
    NDArray[np.float64]
        Shape (n_pairs,): their mean similarity, in standard deviations of the similarities to the
        whole knowledge base, from its mean on. About 0 if they are scattered; -inf without vectors.
    """
    if not len(rows) or not places.proxies.shape[1]:
        return np.full(len(rows), -np.inf)
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    proxies = places.proxies.astype(np.float32)
    shape = (n_grams, len(proxies))
    holders = csr_array((np.ones(len(rows), dtype=np.float32), (which, rows)), shape=shape)
    total, number = holders @ proxies, np.bincount(which, minlength=n_grams)[which]
    sums = np.concatenate(
        [
            np.einsum("ij,ij->i", proxies[rows[at : at + CHUNK]], total[which[at : at + CHUNK]])
            for at in range(0, len(rows), CHUNK)
        ]
    )
    own = np.einsum("ij,ij->i", proxies, proxies)[rows]
    fellows = (sums - own) / np.maximum(1, number - 1)
    beyond = (fellows - places.mean[rows]) / np.maximum(places.spread[rows], 1e-3)
    return np.where((number > 1) & ~np.isnan(places.near[rows]), beyond, -np.inf)


def _rank(usual: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of usual values below each, those that are equal by half."""
    low = np.searchsorted(usual, values, side="left")
    high = np.searchsorted(usual, values, side="right")
    return np.asarray((low + high) / (2.0 * max(1, len(usual))))


def _kept_pairs(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the pairs of words of a text, at most :data:`KEPT_PAIRS`."""
    kept: NDArray[np.uint32] = hashes[order_of(hashes) == PAIRS][:KEPT_PAIRS].copy()
    return kept


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a pseudo-random key for each number (splitmix64, Steele et al., OOPSLA 2014)."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
