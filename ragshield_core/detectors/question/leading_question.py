"""Entries that put a question to themselves and answer it, where entries do not usually do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence, Need
from ragshield_core.detectors.base.abilities import DoubtsSample, LearnsPieces
from ragshield_core.detectors.question.question_words import ABOUT
from ragshield_core.detectors.question.questions import (
    EMBEDDED,
    FOCUS,
    KINDS,
    MARKED,
    MARKED_OTHER,
    NONE,
    PLACES,
    UNMARKED,
    VERB_FIRST,
    Opening,
    further_of,
    opening_of,
)
from ragshield_core.entries import Batch
from ragshield_core.errors import NotFittedError
from ragshield_core.findings import printable
from ragshield_core.text.readings import Remembered

# How often an entry that was made for a question is of each kind, and, of that kind, starts in
# lower case and runs into its answer without a space ("...?.The"). Broad guesses, not fitted to any
# attack: each trait is about as likely as not, so that an attacker who avoids it gains a bit and no
# more.
_ATTACK_KIND = np.array([0.02, 0.03, 0.01, 0.02, 0.02, 0.05, 0.2, 0.06, 0.5, 0.05, 0.03])
_ATTACK_LOWER = np.array([0.5, 1.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.2, 0.25, 0.5, 0.05])
_ATTACK_GLUED = np.array([0.5, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.3, 0.3, 0.4, 0.1])
# What an attack wants believed is a fact, so that it seldom asks why, how or what something is, as
# headings and answers to frequent questions do; a way to ask that is rare in the knowledge base
# counts two bits at most. Mostly it asks once, in front. The rest is about the question: it is
# retrieved for the question because it is, and not for what else it tells.
_ATTACK_ABOUT = np.array([0.08, 0.1, 0.18, 0.13, 0.1, 0.1, 0.04, 0.06, 0.09, 0.12])
_ATTACK_PLACE = np.array([0.88, 0.05, 0.05, 0.02])
_ATTACK_FOCUS = np.array([0.03, 0.05, 0.12, 0.2, 0.2, 0.18, 0.12, 0.1])
# What is assumed of a knowledge base before anything is known of it, and how many entries that
# assumption is worth.
_PRIOR_KIND = np.array([0.87, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01])
_PRIOR_LOWER, _PRIOR_GLUED = 0.05, 0.01
_PRIOR_PLACE = np.array([0.4, 0.2, 0.2, 0.2])
_PRIOR_FOCUS = np.array([0.25, 0.2, 0.2, 0.15, 0.1, 0.05, 0.03, 0.02])
_WORTH = 10.0
# How often such an entry has its question further down, for each that opens with it; how often
# nothing follows then, and in clean entries.
_ATTACK_FURTHER, _ATTACK_LAST, _PRIOR_LAST = 0.2, 0.6, 0.2
# Sources, by a hash, and how many entries of a source weigh as much as the whole knowledge base in
# how usual questions are there.
_N_SOURCES, _SOURCE_WORTH = 1_024, 50.0

# Axes of the counts.
_GLUED, _ABOUT, _FOCUS = 2, 3, 5
# What was never seen here counts so much at most, however large the knowledge base is.
_MOST = {_ABOUT: 4.0, _FOCUS: 16.0}
_SHAPE = (len(KINDS), 2, 2, len(ABOUT), len(PLACES), len(FOCUS) + 1)
_N_TRAITS = len(_SHAPE)
_STATE = ("fitted", "arrived", "sources", "doubtful")

# Malformed questions that make up so large a share of a sample that nobody has vouched for are
# taken for poison: fewer hardly change what is usual, more are the habit of those who write there.
DOUBTFUL = (0.0075, 0.03)
# Phrases and indirect questions always start in lower case: chunks that begin in mid-sentence do.
_DOUBTED = (EMBEDDED, UNMARKED, MARKED_OTHER, MARKED, VERB_FIRST)


class LeadingQuestionDetector(LearnsPieces, DoubtsSample):
    """Look for entries that put a question to themselves and answer it.

    Black-box PoisonedRAG puts the question it is aimed at before the text that answers it wrongly,
    so that the entry is retrieved for that question. Whether that is strange depends on the
    knowledge base: entries of a FAQ open with questions, articles of an encyclopaedia do not.

    The score is a likelihood ratio in bits: how much likelier the opening, or else the most
    striking question behind it, is for an entry made for a question than for an entry of the
    knowledge base. Of a question it is known of what kind it is (with a question mark, by its
    question word, ...), whether it starts in lower case, whether no space sets it apart, and how
    many of its words come back in the rest. How usual each of these is, is counted in the knowledge
    base, for openings and for what follows; what is assumed of the attack is broad, so that none of
    them is needed. English best, and German, French, Spanish, Italian, Portuguese, Russian, Chinese
    and any language that has question marks.

    Notes
    -----
    By default more than 5 bits are suspicious, which is 32 times likelier; nothing up to that is
    ever acted on. State is a table of counts; learning and forgetting are exact.

    In a knowledge base that nobody has vouched for, ten poisoned entries in a thousand would make
    their openings usual. Openings that are malformed, in lower case or run into the answer, and as
    frequent as poison may be (:data:`DOUBTFUL`) are therefore not counted there. Well-formed ones
    are: as many pages of questions and answers are nothing unusual.

    References
    ----------
    Zou, Geng, Wang, Jia, "PoisonedRAG: Knowledge Corruption Attacks to Retrieval-Augmented
    Generation of Large Language Models", USENIX Security 2025 (black-box attack, S = Q + I).

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> known = [f"Passage {i} tells of a river." for i in range(100)]
    >>> known = Batch.of(ids=[*map(str, range(100))], texts=known, embeddings=[[1.0]] * 100)
    >>> texts = ["Who owns the mill? The mill is owned by Ann.", "The mill stands in the village."]
    >>> new = Batch.of(ids=["a", "b"], texts=texts, embeddings=[[1.0]] * 2)
    >>> LeadingQuestionDetector().fit(known).score(new) > 5
    array([ True, False])
    """

    name: str = "leading_question"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = ("AML.T0070", "AML.T0066", "LLM04:2025", "LLM05:2026")

    default_threshold: float = 5.0
    # In a knowledge base that never asks, any question would be rare: 32 times likelier, at least.
    floor: float = 5.0
    acts_unfitted = False

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every opening."""
        # Of fitted entries and of those that came since: openings, and questions behind them.
        self._fitted = np.zeros((2, *_SHAPE), dtype=np.int64)
        self._arrived = np.zeros_like(self._fitted)
        # Of fitted entries by source: all, and those that open with a question.
        self._sources = np.zeros((_N_SOURCES, 2), dtype=np.int64)
        self._doubtful = np.zeros(_SHAPE, dtype=np.bool_)

    def fit(self, reference: Batch) -> Self:
        """Count what entries of the knowledge base open with."""
        self.reset()
        self.learn_piece(reference)
        return self

    def learn_piece(self, piece: Batch) -> None:
        """Count what entries of the knowledge base open with."""
        shapes = _questions(piece)
        _add(self._fitted, shapes, 1)
        asks = shapes[0][:, 0] != NONE
        np.add.at(self._sources, _sources(piece), np.column_stack([np.ones_like(asks), asks]))

    def learn(self, entries: Batch) -> None:
        """Count what new entries open with; they make no question more usual."""
        _add(self._arrived, _questions(entries), 1)

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out of the counts."""
        front, behind = _questions(entries)
        # What was never learned cannot be taken off.
        known = (self._fitted + self._arrived)[0][tuple(front.T)] > 0
        shapes = front[known], behind[known]
        _add(self._arrived, shapes, -1)
        # Of what did not come since, there is less than nothing now.
        self._fitted = np.maximum(self._fitted + np.minimum(self._arrived, 0), 0)
        np.maximum(self._arrived, 0, out=self._arrived)

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while nothing is known of how entries usually open."""
        if self._is_fitted:
            return {}
        return dict.fromkeys(range(len(batch)), "no entry of a knowledge base was learned yet")

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts."""
        return {}, {name: getattr(self, f"_{name}").copy() for name in _STATE}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Take over the counts."""
        self.reset()
        for name in _STATE:
            getattr(self, f"_{name}")[...] = arrays[name]

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return how much likelier each opening is for poison, in bits, shape (n_entries,)."""
        if not self._is_fitted:
            msg = f"{self.name} has learned no entry yet; fit it on the knowledge base first."
            raise NotFittedError(msg)
        return self._score(*_questions(batch), _sources(batch))

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries open with malformed questions that are rare; count these no more."""
        shapes = np.argwhere(self._fitted[0] > 0)
        shapes = shapes[np.isin(shapes[:, 0], _DOUBTED) & (shapes[:, 1:3] == 1).any(axis=1)]
        sample = tuple(_questions(reference)[0].T)
        doubtful = self._malformed(shapes, np.zeros(_SHAPE, dtype=np.bool_))
        fewest, most = DOUBTFUL
        if len(reference) and doubtful[sample].mean() >= fewest:
            while True:  # without the most striking ones, others stand out
                more = self._malformed(shapes, doubtful)
                if (more == doubtful).all():
                    break
                doubtful = more
            if doubtful[sample].mean() > most:
                doubtful[...] = False
        else:
            doubtful[...] = False
        self._doubtful = doubtful
        return np.asarray(doubtful[sample])

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which entries open with the malformed questions that count no more."""
        return np.asarray(self._doubtful[tuple(_questions(entries)[0].T)])

    def _malformed(self, shapes: NDArray[np.intp], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which shapes are suspicious where neither their like nor known ones are counted.

        Their like are of the same kind, and as malformed.
        """
        found = known.copy()
        for kind, lower, glued in np.unique(shapes[:, :3], axis=0):
            like = shapes[(shapes[:, :3] == (kind, lower, glued)).all(axis=1)]
            rest = np.where(known, 0, self._fitted[0])
            rest[kind, lower, glued] = 0
            found[tuple(like.T)] |= _bits(like, rest) > self.default_threshold
        return found

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of the fitted entries, each by the counts without it."""
        front, behind = _questions(fitted)
        shapes, inverse = np.unique(
            np.column_stack([front, behind, _sources(fitted)]), axis=0, return_inverse=True
        )
        scores = np.empty(len(shapes))
        for i, shape in enumerate(shapes):
            one = shape[None, :_N_TRAITS], shape[None, _N_TRAITS:-1]
            scores[i] = self._score(*one, shape[-1:], but=1)[0]
        return scores[inverse.reshape(-1)]

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, how usual its kind is, and how much of it comes back."""
        return [self._evidence(batch, row) for row in rows]

    def _evidence(self, batch: Batch, row: int) -> Evidence:
        text = batch.texts[row]
        opening = opening_of(text)
        further = further_of(text, opening)
        shapes = np.array([_shape(opening)]), np.array([_shape(further, further=True)])
        score = self._score(*shapes, _sources(batch)[[row]])[0]
        found, table, verb = opening, self._fitted[0], "opens with"
        if _bits(shapes[1], self._fitted[1], further=True)[0] > _bits(shapes[0], table)[0]:
            found, table, verb = further, self._fitted[1], "holds, behind its opening,"
        n, alike = int(table.sum()), int(table[found.kind, ..., found.focus :].sum())
        start, end = found.span
        traits = [KINDS[found.kind]]
        traits += ["starts in lower case"] if found.lower else []
        traits += ["runs into the next sentence"] if found is opening and found.glued else []
        traits += ["ends the text"] if found.last else []
        back = f", and {found.n_back} of {found.n_words} of its words come back"
        sentence = (
            f"{verb} {', '.join(traits)}{back if found.n_words else ''}: {alike} of {n:,} known "
            f'entries do, score {score:.1f} bits: "{printable(text[start:end], 80)}"'
        )
        return Evidence(sentence=sentence, span=found.span if end > start else None)

    @property
    def _is_fitted(self) -> bool:
        return bool(self._fitted[0].any() or self._arrived[0].any())

    def _score(
        self,
        front: NDArray[np.intp],
        behind: NDArray[np.intp],
        sources: NDArray[np.intp],
        *,
        but: int = 0,
    ) -> NDArray[np.float64]:
        """Return the bits of a question that is either in front or not, shape (n_shapes,).

        Parameters
        ----------
        front, behind, sources
            Of entries.
        but
            1 to leave the first of them out of the counts.
        """
        scores = []
        with_new = self._fitted + self._arrived
        # What nobody has vouched for may make questions rarer, not more usual.
        for counts in [self._fitted, with_new] if self._fitted[0].any() else [with_new]:
            usual, further = np.where(self._doubtful, 0, counts[0]), counts[1]
            if but:
                further = further.copy()
                for table, shape in ((usual, front), (further, behind)):
                    table[tuple(shape[0])] = max(0, table[tuple(shape[0])] - 1)
            bits = _bits(front, usual) + self._source_bits(front[:, 0] != NONE, sources, but)
            others = _bits(behind, further, further=True) + np.log2(_ATTACK_FURTHER)
            scores.append(np.logaddexp2(bits, others))
        return np.asarray(np.max(scores, axis=0), dtype=np.float64)

    def _source_bits(
        self, asks: NDArray[np.bool_], sources: NDArray[np.intp], but: int
    ) -> NDArray[np.float64]:
        """Return how much rarer opening with a question is in its source than everywhere."""
        this = but * np.column_stack([np.ones_like(asks), asks])
        n_all, n_all_asking = (self._sources.sum(axis=0) - this).T
        n, n_asking = (self._sources[sources] - this).T
        share = (n_all_asking + 1.0) / (n_all + 2.0)
        here = (n_asking + _SOURCE_WORTH * share) / (n + _SOURCE_WORTH)
        return np.asarray(np.where(asks, np.log2(share / here), 0.0), dtype=np.float64)


def _bits(
    shapes: NDArray[np.intp], counts: NDArray[np.int64], *, further: bool = False
) -> NDArray[np.float64]:
    """Return log2 of P(shape | attack) / P(shape | knowledge base), shape (n_shapes,)."""
    kind = shapes[:, 0]
    prior, attacks = _PRIOR_GLUED, _ATTACK_GLUED
    if further:
        prior, attacks = _PRIOR_LAST, np.full(len(KINDS), _ATTACK_LAST)
    each = np.ones((len(KINDS), 1))
    traits = (  # in the order of the axes
        (_binary(_PRIOR_LOWER), _binary(_ATTACK_LOWER)),
        (_binary(prior), _binary(attacks)),
        (_ATTACK_ABOUT, _ATTACK_ABOUT * each),
        (_PRIOR_PLACE, _ATTACK_PLACE * each),
        (_PRIOR_FOCUS, _ATTACK_FOCUS * each),
    )
    axes = range(1, len(_SHAPE))
    known = _smoothed(counts.sum(axis=tuple(axes)), _PRIOR_KIND)[kind]
    ratio = _ATTACK_KIND[kind] / known
    for axis, (usual, assumed) in zip(axes, traits, strict=True):
        table = counts.sum(axis=tuple({*axes} - {axis}))
        # Of a kind that is rare in the knowledge base, traits are taken to be as everywhere in it,
        # but for what it asks for: sentences that are no questions have other words that ask.
        others_too = axis <= _GLUED and not further
        pooled = _smoothed(table[0 if others_too else NONE + 1 :].sum(axis=0), usual)
        trait = shapes[:, axis]
        known = _smoothed(table, usual if axis == _ABOUT else pooled)[kind, trait]
        more = np.minimum(assumed[kind, trait] / known, _MOST.get(axis, np.inf))
        # Where nothing is asked, how a text begins says nothing about a question.
        ratio = ratio * np.where(kind != NONE, more, 1.0)
    return np.asarray(np.log2(ratio), dtype=np.float64)


def _binary(share: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of what lacks a trait and of what has it, along the last axis."""
    return np.stack([1.0 - np.asarray(share), np.asarray(share)], axis=-1)


def _add(tables: NDArray[np.int64], shapes: Sequence[NDArray[np.intp]], sign: int) -> None:
    """Count shapes in front and behind into the two tables."""
    for table, some in zip(tables, shapes, strict=True):
        np.add.at(table, tuple(some.T), sign)


def _sources(batch: Batch) -> NDArray[np.intp]:
    """Return a number for each entry's source, shape (n_entries,)."""
    names = getattr(batch, "sources", (None,) * len(batch))
    return np.array([crc32((name or "").encode()) % _N_SOURCES for name in names], dtype=np.intp)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, drawn to the prior where little was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _shape(found: Opening, *, further: bool = False) -> tuple[int, ...]:
    apart = found.last if further else found.glued
    return found.kind, int(found.lower), int(apart), found.about, found.place, found.focus


def _shapes(text: str) -> tuple[int, ...]:
    """Return the shapes of what a text opens with and of the question behind that, as one."""
    opening = opening_of(text)
    return *_shape(opening), *_shape(further_of(text, opening), further=True)


_remembered = Remembered(_shapes)


def _questions(batch: Batch) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return what entries open with, and the questions behind that, (n_entries, n_traits) each."""
    both = np.array([*map(_remembered, batch.texts)], dtype=np.intp).reshape(-1, 2 * _N_TRAITS)
    return both[:, :_N_TRAITS], both[:, _N_TRAITS:]
