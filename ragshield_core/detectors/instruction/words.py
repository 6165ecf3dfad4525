"""Where in texts a rule has to look: where all the words that it needs are near each other.

Most sentences of most texts do not hold the words that a rule needs. Here that is seen from their
words alone, for all sentences of a batch at once, so that rules look at the others only: nothing is
left out that they would find.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction.rules import SIGNS, masks, needed_words
from ragshield_core.detectors.instruction.sentences import SIGN, Page
from ragshield_core.text.columns import Dictionary
from ragshield_core.text.linear import IDEOGRAPH, narrow

# Sentences that one rule looks at together; a question may stand between condition and command.
REACH = 3

_BITS = 64


class Stretches(NamedTuple):
    """Parts of texts that a rule has to look at, in order of rule, text and place."""

    rule: NDArray[np.intp]
    """By its place in :func:`~ragshield_core.detectors.instruction.rules.masks`."""
    text: NDArray[np.intp]
    start: NDArray[np.intp]
    """Among the letters of the page; ends are excluded."""
    end: NDArray[np.intp]

    def by_rule(self) -> Iterator[tuple[int, slice]]:
        """Yield each rule that has to look somewhere, and which stretches are its."""
        begins = np.flatnonzero(np.diff(self.rule, prepend=-1)).tolist()
        for first, behind in pairwise([*begins, len(self.rule)]):
            yield int(self.rule[first]), slice(first, behind)


class _Needs:
    """What rules need, and which of it a word fulfils, as bits."""

    def __init__(self) -> None:
        required = [needed for needed, _ in masks()]
        self.n_parts = -(-max(required).bit_length() // _BITS)
        # Of each rule, the numbers of its needs, the last one again where it has fewer than most.
        numbers = [
            [n for n in range(needed.bit_length()) if needed >> n & 1] for needed in required
        ]
        most = max(map(len, numbers))
        padded = [each + each[-1:] * (most - len(each)) for each in numbers]
        self.required = np.array(padded, dtype=np.intp).T
        # What is beyond ASCII is part of no word here; rules of ideographs need the sign for them.
        vocabulary = {
            word: bits for word, bits in needed_words().items() if word.isascii() and word.isalnum()
        }
        self.dictionary = Dictionary([word.encode() for word in vocabulary])
        self.of_word = np.array([self._parts(bits) for bits in (0, *vocabulary.values())])
        self.signs = [(narrow(sign), self._parts(needed_words()[mark])) for mark, sign in SIGNS]
        self.ideograph = self._parts(needed_words()["<cjk>"])

    def _parts(self, bits: int) -> NDArray[np.uint64]:
        parts = [bits >> (_BITS * part) & ((1 << _BITS) - 1) for part in range(self.n_parts)]
        return np.array(parts, dtype=np.uint64)

    def of(self, page: Page) -> NDArray[np.uint64]:
        """Return which needs each sentence fulfils, shape (n_sentences, n_parts)."""
        needs = np.zeros((len(page.start), self.n_parts), dtype=np.uint64)
        numbers = self.dictionary(page.words.keys)
        telling = np.flatnonzero(numbers)
        if len(telling):
            sentence = page.sentence[telling]
            begins = np.flatnonzero(np.diff(sentence, prepend=-1))
            told = self.of_word[numbers[telling]]
            needs[sentence[begins]] = np.bitwise_or.reduceat(told, begins, axis=0)
        places = np.flatnonzero(page.kinds & SIGN)
        if len(places):
            first, second = page.letters[places], page.letters[places + 1]
            sentence = page.sentences_with(places)
            for sign, bits in self.signs:
                there = first == sign[0]
                if len(sign) > 1:
                    there &= second == sign[1]
                needs[sentence[there]] |= bits
        if IDEOGRAPH in page.words.joined:
            needs[page.sentences_with(np.flatnonzero(page.letters == IDEOGRAPH))] |= self.ideograph
        return needs


@cache
def _needs() -> _Needs:
    return _Needs()


def stretches_of(page: Page) -> Stretches:
    """Return where rules have to look; they may find nothing even there."""
    rule, sentence = _candidates(_needs().of(page), page.text)
    text, begin = page.text[sentence], page.words.begin
    # Two characters more, for patterns that begin with the end of the sentence before.
    start = np.maximum(page.start[sentence] - 2, begin[text])
    end = page.end[np.minimum(sentence + REACH, page.first[text + 1]) - 1]
    apart = np.ones(len(text), dtype=np.bool_)
    apart[1:] = (text[1:] != text[:-1]) | (rule[1:] != rule[:-1]) | (start[1:] >= end[:-1])
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(text))[: len(first)] - 1
    return Stretches(rule[first], text[first], start[first], end[last])


def _candidates(
    needs: NDArray[np.uint64], text: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rules, and sentences from which on all is near that they need, in order."""
    near = needs.copy()
    for behind in range(1, REACH):
        same = text[:-behind] == text[behind:]
        near[:-behind][same] |= needs[behind:][same]
    # Eight sentences in a byte.
    has = np.packbits(np.ascontiguousarray(_unpacked(near).T), axis=1)
    required = _needs().required
    anywhere = np.asarray(has.any(axis=1))
    rules = np.flatnonzero(anywhere[required].all(axis=0))
    if not len(rules):
        return rules, rules
    held = np.bitwise_and.reduce([has[need[rules]] for need in required])
    some = np.flatnonzero(held.any(axis=1))
    rule, sentence = np.nonzero(np.unpackbits(held[some], axis=1, count=len(text)).view(np.bool_))
    return rules[some[rule]], sentence


def _unpacked(needs: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return bits one by one, shape (n, 64 * n_parts)."""
    little = needs.astype("<u8", copy=False)
    return np.unpackbits(little.view(np.uint8), axis=1, bitorder="little").view(np.bool_)
