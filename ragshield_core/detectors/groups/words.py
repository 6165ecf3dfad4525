"""The words of the entries of a knowledge base, in two bytes or little more each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Column, Ends
from ragshield_core.text.copies import containment

# Common words have numbers of 16 bits. These two are those of words that are not common, and of
# what is left of the words of an entry that was removed.
RARE, WIPED = 0, 1
N_COMMON = 2**16 - 2
# Words by which it is told which are common, at the most.
SAMPLE = 2_500_000
# It is told anew once there are so many times as many, unless hardly any is rare.
TOLD_AGAIN, FEW_RARE = 2.0, 0.1
# Entries that are worked on at once, to bound the memory that is needed beside.
ENTRIES_AT_ONCE = 2**14
# A blank page, a heading or a bullet says nothing: that two texts of which one has fewer distinct
# words than this are alike is explained, and makes no copies of them. A share beyond 1 stands for
# it.
FEWEST_WORDS, NO_CONTENT = 6, 1.05
# Words of texts that are compared with each other at once: in 60 MB.
WORDS_AT_ONCE = 2**20


class EntryWords:
    """Hashes of words, by slot of the entry: exactly those that were given, in their order.

    Of a common word its number is kept, of any other a mark here and its hash in a second array: in
    texts, a few words in a hundred are not among the 65,534 that are the most common.
    """

    def __init__(self) -> None:
        self._common: NDArray[np.uint32] = np.zeros(2, dtype=np.uint32)  # by number; ascending
        self._codes, self._rare = Column(np.uint16), Column(np.uint32)
        self._ends, self._rare_ends = Ends(), Ends()  # of each entry in them
        self._n_told = 0  # words when it was told last which are common

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int, /) -> NDArray[np.uint32]:
        return self.take(np.array([slot]))[0]

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        columns = (self._codes, self._rare, self._ends, self._rare_ends)
        return self._common.nbytes + sum(column.nbytes for column in columns)

    def append(self, entries: Sequence[NDArray[np.uint32]]) -> None:
        """Add the words of entries, which have the next slots."""
        lengths = np.fromiter(map(len, entries), np.int64, len(entries))
        self._add(np.concatenate([np.empty(0, dtype=np.uint32), *entries]), lengths)

    def take(self, slots: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries."""
        words, lengths = self._decoded(slots)
        ends = np.cumsum(lengths)
        borders = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [words[start:end] for start, end in borders]

    def lengths(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many words entries have, shape (n,)."""
        begins, ends = self._ends.at(slots)
        return ends - begins

    def wipe(self, slots: NDArray[np.int64]) -> None:
        """Leave nothing of the words of entries but how many there were."""
        where, codes = _places(self._ends, slots)[0], self._codes.values
        codes[where] = np.where(codes[where] == RARE, RARE, WIPED)
        self._rare.values[_places(self._rare_ends, slots)[0]] = 0

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Keep the words of these entries, which have the slots from 0 on, and of no others."""
        self._codes, self._ends = _kept(self._codes, self._ends, slots)
        self._rare, self._rare_ends = _kept(self._rare, self._rare_ends, slots)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return {
            "common": self._common[WIPED + 1 :],
            "codes": self._codes.values,
            "ends": self._ends.values.astype(np.int64),
            "rare": self._rare.values,
            "rare_ends": self._rare_ends.values.astype(np.int64),
            "n_told": np.array([self._n_told], dtype=np.int64),
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what :meth:`state` described; takes copies.

        Raises
        ------
        ValueError
            If the arrays do not fit together.
        """
        words = cls()
        words._common = np.concatenate([words._common, arrays["common"]])
        words._codes, words._rare = (Column.of(arrays[key].copy()) for key in ("codes", "rare"))
        words._ends, words._rare_ends = (Ends.of(arrays[key]) for key in ("ends", "rare_ends"))
        words._n_told = int(arrays["n_told"][0])
        codes, n_common = words._codes.values, len(words._common)
        fit = _fit(words._ends, words._codes) and _fit(words._rare_ends, words._rare)
        fit &= len(words._ends) == len(words._rare_ends)
        fit &= int((codes == RARE).sum()) == len(words._rare)
        if not fit or (len(codes) and codes.max() >= n_common):
            msg = "the words of its entries do not fit together"
            raise ValueError(msg)
        return words

    def _add(self, words: NDArray[np.uint32], lengths: NDArray[np.int64]) -> None:
        much_rare = len(self._rare) >= FEW_RARE * len(self._codes)
        if len(self._codes) + len(words) > TOLD_AGAIN * self._n_told and much_rare:
            self._tell(words)
        ends = np.cumsum(lengths)
        for start in range(0, len(ends), ENTRIES_AT_ONCE):
            mine = ends[start : start + ENTRIES_AT_ONCE]
            begin = int(ends[start] - lengths[start])
            self._encode(words[begin : mine[-1]], mine - begin)

    def _encode(self, words: NDArray[np.uint32], ends: NDArray[np.int64]) -> None:
        """Add words of entries that end so far into them."""
        place = np.searchsorted(self._common[WIPED + 1 :], words) + WIPED + 1
        place = np.minimum(place, len(self._common) - 1)
        rare = (self._common[place] != words) | (place <= WIPED)
        n_rare = np.append(0, np.cumsum(rare))  # up to each word
        self._ends.append(len(self._codes) + ends)
        self._rare_ends.append(len(self._rare) + n_rare[ends])
        self._codes.append(np.where(rare, RARE, place).astype(np.uint16))
        self._rare.append(words[rare])

    def _decoded(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the words of entries, one behind the other, and how many each has."""
        places, lengths = _places(self._ends, slots)
        codes = self._codes.values[places]
        words = self._common[codes]
        words[codes == RARE] = self._rare.values[_places(self._rare_ends, slots)[0]]
        return words, lengths

    def _tell(self, new: NDArray[np.uint32]) -> None:
        """Tell which words are common, now that more have come, and write all by that."""
        step = 1 + (len(self._codes) + len(new)) // SAMPLE
        sample = [words[::step] for words, _ in self._blocks()]
        found, counts = np.unique(np.concatenate([*sample, new[::step]]), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:N_COMMON]
        again = EntryWords()
        again._common = np.concatenate([again._common, np.sort(found[order])])
        for words, lengths in self._blocks():
            again._encode(words, np.cumsum(lengths))
        again._n_told = len(self._codes) + len(new)
        vars(self).update(vars(again))

    def _blocks(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        for start in range(0, len(self), ENTRIES_AT_ONCE):
            yield self._decoded(np.arange(start, min(len(self), start + ENTRIES_AT_ONCE)))


class FixedWords(list[NDArray[np.uint32]]):
    """Words that stay as they are: what an audit needs of :class:`EntryWords`, without a copy."""

    def lengths(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many words entries have, shape (n,)."""
        return np.fromiter((len(self[slot]) for slot in slots.tolist()), np.int64, len(slots))

    def take(self, slots: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries."""
        return [self[slot] for slot in slots.tolist()]


class Words:
    """Words by number: of the graph's entries, and behind them of new ones; neither is copied."""

    def __init__(
        self, standing: EntryWords | FixedWords, new: Sequence[NDArray[np.uint32]] = ()
    ) -> None:
        self._standing, self._new = standing, new
        self._start = len(standing)

    def __len__(self) -> int:
        return self._start + len(self._new)

    def take(self, numbers: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries; none where the number is -1."""
        found = [np.empty(0, dtype=np.uint32)] * len(numbers)
        standing = np.flatnonzero((numbers >= 0) & (numbers < self._start))
        for row, words in zip(
            standing.tolist(), self._standing.take(numbers[standing]), strict=True
        ):
            found[row] = words
        for row in np.flatnonzero(numbers >= self._start).tolist():
            found[row] = self._new[numbers[row] - self._start]
        return found

    def copied(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return how much of the shorter text of each pair is in the other; each compared once.

        :data:`NO_CONTENT` where it has next to no words.
        """
        n = len(self)
        low, high = np.minimum(first, second), np.maximum(first, second)
        pairs, inverse = np.unique(low.astype(np.int64) * n + high, return_inverse=True)
        copied = np.empty(len(pairs), dtype=np.float32)
        for part in self._parts(np.stack([pairs // n, pairs % n]), 0):
            words = self.take(part.named)
            copied[part.where] = containment(words, *part.places)
            empty = np.array([len(set(one.tolist())) < FEWEST_WORDS for one in words])
            copied[part.where][empty[part.places].any(axis=0)] = NO_CONTENT
        return copied[inverse]

    def _parts(self, pairs: NDArray[np.int64], start: int) -> Iterator[_Part]:
        """Yield pairs of numbers, shape (2, n), in parts that do not hold too many words."""
        named, places = np.unique(pairs, return_inverse=True)
        n = pairs.shape[1]
        if n > 1 and self._lengths(named).sum() > WORDS_AT_ONCE:
            yield from self._parts(pairs[:, : n // 2], start)
            yield from self._parts(pairs[:, n // 2 :], start + n // 2)
        else:
            yield _Part(slice(start, start + n), named, places.reshape(pairs.shape))

    def _lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        standing = numbers < self._start
        new = (len(self._new[number]) for number in (numbers[~standing] - self._start).tolist())
        lengths = np.empty(len(numbers), dtype=np.int64)
        lengths[standing] = self._standing.lengths(numbers[standing])
        lengths[~standing] = np.fromiter(new, np.int64)
        return lengths


class _Part(NamedTuple):
    """Some of many pairs: where they are, which entries they name, and these in their places."""

    where: slice
    named: NDArray[np.int64]
    places: NDArray[np.intp]


def _places(ends: Ends, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where all that belongs to entries stands, and how much of it belongs to each."""
    begins, until = ends.at(slots)
    lengths = until - begins
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(begins - before, lengths), lengths


def _fit(ends: Ends, column: Column) -> bool:
    """Return whether ends of entries are those of parts of a column, one behind the other."""
    borders = np.append(0, ends.values.astype(np.int64))
    return bool((np.diff(borders) >= 0).all() and borders[-1] == len(column))


def _kept(column: Column, ends: Ends, slots: NDArray[np.int64]) -> tuple[Column, Ends]:
    """Return what belongs to some entries, and where it ends for each."""
    kept, kept_ends = Column(column.values.dtype), Ends()
    for start in range(0, len(slots), ENTRIES_AT_ONCE):
        places, lengths = _places(ends, slots[start : start + ENTRIES_AT_ONCE])
        kept_ends.append(len(kept) + np.cumsum(lengths))
        kept.append(column.values[places])
    return kept, kept_ends
