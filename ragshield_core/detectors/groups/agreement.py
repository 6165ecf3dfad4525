"""Find words on which new entries agree and which the entries around them lack.

Texts that were crafted for one question make the same claim, and what stands on the topic does not.
Of the words of a new entry, each is held against how often the standing entries around it have it:
that nearly all of its new neighbours have it too is the more surprising the rarer it is there. An
entry's agreement with a number of new neighbours is the log-likelihood ratio of its most telling
words, less that of the next ones, as far as what stands around it is about the same: news shares
many words that are new here, a claim a few. How rare such agreement is, the knowledge base tells
(:mod:`ragshield_core.detectors.groups.usual`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import Overlay, Rows

# Words that are looked at: a claim is a name, a number, and what goes with it. All words together
# would say that two texts are about the same, which the groups' evidence says already.
TELLING = 4
# What is assumed of a word's share around an entry, from that in the whole knowledge base, is worth
# so many standing neighbours.
PRIOR = 6.0
# A standing neighbour counts less the farther it is beyond the new ones: a third at 0.1 of relative
# cosine.
FADING = 0.1
# New neighbours at whose distance the standing ones are measured.
NEAREST = 2
# A topic that is covered by half is a new one rather: of entries that come by whole articles, half
# as many again would be held if the share that is covered counted as it is.
COVERAGE = 2.0
# Bounds of a word's share, so that no logarithm runs away.
LEAST_SHARE = 1e-5
# Reviewers are told the words that are more than so telling, by the most telling one's measure.
TOLD = 0.5
# Of who was there before; of who is new to everybody that comes.
STANDS, NEW_TO_ALL = -1, -2
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class WordShares:
    """In which share of the ``n_entries`` of a knowledge base each word stands.

    Words are hashes, from :func:`ragshield_core.text.copies.word_hashes`, in ascending order;
    ``counts`` are the entries that have them.
    """

    def __init__(
        self, words: NDArray[np.uint32], counts: NDArray[np.int64], n_entries: int
    ) -> None:
        self.words, self.counts, self.n_entries = words, counts, n_entries

    @classmethod
    def of(cls, parts: Iterable[Sequence[NDArray[np.uint32]]]) -> WordShares:
        """Count the words of entries that come part by part: their words are not kept."""
        words, counts, n = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64), 0
        for entries in parts:
            keys = _distinct(entries)
            found, times = np.unique((keys & _LOW).astype(np.uint32), return_counts=True)
            words, place = np.unique(np.concatenate([words, found]), return_inverse=True)
            both = np.bincount(place, np.concatenate([counts, times]), len(words))
            counts, n = both.astype(np.int64), n + len(entries)
        return cls(words, counts, n)

    def __call__(self, words: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return the share of entries that have each word, shape as ``words``; never 0."""
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
        """Return what :meth:`state` described."""
        return cls(arrays["words"], arrays["counts"], int(arrays["size"][0]))


class Shared(NamedTuple):
    """Words of entries that new neighbours have too, and who of the lists has them; (n_words,)."""

    row: NDArray[np.int32]  # whose word it is, ascending
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
        """Compare the words of n entries with those of their lists.

        ``slots`` are up to 32 for each, -1 where there are fewer, and ``new`` marks those that are
        new neighbours; ``words_of`` returns the hashes of entries' words, given their numbers, and
        none for -1.
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
        shared = had > 0  # most words are shared with nobody who is new
        row, word, had = row[shared], word[shared], had[shared]
        return cls(row, word, had | _had(keys, row, word, np.where(new, -1, listed)))

    def had_by(self, entries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether one of some entries of its row's list, shape (n, k), has each word."""
        bits = np.uint32(1) << np.arange(entries.shape[1], dtype=np.uint32)
        wanted = np.where(entries, bits, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        return np.asarray((self.had & wanted[self.row]) > 0)

    def by(self, column: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return whether the entry in a column of its row's list has each word; -1 has none."""
        bits = self.had >> np.maximum(column, 0)[self.row].astype(np.uint32)
        return np.asarray((bits & np.uint32(1)).astype(np.bool_) & (column >= 0)[self.row])


class Agreed(NamedTuple):
    """On what an entry agrees with new neighbours."""

    words: NDArray[np.uint32]  # hashes of the most telling words, the most telling one first
    numbers: NDArray[np.int64]  # of the new neighbours
    n_around: int  # standing entries around it
    n_having: int  # of these, those that have the commonest of the words


class Newcomers:
    """Which entries of an overlay are new to which, and the words that they share.

    ``shares`` are those of words in the knowledge base; ``arrived`` says with whom each entry came,
    by its number: :data:`STANDS` for those that were there before, :data:`NEW_TO_ALL` for those
    that are new to whoever comes, such as held ones.
    """

    def __init__(self, overlay: Overlay, shares: WordShares, arrived: NDArray[np.int64]) -> None:
        self._overlay, self._shares, self._arrived = overlay, shares, arrived
        self._parts: dict[int, tuple[NDArray[np.intp], Shared]] = {}

    def agreement(self, rows: Rows, near: NDArray[np.float32], n_mates: int) -> NDArray[Any]:
        """Return :func:`agreement` of some rows of the overlay with up to so many mates.

        ``near``: how near the entries of their lists are, shape (n_rows, k); 0 or less for those
        that cannot be mates.
        """
        found = np.zeros((len(near), n_mates), dtype=np.float32)
        first = (rows.start or 0) if isinstance(rows, slice) else int(rows[0])
        if first not in self._parts:  # the same for each channel
            self._parts[first] = self._compared(rows)
        mine, shared = self._parts[first]
        if mine.size:
            lists = self._overlay.lists.take(rows).take(mine)
            mates, standing = self._sides(rows, mine, near[mine], n_mates)
            near = self._overlay.graph.relative(lists.similarities)
            found[mine] = agreement(shared, self._shares, mates, standing, near)
        return found

    def agreed(self, row: int, near: NDArray[np.float32], n_mates: int) -> Agreed | None:
        """Return on what a row of the overlay agrees with so many new neighbours, if there are any.

        ``near`` as of :meth:`agreement`, shape (1, k).
        """
        rows = np.s_[row : row + 1]
        mine, shared = self._compared(rows)
        mates, standing = self._sides(rows, mine, near[mine], n_mates)
        if not mine.size or mates[0, -1] < 0:
            return None
        lists = self._overlay.lists.take(rows)
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

    def _new(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which entries of the lists came with the entries of some rows."""
        slots = self._overlay.lists.slots[rows]
        mine = self._arrived[self._overlay.numbers[rows]][:, None]
        theirs = self._arrived[slots]
        new = ((theirs == mine) & (mine >= 0)) | ((theirs == NEW_TO_ALL) & (mine != STANDS))
        return np.asarray(new & (slots >= 0))

    def _compared(self, rows: Rows) -> tuple[NDArray[np.intp], Shared]:
        """Return the rows that have new neighbours, and their words."""
        new = self._new(rows)
        mine = np.flatnonzero(new.any(axis=1))
        numbers = self._overlay.numbers[rows][mine]
        slots = self._overlay.lists.slots[rows][mine]
        return mine, Shared.of(numbers, slots, self._overlay.all_words.take, new[mine])

    def _sides(
        self, rows: Rows, mine: NDArray[np.intp], near: NDArray[np.float32], n_mates: int
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the columns of the nearest new neighbours, and which stand."""
        new = self._new(rows)[mine]
        slots = self._overlay.lists.slots[rows][mine]
        wanted = np.where(new, near, np.float32(0.0))
        order = np.argsort(-wanted, axis=1, kind="stable")[:, :n_mates]
        mates = np.where(np.take_along_axis(wanted, order, 1) > 0.0, order, -1)
        return mates, (slots >= 0) & ~new


def agreement(
    shared: Shared,
    shares: WordShares,
    mates: NDArray[np.intp],
    standing: NDArray[np.bool_],
    similarities: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return how much entries agree with their new neighbours beyond what stands around them.

    In nats, shape (n, n_mates): agreement with the nearest one, the nearest two, and so on; 0 where
    there are fewer. ``shared`` are the words of n entries, at least those that their mates have
    too. ``mates``, shape (n, n_mates), are the columns of the lists in which the nearest new
    neighbours are, the nearest first, -1 where there are fewer; ``standing`` and ``similarities``,
    shape (n, k), say of the lists what was there before, and their relative cosines.
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
        # A claim is a few words; who shares many new ones brings a topic.
        sign = np.where(rank < TELLING, 1.0, np.where(rank < 2 * TELLING, -1.0, 0.0))
        claim = np.maximum(np.bincount(row, sign * telling[order], minlength=n), 0.0)
        # What the entries around do not say is telling as far as they are about the same.
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
    """Return how telling each word is, and how many mates have it: of one mate, of two, and so on.

    Parameters as of :func:`agreement`.
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

    ``keys`` from :func:`_distinct`, of the entries whose places are ``listed``; -1 is looked at by
    nobody.
    """
    had = np.zeros(len(word), dtype=np.uint32)
    for column, places in enumerate(listed.T if len(keys) else ()):
        asked = np.flatnonzero(places[row] >= 0)
        theirs = (places[row[asked]].astype(np.uint64) << _SHIFT) | word[asked]
        found = np.minimum(np.searchsorted(keys, theirs), len(keys) - 1)
        had[asked[keys[found] == theirs]] |= np.uint32(1 << column)
    return had


def _distinct(entries: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint64]:
    """Return place << 32 | word of the distinct words of each entry, ascending."""
    lengths = [len(words) for words in entries]
    if not sum(lengths):
        return np.empty(0, dtype=np.uint64)
    place = np.repeat(np.arange(len(entries), dtype=np.uint64), lengths)
    keys = (place << _SHIFT) | np.concatenate(entries).astype(np.uint64)
    # Sorted here: NumPy's unique hashes them, which takes many times as long.
    keys.sort()
    return np.asarray(keys[np.append(True, keys[1:] != keys[:-1])])
