"""Target questions of attacks, made from the corpus."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import SourceError
from ragshield_core.text.characters import LETTERS
from ragshield_core.tools.evaluate.attacks import Target

# Number of words that stand for the topic of a text, and wordings of questions about them.
N_KEYS = 4
ASKED = (
    "what is known about {}?",
    "what do the documents say about {}?",
    "how is {} explained?",
    "which answer is right for {}?",
)
# Shorter texts say too little for a question.
FEWEST_WORDS = 20
# Number of clean texts into which an attack inserts text.
N_CARRIERS = 10
_WORD = re.compile(f"[{LETTERS}]{{3,20}}")
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st", "tr")
_VOWELS, _ENDS = ("a", "e", "i", "o", "u", "au", "ei"), ("", "n", "r", "s", "l", "nd", "rk")


def targets_of(entries: Batch, n: int, seed: int = 0) -> list[Target]:
    """Return targets made from a corpus: questions in its own words, with invented wrong answers.

    A question asks for the rarest words of a text that others have too. Nobody asks like that, but
    such a question retrieves texts on the same topic, as an attack requires.

    Parameters
    ----------
    entries
        Clean entries with texts.
    n
        Number of targets; fewer if fewer texts have twenty words or more.
    seed
        Seed of the draw.

    Raises
    ------
    SourceError
        If no text is long enough.
    """
    rng = np.random.default_rng(seed)
    words = [[word.lower() for word in _WORD.findall(text)] for text in entries.texts]
    spread = Counter(word for each in words for word in set(each))
    long = [row for row, each in enumerate(words) if len(each) >= FEWEST_WORDS]
    if not long:
        msg = (
            f"none of {len(entries)} entries has {FEWEST_WORDS} words, so that no questions can be "
            "made of them; bring some with --queries."
        )
        raise SourceError(msg)
    targets: list[Target] = []
    asked: set[str] = set()
    for row in rng.permutation(long).tolist():
        distinct = list(dict.fromkeys(words[row]))
        # Words of this text alone are misspellings or unique names.
        rare = sorted(distinct, key=lambda word: (spread[word] < 2, spread[word], word))[:N_KEYS]  # noqa: PLR2004
        keys = " ".join(word for word in distinct if word in rare)
        if keys in asked:
            continue
        asked.add(keys)
        carriers = rng.choice(long, min(N_CARRIERS, len(long)), replace=False).tolist()
        targets.append(
            Target(
                question=ASKED[len(targets) % len(ASKED)].format(keys),
                wrong_answer=f"{_name(rng)} {_name(rng)}",
                carriers=tuple(entries.texts[carrier] for carrier in carriers),
            )
        )
        if len(targets) == n:
            break
    return targets


def carriers_of(entries: Batch, seed: int = 0) -> list[str]:
    """Return some texts of a corpus, for targets from elsewhere."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(entries), min(N_CARRIERS, len(entries)), replace=False).tolist()
    return [entries.texts[row] for row in rows]


def _name(rng: np.random.Generator) -> str:
    """Return an invented name."""
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(2))
    return "".join(syllables).capitalize()
