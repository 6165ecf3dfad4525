"""What a claim about other sources is made of, found in running text.

Who plants one document has to explain why all others say something else: they are out of date, or
wrongly believed; a register, a ministry or the latest data settles it; this is the answer, and is
to be relied on. Each of these is a role here. The words of each, in six languages, are in a data
file, in two lists: those that mostly play the role, and those that also do otherwise.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.columns import Alphabet, columns_of
from ragshield_core.text.lexicon import Lexicon, phrases_of
from ragshield_core.text.normalized import Readable, readable, readables
from ragshield_core.text.readings import Readings

# Words that mostly play a role, and words that also do otherwise.
TIERS = ("strong", "weak")
# Words within which roles belong together: about two sentences.
REACH = 30
LONGEST = 6  # words of a phrase

# The letters of words, and what stands for a letter that is part of none.
_WORDS = bytes(code if re.match("[a-z0-9]", chr(code)) else 0 for code in range(256))
_OTHER_LETTER, _OTHER = ord("Z"), ord("?")
# "..., not in 1931": what is denied in passing.
_DENIED = re.compile(
    rb",\s(?:(?:and|und|et|y|e)\s)?(?:not|nicht)\b|,\s(?:et\s(?:non|pas)|y\sno|e\s(?:non|nao))\b"
)


class Roles(NamedTuple):
    """The roles, and the words that play them."""

    says: tuple[str, ...]
    """What is spoken of, by role."""
    lexicon: Lexicon
    """Bit ``2 * role + tier`` stands for words of that role and tier."""
    denied: int
    """The bit of what is denied in passing."""


class Passage(NamedTuple):
    """The roles that are played in a text.

    Attributes
    ----------
    played
        Positions, in words, and the roles played there, as bits; in order of position.
    n_words
        Of the text.
    """

    played: list[tuple[int, int]]
    n_words: int

    def stretches(self) -> list[int]:
        """Return the roles that are played within reach of each place where one is, as bits."""
        found: list[int] = stretches_of([self]).tolist()
        return found


def stretches_of(read: Sequence[Passage]) -> NDArray[np.int64]:
    """Return what :meth:`Passage.stretches` does of several, one behind the other."""
    n_played = [len(passage.played) for passage in read]
    flat = chain.from_iterable(chain.from_iterable(passage.played for passage in read))
    position, bits = np.fromiter(flat, np.int64, 2 * sum(n_played)).reshape(-1, 2).T
    # As if all stood in one text, each out of reach of the one before.
    n_words = np.array([passage.n_words + REACH for passage in read], dtype=np.int64)
    position = position + np.repeat(np.cumsum(n_words) - n_words, n_played)
    masks = bits.copy()
    for later in range(1, min(REACH, len(bits))):  # one place a word
        near = position[later:] - position[:-later] < REACH
        if not near.any():
            break
        masks[:-later] |= bits[later:] * near
    return masks


@cache
def roles() -> Roles:
    """Return the roles of the data file."""
    data = json.loads(
        (files("ragshield_core.detectors.meta_claim") / "roles.json").read_text(encoding="utf-8")
    )
    lexicon = Lexicon(
        (phrase, 1 << (len(TIERS) * number + tier))
        for number, role in enumerate(data.values())
        for tier, name in enumerate(TIERS)
        for words in role[name].values()
        for phrase in phrases_of(words)
    )
    denied = 1 << (len(TIERS) * list(data).index("contrast"))
    return Roles(tuple(role["says"] for role in data.values()), lexicon, denied)


def passage_of(text: str) -> Passage:
    """Return the roles that are played in a text, whatever it is disguised as."""
    return passages([text])[0]


def passages_of(texts: Sequence[str]) -> list[Passage]:
    """Return what :func:`passage_of` does, of texts that are looked at together."""
    words = columns_of(_letters([view.text for view in readables(texts)]), _WORDS)
    bits = roles().lexicon.found(words, np.repeat(words.first[1:], np.diff(words.first)))
    for match in _DENIED.finditer(words.joined):  # the comma is of no word
        bits[np.searchsorted(words.start, match.start())] |= np.uint64(roles().denied)
    places = np.flatnonzero(bits)
    ends = np.searchsorted(places, words.first)
    within = places - np.repeat(words.first[:-1], np.diff(ends))
    played = list(zip(within.tolist(), bits[places].tolist(), strict=True))
    n_words = np.diff(words.first).tolist()
    return [
        Passage(played[start:end], n)
        for (start, end), n in zip(pairwise(ends.tolist()), n_words, strict=True)
    ]


passages = Readings(passages_of)


class Said(NamedTuple):
    """Where a role is played in a text, in characters."""

    start: int
    end: int


def said_in(text: str, places: Sequence[tuple[int, int]]) -> tuple[Readable, list[Said]]:
    """Return a readable text, and where in it some words or phrases lie.

    Parameters
    ----------
    text
        As given to :func:`passage_of`.
    places
        Positions in words, and the bit that is played there.
    """
    view = readable(text)
    words = columns_of(_letters([view.text]), _WORDS)
    start, end = (words.start - 1).tolist(), (words.end - 1).tolist()
    plain = words.joined[1:].decode("latin-1")
    found = []
    for at, bit in places:
        # As many words as it takes; of what is denied, the word that denies.
        for last in range(at, min(at + LONGEST, len(words))):
            listed = [plain[start[n] : end[n]] for n in range(at, last + 1)]
            if roles().lexicon.ideas(listed)[0] & bit:
                break
        else:
            last = at
        found.append(Said(start[at], end[last]))
    return view, found


def _plain(character: str) -> int:
    """Return a small letter without marks, and one that stands for others."""
    letter = unicodedata.normalize("NFKD", character.lower()[0])[0]
    if letter.isascii():
        return ord(letter)
    return _OTHER_LETTER if letter.isalnum() else _OTHER


_letters = Alphabet(_plain)
