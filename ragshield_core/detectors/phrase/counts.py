"""Counts of the entries that contain a phrase, in the knowledge base and among recent entries.

Texts become sets of word n-grams, as 32-bit hashes: single words, pairs of words with at most one
other word between them, three and four words in a row. A phrase keeps some of its pairs if one of
its words is replaced, dropped or added.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.normalized import encoded_words, readable
from ragshield_core.text.readings import SMALL_REMEMBERED, Remembered

# Order of an n-gram, and offsets of its words from the first one.
PATTERNS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (0,)),
    (1, (0, 1)),
    (1, (0, 2)),  # the same hash as without a word between them
    (2, (0, 1, 2)),
    (3, (0, 1, 2, 3)),
)
N_ORDERS = 4
ORDER_BITS = 2  # the highest ones of a hash
PAIRS, TRIPLES = 1, 2

# An entry is a chunk of a document. A longer one (over about 3,000 words) is represented by its
# n-grams with the lowest hashes: two entries keep most of the n-grams that they share.
MAX_GRAMS = 16_384

# Columns of a sketch, which estimates the share of three-word phrases that two texts share, to
# within about an eighth.
SKETCH = 16
EMPTY = np.uint32(0xFFFFFFFF)

# Cells of the counts of a knowledge base, by order: characters / 4, which is about the number of
# words, within these bounds. 2^23 cells of each order take 64 MiB and are half full with 100,000
# passages of 100 words.
MIN_CELLS, MAX_CELLS = 1 << 16, 1 << 23
SATURATED = 65_535  # counts stop here, and so frequent an n-gram is never suspicious
TAIL = 256  # the table of n-grams by least number of holders ends here

# Many more cells than n-grams are wanted at once.
FOUND_CELLS = 1 << 18

_ODD = tuple(
    np.uint64(number)
    for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_MIX = np.uint64(0xFF51AFD7ED558CCD)


class Grams(NamedTuple):
    """The distinct n-grams of some texts."""

    rows: NDArray[np.int64]  # (n_grams,): which text, ascending
    hashes: NDArray[np.uint32]  # (n_grams,), ascending within a text
    n_rows: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> Grams:
        """Return the distinct n-grams of each text, at most :data:`MAX_GRAMS` of each."""
        listed = [np.empty(0, dtype=np.uint32), *map(hashed, texts)]
        words = np.concatenate(listed)  # in reading order
        lengths = np.fromiter(map(len, listed[1:]), np.int64, len(texts))
        owners = np.repeat(np.arange(len(texts)), lengths)
        upper = owners.astype(np.uint64) << np.uint64(32)
        keys = np.concatenate([upper[at] | hashes for *_, at, hashes in _grams_of(words, owners)])
        # An upper limit, which counts repeated n-grams repeatedly.
        most = len(PATTERNS) * np.bincount(owners, minlength=len(texts))
        for row in np.flatnonzero(most > MAX_GRAMS).tolist():
            mine = (keys >> np.uint64(32)) == row
            lowest = _lowest(keys[mine].astype(np.uint32), MAX_GRAMS)
            keys = np.concatenate([keys[~mine], np.uint64(row << 32) | lowest])
        keys = _distinct(keys)
        return cls((keys >> np.uint64(32)).astype(np.int64), keys.astype(np.uint32), len(texts))

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of n-grams of each text, shape (n_rows,)."""
        return np.bincount(self.rows, minlength=self.n_rows)

    def by_text(self) -> list[NDArray[np.uint32]]:
        """Return the n-grams of each text."""
        if not self.n_rows:
            return []
        return np.split(self.hashes, np.cumsum(self.sizes())[:-1])

    def sketches(self) -> NDArray[np.uint32]:
        """Return a sketch of each text, shape (n_rows, SKETCH).

        Notes
        -----
        One-permutation hashing: each three-word phrase falls into one of the columns, and the
        lowest hash in a column represents it (Li et al., NeurIPS 2012). Empty columns contain
        :data:`EMPTY`.
        """
        mine = order_of(self.hashes) == TRIPLES
        mixed = self.hashes[mine] * np.uint32(0x9E3779B1)
        columns = (mixed & np.uint32(SKETCH - 1)).astype(np.int64)
        sketches = np.full(self.n_rows * SKETCH, EMPTY)
        np.minimum.at(sketches, self.rows[mine] * SKETCH + columns, mixed)
        return sketches.reshape(self.n_rows, SKETCH)


def order_of(hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the order of n-grams: 0 for words, 1 for pairs, 2 for triples, 3 for quadruples."""
    return (hashes >> np.uint32(32 - ORDER_BITS)).astype(np.int64)


def places_of(listed: Sequence[str], wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Mark the words of one text that belong to one of the n-grams, shape (n_words,)."""
    words = np.fromiter((zlib.crc32(word.encode()) for word in listed), np.uint32, len(listed))
    marked = np.zeros(len(listed), dtype=np.bool_)
    for offsets, at, hashes in _grams_of(words, np.zeros(len(words), dtype=np.int64)):
        found = np.flatnonzero(np.isin(hashes, np.array(wanted, dtype=np.uint32)))
        for offset in offsets:
            marked[np.flatnonzero(at)[found] + offset] = True
    return marked


def _hashes_of(text: str) -> NDArray[np.uint32]:
    listed = encoded_words(readable(text).text)
    return np.fromiter(map(zlib.crc32, listed), np.uint32, len(listed))


hashed = Remembered(_hashes_of, SMALL_REMEMBERED)


def _grams_of(
    words: NDArray[np.uint32], owners: NDArray[np.int64]
) -> Iterator[tuple[tuple[int, ...], NDArray[np.bool_], NDArray[np.uint32]]]:
    """Yield, by pattern, the offsets, the words that begin an n-gram, and the n-gram hashes."""
    n = len(words)
    numbers = words + np.uint64(1)  # no word is zero
    parts = [numbers * odd for odd in _ODD]
    for order, offsets in PATTERNS:
        reach = offsets[-1]
        # An n-gram starts at every word if its other words belong to the same text.
        at = np.zeros(n, dtype=np.bool_)
        size = max(0, n - reach)
        np.equal(owners[:size], owners[reach:], out=at[:size])
        mixed = parts[0][:size].copy()
        for offset, part in zip(offsets[1:], parts[1:], strict=False):
            mixed += part[offset : size + offset]
        mixed = mixed[at[:size]]
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX
        mixed >>= np.uint64(32 + ORDER_BITS)
        yield offsets, at, mixed.astype(np.uint32) | np.uint32(order << (32 - ORDER_BITS))


def _distinct(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct keys, in order."""
    keys = np.sort(keys, kind="stable")  # half the time, since they ascend in parts
    distinct = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=distinct[1:])
    return keys[distinct]


def _lowest(hashes: NDArray[np.uint32], n: int) -> NDArray[np.uint32]:
    """Return the n distinct hashes that are lowest when mixed, in any order."""
    mixed = _distinct(hashes * np.uint32(0x85EBCA6B))[:n]
    return mixed * np.uint32(pow(0x85EBCA6B, -1, 1 << 32))


def n_cells_for(n_characters: int) -> int:
    """Return the number of cells for texts of ``n_characters``: at least one per word."""
    wanted = max(1, n_characters // 4)
    return min(MAX_CELLS, max(MIN_CELLS, 1 << (wanted - 1).bit_length()))


class Background:
    """Approximate numbers of entries of the knowledge base that contain an n-gram.

    A table of counts by hash: two n-grams may share a cell, so either may seem more usual than it
    is, but never less.
    """

    def __init__(self, n_cells: int = MIN_CELLS) -> None:
        self.counts = np.zeros(N_ORDERS * n_cells, dtype=np.uint16)
        self.n_grams = np.zeros(N_ORDERS, dtype=np.int64)
        self.n_entries = 0
        self.tail = np.ones((N_ORDERS, TAIL))
        self.originals = np.ones((N_ORDERS, TAIL))  # share of the tail without copies

    def add(self, hashes: NDArray[np.uint32], n_entries: int, sign: int) -> None:
        """Count the n-grams of entries, each once per entry; a sign of -1 subtracts them."""
        cells, occurrences = np.unique(self._cells(hashes), return_counts=True)
        before = self.counts[cells]
        after = np.clip(before.astype(np.int64) + sign * occurrences, 0, SATURATED)
        after[before == SATURATED] = SATURATED  # the true number is no longer known
        self.counts[cells] = after
        self.n_entries = max(0, self.n_entries + sign * n_entries)
        by_order = np.bincount(order_of(hashes), minlength=N_ORDERS)
        self.n_grams = np.maximum(0, self.n_grams + sign * by_order)

    def of(self, hashes: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return the number of entries with each n-gram; infinite if the count is saturated."""
        found = self.counts[self._cells(hashes)].astype(np.float64)
        found[found == SATURATED] = np.inf
        return found

    def measure(self, copies: Iterable[Grams] = ()) -> None:
        """Count, by order, the n-grams in at least 0, 1, 2, ... entries that are no copies."""
        originals = self
        for grams in copies:
            if originals is self:
                originals = Background.restored(self.state())
            originals.add(grams.hashes, grams.n_rows, -1)
        self.tail = originals.held_by()
        self.originals = self.tail / self.held_by()

    def held_by(self) -> NDArray[np.float64]:
        """Return, by order, the number of n-grams in at least 0, 1, 2, ... entries."""
        counts = np.minimum(self.counts, TAIL - 1).reshape(N_ORDERS, -1)
        sizes = np.stack([np.bincount(each, minlength=TAIL) for each in counts])
        return np.maximum(np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1], 1).astype(np.float64)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return {
            "counts": self.counts,
            "n_grams": np.append(self.n_grams, self.n_entries),
            "tail": self.tail,
            "originals": self.originals,
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Background:
        """Return the background that :meth:`state` described."""
        again = cls.__new__(cls)
        again.counts = np.array(arrays["counts"], dtype=np.uint16)
        again.n_grams = np.array(arrays["n_grams"][:-1], dtype=np.int64)
        again.n_entries = int(arrays["n_grams"][-1])
        again.tail = np.array(arrays["tail"], dtype=np.float64)
        again.originals = np.array(arrays["originals"], dtype=np.float64)
        return again

    def _cells(self, hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
        n_cells = len(self.counts) // N_ORDERS
        return order_of(hashes) * n_cells + (hashes & np.uint32(n_cells - 1))


def found_in(
    wanted: NDArray[np.uint32], hashes: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the wanted hashes, and the place of each among ``wanted``.

    ``wanted`` is ascending and distinct, and has at least one hash.
    """
    if len(hashes) > FOUND_CELLS // 8:
        # Most are not wanted: a small table excludes nearly all of these.
        marked = np.zeros(FOUND_CELLS, dtype=np.bool_)
        marked[wanted & np.uint32(FOUND_CELLS - 1)] = True
        places = np.flatnonzero(marked[hashes & np.uint32(FOUND_CELLS - 1)])
    else:
        places = np.arange(len(hashes))
    which = np.minimum(np.searchsorted(wanted, hashes[places]), len(wanted) - 1)
    same = wanted[which] == hashes[places]
    return places[same], which[same]
