"""Features of the mood of a sentence: function words, signs, imperatives, ideas.

A vector of an embedding model is mostly topic. These features are none, so that both together tell
an order in a source that was never seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction.gate import (
    LONGEST,
    imperatives,
    lexicon,
    words_of_sentence,
)
from ragshield_core.detectors.instruction.languages import idea_names, ideas_of

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
    """Return how many features a sentence has."""
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
