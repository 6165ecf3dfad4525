"""Choose the sentences of a text that may be orders: cheap, and rather too many than too few."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ragshield_core.detectors.instruction.languages import n_ideas_in
from ragshield_core.detectors.instruction.sentences import without_markup
from ragshield_core.text.languages import language_of
from ragshield_core.text.normalized import Readable, readable, sentences
from ragshield_core.text.readings import Remembered

# Sentences of one text that are embedded, the most likely ones, so that no text costs more.
MOST_CANDIDATES = 12
# Shorter ones, in characters, are headings and fields; longer ones are cut.
SHORTEST, LONGEST = 10, 320
# In a language that no lexicon knows, every sentence of up to so many characters may be an order.
SHORT = 400
# Candidates are at most this share of the characters of a text, or so many characters.
SHARE, ROOM = 0.12, 120
# So much of a text tells its language.
BEGINNING = 2_000
# Fewer words are headings and fields.
FEWEST_WORDS = 3

# Values of records end where their quotation marks do; rows of tables, in cells.
_PARTS = re.compile(
    r"[\"'][\]}\s]{0,8}[,:]\s{0,8}[\[{\s]{0,8}(?=[\"'])|\s\|\s|<!--|-->|\s//\s|/\*|\*/|(?<=\S)\s#\s"
)
_MARKS = " \t\n\"'`*_#>|/<!-+=[](){}\u2022\u2013\u2014\u201c\u201d:;,.0123456789"
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[.,:;!?()\[\]\"\u2014>|]")
_OPENING = frozenset('.,:;!?()[]"\u2014>|')
_LEADING = frozenset(
    re.split(
        " ",
        "please kindly now and then just also always never immediately first instead don't dont "
        "not do next finally so but simply must should to",
    )
)


class Candidates(NamedTuple):
    """The sentences of a text, and those of them that may be orders."""

    view: Readable
    sentences: list[tuple[int, int]]
    """All of them, in order, in characters of the readable text."""
    chosen: list[int]
    """Numbers of those that may be orders, ascending."""
    language: str | None
    """Of the text, if it is known here."""

    def text(self, first: int, last: int) -> str:
        """Return the words of some sentences in a row, the last included."""
        parts = (self.view.text[slice(*self.sentences[at])] for at in range(first, last + 1))
        return " ".join(part.strip(_MARKS[:18])[:LONGEST] for part in parts)


@cache
def lexicon() -> dict[str, frozenset[str]]:
    """Return the words of English by what they say of an order."""
    data = json.loads(files(__package__).joinpath("gate.json").read_text(encoding="utf-8"))
    return {name: frozenset(words.split()) for name, words in data.items()}


def _candidates(text: str) -> Candidates:
    view = without_markup(readable(text))
    spans = list(_parts(view.text))
    language = language_of(view.text[:BEGINNING])
    unknown = language is None
    likely = [_likely(view.text[start:end], unknown=unknown) for start, end in spans]
    found: list[int] = []
    room = max(ROOM, SHARE * len(view.text))
    for at in sorted(range(len(spans)), key=lambda at: -likely[at])[:MOST_CANDIDATES]:
        start, end = spans[at]
        if likely[at] <= 0 or (found and end - start > room):
            break
        room -= min(end - start, LONGEST)
        found.append(at)
    return Candidates(view, spans, sorted(found), language)


candidates = Remembered(_candidates)


def _parts(text: str) -> Iterator[tuple[int, int]]:
    for start, end in sentences(text):
        at = start
        for match in _PARTS.finditer(text, start, end):
            if match.start() - at >= SHORTEST:
                yield at, match.start()
            at = match.end()
        if end - at >= SHORTEST or at == start:
            yield at, end


def _likely(sentence: str, *, unknown: bool) -> float:
    """Return how likely a sentence is an order, 0 for not at all."""
    if len(sentence) < SHORTEST:
        return 0.0
    ideas = n_ideas_in(sentence[:LONGEST])
    if ideas is not None:  # in another language
        return float(ideas)
    weight = _english(sentence)
    return max(weight, 0.5) if unknown and len(sentence) <= SHORT else weight


def words_of_sentence(sentence: str) -> list[str]:
    """Return the words of a sentence in small letters, and the marks behind which orders begin."""
    return _WORD.findall(sentence[:LONGEST].lower())


def _english(sentence: str) -> float:
    words = words_of_sentence(sentence)
    if len(words) < FEWEST_WORDS:
        return 0.0
    known, there = lexicon(), frozenset(words)
    if not there & _any():
        return 0.0
    acts, does = imperatives(words, known["acts"]), imperatives(words, known["verbs"])
    has = {
        name
        for name in ("addressed", "spoken", "kept", "you", "must", "condition")
        if there & known[name]
    }
    weight = 2.0 * bool(acts) + bool(does) + bool(there & known["alone"])
    if acts or does or has & {"must", "you"}:
        weight += len(has & {"addressed", "spoken", "kept"})
    weight += {"condition", "spoken"} <= has or {"condition", "addressed"} <= has
    weight += {"you", "must"} <= has
    return weight


@cache
def _any() -> frozenset[str]:
    known = lexicon()
    return frozenset().union(*known.values())


def imperatives(words: Sequence[str], verbs: frozenset[str]) -> int:
    """Return how many verbs stand where an order begins."""
    found, opening = 0, True
    for word in words:
        if opening and word in verbs:
            found += 1
            opening = False
        elif word in _OPENING:
            opening = True
        elif not (opening and word in _LEADING):
            opening = word in ("and", "then", "please", "or", "not", "never", "always", "don't")
    return found
