"""Entries that put a question to themselves and answer it, where entries do not usually do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence, Need, Traits, as_others
from ragshield_core.detectors.base.abilities import DoubtsSample, LearnsPieces
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

# Kinds that have a trait because only then they are taken for questions: behind an opening, that
# nothing follows; that words come back; a start in lower case.
_ONLY_LAST = (PHRASE, WEAK, EMBEDDED, VERB_FIRST, INDIRECT)
_ONLY_ECHOED = (PHRASE, INDIRECT)
_ONLY_LOWER = (PHRASE, EMBEDDED, INDIRECT)
# Axes of the counts.
_LOWER, _GLUED, _ABOUT, _PLACE, _ECHO, _ELSEWHERE = 1, 2, 3, 4, 5, 6
# A trait or kind that the knowledge base lacks counts so much at most, however large it is. Sure
# kinds of questions count more, and all count more inside a text, where each sentence has a small
# share of it. What only may be a question, such as a clause with "when", mostly is none.
_MOST = {_ABOUT: 4.0, _ECHO: 64.0}
_MOST_IN_FRONT = np.array([32.0, 32, 128, 32, 8, 32, 64, 128, 128, 32, 32])
_MOST_INSIDE = np.array([32.0, 32, 256, 32, 8, 32, 256, 256, 256, 32, 32])
# An attacker who begins as entries of the knowledge base do gains a bit by it, and no more.
_LEAST = {_LOWER: 0.5, _GLUED: 0.5}
_SHAPE = (len(KINDS), 2, 2, len(ABOUT), len(PLACES), ECHO, len(ELSEWHERE) + 2)
_N_TRAITS = len(_SHAPE)
_STATE = ("fitted", "arrived", "sources", "doubtful")

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


class LeadingQuestionDetector(LearnsPieces, DoubtsSample):
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
        in_pieces=True,
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
        self.learn_piece(reference)
        return self

    def learn_piece(self, piece: Batch) -> None:
        """Count what entries of the knowledge base open with."""
        read = _read(piece)
        read.add_to(self._fitted, 1)
        self._totals = None
        np.add.at(self._sources, _sources(piece), read.counts())

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
        return self._score(_read(batch), _sources(batch))

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
        read, sources = _read(fitted), _sources(fitted)
        scores = np.empty(len(fitted))
        # Where nothing is asked behind the opening, only that tells entries apart.
        same: dict[tuple[int, ...], list[int]] = {}
        for row, front in enumerate(read.front):
            alone = row if read.numbers[row] else -1
            same.setdefault((alone, sources[row], *front), []).append(row)
        for rows in same.values():
            one = read.take(rows[:1])
            scores[rows] = self._score(one, sources[rows[:1]], but=True)[0]
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, how usual its kind is, and how much of it comes back."""
        return [self._evidence(batch, row) for row in rows]

    def _evidence(self, batch: Batch, row: int) -> Evidence:
        asked = _asked_beside(batch.contexts[row])
        text = asked + batch.texts[row]
        opening = opening_of(text)
        inside = inside_of(text, opening)
        read, source = _read(batch.take([row])), _sources(batch.take([row]))
        found, table, verb, known = opening, self._fitted[0], "opens with", "entries"
        if inside.asked:
            front_usual, inside_usual = self._usual()[0]
            each = _inside_bits(read, source, inside_usual, self._sources)
            if each.max() > _front_bits(read, source, front_usual, self._sources)[0]:
                found, table = inside.asked[int(np.argmax(each))], self._fitted[1]
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

    def _score(
        self, read: _Read, sources: NDArray[np.intp], *, but: bool = False
    ) -> NDArray[np.float64]:
        """Return the bits of a question that is either in front or not, shape (n_entries,).

        Parameters
        ----------
        read, sources
            Of entries.
        but
            Whether to leave them out of the counts: of one only.
        """
        usual, by_source, scores = self._usual(), self._sources, []
        if but:
            usual = [
                (_less(front, read.front), _less(inside, read.behind, read.n_plain))
                for front, inside in usual
            ]
            by_source = by_source.copy()
            by_source[sources] -= read.counts()
        for front, inside in usual:
            bits = _front_bits(read, sources, front, by_source)
            each = _inside_bits(read, sources, inside, by_source)
            np.logaddexp2.at(bits, read.owners, each)
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


def _front_bits(
    read: _Read, sources: NDArray[np.intp], usual: _Totals, by_source: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the bits of each opening, shape (n_entries,)."""
    rarer = _rarer(by_source[:, _ENTRIES], by_source[:, _OPENED], sources, _SOURCE_WORTH)
    rarer = np.where(read.front[:, 0] != NONE, rarer, 0.0)
    return np.asarray(_bits(read.front, usual) + rarer, dtype=np.float64)


def _inside_bits(
    read: _Read, sources: NDArray[np.intp], usual: _Totals, by_source: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the bits of each question behind an opening, shape (n_questions,).

    An attack adds one question, at any place. Among as many sentences, so many questions like it
    are usual anyway: a long text is not more suspicious for being long.
    """
    if not len(read.owners):
        return np.zeros(0)
    pieces, at = by_source[:, _PIECES], sources[read.owners]
    worth = _SOURCE_WORTH * (pieces.sum() + 1.0) / (by_source[:, _ENTRIES].sum() + 1.0)
    rarer = np.where(
        _answered(read.behind),
        _rarer(pieces, by_source[:, _WITH_ANSWER], at, worth),
        _rarer(pieces, by_source[:, _WITHOUT], at, worth),
    )
    bits = _bits(read.behind, usual, further=True) + rarer
    return np.asarray(bits - np.log2(read.n_pieces[read.owners]), dtype=np.float64)


def _rarer(
    n_all: NDArray[np.int64],
    n_asking: NDArray[np.int64],
    sources: NDArray[np.intp],
    worth: float,
) -> NDArray[np.float64]:
    """Return how much rarer asking is in a source than everywhere, in bits, shape (n_sources,).

    Parameters
    ----------
    n_all, n_asking
        By source.
    sources
        Which ones.
    worth
        How many of a source weigh as much as all sources together.
    """
    share = (n_asking.sum() + 1.0) / (n_all.sum() + 2.0)
    here = (n_asking[sources] + worth * share) / (n_all[sources] + worth)
    return np.asarray(np.log2(share / here), dtype=np.float64)


class _Read(NamedTuple):
    """The questions of entries: openings, and those behind them."""

    front: NDArray[np.intp]  # (n_entries, n_traits)
    n_pieces: NDArray[np.intp]  # (n_entries,) sentences behind openings
    numbers: NDArray[np.intp]  # (n_entries,) of questions among them
    behind: NDArray[np.intp]  # (n_questions, n_traits), entry after entry
    ends: NDArray[np.intp]  # (n_entries,) where those of an entry end

    @classmethod
    def of(
        cls,
        front: NDArray[np.intp],
        n_pieces: NDArray[np.intp],
        numbers: NDArray[np.intp],
        behind: NDArray[np.intp],
    ) -> Self:
        """Build from the columns."""
        return cls(front, n_pieces, numbers, behind, np.cumsum(numbers))

    @property
    def owners(self) -> NDArray[np.intp]:
        """The entry of each question behind an opening."""
        return np.repeat(np.arange(len(self.numbers)), self.numbers)

    @property
    def n_plain(self) -> int:
        """How many sentences behind openings ask nothing."""
        return int(self.n_pieces.sum() - self.numbers.sum())

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> _Read:
        """Return some of the entries."""
        chosen = np.asarray(rows, dtype=np.intp)
        behind = [
            self.behind[self.ends[row] - self.numbers[row] : self.ends[row]] for row in chosen
        ]
        return _Read.of(
            self.front[chosen],
            self.n_pieces[chosen],
            self.numbers[chosen],
            np.concatenate([self.behind[:0], *behind]),
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
        tables[1].flat[NONE] += sign * self.n_plain


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


def _bits(
    shapes: NDArray[np.intp], totals: _Totals, *, further: bool = False
) -> NDArray[np.float64]:
    """Return log2 of P(shape | attack) / P(shape | knowledge base), shape (n_shapes,)."""
    kind = shapes[:, 0]
    prior, attacks, echo = _PRIOR_GLUED, _ATTACK_GLUED, _ATTACK_ECHO
    if further:
        prior, attacks = _PRIOR_LAST, np.full(len(KINDS), _ATTACK_LAST)
        echo = _ATTACK_ECHO_INSIDE
    each = np.ones((len(KINDS), 1))
    traits = (  # in the order of the axes
        (_binary(_PRIOR_LOWER), _binary(_ATTACK_LOWER)),
        (_binary(prior), _binary(attacks)),
        (_ATTACK_ABOUT, _ATTACK_ABOUT * each),
        (_PRIOR_PLACE, _ATTACK_PLACE * each),
        (_PRIOR_ECHO, echo * each),
        (_PRIOR_ELSEWHERE, _ATTACK_ELSEWHERE * each),
    )
    known = _smoothed(totals[0], _PRIOR_KIND)[kind]
    most = (_MOST_INSIDE if further else _MOST_IN_FRONT)[kind]
    ratio = np.minimum(_ATTACK_KIND[kind] / known, most)
    for axis, (usual, assumed) in enumerate(traits, 1):
        table, row = totals[axis], kind
        if axis == _ELSEWHERE:  # of texts that are long enough to tell
            table, row = table * (np.arange(table.shape[1]) > 0), _answered(shapes)
        # Of a kind that is rare in the knowledge base, traits are taken to be as everywhere in it,
        # but for what it asks for: sentences that are no questions have other words that ask.
        first = 0 if axis == _ELSEWHERE or (axis <= _GLUED and not further) else NONE + 1
        pooled = _smoothed(table[first:].sum(axis=0), usual)
        trait = shapes[:, axis]
        known = _smoothed(table, usual if axis == _ABOUT else pooled)[row, trait]
        says = _says(axis, kind, trait, further=further)
        more = assumed[kind, trait] / np.where(says, known, 1.0)
        bounded = np.clip(more, _LEAST.get(axis, 0.0), _MOST.get(axis, np.inf))
        ratio = ratio * np.where(says, bounded, 1.0)
    return np.asarray(np.log2(ratio), dtype=np.float64)


def _says(
    axis: int, kind: NDArray[np.intp], trait: NDArray[np.intp], *, further: bool
) -> NDArray[np.bool_]:
    """Return whether a trait says anything about a question of its kind, shape (n_shapes,)."""
    # Where nothing is asked, how a text begins says nothing about a question.
    says: NDArray[np.bool_] = np.asarray(kind != NONE)
    if axis == _LOWER:
        says &= ~np.isin(kind, _ONLY_LOWER)
    elif axis == _GLUED and further:
        says &= ~np.isin(kind, _ONLY_LAST)
    elif axis == _PLACE and further:
        says[:] = False
    elif axis == _ECHO:
        says &= ~np.isin(kind, _ONLY_ECHOED)
    elif axis == _ELSEWHERE:
        says &= trait > 0
    return says


def _binary(share: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of what lacks a trait and of what has it, along the last axis."""
    return np.stack([1.0 - np.asarray(share), np.asarray(share)], axis=-1)


def _sources(batch: Batch) -> NDArray[np.intp]:
    """Return a number for each entry's source, shape (n_entries,)."""
    names = getattr(batch, "sources", (None,) * len(batch))
    return np.array([crc32((name or "").encode()) % _N_SOURCES for name in names], dtype=np.intp)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, drawn to the prior where little was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _shape(found: Opening, *, further: bool = False) -> tuple[int, ...]:
    apart, place = (found.last, 0) if further else (found.glued, found.place)
    return (
        found.kind,
        int(found.lower),
        int(apart),
        found.about,
        place,
        found.echo,
        found.elsewhere,
    )


def _shapes(text: str) -> tuple[tuple[int, ...], int, tuple[tuple[int, ...], ...]]:
    """Return the shape of what a text opens with, how many sentences follow, and what these ask."""
    opening = opening_of(text)
    inside = inside_of(text, opening)
    return (
        _shape(opening),
        inside.n_pieces,
        tuple(_shape(found, further=True) for found in inside.asked),
    )


_remembered = Remembered(_shapes, SMALL_REMEMBERED)


def _asked_beside(context: str | None) -> str:
    """Return the questions beside a text, a line each: they are embedded in front of it."""
    if context is None:
        return ""
    asked = ""
    for line in context.split("\n")[:_LINES]:
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
    behind = [shape for _, _, asked in found for shape in asked]
    return _Read.of(
        np.array([front for front, _, _ in found], dtype=np.intp).reshape(-1, _N_TRAITS),
        np.array([n_pieces for _, n_pieces, _ in found], dtype=np.intp),
        np.array([len(asked) for _, _, asked in found], dtype=np.intp),
        np.array(behind, dtype=np.intp).reshape(-1, _N_TRAITS),
    )
