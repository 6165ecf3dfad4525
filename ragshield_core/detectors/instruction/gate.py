"""Gate that chooses the sentences of a text that may be orders, and features of their mood.

The gate is cheap, and chooses too many sentences rather than too few. A vector of an embedding
model mostly encodes the topic; the mood (function words, signs, imperatives, ideas) does not depend
on it, so that both together reveal an order in a source that was never seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction.languages import idea_names, ideas_of, n_ideas_in
from ragshield_core.detectors.instruction.sentences import without_markup
from ragshield_core.text.languages import language_of
from ragshield_core.text.normalized import Readable, readable, sentences
from ragshield_core.text.readings import Remembered

# Most sentences of one text to embed, the most likely ones, to bound the cost of a text.
MOST_CANDIDATES = 12
# Shorter sentences, in characters, are headings and fields; longer ones are cut.
SHORTEST, LONGEST = 10, 320
# In a language without a lexicon, every sentence of up to this many characters may be an order.
SHORT = 400
# Candidates are at most this share of the characters of a text, or this many characters.
SHARE, ROOM = 0.12, 120
# Characters at the beginning of a text that decide its language.
BEGINNING = 2_000
# Sentences with fewer words are headings and fields.
FEWEST_WORDS = 3

# Values of records end at their quotation marks, cells of a table at bars.
_PARTS = re.compile(
    r"[\"'][\]}\s]{0,8}[,:]\s{0,8}[\[{\s]{0,8}(?=[\"'])|\s\|\s|<!--|-->|\s//\s|/\*|\*/|(?<=\S)\s#\s"
)
_MARKS = " \t\n\"'`*_#>|/<!-+=["
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
    """The sentences of a text, and the choice of those that may be orders."""

    view: Readable
    sentences: list[tuple[int, int]]
    """Spans of all sentences, in order, in characters of the readable text."""
    chosen: list[int]
    """Numbers of the sentences that may be orders, ascending."""
    language: str | None
    """The language of the text, if it is a known one."""

    def text(self, at: int) -> str:
        """Return the words of a sentence."""
        return self.view.text[slice(*self.sentences[at])].strip(_MARKS)[:LONGEST]


@cache
def lexicon() -> dict[str, frozenset[str]]:
    """Return the English words of the gate, by their role in an order."""
    data = json.loads(files(__package__).joinpath("gate.json").read_text(encoding="utf-8"))
    return {name: frozenset(words.split()) for name, words in data.items()}


@Remembered
def candidates(text: str) -> Candidates:
    """Return the sentences of a text, and those that may be orders."""
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
    """Return how likely a sentence is an order; 0 rules it out."""
    if len(sentence) < SHORTEST:
        return 0.0
    ideas = n_ideas_in(sentence[:LONGEST])
    if ideas is not None:  # the sentence is in another language
        return float(ideas)
    weight = _english(sentence)
    return max(weight, 0.5) if unknown and len(sentence) <= SHORT else weight


def words_of_sentence(sentence: str) -> list[str]:
    """Return the words of a sentence in lower case, and the marks after which orders may begin."""
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
    """Return the number of verbs in places where an order begins."""
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


_FUNCTION = re.split(
    " ",
    "i we my me our us you your he she they his her their it this that these those the a was were "
    "is are be been will would can could may might must should shall have has had do does did not "
    "no if when whenever while because so and or but as than then please always never only any all "
    "every each to of in on for with from by at into what which who how why where",
)
_NUMBER = {word: number for number, word in enumerate(_FUNCTION)}
_ADDRESS = re.compile(r"@[\w-]|https?://|www\.")
_PAST, _GOING_ON = re.compile(r"\b[a-z]{2,20}ed\b"), re.compile(r"\b[a-z]{2,20}ing\b")
_KINDS = ("addressed", "spoken", "kept", "you", "must", "condition", "alone")
_OPENERS = ({"please", "you", "if", "when", "whenever"}, {"i", "we", "the", "this", "it", "my"})
N_SIGNS = 4 + 2 + len(_OPENERS) + len(_KINDS) + 7
LONG = 40  # words


def n_features() -> int:
    """Return the number of features of a sentence."""
    return len(_FUNCTION) + N_SIGNS + len(idea_names())


def moods(sentences: Sequence[str]) -> NDArray[np.float32]:
    """Return the features of sentences, shape (n_sentences, n_features).

    Examples
    --------
    >>> ordered, told = moods(["Send me the list.", "They sent the list to me."])
    >>> bool(ordered[len(_FUNCTION)]), bool(told[len(_FUNCTION)])
    (True, False)
    """
    found = np.zeros((len(sentences), n_features()), dtype=np.float32)
    for row, sentence in enumerate(sentences):
        words = words_of_sentence(sentence)
        there = set(words)
        found[row, [_NUMBER[word] for word in there & _NUMBER.keys()]] = 1.0
        found[row, len(_FUNCTION) : len(_FUNCTION) + N_SIGNS] = _signs(sentence, words, there)
        for idea in ideas_of(sentence[:LONGEST]):
            found[row, len(_FUNCTION) + N_SIGNS + idea] = 1.0
    return found


def _signs(sentence: str, words: Sequence[str], there: set[str]) -> list[float]:
    known = lexicon()
    acts, does = imperatives(words, known["acts"]), imperatives(words, known["verbs"])
    first = next(filter(str.isalpha, words), "")
    lowered = sentence[:LONGEST].lower()
    return [
        float(sign)
        for sign in (
            *(acts > 0, does > 0, acts > 1, acts + does > 1),
            *(first in known["acts"], first in known["verbs"]),
            *(first in openers for openers in _OPENERS),
            *(bool(there & known[kind]) for kind in _KINDS),
            _ADDRESS.search(lowered) is not None,
            "?" in lowered,
            any(map(str.isdigit, lowered)),
            _PAST.search(lowered) is not None,
            _GOING_ON.search(lowered) is not None,
            len(words) / LONG,
            sentence[:1].islower(),
        )
    ]
