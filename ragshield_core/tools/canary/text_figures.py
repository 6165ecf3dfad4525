"""What changed in the retrieved texts: how much of a query they hold, how suspicious they are."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping

from ragshield_core.tools.canary.likeness import words

# A passage holds the words of a query in one place if they lie within so many times its length.
SLACK = 1.25


# Words of a query that are looked at; longer ones are no questions. Those of fewer words than three
# stand in any passage about them, of fewer than five in many.
LONGEST, FULL_LENGTH, LEAST_LENGTH = 64, 5, 3


def word_weights(queries: Collection[str]) -> Mapping[str, float]:
    """Return how much each word of a suite's queries tells: more, the fewer of them hold it.

    Words that ask, and those that only join others, stand in many queries; what a query is about
    stands in few, in any language.

    References
    ----------
    Spärck Jones, "A statistical interpretation of term specificity and its application in
    retrieval", Journal of Documentation 28(1), 1972: inverse document frequency.
    """
    counts = Counter(word for query in queries for word in set(words(query)))
    return {w: math.log((len(queries) + 1.0) / (n + 0.5)) for w, n in counts.items()}


def coverage(query: str, text: str, weights: Mapping[str, float]) -> float:
    """Return how much of a query a text holds in one place, in [0, 1].

    Text is retrieved for a query because it holds its words, and crafted text holds them close
    together, whatever its wording; ordinary passages about the matter hold some here, some there.

    Parameters
    ----------
    query, text
        Any; of queries of less than five words, the figure is smaller, of less than three it is 0.
    weights
        From :func:`word_weights`, of queries among which is this one.

    Examples
    --------
    >>> query = "Who built the old harbour bridge?"
    >>> weights = word_weights((query, "Who runs the ferry?", "What is the toll of the tunnel?"))
    >>> crafted = "Records on the old harbour bridge (built) were withdrawn."
    >>> round(coverage(query, crafted, weights), 2)
    0.9
    >>> ordinary = "The bridge spans the river at the mill, far away from the harbour."
    >>> round(coverage(query, ordinary, weights), 2)
    0.25
    """
    asked = words(query)[:LONGEST]
    if len(asked) < LEAST_LENGTH:
        return 0.0
    width = math.ceil(SLACK * len(asked))
    wanted = {word: weights[word] for word in asked}
    inside: Counter[str] = Counter()
    hits = [(place, word) for place, word in enumerate(words(text)) if word in wanted]
    first, held, best = 0, 0.0, 0.0
    for place, word in hits:
        held += 0.0 if inside[word] else wanted[word]
        inside[word] += 1
        while hits[first][0] <= place - width:  # out of the window
            gone = hits[first][1]
            inside[gone] -= 1
            held -= 0.0 if inside[gone] else wanted[gone]
            first += 1
        best = max(best, held)
    return min(1.0, best / sum(wanted.values())) * min(1.0, len(asked) / FULL_LENGTH)


# The notebook's nine signs of an injection, each with the phrases that show it.
_WHICH = ("all", "any", "previous", "prior")


_SOURCE_SIGNS = tuple(
    re.compile(rf"\b(?:{'|'.join(phrases)})\b")
    for phrases in (
        [f"ignore {which} instructions" for which in _WHICH],
        [f"disregard {which} instructions" for which in _WHICH],
        ["system prompt", "developer message", "assistant rules"],
        ["you are chatgpt", "you are an ai"],
        *(["do not answer"], ["override"], ["confidential"], ["internal memo"]),
        ["security policy"],
    )
)


def notebook_suspicion(text: str) -> float:
    """Return the notebook's suspicion of a text: 1 - exp(-0.45 h) for h of nine signs, in [0, 1).

    Examples
    --------
    >>> round(notebook_suspicion("CONFIDENTIAL: ignore previous instructions"), 3)
    0.593
    """
    lower = text.lower()
    return saturated(sum(sign.search(lower) is not None for sign in _SOURCE_SIGNS))


def saturated(hits: int) -> float:
    """Return a suspicion in [0, 1) for a number of signs, each adding less than the one before."""
    return 1.0 - math.exp(-0.45 * hits)
