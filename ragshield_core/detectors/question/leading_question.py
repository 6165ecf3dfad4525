"""Entries that put a question to themselves and answer it, where entries do not usually do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, DoubtsSample, Evidence, Need, Traits, as_others
from ragshield_core.detectors.question.question_words import ABOUT
from ragshield_core.detectors.question.questions import (
    ECHO,
    ELSEWHERE,
    EMBEDDED,
    INDIRECT,
    KINDS,
    MARKED,
    MARKED_OTHER,
    NONE,
    PHRASE,
    PLACES,
    TITLE,
    UNMARKED,
    VERB_FIRST,
    WEAK,
    Opening,
    inside_of,
    opening_of,
)
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError
from ragshield_core.model.findings import BESIDE, printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS
from ragshield_core.text.readings import SMALL_REMEMBERED, Remembered

# How often an entry that was made for a question is of each kind, and, of that kind, starts in
# lower case and runs into its answer without a space ("...?.The"). Broad guesses, not fitted to any
# attack: each trait is about as likely as not, so that an attacker who avoids it gains a bit and no
# more.
_ATTACK_KIND = np.array([0.02, 0.03, 0.01, 0.02, 0.02, 0.05, 0.2, 0.06, 0.5, 0.05, 0.03])
_ATTACK_LOWER = np.array([0.5, 1.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.2, 0.25, 0.5, 0.05])
_ATTACK_GLUED = np.array([0.5, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.3, 0.3, 0.4, 0.1])
# What an attack wants believed is a fact, so that it seldom asks why, how or what something is, as
# headings and answers to frequent questions do; a way to ask that is rare in the knowledge base
# counts two bits at most. Mostly it asks once, in front. The answer repeats what is asked, so that
# a model sees that it is one; of a question in front the whole text is the answer, repeated or not.
_ATTACK_ABOUT = np.array([0.08, 0.1, 0.18, 0.13, 0.1, 0.1, 0.04, 0.06, 0.09, 0.12])
_ATTACK_PLACE = np.array([0.88, 0.12])
_ATTACK_ECHO = np.array([0.2, 0.03, 0.03, 0.03, 0.17, 0.05, 0.2, 0.07, 0.22])
_ATTACK_ECHO_INSIDE = np.array([0.1, 0.04, 0.03, 0.04, 0.19, 0.06, 0.23, 0.07, 0.24])
# A planted question may be about the topic of its text, but mostly it is about something else. The
# first step, of texts too short to tell, says nothing.
_ATTACK_ELSEWHERE = np.array([0.0, 0.55, 0.2, 0.1, 0.15])
# What is assumed of a knowledge base before anything is known of it, and how many entries that
# assumption is worth.
_PRIOR_KIND = np.array([0.87, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01])
_PRIOR_LOWER, _PRIOR_GLUED = 0.05, 0.01
_PRIOR_ABOUT = _ATTACK_ABOUT
_PRIOR_PLACE = np.array([0.4, 0.6])
_PRIOR_ECHO = np.array([0.45, 0.15, 0.1, 0.08, 0.07, 0.05, 0.04, 0.03, 0.03])
_PRIOR_ELSEWHERE = np.array([0.0, 0.03, 0.07, 0.15, 0.75])
_WORTH = 10.0
# How often nothing follows a question that stands further down, which is as likely as in front; and
# in clean entries.
_ATTACK_LAST, _PRIOR_LAST = 0.2, 0.2
# From this step on, what follows a question answers it.
_ANSWERED = 4
# Sources, by a hash, and how many entries of a source weigh as much as the whole knowledge base in
# how usual questions are there.
_N_SOURCES, _SOURCE_WORTH = 1_024, 50.0
# Counts of a source: entries, openings that ask, sentences behind openings, and those of them that
# ask, without an answer and with one.
_ENTRIES, _OPENED, _PIECES, _WITHOUT, _WITH_ANSWER = range(_N_COUNTS := 5)

# Axes of the counts.
_LOWER, _GLUED, _ABOUT, _PLACE, _ECHO, _ELSEWHERE = 1, 2, 3, 4, 5, 6
_SHAPE = (len(KINDS), 2, 2, len(ABOUT), len(PLACES), ECHO, len(ELSEWHERE) + 2)
_N_TRAITS = len(_SHAPE)
_STATE = ("fitted", "arrived", "sources", "doubtful")
# A trait or kind that the knowledge base lacks counts so much at most, however large it is. Sure
# kinds of questions count more, and all count more inside a text, where each sentence has a small
# share of it. What only may be a question, such as a clause with "when", mostly is none.
_MOST = {_ABOUT: 4.0, _ECHO: 64.0}
# An attacker who begins as entries of the knowledge base do gains a bit by it, and no more.
_LEAST = {_LOWER: 0.5, _GLUED: 0.5}
_MOST_IN_FRONT = np.array([32.0, 32, 128, 32, 8, 32, 64, 128, 128, 32, 32])
_MOST_INSIDE = np.array([32.0, 32, 256, 32, 8, 32, 256, 256, 256, 32, 32])


class _Trait(NamedTuple):
    """What is assumed of a trait of questions."""

    usual: NDArray[np.float64]  # (n_values,): shares in a knowledge base
    attack: NDArray[np.float64]  # (n_kinds, n_values): shares in attacks
    says: NDArray[np.bool_]  # (n_kinds, n_values): whether it says anything


def _traits(*, inside: bool) -> list[_Trait]:
    """Return what is assumed of questions in front of a text, or inside, by axis from the first."""

    def binary(share: float | NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([1.0 - np.asarray(share), np.asarray(share)], axis=-1)

    # Kinds of which a trait says nothing, because only then they are taken for questions: a start
    # in lower case; behind an opening, that nothing follows; that words come back.
    loose = (PHRASE, EMBEDDED, INDIRECT)
    last = (*loose, WEAK, VERB_FIRST) if inside else ()
    listed = [
        (binary(_PRIOR_LOWER), binary(_ATTACK_LOWER), loose),
        (binary(_PRIOR_LAST), binary(_ATTACK_LAST), last)
        if inside
        else (binary(_PRIOR_GLUED), binary(_ATTACK_GLUED), last),
        (_PRIOR_ABOUT, _ATTACK_ABOUT, ()),
        (_PRIOR_PLACE, _ATTACK_PLACE, range(len(KINDS)) if inside else ()),
        (_PRIOR_ECHO, _ATTACK_ECHO_INSIDE if inside else _ATTACK_ECHO, (PHRASE, INDIRECT)),
        (_PRIOR_ELSEWHERE, _ATTACK_ELSEWHERE, ()),
    ]
    found = []
    for usual, attack, silent in listed:
        says = np.ones((len(KINDS), len(usual)), dtype=np.bool_)
        # Where nothing is asked, how a text begins says nothing about a question.
        says[[NONE, *silent]] = False
        found.append(_Trait(usual, np.broadcast_to(attack, says.shape), says))
    found[_ELSEWHERE - 1].says[:, 0] = False
    return found


_IN_FRONT, _INSIDE = _traits(inside=False), _traits(inside=True)

# Malformed questions that make up so large a share of a sample that nobody has vouched for are
# taken for poison: fewer hardly change what is usual, more are the habit of those who write there.
DOUBTFUL = (0.0075, 0.03)
# Phrases and indirect questions always start in lower case: chunks that begin in mid-sentence do.
_DOUBTED = (EMBEDDED, UNMARKED, MARKED_OTHER, MARKED, VERB_FIRST)

# Kinds that ask for sure. A line beside a text is read as a question if its opening is of such a
# kind and takes most of the line. Longer lines and later ones are not looked at.
_SURE = (TITLE, UNMARKED, MARKED_OTHER, MARKED)
_MOST_OF_LINE, _LONGEST_LINE, _LINES = 0.6, 400, 100

_Totals = list[NDArray[np.int64]]  # how often each trait was counted, by axis


def _shapes(text: str) -> tuple[tuple[int, ...], int, tuple[tuple[int, ...], ...]]:
    """Return the shape of what a text opens with, how many sentences follow, and what these ask."""

    def shape(found: Opening, apart: bool, place: int) -> tuple[int, ...]:  # noqa: FBT001
        lower, glued = int(found.lower), int(apart)
        return (found.kind, lower, glued, found.about, place, found.echo, found.elsewhere)

    opening = opening_of(text)
    n_pieces, asked = inside_of(text, opening)
    behind = tuple(shape(found, found.last, 0) for found in asked)
    return shape(opening, opening.glued, opening.place), n_pieces, behind


_remembered = Remembered(_shapes, SMALL_REMEMBERED)


class LeadingQuestionDetector(DoubtsSample, Detector):
    """Look for entries that put a question to themselves and answer it.

    Black-box PoisonedRAG puts the question it is aimed at before the text that answers it wrongly,
    so that the entry is retrieved for that question. Whether that is strange depends on the
    knowledge base: entries of a FAQ open with questions, articles of an encyclopaedia do not.

    The score is a likelihood ratio in bits: how much likelier the opening, or a question further
    down, is for an entry made for a question than for an entry of the knowledge base. Of a question
    the detector reads the kind (with a question mark, by its question word, ...), whether it starts
    in lower case, whether no space sets it apart, how many of its words come back in the text
    behind it, and how much of it and its answer stands elsewhere in the text. It counts in the
    knowledge base how usual each of these is: by entry for openings, and by sentence for the rest,
    so that a question in a long text counts as much as among as many sentences of others. The
    assumptions about attacks are broad, so that none of these traits is needed. English works best;
    German, French, Spanish, Italian, Portuguese, Russian, Chinese and any language that has
    question marks work too.

    A question beside the text, such as a title or a file name in metadata, is embedded and read
    with it: it counts as if it stood in front of the text.

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
    default_threshold: float = 5.0
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        # In a knowledge base that never asks, any question would be rare: 32 times likelier, at
        # least.
        floor=5.0,
        acts_unfitted=False,
        reads_contexts=True,
        reads=(_remembered,),
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every opening."""
        # Of fitted entries and of those that came since: openings, and sentences behind them.
        self._fitted = np.zeros((2, *_SHAPE), dtype=np.int64)
        self._arrived = np.zeros_like(self._fitted)
        # Counts of fitted entries, by source.
        self._sources = np.zeros((_N_SOURCES, _N_COUNTS), dtype=np.int64)
        self._doubtful = np.zeros(_SHAPE, dtype=np.bool_)
        self._totals: list[tuple[_Totals, _Totals]] | None = None

    def fit(self, reference: Batch) -> Self:
        """Count what entries of the knowledge base open with."""
        self.reset()
        read = _read(reference)
        read.add_to(self._fitted, 1)
        np.add.at(self._sources, read.sources, read.counts())
        return self

    def learn(self, entries: Batch) -> None:
        """Count what new entries open with; they make no question more usual."""
        _read(entries).add_to(self._arrived, 1)
        self._totals = None

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out of the counts."""
        read = _read(entries)
        # What was never learned cannot be taken off.
        known = (self._fitted + self._arrived)[0][tuple(read.front.T)] > 0
        read.take(np.flatnonzero(known)).add_to(self._arrived, -1)
        # Of what did not come since, there is less than nothing now.
        self._fitted = np.maximum(self._fitted + np.minimum(self._arrived, 0), 0)
        np.maximum(self._arrived, 0, out=self._arrived)
        self._totals = None

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
        return self._score(_read(batch))

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries open with malformed questions that are rare; count these no more."""
        shapes = np.argwhere(self._fitted[0] > 0)
        shapes = shapes[np.isin(shapes[:, 0], _DOUBTED) & (shapes[:, 1:3] == 1).any(axis=1)]
        sample = tuple(_read(reference).front.T)
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
        self._doubtful, self._totals = doubtful, None
        return np.asarray(doubtful[sample])

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which entries open with the malformed questions that count no more."""
        return np.asarray(self._doubtful[tuple(_read(entries).front.T)])

    def _malformed(self, shapes: NDArray[np.intp], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which shapes are suspicious where neither their like nor known ones are counted.

        Their like are of the same kind, and as malformed.
        """
        found = known.copy()
        for kind, lower, glued in np.unique(shapes[:, :3], axis=0):
            like = shapes[(shapes[:, :3] == (kind, lower, glued)).all(axis=1)]
            rest = np.where(known, 0, self._fitted[0])
            rest[kind, lower, glued] = 0
            found[tuple(like.T)] |= _bits(like, _totals(rest)) > self.default_threshold
        return found

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of the fitted entries, each by the counts without it."""
        read, scores = _read(fitted), np.empty(len(fitted))
        asks = np.bincount(read.owners, minlength=len(fitted)) > 0
        # Where nothing is asked behind the opening, only that tells entries apart.
        same: dict[tuple[int, ...], list[int]] = {}
        for row, front in enumerate(read.front):
            alone = row if asks[row] else -1
            same.setdefault((alone, read.sources[row], *front), []).append(row)
        for rows in same.values():
            scores[rows] = self._score(read.take(rows[:1]), but=True)[0]
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, how usual its kind is, and how much of it comes back."""
        return [self._evidence(batch, row) for row in rows]

    def _evidence(self, batch: Batch, row: int) -> Evidence:
        asked = _asked_beside(batch.contexts[row])
        text = asked + batch.texts[row]
        opening = opening_of(text)
        _, asked_inside = inside_of(text, opening)
        read = _read(batch.take([row]))
        found, table, verb, known = opening, self._fitted[0], "opens with", "entries"
        if asked_inside:
            front_usual, inside_usual = self._usual()[0]
            each = _inside_bits(read, inside_usual, self._sources)
            if each.max() > _front_bits(read, front_usual, self._sources)[0]:
                found, table = asked_inside[int(np.argmax(each))], self._fitted[1]
                verb, known = "holds, behind its opening,", "sentences"
        # Those that do all that the sentence says.
        lower = slice(int(found.lower), None)
        glued = slice(int(found is opening and found.glued), None)
        n, alike = int(table.sum()), int(table[found.kind, lower, glued, ..., found.echo :].sum())
        start, end = found.span
        back = f"takes up {found.n_back} of its {found.n_words} words again"
        more = [back] if found.n_back else []
        more += ["begins in lower case"] if found.lower else []
        more += ["runs into the next sentence"] if found is opening and found.glued else []
        more += ["ends the text"] if found.last else []
        quoted = f'"{printable(text[start:end], 80)}"'
        traits = [f"it {verb} {KINDS[found.kind]}, {quoted}", *more, as_others(alike, n, known)]
        sentence = ", ".join(traits)
        if start < len(asked):
            return Evidence(sentence=f"{BESIDE}: {sentence}")
        span = (start - len(asked), end - len(asked))
        return Evidence(sentence=sentence, span=span if end > start else None)

    @property
    def _is_fitted(self) -> bool:
        return bool(self._fitted[0].any() or self._arrived[0].any())

    def _score(self, read: _Read, *, but: bool = False) -> NDArray[np.float64]:
        """Return the bits of a question that is either in front or not, shape (n_entries,).

        ``but`` leaves them out of the counts; of one entry only.
        """
        usual, by_source, scores = self._usual(), self._sources, []
        if but:
            n_plain = int(read.n_pieces.sum()) - len(read.behind)
            usual = [
                (_less(front, read.front), _less(inside, read.behind, n_plain))
                for front, inside in usual
            ]
            by_source = by_source.copy()
            by_source[read.sources] -= read.counts()
        for front, inside in usual:
            bits = _front_bits(read, front, by_source)
            np.logaddexp2.at(bits, read.owners, _inside_bits(read, inside, by_source))
            scores.append(bits)
        return np.asarray(np.max(scores, axis=0), dtype=np.float64)

    def _usual(self) -> list[tuple[_Totals, _Totals]]:
        """Return what is usual in front and inside: in what was fitted, and with what came since.

        Entries that nobody has vouched for may make questions rarer, not more usual.
        """
        if self._totals is None:
            tables = [self._fitted] if self._fitted[0].any() else []
            if self._arrived.any() or not tables:
                tables.append(self._fitted + self._arrived)
            doubtful = self._doubtful
            self._totals = [
                (_totals(np.where(doubtful, 0, front)), _totals(inside)) for front, inside in tables
            ]
        return self._totals


class _Read(NamedTuple):
    """The questions of entries: openings, and those behind them."""

    front: NDArray[np.intp]  # (n_entries, n_traits)
    n_pieces: NDArray[np.intp]  # (n_entries,) sentences behind openings
    sources: NDArray[np.intp]  # (n_entries,) a number for each source
    behind: NDArray[np.intp]  # (n_questions, n_traits)
    owners: NDArray[np.intp]  # (n_questions,) the entry of each, ascending

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> _Read:
        """Return some of the entries, which are ascending."""
        owned = np.isin(self.owners, rows)
        owners = np.searchsorted(rows, self.owners[owned])
        return _Read(
            self.front[rows], self.n_pieces[rows], self.sources[rows], self.behind[owned], owners
        )

    def counts(self) -> NDArray[np.int64]:
        """Return the counts of each entry for its source, shape (n_entries, 5)."""
        found = np.zeros((len(self.front), _N_COUNTS), dtype=np.int64)
        found[:, _ENTRIES], found[:, _OPENED] = 1, self.front[:, 0] != NONE
        found[:, _PIECES] = self.n_pieces
        np.add.at(found, (self.owners, _WITHOUT + _answered(self.behind)), 1)
        return found

    def add_to(self, tables: NDArray[np.int64], sign: int) -> None:
        """Count what is asked in front and behind that into the two tables."""
        np.add.at(tables[0], tuple(self.front.T), sign)
        np.add.at(tables[1], tuple(self.behind.T), sign)
        tables[1].flat[NONE] += sign * (int(self.n_pieces.sum()) - len(self.behind))


def _front_bits(read: _Read, usual: _Totals, by_source: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bits of each opening, shape (n_entries,)."""
    rarer = _rarer(by_source[:, _ENTRIES], by_source[:, _OPENED], read.sources, _SOURCE_WORTH)
    return _bits(read.front, usual) + np.where(read.front[:, 0] != NONE, rarer, 0.0)


def _inside_bits(read: _Read, usual: _Totals, by_source: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bits of each question behind an opening, shape (n_questions,).

    An attack adds one question, at any place. Among as many sentences, so many questions like it
    are usual anyway: a long text is not more suspicious for being long.
    """
    if not len(read.owners):
        return np.zeros(0)
    pieces, at = by_source[:, _PIECES], read.sources[read.owners]
    worth = _SOURCE_WORTH * (pieces.sum() + 1.0) / (by_source[:, _ENTRIES].sum() + 1.0)
    with_answer, without = (
        _rarer(pieces, by_source[:, column], at, worth) for column in (_WITH_ANSWER, _WITHOUT)
    )
    bits = _bits(read.behind, usual, inside=True)
    bits += np.where(_answered(read.behind), with_answer, without)
    return np.asarray(bits - np.log2(read.n_pieces[read.owners]), dtype=np.float64)


def _rarer(
    n_all: NDArray[np.int64],
    n_asking: NDArray[np.int64],
    sources: NDArray[np.intp],
    worth: float,
) -> NDArray[np.float64]:
    """Return how much rarer asking is in each source than everywhere, in bits.

    Counts are by source; as many of a source as ``worth`` weigh as much as all sources together.
    """
    share = (n_asking.sum() + 1.0) / (n_all.sum() + 2.0)
    here = (n_asking[sources] + worth * share) / (n_all[sources] + worth)
    return np.asarray(np.log2(share / here), dtype=np.float64)


def _bits(
    shapes: NDArray[np.intp], totals: _Totals, *, inside: bool = False
) -> NDArray[np.float64]:
    """Return log2 of P(shape | attack) / P(shape | knowledge base), shape (n_shapes,)."""
    kind = shapes[:, 0]
    most = (_MOST_INSIDE if inside else _MOST_IN_FRONT)[kind]
    ratio = np.minimum(_ATTACK_KIND[kind] / _smoothed(totals[0], _PRIOR_KIND)[kind], most)
    for axis, assumed in enumerate(_INSIDE if inside else _IN_FRONT, 1):
        table, row, trait, first = totals[axis], kind, shapes[:, axis], NONE + 1
        if axis == _ELSEWHERE:  # of texts that are long enough to tell
            table, row, first = table * (np.arange(table.shape[1]) > 0), _answered(shapes), 0
        elif axis <= _GLUED and not inside:
            first = 0
        # Of a kind that is rare in the knowledge base, traits are taken to be as everywhere in it,
        # but for what it asks for: sentences that are no questions have other words that ask.
        pooled = _smoothed(table[first:].sum(axis=0), assumed.usual)
        known = _smoothed(table, assumed.usual if axis == _ABOUT else pooled)[row, trait]
        says = assumed.says[kind, trait]
        more = assumed.attack[kind, trait] / np.where(says, known, 1.0)
        ratio = ratio * np.where(
            says, np.clip(more, _LEAST.get(axis, 0.0), _MOST.get(axis, np.inf)), 1.0
        )
    return np.asarray(np.log2(ratio), dtype=np.float64)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, drawn to the prior where little was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _totals(counts: NDArray[np.int64]) -> _Totals:
    """Return how often each kind was counted, and for each axis behind that, each trait of it."""
    axes = range(1, _N_TRAITS)
    found = [counts.sum(axis=tuple(axes))]
    found += [counts.sum(axis=tuple({*axes} - {axis})) for axis in axes[:-1]]
    # An answered question keeps to the topic of its text, whichever its kind.
    by_echo = counts[NONE + 1 :].sum(axis=(NONE, *axes[: _ECHO - 1]))
    found.append(np.stack([by_echo[:_ANSWERED].sum(axis=0), by_echo[_ANSWERED:].sum(axis=0)]))
    return found


def _less(totals: _Totals, shapes: NDArray[np.intp], n_plain: int = 0) -> _Totals:
    """Return what is left without some shapes, and so many sentences that ask nothing."""
    left = [table.copy() for table in totals]
    np.subtract.at(left[0], shapes[:, 0], 1)
    left[0][NONE] -= n_plain
    for axis in range(1, _ELSEWHERE):
        np.subtract.at(left[axis], (shapes[:, 0], shapes[:, axis]), 1)
        left[axis][NONE, 0] -= n_plain
    asks = shapes[shapes[:, 0] != NONE]
    np.subtract.at(left[_ELSEWHERE], (_answered(asks), asks[:, _ELSEWHERE]), 1)
    return [np.maximum(table, 0) for table in left]


def _answered(shapes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return 1 for each question whose words come back in an answer, else 0."""
    return (shapes[:, _ECHO] >= _ANSWERED).astype(np.intp)


# Reading


def _asked_beside(context: str | None) -> str:
    """Return the questions beside a text, a line each: they are embedded in front of it."""
    asked = ""
    for line in (context or "").split("\n")[:_LINES]:
        if len(line) > _LONGEST_LINE:
            continue
        _, _, value = line.partition(": ")
        for part in filter(None, (value.strip(), line.strip())):
            opening = opening_of(part)
            start, end = opening.span
            if opening.kind in _SURE and end - start >= _MOST_OF_LINE * len(part):
                asked += f"{part[start:end]}\n"
                break
    return asked


def _read(batch: Batch) -> _Read:
    """Return what entries ask."""
    asked = map(_asked_beside, batch.contexts)
    found = [_remembered(before + text) for before, text in zip(asked, batch.texts, strict=True)]
    behind = [(row, shape) for row, (_, _, asked) in enumerate(found) for shape in asked]
    sources = [crc32((name or "").encode()) % _N_SOURCES for name in batch.sources]
    return _Read(
        np.array([front for front, _, _ in found], dtype=np.intp).reshape(-1, _N_TRAITS),
        np.array([n_pieces for _, n_pieces, _ in found], dtype=np.intp),
        np.array(sources, dtype=np.intp),
        np.array([shape for _, shape in behind], dtype=np.intp).reshape(-1, _N_TRAITS),
        np.array([row for row, _ in behind], dtype=np.intp),
    )
