"""Words and phrases that stand for ideas, looked up in running text."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.columns import EXACT, Dictionary, Words, key

# Words whose ideas are remembered.
MAX_KNOWN = 50_000
# Places for words of many texts that are remembered, 20 bytes each: more than are common.
LATELY = 1 << 15
_SHIFT, _ODD = np.uint64(64 - 15), np.uint64(0x9E3779B97F4A7C15)

_CHOICE = re.compile(r"\{([^{}]*)\}")
_BETWEEN = re.compile(r"\|(?![^{]*\})")


def phrases_of(pattern: str) -> Iterator[str]:
    """Yield the words and phrases that a pattern stands for.

    Parameters
    ----------
    pattern
        Alternatives between ``|``; within a phrase, between ``{`` and ``}``.

    Examples
    --------
    >>> list(phrases_of("new|{old|older} {page|text}*"))
    ['new', 'old page*', 'old text*', 'older page*', 'older text*']
    """
    for phrase in _BETWEEN.split(pattern):
        parts = _CHOICE.split(phrase)
        choices = (part.split("|") if n % 2 else (part,) for n, part in enumerate(parts))
        yield from map("".join, product(*choices))


class Lexicon:
    """Words and phrases, each with its ideas as bits; ``*`` ends what is the beginning of words."""

    def __init__(self, phrases: Iterable[tuple[str, int]]) -> None:
        self.exact: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        # By first word and second word; a second word that is a beginning is kept under "".
        self.phrases: dict[str, dict[str, list[tuple[tuple[str, ...], int]]]] = {}
        for phrase, bits in phrases:
            first, *rest = re.findall(r"[a-z0-9]+\*?", phrase) or [""]
            if rest:
                key = "" if rest[0].endswith("*") else rest[0]
                self.phrases.setdefault(first, {}).setdefault(key, []).append((tuple(rest), bits))
            elif first.endswith("*"):
                self.prefixes[first[:-1]] = self.prefixes.get(first[:-1], 0) | bits
            elif first:
                self.exact[first] = self.exact.get(first, 0) | bits
        listed = (phrases for of_first in self.phrases.values() for phrases in of_first.values())
        rests = (len(rest) for phrases in listed for rest, _ in phrases)
        self.longest = 1 + max(rests, default=0)  # words of a phrase
        # The beginnings of words by their first letters, of which all of them have so many.
        self.least = min(map(len, self.prefixes), default=0)
        self.beginnings: dict[str, list[tuple[str, int]]] = {}
        for prefix, bits in self.prefixes.items():
            self.beginnings.setdefault(prefix[: self.least], []).append((prefix, bits))
        self._known = _Known(self)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield words and phrases with their ideas, as they were given."""
        yield from self.exact.items()
        yield from ((f"{prefix}*", bits) for prefix, bits in self.prefixes.items())
        for first, by_second in self.phrases.items():
            for phrases in by_second.values():
                yield from ((" ".join((first, *rest)), bits) for rest, bits in phrases)

    def bits(self, word: str) -> int:
        """Return the ideas of one word."""
        return self._known[word]

    def looked_up(self, word: str) -> int:
        """Return the ideas of one word that is not remembered."""
        bits = self.exact.get(word, 0)
        for prefix, more in self.beginnings.get(word[: self.least], ()):
            bits |= more if word.startswith(prefix) else 0
        return bits

    def ideas(self, words: Sequence[str]) -> list[int]:
        """Return the ideas of each word, those of a phrase at its first."""
        found = list(map(self._known.__getitem__, words))
        phrases = self.phrases
        for at, (seconds, second) in enumerate(zip(map(phrases.get, words), words[1:])):  # noqa: B905
            if seconds is None or not (second in seconds or "" in seconds):
                continue
            for rest, bits in (*seconds.get(second, ()), *seconds.get("", ())):
                if len(rest) < len(words) - at and all(
                    map(_fits, words[at + 1 : at + 1 + len(rest)], rest)
                ):
                    found[at] |= bits
        return found

    def found(self, words: Words, behind: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return the ideas of words as bits, those of a phrase at its first, shape (n_words,).

        What :meth:`ideas` returns, of many texts at once.

        Parameters
        ----------
        words
            In small letters and digits, of any number of texts.
        behind
            Shape (n_words,): for each word, the first one that no phrase reaches from there, such
            as the first of the next sentence.
        """
        return self._listed.found(words, behind)

    @cached_property
    def _listed(self) -> _Listed:
        return _Listed(self)


class _Listed:
    """A lexicon as arrays: by the number of a word, by that of a phrase."""

    def __init__(self, lexicon: Lexicon) -> None:
        phrases = lexicon.phrases
        seconds = sorted({second for of_first in phrases.values() for second in of_first if second})
        listed = sorted({*lexicon.exact, *phrases, *seconds})
        number = {word: n for n, word in enumerate(listed, 1)}
        self.dictionary = Dictionary([word.encode() for word in listed])
        self.single = _bits([0, *map(lexicon.looked_up, listed)])
        # The beginnings of words, how long they are, and the first letters of all of them.
        self.least = lexicon.least
        self.heads = Dictionary([head.encode() for head in lexicon.beginnings])
        self.beginnings = Dictionary([prefix.encode() for prefix in lexicon.prefixes])
        self.of_beginning = _bits([0, *lexicon.prefixes.values()])
        self.lengths = np.array(sorted(set(map(len, lexicon.prefixes))), dtype=np.intp)
        # Phrases stand in groups by their first two words, and those whose second is the beginning
        # of one by their first.
        self.first = np.zeros(len(listed) + 1, dtype=np.intp)
        self.second = np.zeros(len(listed) + 1, dtype=np.intp)
        self.first[[number[word] for word in phrases]] = np.arange(1, len(phrases) + 1)
        self.second[[number[word] for word in seconds]] = np.arange(1, len(seconds) + 1)
        self.pairs = np.zeros((len(phrases) + 1, len(seconds) + 1), dtype=np.int32)
        sizes, rests, bits = [0], [], []
        for first, by_second in phrases.items():
            for second, group in by_second.items():
                place = self.second[number[second]] if second else 0
                self.pairs[self.first[number[first]], place] = len(sizes)
                sizes.append(len(group))
                rests += [rest for rest, _ in group]
                bits += [each for _, each in group]
        self.sizes = np.array(sizes)
        self.begin = np.cumsum(self.sizes) - self.sizes
        self.bits = _bits(bits)
        self.n_more = np.array([len(rest) for rest in rests], dtype=np.intp)
        self.keys = np.zeros((len(rests), lexicon.longest), dtype=np.uint64)
        self.letters = np.zeros((len(rests), lexicon.longest), dtype=np.intp)  # of a beginning
        for n, rest in enumerate(rests):
            for place, word in enumerate(rest):
                self.keys[n, place] = key(word.rstrip("*").encode())
                self.letters[n, place] = len(word) - 1 if word.endswith("*") else 0
        # Of words that were met lately, by a hash of their keys: their numbers and ideas.
        self._lock = threading.Lock()
        self._keys = np.zeros(LATELY, dtype=np.uint64)
        self._numbers = np.zeros(LATELY, dtype=np.int32)
        self._ideas = np.zeros(LATELY, dtype=np.uint64)

    def found(self, words: Words, behind: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return what :meth:`Lexicon.found` does."""
        numbers, found = self._told(words)
        if len(self.bits):
            at, phrase = self._begun(numbers, behind)
            at, phrase = self._ended(words, behind, at, phrase)
            np.bitwise_or.at(found, at, self.bits[phrase])
        return found

    def _told(self, words: Words) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """Return the number of each word, and its own ideas."""
        place = ((words.keys * _ODD) >> _SHIFT).astype(np.intp)
        # A key tells all letters of a short word, and only of these no other one can be taken for.
        short = words.length <= EXACT
        with self._lock:
            numbers, found = self._numbers[place], self._ideas[place]
            new = np.flatnonzero((self._keys[place] != words.keys) | ~short)
        if len(new):
            some = words.only(new)
            numbers[new], found[new] = self._looked_up(some)
            new = new[short[new]]
            place = place[new]
            with self._lock:
                self._keys[place] = words.keys[new]
                self._numbers[place], self._ideas[place] = numbers[new], found[new]
        return numbers, found

    def _looked_up(self, words: Words) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        numbers = self.dictionary(words.keys)
        found = self.single[numbers]
        if len(self.lengths):
            other = np.flatnonzero((numbers == 0) & (words.length >= self.least))
            other = other[self.heads(words.beginnings(other, self.least)) > 0]
            n = np.tile(self.lengths, len(other))
            other = np.repeat(other, len(self.lengths))
            enough = words.length[other] >= n
            other, n = other[enough], n[enough]
            begun = self.beginnings(words.beginnings(other, n))
            np.bitwise_or.at(found, other, self.of_beginning[begun])
        return numbers, found

    def _begun(
        self, numbers: NDArray[np.int32], behind: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return where phrases may begin, and which: those of the group of two words."""
        at = np.flatnonzero(self.first[numbers])
        at = at[at + 1 < behind[at]]
        first = self.first[numbers[at]]
        by_first = self.pairs[first, 0]
        second = self.second[numbers[at + 1]]
        by_both = np.where(second > 0, self.pairs[first, second], 0)
        group = np.concatenate([by_both, by_first])
        at = np.concatenate([at, at])[group > 0]
        group = group[group > 0]
        n = self.sizes[group]
        within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        return np.repeat(at, n), np.repeat(self.begin[group], n) + within

    def _ended(
        self,
        words: Words,
        behind: NDArray[np.intp],
        at: NDArray[np.intp],
        phrase: NDArray[np.intp],
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return of the phrases that may begin somewhere those that are there to their end."""
        there = at + self.n_more[phrase] < behind[at]
        at, phrase = at[there], phrase[there]
        for place in range(self.keys.shape[1]):
            asked = np.flatnonzero(self.n_more[phrase] > place)
            if not len(asked):
                break
            word, wanted = at[asked] + 1 + place, self.keys[phrase[asked], place]
            letters = self.letters[phrase[asked], place]
            fits = words.keys[word] == wanted
            part = np.flatnonzero((letters > 0) & (words.length[word] >= letters))
            fits[part] = words.beginnings(word[part], letters[part]) == wanted[part]
            there = np.ones(len(at), dtype=np.bool_)
            there[asked] = fits
            at, phrase = at[there], phrase[there]
        return at, phrase


def _bits(listed: Sequence[int]) -> NDArray[np.uint64]:
    return np.array(listed, dtype=np.uint64)


class _Known(dict[str, int]):
    """The ideas of words, looked up when first asked for."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def __missing__(self, word: str) -> int:
        if len(self) >= MAX_KNOWN:
            self.clear()
        self[word] = bits = self._lexicon.looked_up(word)
        return bits


def _fits(word: str, wanted: str) -> bool:
    return word == wanted or (wanted[-1] == "*" and word.startswith(wanted[:-1]))
