"""Languages of texts, detected by their script and function words."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import chain
from operator import itemgetter
from typing import Any

from ragshield_core.text.lexicon import plain_words

# Vowel points and accents, which people may leave out; vowel signs of Indic scripts are letters.
_ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0640\u093c\u09bc\u200b-\u200f]"
)
_BEYOND_LATIN = re.compile("[\u0370-\u1dff\u2c00-\uabff\uac00-\ud7ff\uf900-\ufaff]")
_WORD = re.compile("(?:[^\\W_]|[\u0900-\u0963\u0980-\u0e4f])+")
_ALIKE = str.maketrans("ıłđøæىةکی", "ildoaيهكي")
# Least function words, and least share of the words, of a text's language; least words of the text.
FEWEST, SHARE, WORDS = 4, 0.12, 12
# A sentence with this many English function words is left to the rules for English.
ENGLISH = 3
# A text with a smaller share of function words is in no known language.
SPOKEN = 0.12
# Share of the letters that decides the script.
MOST = 0.5
LETTERS = 20


def folded(text: str) -> str:
    """Return the words of a text in lower case without accents, with a blank around each."""
    if text.isascii():
        words = plain_words(text.lower())
    else:
        text = unicodedata.normalize("NFKD", text.casefold())
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", text)).translate(_ALIKE)
        words = _WORD.findall(text.lower())
    return f" {' '.join(words)} "


@cache
def _known() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        files(__package__).joinpath("languages.json").read_text(encoding="utf-8")
    )
    return data


@cache
def _votes(
    spoken: frozenset[str] | None,
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Return the function words of known languages, and of unknown languages."""
    data = _known()
    known, unknown = (
        {name: frozenset(folded(words).split()) for name, words in data[kind].items() if words}
        for kind in ("languages", "not_known")
    )
    if spoken is not None:
        unknown |= {name: known.pop(name) for name in known.keys() - spoken}
    return known, unknown


@cache
def _written(spoken: frozenset[str] | None) -> set[str]:
    """Return the scripts of known languages."""
    scripts = _known()["scripts"].items()
    return {"LATIN"} | {s for s, names in scripts if spoken is None or not spoken.isdisjoint(names)}


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "NONE").split()[0].split("-")[0]


def _scripts(text: str) -> Counter[str]:
    return Counter(map(_script, filter(str.isalpha, text)))


@cache
def _spoken() -> dict[str, tuple[str, ...]]:
    """Return the languages of each function word in Latin script."""
    data, (known, _) = _known(), _votes(None)
    written = {name for names in data["scripts"].values() for name in names}
    latin = [name for name in data["languages"] if name not in written]
    words = set().union(*(known[name] for name in latin))
    return {word: tuple(name for name in latin if word in known[name]) for word in words}


def languages_of(sentence: str) -> list[str]:
    """Return the languages that a sentence may be in, none if it is English."""
    if _BEYOND_LATIN.search(sentence):
        data, found = _known(), []
        for script, _ in _scripts(sentence).most_common(4):
            found += [name for name in data["scripts"].get(script, ()) if name not in found]
        if found:
            return found
    words = set((sentence.lower() if sentence.isascii() else folded(sentence)).split())
    if len(words & _votes(None)[0]["en"]) >= ENGLISH:  # true of most, and quickly found
        return []
    spoken, nobody = _spoken(), ()
    votes = Counter(chain.from_iterable(spoken.get(word, nobody) for word in words))
    most = max(votes.values(), default=0)
    if most <= votes["en"]:
        return []
    return [name for name, count in votes.items() if count > votes["en"] and count >= most - 1]


def unknown_language(text: str, spoken: frozenset[str] | None = None) -> str | None:
    """Return the evidence that most of a text is in an unknown language or script, if it is.

    A caller that knows fewer languages passes their names in the data file as ``spoken``.

    Examples
    --------
    >>> text = "ธนาคารเปิดทำการตั้งแต่เก้าโมงเช้า"
    >>> unknown_language(text), unknown_language(text, frozenset({"en", "de"}))
    (None, 'most of its letters are Thai')
    """
    known, unknown = _votes(spoken)
    if _BEYOND_LATIN.search(text):
        scripts = _scripts(text)
        total = sum(scripts.values())
        if total >= LETTERS:
            script, count = scripts.most_common(1)[0]
            if count > MOST * total and script not in _written(spoken):
                return f"most of its letters are {script.title()}"
    elif len(known["en"].intersection(text.lower().split())) >= FEWEST:
        return None
    listed = folded(text).split()
    if len(listed) < WORDS:
        return None
    best = _most_votes(listed, known)[1]
    name, votes = _most_votes(listed, unknown)
    different = len(unknown[name].intersection(listed))
    if different >= FEWEST and votes >= SHARE * len(listed) and votes > 1.25 * best:
        return f"it reads like {name}"
    return None


def language_of(text: str) -> str | None:
    """Return the language of most function words or letters of a text, None without one.

    Examples
    --------
    >>> language_of("Das ist nicht die Antwort auf die Frage."), language_of("Xyzzy")
    ('de', None)
    """
    data = _known()
    if _BEYOND_LATIN.search(text):
        scripts = _scripts(text)
        script, count = scripts.most_common(1)[0]
        named = data["scripts"].get(script, ())
        if count > MOST * scripts.total() and len(named) == 1:
            return str(named[0])
        if count > MOST * scripts.total() and not named and script != "LATIN":
            return None
    listed = folded(text).split()
    known, unknown = _votes(None)
    (name, votes), (_, others) = _most_votes(listed, known), _most_votes(listed, unknown)
    enough = votes >= max(1.0, SPOKEN * len(listed)) and votes * 1.25 >= others
    return name if enough else None


def _most_votes(words: list[str], languages: dict[str, frozenset[str]]) -> tuple[str, int]:
    """Return the language with the most function words among these words, and their number."""
    counts = Counter(words)
    there = frozenset(counts)
    votes = {
        name: sum(map(counts.__getitem__, there & listed)) for name, listed in languages.items()
    }
    return max(votes.items(), key=itemgetter(1))
