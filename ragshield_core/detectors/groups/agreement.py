"""Words on which new entries agree and which the stored entries around them lack.

Texts that were crafted for one question make the same claim, and stored entries on the topic do
not. Each word of a new entry is compared with its frequency in the stored entries around it: if
nearly all of its new neighbours have the word too, this is more surprising for a rarer word. An
entry's agreement with a number of new neighbours is the log-likelihood ratio of its most telling
words, minus that of the next ones, weighted by how well stored entries cover its topic: news shares
many words that are new here, a claim shares few. The knowledge base shows how rare such agreement
is (:mod:`ragshield_core.detectors.groups.usual`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import Codes, Overlay

# Number of words in a claim: a name, a number, and their context. All words together would only
# show that two texts have one topic, which the groups' evidence shows already.
TELLING = 4
# Weight, in stored neighbours, of the prior for a word's share around an entry, which is its share
# in the whole knowledge base.
PRIOR = 6.0
# A stored neighbour counts less if it is farther off than the new ones: a third at 0.1 of relative
# cosine.
FADING = 0.1
# New neighbours whose mean distance is the reference for stored ones.
NEAREST = 2
# Exponent of the covered share of a topic: a half-covered topic is mostly a new one. With the plain
# share, half as many entries again would be held among those that arrive as whole articles.
COVERAGE = 2.0
# Bounds of a word's share, so that logarithms stay finite.
LEAST_SHARE = 1e-5
# Reviewers see the words whose measure is more than this part of the most telling word's measure.
TOLD = 0.5
# Pairs of a word and a listed entry that are looked up at once: about 15 MB.
AT_ONCE = 1 << 18
# Arrivals of stored entries, and of entries that are new to every newcomer.
STANDS, NEW_TO_ALL = -1, -2
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class WordShares:
    """The share of the ``n_entries`` of a knowledge base that contain each word.

    Words are hashes, from :func:`ragshield_core.text.copies.word_hashes`, in ascending order;
    ``counts`` are the numbers of entries with them.
    """

    def __init__(
        self, words: NDArray[np.uint32], counts: NDArray[np.int64], n_entries: int
    ) -> None:
        self.words, self.counts, self.n_entries = words, counts, n_entries

    @classmethod
    def of(cls, parts: Iterable[Sequence[NDArray[np.uint32]]]) -> WordShares:
        """Count the words of entries, which come in parts: the entries' words are not kept."""
        words, counts, n = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64), 0
        for entries in parts:
            keys = _distinct(entries)
            found, times = np.unique((keys & _LOW).astype(np.uint32), return_counts=True)
            words, place = np.unique(np.concatenate([words, found]), return_inverse=True)
            both = np.bincount(place, np.concatenate([counts, times]), len(words))
            counts, n = both.astype(np.int64), n + len(entries)
        return cls(words, counts, n)

    def __call__(self, words: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return the share of entries with each word, shape as ``words``; never 0."""
        if not len(self.words):
            return np.full(len(words), 0.5 / (self.n_entries + 1.0))
        place = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        counts = np.where(self.words[place] == words, self.counts[place], 0)
        return np.asarray((counts + 0.5) / (self.n_entries + 1.0))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        size = np.array([self.n_entries], dtype=np.int64)
        return {"words": self.words, "counts": self.counts, "size": size}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> WordShares:
        """Return the shares that :meth:`state` described."""
        return cls(arrays["words"], arrays["counts"], int(arrays["size"][0]))


class Shared(NamedTuple):
    """Words that entries share with new neighbours, and the entries of the lists with them."""

    row: NDArray[np.int32]  # (n_words,) each: row of the entry with the word, ascending
    word: NDArray[np.uint32]  # its hash
    had: NDArray[np.uint32]  # bit j: the j-th entry of the list has it

    @classmethod
    def of(
        cls,
        numbers: NDArray[np.int64],
        slots: NDArray[np.int64],
        words_of: Callable[[NDArray[np.int64]], Sequence[NDArray[np.uint32]]],
        new: NDArray[np.bool_],
    ) -> Shared:
        """Compare the words of n entries with those of the entries in their lists.

        ``slots`` has up to 32 neighbours for each, padded with -1, and ``new`` marks the new
        neighbours; ``words_of`` returns the word hashes of entries by their numbers, and none for
        -1.
        """
        named, places = np.unique(np.concatenate([numbers, slots.ravel()]), return_inverse=True)
        keys = _distinct(words_of(named))
        starts = np.searchsorted(keys, np.arange(len(named) + 1, dtype=np.uint64) << _SHIFT)
        own, listed = places[: len(numbers)], places[len(numbers) :].reshape(slots.shape)
        lengths = starts[own + 1] - starts[own]
        row = np.repeat(np.arange(len(own), dtype=np.int32), lengths)
        before = np.repeat(np.cumsum(lengths) - lengths, lengths)
        word = (keys[starts[own][row] + np.arange(len(row)) - before] & _LOW).astype(np.uint32)
        had = _had(keys, row, word, np.where(new, listed, -1))
        shared = had > 0  # most words are in no new neighbour
        row, word, had = row[shared], word[shared], had[shared]
        return cls(row, word, had | _had(keys, row, word, np.where(new, -1, listed)))

    def times(self, n: int, n_rows: int) -> Shared:
        """Return ``n`` copies of the words of ``n_rows`` entries, one after the other."""
        row = (self.row + np.arange(0, n * n_rows, n_rows, dtype=np.int32)[:, None]).ravel()
        return Shared(row, np.tile(self.word, n), np.tile(self.had, n))

    def had_by(self, entries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether one of the ``entries`` in its row's list, shape (n, k), has each word."""
        bits = np.uint32(1) << np.arange(entries.shape[1], dtype=np.uint32)
        wanted = np.where(entries, bits, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        return np.asarray((self.had & wanted[self.row]) > 0)

    def by(self, column: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return whether the entry in its row's ``column`` has each word; column -1 has none."""
        bits = self.had >> np.maximum(column, 0)[self.row].astype(np.uint32)
        return np.asarray((bits & np.uint32(1)).astype(np.bool_) & (column >= 0)[self.row])


class Agreed(NamedTuple):
    """The words on which an entry agrees with new neighbours."""

    words: NDArray[np.uint32]  # hashes of the most telling words, the most telling one first
    numbers: NDArray[np.int64]  # of the new neighbours
    n_around: int  # stored entries around it
    n_having: int  # stored entries around it with the commonest of the words


class Newcomers:
    """The new neighbours of the entries of an overlay, and the words that they share.

    ``shares`` are the shares of words in the knowledge base; ``arrived`` returns the arrivals of
    entries by their numbers, the same for entries that came together: :data:`STANDS` for stored
    entries, :data:`NEW_TO_ALL` for entries that are new to every newcomer, such as held ones.
    """

    def __init__(self, overlay: Overlay, shares: WordShares, arrived: Codes) -> None:
        self._overlay, self._shares, self._arrived = overlay, shares, arrived

    def agreement(
        self, rows: NDArray[np.intp], near: NDArray[np.float32], n_mates: int
    ) -> NDArray[Any]:
        """Return :func:`agreement` of some rows of the overlay with up to ``n_mates`` mates.

        ``near``: nearness of the entries of their lists in each channel, shape (n_channels, n_rows,
        k); 0 or less for entries that cannot be mates. Shape (n_channels, n_rows, n_mates).
        """
        n = len(near)
        found = np.zeros((*near.shape[:2], n_mates), dtype=np.float32)
        new, mine, shared = self._compared(rows)
        if mine.size:
            lists = self._overlay.lists.take(rows[mine])
            mates = mates_in(new, near[:, mine], n_mates)
            similarities = self._overlay.graph.relative(lists.similarities)
            standing = (lists.slots >= 0) & ~new
            agreed = agreement(
                shared.times(n, len(mine)),
                self._shares,
                mates.reshape(-1, n_mates),
                np.tile(standing, (n, 1)),
                np.tile(similarities, (n, 1)),
            )
            found[:, mine] = agreed.reshape(mates.shape)
        return found

    def agreed(self, row: int, near: NDArray[np.float32], n_mates: int) -> Agreed | None:
        """Return the agreement of a row with ``n_mates`` new neighbours; ``None`` if it has fewer.

        ``near`` as in :meth:`agreement`, shape (1, k).
        """
        rows = np.arange(row, row + 1)
        new, mine, shared = self._compared(rows)
        mates = mates_in(new, near[mine], n_mates)
        if not mine.size or mates[0, -1] < 0:
            return None
        lists = self._overlay.lists.take(rows)
        standing = (lists.slots >= 0) & ~new
        similarities = self._overlay.graph.relative(lists.similarities)
        *_, (telling, _) = _telling(shared, self._shares, mates, standing, similarities)
        best = np.argsort(-telling, kind="stable")[:TELLING]
        best = best[telling[best] > TOLD * telling.max(initial=0.0)]
        columns = np.flatnonzero(standing[0])
        had = (shared.had[best][:, None] >> columns.astype(np.uint32)) & np.uint32(1)
        return Agreed(
            words=shared.word[best],
            numbers=self._overlay.lists.slots[row, mates[0]],
            n_around=len(columns),
            n_having=int(had.sum(axis=1).max(initial=0)),
        )

    def _new(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which entries of the lists came with the entries of some rows."""
        slots = self._overlay.lists.slots[rows]
        mine = self._arrived(self._overlay.numbers[rows])[:, None]
        theirs = self._arrived(slots)
        new = ((theirs == mine) & (mine >= 0)) | ((theirs == NEW_TO_ALL) & (mine != STANDS))
        return np.asarray(new & (slots >= 0))

    def _compared(
        self, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.bool_], NDArray[np.intp], Shared]:
        """Return which neighbours are new, the places of rows with any, and their words."""
        new = self._new(rows)
        mine = np.flatnonzero(new.any(axis=1))
        new, numbers = new[mine], self._overlay.numbers[rows[mine]]
        slots = self._overlay.lists.slots[rows[mine]]
        return new, mine, Shared.of(numbers, slots, self._overlay.all_words.take, new)


def mates_in(new: NDArray[np.bool_], near: NDArray[np.float32], n_mates: int) -> NDArray[np.intp]:
    """Return the columns of the nearest new neighbours, padded with -1; last axis ``n_mates``."""
    wanted = np.where(new, near, np.float32(0.0))
    order = np.argsort(-wanted, axis=-1, kind="stable")[..., :n_mates]
    return np.where(np.take_along_axis(wanted, order, -1) > 0.0, order, -1)


def agreement(
    shared: Shared,
    shares: WordShares,
    mates: NDArray[np.intp],
    standing: NDArray[np.bool_],
    similarities: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the agreement of entries with their new neighbours beyond the stored entries.

    In nats, shape (n, n_mates): agreement with the nearest one, the nearest two, and so on; 0 if
    there are fewer. ``shared`` has the words of n entries, at least those that their mates have
    too. ``mates``, shape (n, n_mates), are the list columns of the nearest new neighbours, the
    nearest first, padded with -1; ``standing`` marks the stored entries of the lists, and
    ``similarities`` are relative cosines, shape (n, k) each.
    """
    found = np.zeros(mates.shape, dtype=np.float32)
    n = len(mates)
    mate = np.zeros(standing.shape, dtype=np.bool_)
    mate[np.nonzero(mates >= 0)[0], mates[mates >= 0]] = True
    kept = shared.had_by(mate)  # others are neither telling nor of the topic
    shared = Shared(shared.row[kept], shared.word[kept], shared.had[kept])
    known = shared.had_by(standing)
    rarity = -np.log(shares(shared.word))
    by_number = _telling(shared, shares, mates, standing, similarities)
    for number, (telling, having) in enumerate(by_number):
        order = np.lexsort((shared.word, -telling, shared.row))
        row = shared.row[order]
        rank = np.arange(len(row)) - np.searchsorted(row, row)
        # A claim is a few words; an entry that shares many new words brings a topic.
        sign = np.where(rank < TELLING, 1.0, np.where(rank < 2 * TELLING, -1.0, 0.0))
        claim = np.maximum(np.bincount(row, sign * telling[order], minlength=n), 0.0)
        # Words that stored entries around lack are telling if these entries cover the topic.
        topic = having * rarity
        total = np.bincount(shared.row, topic, minlength=n)
        covered = np.bincount(shared.row, topic * known, minlength=n)
        found[:, number] = claim * (covered / np.maximum(total, LEAST_SHARE)) ** COVERAGE
    return found


def _telling(
    shared: Shared,
    shares: WordShares,
    mates: NDArray[np.intp],
    standing: NDArray[np.bool_],
    similarities: NDArray[np.float32],
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return each word's measure and its number of mates with it: for one mate, two, and so on.

    Parameters as in :func:`agreement`.
    """
    first = np.maximum(mates[:, :NEAREST], 0)
    there = mates[:, :NEAREST] >= 0
    near = np.where(there, np.take_along_axis(similarities, first, 1), np.float32(0.0))
    reach = near.sum(axis=1, dtype=np.float64) / np.maximum(there.sum(axis=1), 1)
    beyond = np.where(standing, similarities, -np.inf) - reach[:, None]
    weights = np.exp(np.minimum(beyond, 0.0) / FADING)
    around = np.zeros(len(shared.row))
    for column in range(weights.shape[1]):
        having_it = np.flatnonzero(shared.had & (np.uint32(1) << np.uint32(column)))
        around[having_it] += weights[shared.row[having_it], column]
    share = (around + PRIOR * shares(shared.word)) / (weights.sum(axis=1) + PRIOR)[shared.row]
    share = np.clip(share, LEAST_SHARE, 1.0 - LEAST_SHARE)
    having = np.zeros(len(shared.row))
    found = []
    for number in range(mates.shape[1]):
        having = having + shared.by(mates[:, number])
        n = number + 1.0
        q = np.clip(having / n, LEAST_SHARE, 1.0 - LEAST_SHARE)
        gain = n * (q * np.log(q / share) + (1.0 - q) * np.log((1.0 - q) / (1.0 - share)))
        enough = (mates[:, number] >= 0)[shared.row]
        found.append((np.where(enough & (q > share), np.maximum(gain, 0.0), 0.0), having))
    return found


def _had(
    keys: NDArray[np.uint64],
    row: NDArray[np.int32],
    word: NDArray[np.uint32],
    listed: NDArray[np.intp],
) -> NDArray[np.uint32]:
    """Return which entries of its row's list have each word, as bits.

    ``keys`` from :func:`_distinct`, of the entries whose places are ``listed``; places of -1 are
    ignored.
    """
    had = np.zeros(len(word), dtype=np.uint32)
    if not len(keys):
        return had
    rows, columns = np.nonzero(listed >= 0)
    first = np.searchsorted(row, np.arange(len(listed) + 1))
    lengths = np.diff(first)[rows]
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, np.arange(AT_ONCE, ends[-1] if len(ends) else 0, AT_ONCE))
    for some in np.split(np.arange(len(rows)), cuts):
        n, begin = lengths[some], first[rows[some]]
        asked = np.repeat(begin - np.cumsum(n) + n, n) + np.arange(n.sum())
        place = np.repeat(listed[rows[some], columns[some]].astype(np.uint64) << _SHIFT, n)
        theirs = place | word[asked]
        at = np.minimum(np.searchsorted(keys, theirs), len(keys) - 1)
        found = np.flatnonzero(keys[at] == theirs)
        bits = np.repeat(np.uint32(1) << columns[some].astype(np.uint32), n)
        np.add.at(had, asked[found], bits[found])
    return had


def _distinct(entries: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint64]:
    """Return place << 32 | word of the distinct words of each entry, ascending."""
    lengths = [len(words) for words in entries]
    if not sum(lengths):
        return np.empty(0, dtype=np.uint64)
    place = np.repeat(np.arange(len(entries), dtype=np.uint64), lengths)
    keys = (place << _SHIFT) | np.concatenate(entries).astype(np.uint64)
    # Sorted here: NumPy's unique would hash them, which takes many times as long.
    # By place they ascend already: a stable sort takes a third of the time of a quick one.
    keys.sort(kind="stable")
    return np.asarray(keys[np.append(True, keys[1:] != keys[:-1])])
