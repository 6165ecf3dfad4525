"""The words of the entries of a knowledge base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.ragged import check_ends, divided, joined
from ragshield_core.neighbors.slots import Columns
from ragshield_core.text.copies import containment

# Entries that are processed at once, to bound the working memory.
ENTRIES_AT_ONCE = 2**14
# A blank page, a heading or a bullet has no content: a text with fewer distinct words than this is
# neither suspicious nor a copy for being similar to another. A copied share beyond 1 marks such
# pairs.
FEWEST_WORDS, NO_CONTENT = 6, 1.05
# Steps per unit to which copied shares are rounded down, with an error up to 4e-3, and tolerance in
# steps for float32 products. 0.35, 0.5 and 0.9 are thresholds.
SHARE_STEPS, SLACK = 240, 1e-3
# Quantile of the known words of the knowledge base's entries below which a text is in another
# language, and number of entries that are sampled for it.
HARDLY_ANY, LOOKED_AT = 0.01, 400
# Words of texts that are compared with each other at once: 60 MB.
WORDS_AT_ONCE = 2**20


class EntryWords:
    """Hashes of words, by slot of the entry: exactly the given ones, in their order."""

    def __init__(self) -> None:
        self._words = Columns(word=np.uint32(0))
        self._ends = Columns(end=np.int64(0))  # end of each entry's words

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, entries: Sequence[NDArray[np.uint32]]) -> None:
        """Add the words of entries, which get the next slots."""
        new, ends = joined(entries, np.uint32)
        have, n = len(self._words), len(self._ends)
        self._ends.grow(n + len(entries))
        self._ends["end"][n:] = have + ends
        self._words.grow(have + len(new))
        self._words["word"][have:] = new

    def take(self, slots: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries."""
        return divided(self._words["word"], self._ends["end"], slots)

    def wipe(self, slots: NDArray[np.int64]) -> None:
        """Erase the words of entries, but not their number."""
        for words in self.take(slots):
            words[:] = 0

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Keep only the words of these entries, which get the slots from 0 on."""
        kept = EntryWords()
        kept.append(self.take(slots))
        self._words, self._ends = kept._words, kept._ends

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return {"words": self._words["word"], "ends": self._ends["end"]}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the words that :meth:`state` described; the arrays are copied.

        Raises
        ------
        ValueError
            If the arrays do not fit together.
        """
        check_ends(arrays["words"], arrays["ends"])
        words = cls()
        words._words.grow(len(arrays["words"]))
        words._words["word"][:] = arrays["words"]
        words._ends.grow(len(arrays["ends"]))
        words._ends["end"][:] = arrays["ends"]
        return words


class Words:
    """Words by number, of the graph's entries and then of new ones, without copies.

    Each pair of texts is compared once: the groups of all channels are mostly the same.
    """

    def __init__(self, standing: EntryWords, new: Sequence[NDArray[np.uint32]] = ()) -> None:
        self._standing, self._new = standing, new
        self._start = len(standing)
        # Compared pairs, ascending, and the shares of each. Threads replace it: at worst, one
        # compares a pair again.
        self._compared = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)

    def take(self, numbers: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries; none for a number of -1."""
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
        """Return the share of each pair's shorter text that is in the other, rounded.

        :data:`NO_CONTENT` if a text of the pair has hardly any words.
        """
        n = self._start + len(self._new)
        low, high = np.minimum(first, second), np.maximum(first, second)
        pairs, inverse = np.unique(low.astype(np.int64) * n + high, return_inverse=True)
        known, shares = self._compared
        place = np.searchsorted(known, pairs)
        missing = np.append(known, -1)[place] != pairs
        if missing.any():
            new, place = pairs[missing], place[missing]
            scaled = self._copied(np.stack([new // n, new % n])) * np.float32(SHARE_STEPS)
            found = np.floor(scaled + np.float32(SLACK)) / np.float32(SHARE_STEPS)
            # Merged rather than sorted again: a large knowledge base has millions of pairs.
            known, shares = np.insert(known, place, new), np.insert(shares, place, found)
            self._compared = known, shares
        return np.asarray(shares[np.searchsorted(known, pairs)][inverse])

    def _copied(self, pairs: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unrounded shares for pairs of numbers, shape (2, n), in bounded memory."""
        named, places = np.unique(pairs, return_inverse=True)
        places, words = places.reshape(pairs.shape), self.take(named)
        n = pairs.shape[1]
        if n > 1 and sum(map(len, words)) > WORDS_AT_ONCE:
            parts = pairs[:, : n // 2], pairs[:, n // 2 :]
            return np.concatenate([self._copied(part) for part in parts])
        copied = containment(words, *places)
        empty = np.array([_hardly_any(one) for one in words], dtype=np.bool_)
        copied[empty[places].any(axis=0)] = NO_CONTENT
        return copied


def _hardly_any(words: NDArray[np.uint32]) -> bool:
    """Return whether a text has so few distinct words that it has no content."""
    first = set(words[: 4 * FEWEST_WORDS].tolist())  # mostly enough
    return len(first) < FEWEST_WORDS and len(set(words.tolist())) < FEWEST_WORDS


class Vocabulary:
    """The words of vouched-for sources, to recognise texts in other languages.

    ``words`` are hashes, ascending; ``least_known`` is the share of words that nearly every entry
    of the knowledge base has in common with others.
    """

    def __init__(self, words: NDArray[np.uint32], least_known: float) -> None:
        self.words, self.least_known = words, least_known

    @classmethod
    def of(cls, entries: Sequence[NDArray[np.uint32]]) -> Vocabulary:
        """Collect the words of entries, and measure the share that an entry has in common."""
        distinct = [np.unique(words) for words in entries]
        joined = np.concatenate([np.empty(0, dtype=np.uint32), *distinct])
        words, counts = np.unique(joined, return_counts=True)
        shared = cls(words[counts > 1], 0.0)
        sample = distinct[:: max(1, len(distinct) // LOOKED_AT)]
        known = [shared.known(one) for one in sample if len(one)]
        return cls(words, float(np.quantile(known, HARDLY_ANY)) if known else 0.0)

    def known(self, words: NDArray[np.uint32]) -> float:
        """Return the share of known words, [0, 1]; 1 if there are no words."""
        if not len(words) or not len(self.words):
            return 1.0
        place = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return float(np.mean(self.words[place] == words))

    def foreign(self, entries: Sequence[NDArray[np.uint32]]) -> NDArray[np.bool_]:
        """Return which texts are in a language that the knowledge base lacks."""
        return np.array([self.known(words) < self.least_known for words in entries], dtype=np.bool_)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return {"words": self.words, "least": np.array([self.least_known])}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Vocabulary:
        """Return the vocabulary that :meth:`state` described."""
        return cls(arrays["words"].astype(np.uint32), float(arrays["least"][0]))
