"""Detect entries that ask and answer a question in a knowledge base where this is unusual."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    Detector,
    DoubtsSample,
    Evidence,
    Need,
    SharesUsual,
    Traits,
    as_others,
)
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

# Share of each kind among entries that were written for a question, and, within a kind, of openings
# in lower case and of openings that run into the answer without a space ("...?.The"). Broad
# guesses, not fitted to any attack: each trait is about as likely as not, so that an attacker who
# avoids it gains one bit at most.
_ATTACK_KIND = np.array([0.02, 0.03, 0.01, 0.02, 0.02, 0.05, 0.2, 0.06, 0.5, 0.05, 0.03])
_ATTACK_LOWER = np.array([0.5, 1.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.2, 0.25, 0.5, 0.05])
_ATTACK_GLUED = np.array([0.5, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.3, 0.3, 0.4, 0.1])
# An attack promotes a fact, so it seldom asks why, how or what something is, as headings and FAQs
# do; a kind of answer that is rare in the knowledge base counts two bits at most. Mostly an attack
# asks once, in front. Its answer repeats words of the question, so that a model recognises it; for
# a question in front the whole text is the answer, with or without repetition.
_ATTACK_ABOUT = np.array([0.08, 0.1, 0.18, 0.13, 0.1, 0.1, 0.04, 0.06, 0.09, 0.12])
_ATTACK_PLACE = np.array([0.88, 0.12])
_ATTACK_ECHO = np.array([0.2, 0.03, 0.03, 0.03, 0.17, 0.05, 0.2, 0.07, 0.22])
_ATTACK_ECHO_INSIDE = np.array([0.1, 0.04, 0.03, 0.04, 0.19, 0.06, 0.23, 0.07, 0.24])
# A planted question may be about the topic of its text, but mostly it is about something else. The
# first step, for texts too short to tell, is ignored.
_ATTACK_ELSEWHERE = np.array([0.0, 0.55, 0.2, 0.1, 0.15])
# Prior shares in a knowledge base before any entry is known, and the weight of the prior in
# entries.
_PRIOR_KIND = np.array([0.87, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01])
_PRIOR_LOWER, _PRIOR_GLUED = 0.05, 0.01
_PRIOR_ABOUT = _ATTACK_ABOUT
_PRIOR_PLACE = np.array([0.4, 0.6])
_PRIOR_ECHO = np.array([0.45, 0.15, 0.1, 0.08, 0.07, 0.05, 0.04, 0.03, 0.03])
_PRIOR_ELSEWHERE = np.array([0.0, 0.03, 0.07, 0.15, 0.75])
_WORTH = 10.0
# Share of questions inside a text that nothing follows, in attacks and in clean entries. An attack
# is as likely to ask inside as in front.
_ATTACK_LAST, _PRIOR_LAST = 0.2, 0.2
# From this step on, the text after a question is its answer.
_ANSWERED = 4
# Number of hashed sources, and number of entries of a source that weigh as much as the whole
# knowledge base in the estimate of how frequent questions are there.
_N_SOURCES, _SOURCE_WORTH = 1_024, 50.0
# Counts of a source: entries, openings that ask, sentences after openings, and those of them that
# ask, without an answer and with one.
_ENTRIES, _OPENED, _PIECES, _WITHOUT, _WITH_ANSWER = range(_N_COUNTS := 5)

# Axes of the counts.
_LOWER, _GLUED, _ABOUT, _PLACE, _ECHO, _ELSEWHERE = 1, 2, 3, 4, 5, 6
_SHAPE = (len(KINDS), 2, 2, len(ABOUT), len(PLACES), ECHO, len(ELSEWHERE) + 2)
_N_TRAITS = len(_SHAPE)
_STATE = ("fitted", "arrived", "sources", "doubtful")
# Largest factor of a trait or kind that a knowledge base of any size lacks. Certain kinds of
# questions have a larger one, and all kinds inside a text, where each sentence is a small share of
# it. A possible question, such as a clause with "when", mostly is none.
_MOST = {_ABOUT: 4.0, _ECHO: 64.0}
# An attacker who imitates the openings of the knowledge base gains one bit at most.
_LEAST = {_LOWER: 0.5, _GLUED: 0.5}
_MOST_IN_FRONT = np.array([32.0, 32, 128, 32, 8, 32, 64, 128, 128, 32, 32])
_MOST_INSIDE = np.array([32.0, 32, 256, 32, 8, 32, 256, 256, 256, 32, 32])


class _Trait(NamedTuple):
    """Assumed shares of the values of a trait of questions."""

    usual: NDArray[np.float64]  # (n_values,): shares in a knowledge base
    attack: NDArray[np.float64]  # (n_kinds, n_values): shares in attacks
    says: NDArray[np.bool_]  # (n_kinds, n_values): whether the value is evidence


def _traits(*, inside: bool) -> list[_Trait]:
    """Return the assumed traits of questions in front of a text, or inside, in order of axes."""

    def binary(share: float | NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([1.0 - np.asarray(share), np.asarray(share)], axis=-1)

    # Kinds for which a trait is no evidence, because they are recognised by it: a start in lower
    # case; after an opening, the end of the text; words that come back.
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
        # Without a question, the beginning of a text is no evidence.
        says[[NONE, *silent]] = False
        found.append(_Trait(usual, np.broadcast_to(attack, says.shape), says))
    found[_ELSEWHERE - 1].says[:, 0] = False
    return found


_IN_FRONT, _INSIDE = _traits(inside=False), _traits(inside=True)

# Malformed questions with a share in this range of a sample that nobody has vouched for are taken
# for poison: fewer hardly change the usual values, more are a habit of the authors.
DOUBTFUL = (0.0075, 0.03)
# Phrases and indirect questions are left out: they start in lower case, as chunks that begin in
# mid-sentence do.
_DOUBTED = (EMBEDDED, UNMARKED, MARKED_OTHER, MARKED, VERB_FIRST)

# Kinds that certainly ask. A part of a context line is read as a question if its opening is of such
# a kind and takes a large share of it. Longer parts and later lines are not read.
_SURE = (TITLE, UNMARKED, MARKED_OTHER, MARKED)
_SHARE_OF_PART, _LONGEST_PART, _LINES = 0.3, 400, 2_000
# Between the folders of a path, and the items of a list; around them; and between words of a name.
_BETWEEN, _AROUND = re.compile(r"""[\\/|]|['"], ['"]"""), " \t.\"'`*#=~<>()[]{}-_"
_JOINED = re.compile(r"(?<=\w)(?:[-_+]|%20)(?=\w)")

_Totals = list[NDArray[np.int64]]  # counts of each trait, by axis


def _shapes(text: str) -> tuple[tuple[int, ...], int, tuple[tuple[int, ...], ...]]:
    """Return the shape of an opening, the number of sentences after it, and their questions."""

    def shape(found: Opening, apart: bool, place: int) -> tuple[int, ...]:  # noqa: FBT001
        lower, glued = int(found.lower), int(apart)
        return (found.kind, lower, glued, found.about, place, found.echo, found.elsewhere)

    opening = opening_of(text)
    n_pieces, asked = inside_of(text, opening)
    behind = tuple(shape(found, found.last, 0) for found in asked)
    return shape(opening, opening.glued, opening.place), n_pieces, behind


_remembered = Remembered(_shapes, SMALL_REMEMBERED)


class LeadingQuestionDetector(DoubtsSample, SharesUsual, Detector):
    """Find entries that ask a question and answer it.

    Black-box PoisonedRAG puts its target question in front of a text that answers it wrongly,
    so that the entry is retrieved for that question. Whether that is strange depends on the
    knowledge base: entries of a FAQ open with questions, articles of an encyclopaedia do not.

    The score is a likelihood ratio in bits: how much likelier the opening, or a question further
    down, is in an entry written for a question than in an entry of the knowledge base. The detector
    reads the kind of a question (with a question mark, by its question word, ...), whether it
    starts in lower case, whether no space follows it, how many of its words come back in the text
    after it, and how much of it and its answer stands elsewhere in the text. It counts how frequent
    each of these is in the knowledge base: by entry for openings, and by sentence for the rest, so
    that the length of a text does not matter. The assumptions about attacks are broad, so that none
    of these traits is necessary. English works best; German, French, Spanish, Italian, Portuguese,
    Russian, Chinese and any language with question marks work too.

    A question beside the text, such as a title or a file name in metadata, is embedded and read
    with the text: it counts as if it stood in front of it.

    Notes
    -----
    By default more than 5 bits are suspicious, which is 32 times likelier; the policy never acts on
    less. State is a table of counts; learning and forgetting are exact.

    In a knowledge base that nobody has vouched for, ten poisoned entries in a thousand would make
    their openings usual. So malformed openings (in lower case, or run into the answer) that are as
    frequent as poison may be (:data:`DOUBTFUL`) are not counted there. Well-formed ones are: as
    many pages of questions and answers are not unusual.

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
        # In a knowledge base without questions, any question would be rare: so 32 times likelier
        # is the minimum.
        floor=5.0,
        acts_unfitted=False,
        reads_contexts=True,
        reads=(_remembered,),
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every opening."""
        # Counts of openings, and of sentences after them: fitted entries, and later ones.
        self._fitted = np.zeros((2, *_SHAPE), dtype=np.int64)
        self._arrived = np.zeros_like(self._fitted)
        # Counts of fitted entries, by source.
        self._sources = np.zeros((_N_SOURCES, _N_COUNTS), dtype=np.int64)
        self._doubtful = np.zeros(_SHAPE, dtype=np.bool_)
        # See _usual: of fitted entries, which stay as later ones come, and all that count.
        self._totals_fitted: tuple[_Totals, _Totals] | None = None
        self._totals: list[tuple[_Totals, _Totals]] | None = None

    def fit(self, reference: Batch) -> Self:
        """Count the openings of the entries of the knowledge base."""
        self.reset()
        read = _read(reference)
        read.add_to(self._fitted, 1)
        np.add.at(self._sources, read.sources, read.counts())
        return self

    def learn(self, entries: Batch) -> None:
        """Count the openings of new entries; they make no question more usual."""
        read = _read(entries)
        if self._totals is not None and self._arrived.any():
            front, inside = self._totals[-1]
            counting = read.front[~self._doubtful[tuple(read.front.T)]]
            self._totals[-1] = (
                _adjusted(front, counting, 1),
                _adjusted(inside, read.behind, 1, read.n_plain),
            )
        else:
            self._totals = None
        read.add_to(self._arrived, 1)

    def forget(self, entries: Batch) -> None:
        """Remove learned entries from the counts."""
        read = _read(entries)
        # Entries that were never learned are not subtracted.
        known = (self._fitted + self._arrived)[0][tuple(read.front.T)] > 0
        read.take(np.flatnonzero(known)).add_to(self._arrived, -1)
        # Negative counts are fitted entries, so they are subtracted there.
        self._fitted = np.maximum(self._fitted + np.minimum(self._arrived, 0), 0)
        np.maximum(self._arrived, 0, out=self._arrived)
        self._totals = self._totals_fitted = None

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while no entry of the knowledge base was learned."""
        if self._is_fitted:
            return {}
        return dict.fromkeys(range(len(batch)), "no entry of a knowledge base was learned yet")

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts."""
        return {}, {name: getattr(self, f"_{name}").copy() for name in _STATE}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Restore the counts."""
        self.reset()
        for name in _STATE:
            getattr(self, f"_{name}")[...] = arrays[name]

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return how much likelier poison is to ask like each entry, in bits, (n_entries,)."""
        if not self._is_fitted:
            msg = f"{self.name} has learned no entry yet; fit it on the knowledge base first."
            raise NotFittedError(msg)
        return self._score(_read(batch))

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries open with rare malformed questions, and stop counting these."""
        shapes = np.argwhere(self._fitted[0] > 0)
        shapes = shapes[np.isin(shapes[:, 0], _DOUBTED) & (shapes[:, 1:3] == 1).any(axis=1)]
        sample = tuple(_read(reference).front.T)
        doubtful = self._malformed(shapes, np.zeros(_SHAPE, dtype=np.bool_))
        fewest, most = DOUBTFUL
        if len(reference) and doubtful[sample].mean() >= fewest:
            while True:  # without the most suspicious shapes, other shapes become suspicious
                more = self._malformed(shapes, doubtful)
                if (more == doubtful).all():
                    break
                doubtful = more
            if doubtful[sample].mean() > most:
                doubtful[...] = False
        else:
            doubtful[...] = False
        self._doubt(doubtful)
        return np.asarray(doubtful[sample])

    def usual(self, earlier: Self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the openings that a copy no longer counts."""
        return {}, {"doubtful": np.argwhere(earlier._doubtful)}

    def take_usual(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Stop counting the openings that another process no longer counts."""
        doubtful = np.zeros(_SHAPE, dtype=np.bool_)
        doubtful[tuple(arrays["doubtful"].T)] = True
        self._doubt(doubtful)

    def _doubt(self, doubtful: NDArray[np.bool_]) -> None:
        """Count all openings but the doubtful ones."""
        self._doubtful, self._totals, self._totals_fitted = doubtful, None, None

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which entries open with the malformed questions that are no longer counted."""
        return np.asarray(self._doubtful[tuple(_read(entries).front.T)])

    def _malformed(self, shapes: NDArray[np.intp], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which shapes are suspicious if neither similar nor known ones are counted.

        Similar shapes are of the same kind and malformed in the same way.
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
        # Entries that ask nothing after their opening differ only in the opening.
        same: dict[tuple[int, ...], list[int]] = {}
        for row, front in enumerate(read.front):
            alone = row if asks[row] else -1
            same.setdefault((alone, read.sources[row], *front), []).append(row)
        for rows in same.values():
            scores[rows] = self._score(read.take(rows[:1]), but=True)[0]
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, the frequency of its kind, and the words that come back."""
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
        # Count the questions with all traits that the sentence names.
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
        """Return the bits of a question that is either in front or inside, shape (n_entries,).

        ``but`` leaves the entries out of the counts; it takes a single entry only.
        """
        usual, by_source, scores = self._usual(), self._sources, []
        if but:
            usual = [
                (_adjusted(front, read.front, -1), _adjusted(inside, read.behind, -1, read.n_plain))
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
        """Return counts in front and inside: of fitted entries, and with later ones.

        Later entries, which nobody has vouched for, may make questions rarer, not more usual.
        """
        if self._totals is None:
            if self._totals_fitted is None:
                self._totals_fitted = self._totals_of(self._fitted)
            self._totals = [self._totals_fitted] if self._fitted[0].any() else []
            if self._arrived.any() or not self._totals:
                self._totals.append(self._totals_of(self._fitted + self._arrived))
        return self._totals

    def _totals_of(self, tables: NDArray[np.int64]) -> tuple[_Totals, _Totals]:
        """Return the totals in front, without doubtful openings, and inside."""
        front, inside = tables
        return _totals(np.where(self._doubtful, 0, front)), _totals(inside)


class _Read(NamedTuple):
    """The questions of entries: openings, and later ones."""

    front: NDArray[np.intp]  # (n_entries, n_traits)
    n_pieces: NDArray[np.intp]  # (n_entries,) sentences after openings
    sources: NDArray[np.intp]  # (n_entries,) a number for each source
    behind: NDArray[np.intp]  # (n_questions, n_traits)
    owners: NDArray[np.intp]  # (n_questions,) the entry of each, ascending

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> _Read:
        """Return some of the entries; rows ascend."""
        owned = np.isin(self.owners, rows)
        owners = np.searchsorted(rows, self.owners[owned])
        return _Read(
            self.front[rows], self.n_pieces[rows], self.sources[rows], self.behind[owned], owners
        )

    @property
    def n_plain(self) -> int:
        """Number of sentences after openings that ask nothing."""
        return int(self.n_pieces.sum()) - len(self.behind)

    def counts(self) -> NDArray[np.int64]:
        """Return the counts of each entry for its source, shape (n_entries, 5)."""
        found = np.zeros((len(self.front), _N_COUNTS), dtype=np.int64)
        found[:, _ENTRIES], found[:, _OPENED] = 1, self.front[:, 0] != NONE
        found[:, _PIECES] = self.n_pieces
        np.add.at(found, (self.owners, _WITHOUT + _answered(self.behind)), 1)
        return found

    def add_to(self, tables: NDArray[np.int64], sign: int) -> None:
        """Count openings into the first table, and later sentences into the second."""
        np.add.at(tables[0], tuple(self.front.T), sign)
        np.add.at(tables[1], tuple(self.behind.T), sign)
        tables[1].flat[NONE] += sign * self.n_plain


def _front_bits(read: _Read, usual: _Totals, by_source: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bits of each opening, shape (n_entries,)."""
    rarer = _rarer(by_source[:, _ENTRIES], by_source[:, _OPENED], read.sources, _SOURCE_WORTH)
    return _bits(read.front, usual) + np.where(read.front[:, 0] != NONE, rarer, 0.0)


def _inside_bits(read: _Read, usual: _Totals, by_source: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bits of each question after an opening, shape (n_questions,).

    An attack adds one question, at any place. The bits are reduced by the number of sentences,
    because more sentences contain more such questions: length itself is not suspicious.
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
    """Return how much rarer questions are in each source than overall, in bits.

    Counts are by source; a count of ``worth`` in a source weighs as much as all sources together.
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
        if axis == _ELSEWHERE:  # only texts that are long enough to tell
            table, row, first = table * (np.arange(table.shape[1]) > 0), _answered(shapes), 0
        elif axis <= _GLUED and not inside:
            first = 0
        # A kind that is rare in the knowledge base borrows its traits from all kinds, except the
        # kind of answer: other sentences have other question words.
        pooled = _smoothed(table[first:].sum(axis=0), assumed.usual)
        known = _smoothed(table, assumed.usual if axis == _ABOUT else pooled)[row, trait]
        says = assumed.says[kind, trait]
        more = assumed.attack[kind, trait] / np.where(says, known, 1.0)
        ratio = ratio * np.where(
            says, np.clip(more, _LEAST.get(axis, 0.0), _MOST.get(axis, np.inf)), 1.0
        )
    return np.asarray(np.log2(ratio), dtype=np.float64)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, close to the prior if counts are small."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _totals(counts: NDArray[np.int64]) -> _Totals:
    """Return the counts of each kind, and for each later axis those of each trait by kind."""
    axes = range(1, _N_TRAITS)
    found = [counts.sum(axis=tuple(axes))]
    found += [counts.sum(axis=tuple({*axes} - {axis})) for axis in axes[:-1]]
    # An answered question of any kind keeps to the topic of its text.
    by_echo = counts[NONE + 1 :].sum(axis=(NONE, *axes[: _ECHO - 1]))
    found.append(np.stack([by_echo[:_ANSWERED].sum(axis=0), by_echo[_ANSWERED:].sum(axis=0)]))
    return found


def _adjusted(totals: _Totals, shapes: NDArray[np.intp], sign: int, n_plain: int = 0) -> _Totals:
    """Return the counts with or without some shapes and ``n_plain`` sentences that ask nothing."""
    adjusted = [table.copy() for table in totals]
    np.add.at(adjusted[0], shapes[:, 0], sign)
    adjusted[0][NONE] += sign * n_plain
    for axis in range(1, _ELSEWHERE):
        np.add.at(adjusted[axis], (shapes[:, 0], shapes[:, axis]), sign)
        adjusted[axis][NONE, 0] += sign * n_plain
    asks = shapes[shapes[:, 0] != NONE]
    np.add.at(adjusted[_ELSEWHERE], (_answered(asks), asks[:, _ELSEWHERE]), sign)
    return [np.maximum(table, 0) for table in adjusted]


def _answered(shapes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return 1 for each question whose words come back in an answer, else 0."""
    return (shapes[:, _ECHO] >= _ANSWERED).astype(np.intp)


# Reading


def _asked_beside(context: str | None) -> str:
    """Return the questions beside a text, one per line: they are embedded in front of it."""
    asked = ""
    for line in islice(filter(None, map(str.strip, (context or "").split("\n"))), _LINES):
        for part in _parts(line):
            opening = opening_of(part)
            start, end = opening.span
            if opening.kind in _SURE and end - start >= _SHARE_OF_PART * len(part):
                asked += f"{part[start:end]}\n"
                break
    return asked


def _parts(line: str) -> Iterator[str]:
    """Yield a value, its line, and the names in a path or items in a list, if not too long."""
    key, _, value = (part.strip(_AROUND) for part in line.partition(": "))
    inside = _BETWEEN.split(value) if len(value) <= _LONGEST_PART else []
    for part in dict.fromkeys([value, line.strip(_AROUND), f"{key} {value}", *inside]):
        if len(part) <= _LONGEST_PART:
            words = _JOINED.sub(" ", part.strip(_AROUND))
            if " " in words or not words.isascii():  # one word asks nothing
                yield words


def _read(batch: Batch) -> _Read:
    """Return the questions of entries."""
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
