"""Roles of a claim about other sources, found in running text.

A single planted document has to explain why all others disagree: they are out of date, or wrongly
believed; a register, a ministry or the latest data settles it; the document has the answer, and
readers should rely on it. Each of these statements is a role. A data file has the words of each
role in many languages, in two lists: words that mostly play the role, and words with other uses.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.characters import CJK
from ragshield_core.text.lexicon import WORD, Lexicon, phrases_of, plain_letters, plain_words
from ragshield_core.text.normalized import Readable, readable
from ragshield_core.text.readings import SMALL_REMEMBERED, Remembered

# Words that mostly play a role, and words that also have other uses.
TIERS = ("strong", "weak")
# Number of words within which roles belong together: about two sentences.
REACH = 30
# Distance in words between items of a list, headings or paragraphs: a list of changes names a fault
# and its correction in each item.
APART = 15

_WORD = re.compile(r"[a-z0-9]+")
_BEYOND_LATIN = re.compile("[\u0370-\u1dff\u2c00-\uabff\uac00-\ud7ff]")
_LETTER = re.compile(f"[{CJK}]")
_ITEM = re.compile(r"\n[ \t]{0,20}(?:\n|(?:[-*+•–]|#{1,6}|\d{1,3}[.)])[ \t])")
# "..., not in 1931": a denial in passing.
_DENIED = re.compile(
    r",\s(?:(?:and|und|et|y|e)\s)?(?:not|nicht)\b|,\s(?:et\s(?:non|pas)|y\sno|e\s(?:non|nao))\b"
)


class Roles(NamedTuple):
    """The roles, and the words for each role."""

    says: tuple[str, ...]
    """The description of each role for the evidence."""
    lexicon: Lexicon
    """Bit ``2 * role + tier`` stands for words of that role and tier."""
    denied: int
    """The bit of a denial in passing."""
    languages: frozenset[str]
    """The languages with words for every role."""


class PlayedRoles(NamedTuple):
    """The roles in a text; positions are in words, ascending."""

    played: list[tuple[int, int]]  # position, and the roles of the word there, as bits
    n_words: int
    items: list[int]  # beginnings of items of lists, headings and paragraphs
    letters: list[int]  # positions of letters without spaces between: two count as a word

    def place(self, at: int) -> int:
        """Return a position in words, moved on for each item that begins before it."""
        return at + APART * bisect_right(self.items, at) - bisect_left(self.letters, at) // 2


def stretches_of(read: Sequence[PlayedRoles]) -> NDArray[np.int64]:
    """Return the roles within reach after each word with a role, as bits.

    The passages follow each other.
    """
    n_played = [len(passage.played) for passage in read]
    flat = chain.from_iterable((p.place(at), bits) for p in read for at, bits in p.played)
    position, bits = np.fromiter(flat, np.int64, 2 * sum(n_played)).reshape(-1, 2).T
    # Join the passages into one text, each out of reach of the one before.
    n_words = np.array([p.place(p.n_words) + REACH for p in read], dtype=np.int64)
    position = position + np.repeat(np.cumsum(n_words) - n_words, n_played)
    masks = bits.copy()
    for later in range(1, min(2 * REACH, len(bits))):  # at most two letters per position
        near = position[later:] - position[:-later] < REACH
        if not near.any():
            break
        masks[:-later] |= bits[later:] * near
    return masks


@cache
def roles() -> Roles:
    """Return the roles of the data file."""
    data = json.loads(
        (files("ragshield_core.detectors.claim") / "roles.json").read_text(encoding="utf-8")
    )
    lexicon = Lexicon(
        (phrase, 1 << (len(TIERS) * number + tier))
        for number, role in enumerate(data.values())
        for tier, name in enumerate(TIERS)
        for words in role[name].values()
        for phrase in phrases_of(plain_letters(unicodedata.normalize("NFKC", words)))
    )
    denied = 1 << (len(TIERS) * list(data).index("contrast"))
    says = tuple(role["says"] for role in data.values())
    return Roles(says, lexicon, denied, frozenset(data["contrast"]["strong"]))


def _passage(text: str) -> PlayedRoles:
    """Return the roles in a text, with its disguises undone."""
    plain = plain_letters(readable(text).text)
    word = _word_in(plain)
    words = plain_words(plain) if word is _WORD else word.findall(plain)
    letters = [] if word is _WORD else [n for n, each in enumerate(words) if _LETTER.match(each)]
    bits = roles().lexicon.ideas(words)
    items = [match.end() for match in _ITEM.finditer(plain)]
    denied = [match.start() for match in _DENIED.finditer(plain)]
    if items or denied:
        starts = [match.start() for match in word.finditer(plain)]
        items = [bisect_left(starts, end) for end in items]
        for at in denied:
            bits[bisect_left(starts, at)] |= roles().denied
    played = [(n, each) for n, each in enumerate(bits) if each]
    return PlayedRoles(played, len(words), items, letters)


def _word_in(plain: str) -> re.Pattern[str]:
    """Return a pattern of words: ASCII only, unless words beyond ASCII play a role in the text."""
    if _BEYOND_LATIN.search(plain):
        beyond = [word for word in WORD.findall(plain) if not word.isascii()]
        if any(roles().lexicon.ideas(beyond)):
            return WORD
    return _WORD


passage_of = Remembered(_passage, SMALL_REMEMBERED, lambda kept: PlayedRoles(*kept))


def said_in(text: str, places: Sequence[tuple[int, int]]) -> tuple[Readable, list[tuple[int, int]]]:
    """Return a readable text, and the spans of its words for some roles.

    ``places`` are positions in words, each with the bit of a role there.
    """
    view = readable(text)
    plain = plain_letters(view.text)
    spans = [match.span() for match in _word_in(plain).finditer(plain)]
    found = []
    for at, bit in places:
        # As many words as the phrase has; for a denial, only its first word.
        for last in range(at, min(at + roles().lexicon.longest, len(spans))):
            words = [plain[slice(*span)] for span in spans[at : last + 1]]
            if roles().lexicon.ideas(words)[0] & bit:
                break
        else:
            last = at
        found.append((spans[at][0], spans[last][1]))
    return view, found
