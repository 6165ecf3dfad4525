"""What the words of sentences could mean at all, looked up for all sentences of a batch at once.

Most sentences of most texts hold neither the words that a rule needs nor two ideas. Here that is
seen from their words alone, so that rules and ideas look at the others only: nothing is left out
that they would find.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction.concepts import MIN_IDEAS, model
from ragshield_core.detectors.instruction.rules import SIGNS, Rule, masks, needed_words
from ragshield_core.text.lexicon import MAX_KNOWN
from ragshield_core.text.linear import IDEOGRAPH, LETTER

# Sentences that one rule looks at together; a question may stand between condition and command.
REACH = 3

# Sentences whose words are looked up together, which bounds the memory: 64 bytes a word.
TOGETHER = 4_000

_MARK = b"X"  # ends a sentence: plain text has no capital letters
_WORDS = bytes(
    ord(" ") if code == IDEOGRAPH or not (chr(code).isascii() and chr(code).isalnum()) else code
    for code in range(256)
)
_BITS = 64


class Plain(NamedTuple):
    """A readable text in small letters without marks, and its sentences."""

    text: str
    narrowed: bytes
    spans: Sequence[tuple[int, int]]


class Hopes(NamedTuple):
    """Where in one text something can be found."""

    rules: list[tuple[Rule, list[int]]]
    """Rules, each with the sentences from which on, within reach, all is that it needs."""
    ideas: list[bool]
    """Of each sentence, whether it may hold ideas enough."""


class _Words:
    """What each word tells, as bits."""

    def __init__(self) -> None:
        known = model()
        required = [needed for needed, _ in masks()]
        self.n_needs = -(-max(required).bit_length() // _BITS)
        # Of each rule, the numbers of its needs, the last one again where it has fewer than most.
        numbers = [
            [n for n in range(needed.bit_length()) if needed >> n & 1] for needed in required
        ]
        most = max(map(len, numbers))
        padded = [each + each[-1:] * (most - len(each)) for each in numbers]
        self.required = np.array(padded, dtype=np.intp).T
        vocabulary = needed_words()
        self.signs = [(sign, self.parts(vocabulary[mark])) for mark, sign in SIGNS]
        self.ideograph = self.parts(vocabulary["<cjk>"])
        self.firsts: dict[str, int] = {}
        self.seconds: dict[str, int] = {}
        self.always: dict[str, int] = {}  # ideas of phrases whose second word is a beginning
        pairs: dict[int, int] = {}
        for lexicon in known.lexicons.values():
            for first, by_second in lexicon.phrases.items():
                for second, phrases in by_second.items():
                    ideas = 0
                    for _, bits in phrases:
                        ideas |= bits & known.anchors
                    if second:
                        pair = self.firsts.setdefault(first, len(self.firsts) + 1) << 32
                        pair |= self.seconds.setdefault(second, len(self.seconds) + 1)
                        pairs[pair] = pairs.get(pair, 0) | ideas
                    else:
                        self.always[first] = self.always.get(first, 0) | ideas
        self.pairs = np.array(sorted(pairs), dtype=np.uint64)
        self.of_pairs = np.array([pairs[pair] for pair in sorted(pairs)], dtype=np.uint64)
        # The mark tells nothing, and is no other such word: the second word of no phrase.
        self.mark = 0
        self.kinds: dict[tuple[int, ...], int] = {
            (*self._parts(0), 0, 0, len(self.seconds) + 1): self.mark
        }
        lexicons = known.lexicons.values()
        self._least = min(lexicon.least for lexicon in lexicons if lexicon.prefixes)
        self._telling = {*vocabulary, *self.firsts, *self.seconds, *self.always}.union(
            *(lexicon.exact for lexicon in lexicons)
        )
        self._beginnings = {
            prefix[: self._least] for lexicon in lexicons for prefix in lexicon.prefixes
        }
        self._lock = threading.Lock()
        self._nothing = self._numbered(0, 0, 0, 0)
        self.rows = _Rows(self)
        self.rows[_MARK] = self.mark
        self._table = np.empty((0, self.n_needs + 3), dtype=np.uint64)

    def kind(self, word: str) -> int:
        """Return the number of words that tell the same as this one."""
        if word not in self._telling and word[: self._least] not in self._beginnings:
            return self._nothing  # as most words do
        known = model()
        ideas = self.always.get(word, 0)
        for lexicon in known.lexicons.values():
            ideas |= lexicon.looked_up(word) & known.anchors
        needs = needed_words().get(word, 0)
        return self._numbered(needs, ideas, self.firsts.get(word, 0), self.seconds.get(word, 0))

    def _numbered(self, needs: int, ideas: int, first: int, second: int) -> int:
        kind = (*self._parts(needs), ideas, first, second)
        with self._lock:  # two threads must not give one number to two kinds
            return self.kinds.setdefault(kind, len(self.kinds))

    def table(self) -> NDArray[np.uint64]:
        """Return needs, ideas, and the numbers as first and as second word, (n_kinds, n + 3)."""
        if len(self._table) < len(self.kinds):
            with self._lock:
                self._table = np.array(list(self.kinds), dtype=np.uint64)
        return self._table

    def _parts(self, bits: int) -> list[int]:
        return [bits >> (_BITS * part) & ((1 << _BITS) - 1) for part in range(self.n_needs)]

    def parts(self, bits: int) -> NDArray[np.uint64]:
        """Return needs as a row of the table has them."""
        return np.array(self._parts(bits), dtype=np.uint64)


class _Rows(dict[bytes, int]):
    """The kind of each word."""

    def __init__(self, words: _Words) -> None:
        self._words = words

    def __missing__(self, word: bytes) -> int:
        if len(self) >= MAX_KNOWN:
            self.clear()
            self[_MARK] = self._words.mark
        self[word] = kind = self._words.kind(word.decode())
        return kind


@cache
def _words() -> _Words:
    return _Words()


def hopes(texts: Sequence[Plain]) -> list[Hopes]:
    """Return where rules and ideas have to look in some texts, and may find nothing even there."""
    words = _words()
    pieces = [text.narrowed[start:end] for text in texts for start, end in text.spans]
    n_sentences = np.array([len(text.spans) for text in texts], dtype=np.intp)
    needs = np.zeros((len(pieces), words.n_needs), dtype=np.uint64)
    ideas = np.zeros(len(pieces), dtype=np.uint64)
    for start in range(0, len(pieces), TOGETHER):
        part = slice(start, start + TOGETHER)
        needs[part], ideas[part] = _told(words, pieces[part])
    may = np.bitwise_count(ideas) >= MIN_IDEAS
    first = np.cumsum(n_sentences) - n_sentences
    for at, text in zip(first.tolist(), texts, strict=True):
        _add_signs(words, text, needs, may, at)
    found = [
        Hopes([], may[at : at + n].tolist())
        for at, n in zip(first.tolist(), n_sentences.tolist(), strict=True)
    ]
    listed_rules = masks()
    for text_row, rule, sentence in _candidates(words, needs, first, n_sentences):
        rules = found[text_row].rules
        if not rules or rules[-1][0] is not listed_rules[rule][1]:
            rules.append((listed_rules[rule][1], []))
        rules[-1][1].append(sentence)
    return found


def _told(words: _Words, pieces: Sequence[bytes]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return what the words of each sentence tell of needs and of ideas."""
    listed = b" X ".join([*pieces, b""]).translate(_WORDS).split()
    rows = np.fromiter(map(words.rows.__getitem__, listed), np.intp, len(listed))
    told = words.table()[rows]
    ends = np.flatnonzero(rows == words.mark)
    begins = np.append(0, ends[:-1] + 1)
    either = np.bitwise_or.reduceat(told[:, : words.n_needs + 1], begins)
    ideas = np.ascontiguousarray(either[:, -1])
    _add_phrases(words, told, ends, ideas)
    return either[:, :-1], ideas


def _add_phrases(
    words: _Words, told: NDArray[np.uint64], ends: NDArray[np.intp], ideas: NDArray[np.uint64]
) -> None:
    """Add the ideas of phrases of which the first two words are there."""
    firsts, seconds = told[:-1, -2], told[1:, -1]
    at = np.flatnonzero((firsts > 0) & (seconds > 0))
    pairs = (firsts[at] << np.uint64(32)) | seconds[at]
    place = np.minimum(np.searchsorted(words.pairs, pairs), len(words.pairs) - 1)
    same = words.pairs[place] == pairs
    sentence = np.searchsorted(ends, at[same])
    np.bitwise_or.at(ideas, sentence, words.of_pairs[place[same]])


def _add_signs(
    words: _Words, text: Plain, needs: NDArray[np.uint64], may: NDArray[np.bool_], at: int
) -> None:
    """Add what is not told by words of small letters: signs, and words of other letters."""
    signs = [(bits, sign) for sign, bits in words.signs if sign in text.text]
    foreign = LETTER in text.narrowed or IDEOGRAPH in text.narrowed
    if not (signs or foreign):
        return
    for row, (start, end) in enumerate(text.spans, at):
        for bits, sign in signs:
            if text.text.find(sign, start, end) >= 0:
                needs[row] |= bits
        if foreign:
            ideograph = text.narrowed.find(IDEOGRAPH, start, end) >= 0
            may[row] |= ideograph or text.narrowed.find(LETTER, start, end) >= 0
            if ideograph:
                needs[row] |= words.ideograph


def _candidates(
    words: _Words,
    needs: NDArray[np.uint64],
    first: NDArray[np.intp],
    n_sentences: NDArray[np.intp],
) -> list[tuple[int, int, int]]:
    """Return text, rule and sentence where all that the rule needs is within reach, in order."""
    some = np.flatnonzero(n_sentences)
    if not len(some):
        return []
    near = needs.copy()
    owner = np.repeat(np.arange(len(n_sentences)), n_sentences)
    for behind in range(1, REACH):
        same = owner[:-behind] == owner[behind:]
        near[:-behind][same] |= needs[behind:][same]
    anywhere = np.bitwise_or.reduceat(near, first[some])
    has = _unpacked(anywhere)
    text, rule = np.nonzero(np.logical_and.reduce([has[:, need] for need in words.required]))
    text = some[text]
    n = n_sentences[text]
    pair = np.repeat(np.arange(len(text)), n)
    sentence = np.arange(len(pair)) - np.repeat(np.cumsum(n) - n, n)
    has, row = _unpacked(near), first[text[pair]] + sentence
    there = np.logical_and.reduce([has[row, need[rule[pair]]] for need in words.required])
    columns = text[pair[there]], rule[pair[there]], sentence[there]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _unpacked(needs: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return bits one by one, shape (n, 64 * n_parts)."""
    little = needs.astype("<u8", copy=False)
    return np.unpackbits(little.view(np.uint8), axis=1, bitorder="little").view(np.bool_)
