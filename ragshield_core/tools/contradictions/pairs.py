"""Claims of an entry, each beside the part of a standing passage that is nearest to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ragshield_core.text.normalized import readable, sentences, words

# A claim has at least this many words: a shorter sentence, such as "2. Mai 2021 ...", is joined to
# its neighbour, since it says nothing by itself. Measured on RGB: 1 word .88, 8 .94, 12 .96.
LEAST_WORDS = 12
# Characters of a text that are read; an entry with more is reported as partly unchecked.
MAX_TEXT = 20_000
# Claims before and behind the nearest one that a model reads with it.
AROUND = 1


class Pair(NamedTuple):
    """A claim of a new entry, and the sentences of a standing passage that are nearest to it.

    Attributes
    ----------
    claim
        One or more sentences of the new entry.
    sentences
        One to three parts of the passage, in its order; never empty.
    """

    claim: str
    sentences: tuple[str, ...]


class Comparison(NamedTuple):
    """A model's answer about one pair.

    Attributes
    ----------
    score
        In [0, 1]; higher if the two contradict each other more clearly.
    sentence
        The sentence of the pair that contradicts the claim.
    """

    score: float
    sentence: str


class ContradictionModel(Protocol):
    """A model that compares claims with passages.

    ``name`` tells it from others in alerts. A call gets pairs and returns one answer for each, in
    order: ``None`` for a pair that it could not compare. It may raise; then no pair was compared.
    """

    @property
    def name(self) -> str:
        """Name in alerts."""
        ...

    def __call__(self, pairs: Sequence[Pair]) -> Sequence[Comparison | None]:
        """Return a comparison for each pair."""
        ...


def claims_of(text: str) -> list[str]:
    """Return the sentences of a text as readers see it, short ones joined to their neighbours.

    Examples
    --------
    >>> claims_of("May 2. It rained on the islands all day long, as it does in every May. Ha!")
    ['May 2. It rained on the islands all day long, as it does in every May. Ha!']
    """
    seen = readable(text[:MAX_TEXT]).text
    claims: list[str] = []
    start, n_words = 0, 0
    for begin, end in sentences(seen):
        start = start if n_words else begin
        n_words += len(words(seen[begin:end]))
        if n_words >= LEAST_WORDS:
            claims.append(seen[start:end])
            n_words = 0
    if n_words:
        rest = seen[start:].rstrip()
        claims = [*claims[:-1], f"{claims[-1]} {rest}"] if claims else [rest]
    return claims


def pairs_of(text: str, passages: Sequence[str], most: int) -> list[tuple[int, Pair]]:
    """Return the pairs of an entry that share most words, at most ``most``.

    Returns
    -------
    list of (int, Pair)
        The number of the passage, and the pair. Claims that stand in a passage word for word are
        in no pair with it. Passages take turns: none keeps the others out.
    """
    claims = [(claim, frozenset(words(claim))) for claim in claims_of(text)]
    found: list[tuple[int, float, int, Pair]] = []
    for number, passage in enumerate(passages):
        parts = claims_of(passage)
        whole = " ".join(parts)
        of_parts = [frozenset(words(part)) for part in parts]
        ranked: list[tuple[float, Pair]] = []
        for claim, mine in claims if parts else ():
            if claim in whole:
                continue
            shared = [len(mine & other) for other in of_parts]
            at = max(range(len(parts)), key=shared.__getitem__)
            around = tuple(parts[max(0, at - AROUND) : at + AROUND + 1])
            ranked.append((shared[at] / (len(mine) or 1), Pair(claim, around)))
        ranked.sort(key=lambda one: -one[0])
        found += [(at, -share, number, pair) for at, (share, pair) in enumerate(ranked)]
    # The best pair of each passage first, then the second ones.
    found.sort(key=lambda one: one[:3])
    return [(number, pair) for _, _, number, pair in found[:most]]
