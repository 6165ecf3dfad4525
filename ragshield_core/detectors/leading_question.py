"""Entries that put a question to themselves and answer it, where entries do not usually do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Need
from ragshield_core.entries import Batch
from ragshield_core.errors import NotFittedError
from ragshield_core.findings import printable
from ragshield_core.text.questions import KINDS, NONE, Opening, further_of, may_ask, opening_of
from ragshield_core.text.readings import Readings

# How often an entry that was made for a question is of each kind, and, of that kind, starts in
# lower case, runs into its answer without a space ("...?.The"), and repeats the words of its
# question. Broad guesses, not fitted to any attack: each trait is about as likely as not, so that
# an attacker who avoids it gains a bit and no more.
_ATTACK_KIND = np.array([0.02, 0.04, 0.01, 0.06, 0.06, 0.1, 0.2, 0.1, 0.4, 0.05])
_ATTACK_LOWER = np.array([0.5, 1.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.2, 0.25, 0.5])
_ATTACK_GLUED = np.array([0.5, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.3, 0.3, 0.4])
_ATTACK_ECHO = np.array([0.1, 0.13, 0.17, 0.25, 0.2, 0.15])
# What is assumed of a knowledge base before anything is known of it, and how many entries that
# assumption is worth.
_PRIOR_KIND = np.array([0.88, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005])
_PRIOR_LOWER, _PRIOR_GLUED = 0.05, 0.01
_PRIOR_ECHO = np.array([0.25, 0.25, 0.25, 0.12, 0.08, 0.05])
_WORTH = 10.0
# How often such an entry has its question further down, for each that opens with it; how often
# nothing follows then, and in clean entries.
_ATTACK_FURTHER, _ATTACK_LAST, _PRIOR_LAST = 0.3, 0.6, 0.2
# Of what is known, at least so much has to be counted before further questions are judged: early
# versions counted openings alone.
_COUNTED = 0.5

# Malformed questions that make up so large a share of a sample that nobody has vouched for are
# taken for poison: fewer hardly change what is usual, more are the habit of those who write there.
DOUBTFUL = (0.0075, 0.03)


class LeadingQuestionDetector(Detector):
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
    By default more than 5 bits are suspicious, which is 32 times likelier; nothing up to 0 bits is
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

    kind: ClassVar[str] = "leading_question"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = ("AML.T0070", "AML.T0066", "LLM04:2025", "LLM05:2026")
    in_pieces = True

    default_threshold: float = 5.0
    floor: float = 0.0
    acts_unfitted = False

    def __init__(self) -> None:
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return nothing: there is nothing to choose."""
        return {}

    def reset(self) -> None:
        """Forget every opening."""
        self._counts = np.zeros((len(KINDS), 2, 2, len(_ATTACK_ECHO)), dtype=np.int64)
        self._further = np.zeros_like(self._counts)
        self._doubtful = np.zeros(self._counts.shape, dtype=np.bool_)

    def learn(self, entries: Batch) -> None:
        """Count what entries open with."""
        self._add(entries, 1)

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out of the counts."""
        self._add(entries, -1)

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while nothing is known of how entries usually open."""
        if self._counts.any():
            return {}
        return dict.fromkeys(range(len(batch)), "no entry of a knowledge base was learned yet")

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts."""
        arrays = {"counts": self._counts, "further": self._further, "doubtful": self._doubtful}
        return {}, {name: array.copy() for name, array in arrays.items()}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Take over the counts."""
        self.reset()
        # Early versions looked at openings alone, knew fewer kinds, and doubted nothing.
        for name, table in (
            ("counts", self._counts),
            ("further", self._further),
            ("doubtful", self._doubtful),
        ):
            if name in arrays:
                known = np.asarray(arrays[name]).reshape(-1, *table.shape[1:])
                table[: len(known)] = known

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return how much likelier each opening is for poison, in bits, shape (n_entries,)."""
        self._check_fitted()
        openings, further = _questions(batch)
        return self._either(openings, self._usual, further, self._further)

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries open with malformed questions that are rare; count these no more."""
        shapes = np.argwhere(self._counts > 0)
        kind, lower, glued, _ = shapes.T
        shapes = shapes[(kind != NONE) & ((lower == 1) | (glued == 1))]
        sample = tuple(_questions(reference)[0].T)
        doubtful = self._malformed(shapes, np.zeros(self._counts.shape, dtype=np.bool_))
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
        """Return which shapes are suspicious where neither they nor known ones are counted."""
        found = known.copy()
        for shape in shapes:
            rest = np.where(known, 0, self._counts)
            rest[tuple(shape)] = 0
            found[tuple(shape)] |= self._bits(shape[None], rest)[0] > self.default_threshold
        return found

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of the fitted entries, each by the counts without it."""
        both = np.concatenate(_questions(fitted), axis=1)
        shapes, inverse = np.unique(both, axis=0, return_inverse=True)
        scores = np.empty(len(shapes))
        for i, shape in enumerate(shapes):
            opening, further = shape[:4], shape[4:]
            tables = self._usual, self._further.copy()
            for table, of in zip(tables, (opening, further), strict=True):
                table[tuple(of)] = max(0, table[tuple(of)] - 1)
            scores[i] = self._either(opening[None], tables[0], further[None], tables[1])[0]
        return scores[inverse.reshape(-1)]

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, how usual its kind is, and how much of it comes back."""
        return [self._evidence(batch.texts[row]) for row in rows]

    def _evidence(self, text: str) -> Evidence:
        opening = opening_of(text)
        further = further_of(text, opening)
        shapes = np.array([_shape(opening)]), np.array([_shape(further, further=True)])
        score = self._either(shapes[0], self._usual, shapes[1], self._further)[0]
        found, table, verb = opening, self._counts, "opens with"
        if self._judges_further and (
            self._bits(shapes[1], self._further, further=True)[0]
            > self._bits(shapes[0], self._usual)[0]
        ):
            found, table, verb = further, self._further, "holds, behind its opening,"
        n, alike = int(table.sum()), int(table[found.kind].sum())
        start, end = found.span
        traits = [KINDS[found.kind]]
        traits += ["starts in lower case"] if found.lower else []
        traits += ["runs into the next sentence"] if found is opening and found.glued else []
        traits += ["ends the text"] if found.last else []
        back = f"{found.n_back} of {found.n_words} of its words come back, "
        sentence = (
            f"{verb} {', '.join(traits)}, as {alike} of {n} known entries do, "
            f"{back if found.n_words else ''}score {score:.1f} bits: "
            f'"{printable(text[start:end], 80)}"'
        )
        return Evidence(sentence=sentence, span=found.span if end > start else None)

    @property
    def _usual(self) -> NDArray[np.int64]:
        """Counts of what is not in doubt; a copy."""
        return np.where(self._doubtful, 0, self._counts)

    def _check_fitted(self) -> None:
        if not self._counts.any():
            msg = f"{self.name} has learned no entry yet; fit it on the knowledge base first."
            raise NotFittedError(msg)

    def _add(self, entries: Batch, sign: int) -> None:
        openings, further = _questions(entries)
        if sign < 0:  # what was never learned cannot be taken off
            learned = self._counts[tuple(openings.T)] > 0
            openings, further = openings[learned], further[learned]
        for table, shapes in ((self._counts, openings), (self._further, further)):
            np.add.at(table, tuple(shapes.T), sign)
            np.maximum(table, 0, out=table)

    @property
    def _judges_further(self) -> bool:
        return bool(self._further.sum() >= _COUNTED * self._counts.sum())

    def _either(
        self,
        openings: NDArray[np.intp],
        usual: NDArray[np.int64],
        further: NDArray[np.intp],
        usual_further: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the bits of a question that is either in front or not, shape (n_shapes,)."""
        in_front = self._bits(openings, usual)
        if not self._judges_further:
            return in_front
        behind = self._bits(further, usual_further, further=True)
        return np.asarray(np.logaddexp2(in_front, behind + np.log2(_ATTACK_FURTHER)))

    @staticmethod
    def _bits(
        shapes: NDArray[np.intp], counts: NDArray[np.int64], *, further: bool = False
    ) -> NDArray[np.float64]:
        """Return log2 of P(shape | attack) / P(shape | knowledge base), shape (n_shapes,)."""
        kind, lower, apart, echo = shapes.T
        prior, attacks = _PRIOR_GLUED, _ATTACK_GLUED
        if further:
            prior, attacks = _PRIOR_LAST, np.full(len(KINDS), _ATTACK_LAST)
        traits = (
            (lower, (2, 3), np.array([1 - _PRIOR_LOWER, _PRIOR_LOWER]), _ATTACK_LOWER),
            (apart, (1, 3), np.array([1 - prior, prior]), attacks),
        )
        asks = kind != NONE
        by_kind = counts.sum(axis=(1, 2, 3))
        known = _smoothed(by_kind, _PRIOR_KIND)[kind]
        attack = _ATTACK_KIND[kind]
        # Of a kind that is rare in the knowledge base, traits are taken to be as everywhere in it.
        for trait, axes, usual, assumed in traits:
            table = counts.sum(axis=axes)
            # Behind the opening there is nothing that could have a trait where nothing is asked.
            everywhere = _smoothed(table[int(further) :].sum(axis=0), usual)
            has = asks | (not further)
            known = known * np.where(has, _smoothed(table, everywhere)[kind, trait], 1.0)
            likely = np.where(trait == 1, assumed[kind], 1 - assumed[kind])
            attack = attack * np.where(has, likely, 1.0)
        table = counts.sum(axis=(1, 2))[1:]
        everywhere = _smoothed(table.sum(axis=0), _PRIOR_ECHO)
        repeated = _smoothed(table, everywhere)[kind - 1, echo]
        known = known * np.where(asks, repeated, 1.0)
        attack = attack * np.where(asks, _ATTACK_ECHO[echo], 1.0)
        return np.asarray(np.log2(attack / known), dtype=np.float64)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, drawn to the prior where little was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _shape(found: Opening, *, further: bool = False) -> tuple[int, ...]:
    return found.kind, int(found.lower), int(found.last if further else found.glued), found.echo


def shapes_in(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the shapes of what texts open with and of the questions behind that, as one each."""
    found = []
    for text, places in zip(texts, may_ask(texts), strict=True):
        opening = opening_of(text)
        further = further_of(text, opening, places)
        found.append((*_shape(opening), *_shape(further, further=True)))
    return found


questions_in = Readings(shapes_in)


def _questions(batch: Batch) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return what entries open with, and the questions behind that, as indices, (n, 4) each."""
    both = np.array(questions_in.of(batch), dtype=np.intp).reshape(-1, 8)
    return both[:, :4], both[:, 4:]
