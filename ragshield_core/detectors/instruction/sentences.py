"""Readable texts in small letters, and the sentences and words of a batch of them, by columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction.rules import SIGNS, needed_words, plain_of
from ragshield_core.text.columns import Alphabet, Columns, columns_of
from ragshield_core.text.linear import IDEOGRAPH, narrow
from ragshield_core.text.linear import LETTER as OTHER_LETTER
from ragshield_core.text.normalized import MAX_SENTENCE, Readable, sentences

# A word on a line of its own, and as many as are read together: a sentence may be set like this.
MAX_LINE = 15
MAX_JOINED_LINES = 300

_LEET = str.maketrans("0134578@$", "oieastbas")
# Other than of letters alone.
_LEET_WORD = re.compile(r"(?<![\w@$])(?=[a-z]*+[0134578@$])[a-z0134578@$]{4,24}(?![\w@$])")
# Closing quotation marks and brackets between the end of a sentence and the blank behind it.
_MAX_CLOSING = 4


_WORDS = bytes(code if re.match("[a-z0-9]", chr(code)) else 0 for code in range(256))
_PLAIN = bytes(code if chr(code).isascii() else 1 for code in range(256))
# What a character can be, as bits.
LETTER, ALNUM, LEET, BLANK, ENDS, ENDS_AT_ONCE, CLOSES, SIGN = (1 << n for n in range(8))
_KINDS = {
    LETTER: "abcdefghijklmnopqrstuvwxyz",
    ALNUM: "abcdefghijklmnopqrstuvwxyz0123456789",
    LEET: "0134578@$",
    BLANK: " \n\t\v\f\r\x1c\x1d\x1e\x1f",
    ENDS: ".!?\u061f\u0964",
    ENDS_AT_ONCE: "\n\u3002",
    CLOSES: "\"')]",
    SIGN: "".join(sign[0] for _, sign in SIGNS),
}
_CLOSES_AT_ONCE = narrow("\u300d")[0]


def _kinds() -> bytes:
    found = bytearray(256)
    for kind, characters in _KINDS.items():
        for byte in narrow(characters):
            found[byte] |= kind
    for byte in (OTHER_LETTER, IDEOGRAPH):
        found[byte] |= ALNUM
    return bytes(found)


_KIND = _kinds()

# Small letters without marks, one byte for each character.
_letters = Alphabet(lambda character: narrow(plain_of(character))[0])


@dataclass(frozen=True)
class Page:
    """Texts, as rules and ideas look at them.

    Attributes
    ----------
    views
        Readable texts without leetspeak.
    words
        Their words, and their letters: small ones without marks, one byte for each character, see
        :func:`ragshield_core.text.linear.narrow`.
    kinds
        Shape (n_letters,): what each letter can be, as bits.
    start, end
        Shape (n_sentences,): where sentences lie among the letters; ends are excluded.
    first
        Shape (n_texts + 1,): the number of the first sentence of each text; the sentences of a text
        end where those of the next one begin.
    """

    views: Sequence[Readable]
    words: Columns
    kinds: NDArray[np.uint8]
    start: NDArray[np.intp]
    end: NDArray[np.intp]
    first: NDArray[np.intp]
    _narrowed: dict[int, bytes] = field(default_factory=dict)
    _plain: dict[int, str] = field(default_factory=dict)

    @cached_property
    def letters(self) -> NDArray[np.uint8]:
        """The letters of all texts, shape (n_letters,)."""
        return np.frombuffer(self.words.joined, dtype=np.uint8)

    @cached_property
    def text(self) -> NDArray[np.intp]:
        """The text of each sentence, shape (n_sentences,)."""
        return np.repeat(np.arange(len(self.views)), np.diff(self.first))

    @cached_property
    def first_word(self) -> NDArray[np.intp]:
        """The first word of each sentence, and behind the last one, shape (n_sentences + 1,)."""
        return np.append(np.searchsorted(self.words.start, self.start), len(self.words))

    @cached_property
    def sentence(self) -> NDArray[np.intp]:
        """The sentence of each word, shape (n_words,)."""
        return np.repeat(np.arange(len(self.start)), np.diff(self.first_word))

    def sentences_with(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return in which sentences some letters stand that are no blanks."""
        return np.searchsorted(self.start, places, side="right") - 1

    def spans(self, text: int) -> list[tuple[int, int]]:
        """Return where the sentences of a text lie in it."""
        some, begin = slice(self.first[text], self.first[text + 1]), self.words.begin[text]
        starts, ends = (self.start[some] - begin).tolist(), (self.end[some] - begin).tolist()
        return list(zip(starts, ends, strict=True))

    def narrowed(self, text: int) -> bytes:
        """Return the letters of a text."""
        if text not in self._narrowed:
            begin, end = self.words.begin[text : text + 2]
            self._narrowed[text] = self.words.joined[begin : end - 1]
        return self._narrowed[text]

    def plain(self, text: int) -> str:
        """Return a text in small letters without marks."""
        if text not in self._plain:
            self._plain[text] = plain_of(self.views[text].text)
        return self._plain[text]


def page_of(views: Sequence[Readable]) -> Page:
    """Return readable texts with their sentences."""
    letters = _letters([view.text for view in views])
    words = columns_of(letters, _WORDS)
    kinds = _kinds_of(words)
    changed = {}
    for text in _leet(kinds, words.begin):
        begin, end = words.begin[text : text + 2].tolist()
        view = without_leet(views[text], _leet_words(kinds[begin : end - 1]))
        if view is not views[text]:
            changed[text] = view
    if changed:
        views = [changed.get(text, view) for text, view in enumerate(views)]
        for text, view in changed.items():
            letters[text] = narrow(plain_of(view.text))
        words = columns_of(letters, _WORDS)
        kinds = _kinds_of(words)
    start, end = _sentences(words, kinds)
    words = _cut_within(words, start)
    start, end = _joined_lines(words, kinds, start, end)
    return Page(views, words, kinds, start, end, np.searchsorted(start, words.begin))


def _cut_within(words: Columns, start: NDArray[np.intp]) -> Columns:
    """Return words cut where a sentence begins within one, as it may where none ends for long."""
    letters = np.frombuffer(words.joined.translate(_WORDS), dtype=np.uint8)
    cuts = start[(letters[start - 1] != 0) & (letters[start] != 0)]
    if not len(cuts):
        return words
    return replace(
        words,
        start=np.sort(np.concatenate([words.start, cuts])),
        end=np.sort(np.concatenate([words.end, cuts])),
        first=words.first + np.searchsorted(cuts, words.begin),
    )


def _kinds_of(words: Columns) -> NDArray[np.uint8]:
    return np.frombuffer(words.joined.translate(_KIND), dtype=np.uint8)


def _leet(kinds: NDArray[np.uint8], begin: NDArray[np.intp]) -> list[int]:
    """Return in which texts a digit or sign stands between two letters."""
    signs = np.flatnonzero(kinds & LEET)
    signs = signs[(kinds[signs - 1] & kinds[signs + 1] & LETTER) > 0]
    found: list[int] = np.unique(np.searchsorted(begin, signs, side="right") - 1).tolist()
    return found


def _leet_words(kinds: NDArray[np.uint8]) -> list[int]:
    """Return where in a text words begin that hold a digit or sign for a letter."""
    part = np.concatenate([[False], kinds & (LETTER | LEET) > 0, [False]])
    edges = np.flatnonzero(part[1:] != part[:-1])
    starts, ends = edges[::2], edges[1::2]
    signs = np.concatenate([[0], np.cumsum(kinds & LEET > 0)])
    found: list[int] = starts[signs[ends] > signs[starts]].tolist()
    return found


def without_leet(view: Readable, starts: Sequence[int]) -> Readable:
    """Return a text with digits for letters undone, in words that rules look for.

    Parameters
    ----------
    view
        Any.
    starts
        Where words begin that may be such.
    """
    vocabulary = needed_words()

    def word(match: re.Match[str]) -> str:
        given = match.group()
        if given.isdigit():
            return given
        folded = given.translate(_LEET)
        for candidate in (folded, given.replace("1", "l").translate(_LEET)):
            if candidate in vocabulary:
                return candidate
        return given

    lowered = Readable(plain_of(view.text), view.original, view._steps)  # noqa: SLF001
    changed = lowered.replaced(_LEET_WORD, word, starts)
    return view if changed is lowered else changed


def _sentences(
    words: Columns, kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where sentences lie: of each text, what ``normalized.sentences`` finds in it."""
    joined, begin = words.joined, words.begin
    at_once = np.flatnonzero(kinds & ENDS_AT_ONCE) + 1
    at_once += np.frombuffer(joined, dtype=np.uint8)[at_once] == _CLOSES_AT_ONCE
    ends = np.flatnonzero((kinds[1:] & BLANK > 0) & (kinds[:-1] & (ENDS | CLOSES) > 0)) + 1
    before = ends - 1
    for _ in range(_MAX_CLOSING):
        before = before - (kinds[before] & CLOSES > 0)
    ends = ends[kinds[before] & ENDS > 0]
    cuts = np.sort(np.concatenate([at_once, ends, begin, begin - 1]))
    start, end = cuts[:-1], cuts[1:]
    real = start < end
    # The zeros before and behind texts are part of none.
    real[np.searchsorted(start, begin) - 1] = False
    start, end = start[real], end[real]
    while (blank := (kinds[start] & BLANK > 0) & (start < end)).any():
        start = start + blank
    is_long = end - start > MAX_SENTENCE
    long = [_cut(joined, *span) for span in zip(start[is_long], end[is_long], strict=True)]
    start, end = start[~is_long], end[~is_long]
    while (blank := (kinds[end - 1] & BLANK > 0) & (start < end)).any():
        end = end - blank
    spans = np.stack([start, end])[:, start < end]
    if long:
        spans = np.concatenate([spans, *long], axis=1)
        spans = spans[:, np.argsort(spans[0])]
    return spans[0], spans[1]


def _cut(joined: bytes, start: int, end: int) -> NDArray[np.intp]:
    """Return where the parts of a long sentence lie, shape (2, n_parts)."""
    text = joined[start:end].translate(_PLAIN).decode("ascii")
    return np.array(sentences(text), dtype=np.intp).T + start


def _joined_lines(
    words: Columns, kinds: NDArray[np.uint8], start: NDArray[np.intp], end: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return sentences, with words that stand on lines of their own put together."""
    short = end - start <= MAX_LINE
    text = np.searchsorted(words.begin, start, side="right")
    open_ = short & (kinds[end - 1] & ALNUM > 0)
    after = np.flatnonzero(open_[:-1] & short[1:] & (text[1:] == text[:-1])) + 1
    if not len(after):
        return start, end
    # The lines of a text stand in few stretches; only those are looked at one by one.
    kept = np.ones(len(start), dtype=np.bool_)
    ends = end.copy()
    first, last = -1, -2  # of the sentences that are put together
    for n in after.tolist():
        if last != n - 1:
            first = n - 1
        if end[n] - start[first] <= MAX_JOINED_LINES:
            kept[n] = False
            ends[first] = end[n]
        else:
            first = n
        last = n
    return start[kept], ends[kept]
