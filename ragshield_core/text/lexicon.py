"""Lexicon of words and phrases that stand for ideas, looked up in running text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from ragshield_core.text.characters import CJK, SPACED_LETTERS
from ragshield_core.text.normalized import translated

Key = TypeVar("Key")
Value = TypeVar("Value")

# Most words whose ideas, and most letters whose plain forms, are remembered.
MAX_KNOWN = 50_000

_APART = bytes(code if re.match("[a-z0-9]", chr(code)) else ord(" ") for code in range(256))
# ASCII comes first, as most texts have nothing else; a letter of Chinese or Japanese is a word.
WORD = re.compile(rf"[a-z0-9]+|[{CJK}]|(?:(?![a-z])[{SPACED_LETTERS}])+")
_PHRASE = re.compile(rf"(?:{WORD.pattern})\*?")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_BETWEEN = re.compile(r"\|(?![^{]*\})")


def phrases_of(pattern: str) -> Iterator[str]:
    """Yield the words and phrases that a pattern stands for.

    Examples
    --------
    >>> list(phrases_of("new|{old|older} {page|text}*"))
    ['new', 'old page*', 'old text*', 'older page*', 'older text*']
    """
    for phrase in _BETWEEN.split(pattern):
        parts = _CHOICE.split(phrase)
        choices = (part.split("|") if n % 2 else (part,) for n, part in enumerate(parts))
        yield from map("".join, product(*choices))


# Letters that Unicode does not decompose, and variants of quotation marks.
_ALIKE = dict(zip("ıłđøæœß‘’‚‹›´“”„«»", "ildoaos" + "'" * 6 + '"' * 5, strict=True))


class _Remembered(dict[Key, Value]):
    """Results of a look-up: a dictionary, which is faster than a cache of functools."""

    def __init__(self, look_up: Callable[[Key], Value]) -> None:
        self._look_up = look_up

    def __missing__(self, key: Key) -> Value:
        if len(self) >= MAX_KNOWN:
            self.clear()
        self[key] = found = self._look_up(key)
        return found


def _without_marks(letter: int) -> str:
    """Return a letter without marks, as one character."""
    plain = _ALIKE.get(chr(letter)) or unicodedata.normalize("NFKD", chr(letter))[0]
    # A Hangul syllable is not a letter with marks.
    return chr(letter) if "\u1100" <= plain <= "\u11ff" else plain


_LETTERS = _Remembered(_without_marks)


def plain_letters(text: str) -> str:
    """Return a text of the same length in lower case, without marks on letters."""
    lower = text.lower()
    if len(lower) != len(text):  # for example with "\u0130"
        lower = "".join(letter.lower()[0] for letter in text)
    return lower if lower.isascii() else translated(lower, _LETTERS)


def plain_words(plain: str) -> list[str]:
    """Return the words of a text from :func:`plain_letters`; all other characters separate them.

    Examples
    --------
    >>> plain_words("it's snake_case: 3.5")
    ['it', 's', 'snake', 'case', '3', '5']
    """
    # Finds letters and digits of ASCII in a third of the time of a regular expression.
    return plain.encode("ascii", "replace").translate(_APART).decode().split()


class Lexicon:
    """Words and phrases, each with its ideas as bits; ``*`` marks the beginning of a word."""

    def __init__(self, phrases: Iterable[tuple[str, int]]) -> None:
        self.exact: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        # By first word and second word; a second word with a ``*`` is kept under "".
        self.phrases: dict[str, dict[str, list[tuple[tuple[str, ...], int]]]] = {}
        for phrase, bits in phrases:
            first, *rest = _PHRASE.findall(phrase) or [""]
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
        self._lengths = sorted({*map(len, self.prefixes)})
        self.bits = _Remembered(self._bits).__getitem__

    def _bits(self, word: str) -> int:
        """Return the ideas of one word."""
        bits = self.exact.get(word, 0)
        for length in self._lengths:
            bits |= self.prefixes.get(word[:length], 0)
        return bits

    def ideas(self, words: Sequence[str]) -> list[int]:
        """Return the ideas of each word; the ideas of a phrase are at its first word."""
        found = list(map(self.bits, words))
        begins = self.phrases
        if begins.keys().isdisjoint(words):  # quickly found in most languages
            return found
        for at in [at for at, word in enumerate(words[:-1]) if word in begins]:
            seconds, second = begins[words[at]], words[at + 1]
            if second not in seconds and "" not in seconds:
                continue
            for rest, bits in (*seconds.get(second, ()), *seconds.get("", ())):
                if len(rest) < len(words) - at and all(
                    map(_fits, words[at + 1 : at + 1 + len(rest)], rest)
                ):
                    found[at] |= bits
        return found


def _fits(word: str, wanted: str) -> bool:
    return word == wanted or (wanted[-1] == "*" and word.startswith(wanted[:-1]))
