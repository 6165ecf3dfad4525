"""The default comparison, without a model: sentences that are alike except for a name or number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

from ragshield_core.text.normalized import word_spans
from ragshield_core.tools.contradictions.pairs import Comparison, Pair

# Words of a claim and of a passage that are aligned, since alignment takes the product of both.
MAX_CLAIM, MAX_PASSAGE = 80, 200
# A replacement of more words is another statement, not an altered one.
MAX_REPLACED = 6
# Weight of a replaced name or number, of other replaced words, and of words without replacement.
NAME, WORD, NOTHING = 1.1, 0.6, 0.1
# Number of equal words at which two thirds of the weight is reached: four equal words are chance.
ENOUGH_EQUAL = 4


class AlteredCopies:
    """Compare a claim with a passage word by word; needs no model and knows no language.

    The score is high if much of the claim stands in the passage word for word, and a name or a
    number is replaced by another. It finds a copied sentence with one fact changed, and misses a
    contradiction in other words. Names are capitalised words: other scripts have numbers only.

    Examples
    --------
    >>> standing = ("The ferry to Norrholm leaves at seven from the east pier.",)
    >>> altered = "The ferry to Utby leaves at seven from the east pier."
    >>> other = "In the east of Norrholm there is a pier, from which people fish."
    >>> answers = AlteredCopies()([Pair(altered, standing), Pair(other, standing)])
    >>> [round(answer.score, 2) for answer in answers]
    [0.83, 0.01]
    """

    name = "altered copies"

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison | None]:
        """Return a comparison for each pair."""
        return [_compared(pair) for pair in pairs]


def _compared(pair: Pair) -> Comparison:
    claim = _words(pair.claim)[:MAX_CLAIM]
    mine = [word for word, _ in claim]
    best = Comparison(0.0, pair.sentences[0])
    passage = [(*word, part) for part in pair.sentences for word in _words(part)][:MAX_PASSAGE]
    theirs = [word for word, _, _ in passage]
    steps = SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes()
    n_equal = sum(end - start for kind, start, end, _, _ in steps if kind == "equal")
    alike = n_equal / (len(mine) or 1) * -math.expm1(-n_equal / ENOUGH_EQUAL)
    for kind, start, end, first, last in steps:
        if kind != "replace" or max(end - start, last - first) > MAX_REPLACED:
            continue
        # A word that stands elsewhere on the other side was moved, not replaced.
        left = [kind for word, kind in claim[start:end] if word not in theirs]
        right = [kind for word, kind, _ in passage[first:last] if word not in mine]
        if left and right:
            weight = NAME if set(left) & set(right) - {""} else WORD
            score = min(1.0, weight / NAME * alike)
            best = max(best, Comparison(score, passage[first][2]), key=lambda one: one.score)
    if not best.score:
        best = Comparison(NOTHING / NAME * alike, best.sentence)
    return best


def _words(text: str) -> list[tuple[str, str]]:
    """Return the words of a text, each with its kind: a number, a name, or an empty string."""
    found = []
    for start, end in word_spans(text):
        word = text[start:end]
        kind = "number" if word[0].isdigit() else "name" if word[0].isupper() else ""
        found.append((word.casefold(), kind))
    return found
