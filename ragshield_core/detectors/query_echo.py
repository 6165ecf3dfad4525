"""Passages that repeat the query they were retrieved for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence, Need
from ragshield_core.detectors.retrieved import RetrievalDetector, RetrievedSet
from ragshield_core.text.copies import word_hashes

# Words of a query that are looked at; longer ones are no questions.
MAX_QUERY = 64
# The first and the last word weigh so much more, in shares of the query's length. A statement that
# answers a question holds most of its words ("... is the largest ..."), but not the word that asks,
# which comes first or last.
EDGE = 0.2
# A repetition may hold so many more words than the query.
SLACK = 1.25
# Each word put in, left out or replaced costs so much of a word in the ordered comparison, and so
# many may be put in at one place.
GAP, MAX_INSERTED = 0.25, 2
# Queries of fewer words than this repeat by chance, or because they are a name.
FULL_LENGTH, LEAST_LENGTH = 5, 3
# Where passages open with questions of their own, repeating one is what they are there for. From
# this share of the others on, the score is halved.
USUAL_FROM = 0.5
# Below this, a passage is not taken to repeat the query, so that it can say what is usual. So high
# because the questions of one FAQ are worded alike.
NO_ECHO = 0.75
# What an opening question starts with, in the languages that most knowledge bases are in.
_OPENERS = (
    "how what when where which who whom whose why can could do does did is are was were will would "
    "should may q question faq wie was wann wo welche welcher welches wer warum wieso kann können "
    "comment quand quel quelle quels quelles qui pourquoi combien est peut cómo qué cuándo dónde "
    "cuál quién cuánto come cosa quando dove quale chi perché quanto como onde qual quem 常见问题"
)
_OPENER_HASHES = frozenset(word_hashes(_OPENERS).tolist())
_OPENING = 200  # characters in which an opening question ends


class QueryEchoDetector(RetrievalDetector):
    """Find passages that repeat the query nearly word for word.

    A text crafted for a question is retrieved for it because it holds it: PoisonedRAG's black-box
    attack puts the question in front of every text. Passages that answer a question share words
    with it too, but hardly all of them, and hardly the one that asks.

    The score is the share of the query's words in the passage's best window, the first and the last
    word counting more, in any order and in the order of the query, half and half: 1 where the query
    stands there word for word, about .92 with one word of ten changed, up to .8 in ordinary
    passages. Queries of fewer than three words score 0, of fewer than five less than they would.
    Where half of the other passages open with questions of their own (an FAQ), scores are halved,
    which keeps them at the :attr:`floor`.

    Notes
    -----
    Needs no calibration and no vectors. The published-rule threshold, .8, was exceeded by 5 in
    1,000 first-ranked passages for 2,000 questions about Wikipedia, and by 2 in 10,000 of the
    others. Queries that are no questions but key words stand in ordinary passages more often:
    calibrate on queries of that kind. A lone FAQ page in a knowledge base of prose, asked for in
    its own words, is an echo as well.

    References
    ----------
    The attack: Zou et al., "PoisonedRAG", USENIX Security 2025 (S = question + text).

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> texts = ["who built the old harbour bridge. It was built by the Romans.",
    ...          "The old harbour bridge was built in 1911 by two brothers."]
    >>> batch = Batch.of(ids=["a", "b"], texts=texts, embeddings=[[1], [1]])
    >>> query = "Who built the old harbour bridge?"
    >>> QueryEchoDetector().score(RetrievedSet.of(query, batch)).round(2)
    array([1.  , 0.68])
    """

    kind: ClassVar[str] = "query_echo"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.QUERY, Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = ("AML.T0070", "AML.T0066", "LLM08:2025")

    default_threshold: ClassVar[float] = 0.8
    # Ordinary answers reach it; below, a calibration would spend the accepted rate on those.
    floor: ClassVar[float] = 0.7

    def score(self, retrieved: RetrievedSet) -> NDArray[np.float64]:
        """Return how much of the query each passage repeats, shape (n_passages,), in [0, 1]."""
        echoes = self._echoes(retrieved)
        return echoes * self._unusual(retrieved, echoes)

    def explain(self, retrieved: RetrievedSet, rows: Sequence[int]) -> list[Evidence]:
        """Return how much of the query is repeated, and how many other passages ask something."""
        echoes = self._echoes(retrieved)
        factors = self._unusual(retrieved, echoes)
        n_words = min(len(retrieved.query_words), MAX_QUERY)
        return [
            Evidence(
                sentence=(
                    f"repeats {echoes[row]:.0%} of the {n_words} words of the query, in its order "
                    f"or close to it (score {echoes[row] * factors[row]:.2f})"
                )
            )
            for row in rows
        ]

    def _echoes(self, retrieved: RetrievedSet) -> NDArray[np.float64]:
        query = retrieved.query_words[:MAX_QUERY].astype(np.int64)
        n = len(query)
        if n < LEAST_LENGTH or not len(retrieved):
            return np.zeros(len(retrieved))
        passages = retrieved.words
        longest = max(1, *(len(words) for words in passages))
        table = np.full((len(passages), longest), -1, dtype=np.int64)
        for row, words in zip(table, passages, strict=True):
            row[: len(words)] = words
        weights = np.ones(n)
        weights[[0, -1]] += EDGE * n
        same = table[:, None, :] == query[None, :, None]  # (n_passages, n_query, n_words)
        echoes = (_covered(same, weights) + _aligned(same, weights)) / (2.0 * weights.sum())
        return np.asarray(echoes * min(1.0, n / FULL_LENGTH), dtype=np.float64)

    def _unusual(self, retrieved: RetrievedSet, echoes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return in [.5, 1], per passage, how unusual it is here to open with a question."""
        others = echoes < NO_ECHO
        asks = np.fromiter(map(_asks, retrieved.passages.texts), np.bool_, len(retrieved))
        n_others = int(np.count_nonzero(others))
        share = np.count_nonzero(asks & others) / max(2, n_others)  # one alone says little
        return np.full(len(retrieved), 1.0 - 0.5 * min(1.0, share / USUAL_FROM))


def _covered(same: NDArray[np.bool_], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of the query's words in each passage's best window, in any order."""
    n_passages, n_query, n_words = same.shape
    width = int(np.ceil(SLACK * n_query)) + 1
    count = np.zeros((n_passages, n_query, n_words + 1), dtype=np.int32)
    np.cumsum(same, axis=2, out=count[:, :, 1:])
    ends = np.minimum(np.arange(n_words) + width, n_words)
    present = count[:, :, ends] > count[:, :, :n_words]
    return np.asarray(np.einsum("pqw,q->pw", present, weights).max(axis=1), dtype=np.float64)


def _aligned(same: NDArray[np.bool_], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each passage's best local alignment with the query, in its order."""
    n_passages, n_query, n_words = same.shape
    before = np.zeros((n_passages, n_words + 1))
    best = np.zeros(n_passages)
    for number in range(n_query):
        now = np.zeros_like(before)
        step = np.where(same[:, number], weights[number], -GAP)
        np.maximum(before[:, :-1] + step, before[:, 1:] - GAP, out=now[:, 1:])
        for _ in range(MAX_INSERTED):
            now[:, 1:] = np.maximum(now[:, 1:], now[:, :-1] - GAP)
        np.maximum(now, 0.0, out=now)
        best = np.maximum(best, now.max(axis=1))
        before = now
    return best


def _asks(text: str) -> bool:
    """Return whether a text opens with a question."""
    opening = text[:_OPENING]
    if any(mark in opening for mark in "?？؟"):
        return True
    return bool(_OPENER_HASHES.intersection(word_hashes(opening)[:1].tolist()))
