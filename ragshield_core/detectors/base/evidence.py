"""Scope and needs of a detector, and the evidence that explains a score."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import BESIDE
from ragshield_core.text.readings import Remembered


class Scope(StrEnum):
    """What the score of an entry depends on."""

    ENTRY = "entry"  # on the entry and the knowledge base
    BATCH = "batch"  # also on the rest of its batch
    CORPUS = "corpus"  # on the whole knowledge base with the batch in it
    RETRIEVAL = "retrieval"  # on a retrieved set and its query


class Need(StrEnum):
    """What a detector cannot do without."""

    TEXT = "text"
    EMBEDDING = "embedding"
    LABEL = "label"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a detector is to be treated, beside what it computes.

    Attributes
    ----------
    taxonomy
        Ids for its findings, of :data:`~ragshield_core.model.taxonomy.TAXONOMY`.
    floor
        The policy never acts on a score up to this, however rare it is among clean entries.
    scope
        Names the entries that a score depends on.
    acts_unfitted
        Whether the default threshold means something before the detector knows what is usual in
        the knowledge base. Where False, a guard that began with nothing waits.
    exchangeable
        Whether calibration applies: the score of a clean entry can be compared with that of a new
        one. Where False, the default threshold stays in force.
    beyond_doubt
        An audit takes a score above this for poison, however many entries have one; the rate that
        it accepts is kept among the others.
    reads_contexts
        Whether it judges the contexts of entries like their texts.
    reads
        What it reads in texts that it learns, where that takes long: kept with what happens, so
        that other processes need not read these texts.
    on_request
        Whether it is of no use before it is told with what: not part of the default guard.
    unsaved
        The part of this detector that a saved guard cannot hold, such as a model of yours; mostly
        None.
        The loaded guard asks for this very detector again.
    unsaved_name
        The name of what ``unsaved`` names, if it has one: no other one takes its place.
    """

    taxonomy: tuple[str, ...] = ()
    floor: float = -math.inf
    scope: Scope = Scope.ENTRY
    acts_unfitted: bool = True
    exchangeable: bool = True
    beyond_doubt: float = math.inf
    reads_contexts: bool = False
    reads: tuple[Remembered[Any], ...] = ()
    on_request: bool = False
    unsaved: str | None = None
    unsaved_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why one score is what it is."""

    sentence: str  # holds the number that convinced
    related_ids: tuple[str, ...] = ()
    span: tuple[int, int] | None = None


# The largest share of known entries for each word.
_SHARES = ((0.0, "no"), (0.02, "hardly any"), (0.1, "few"), (0.5, "some"), (1.0, "most"))


def as_others(n: int, known: int, what: str) -> str:
    """Return how many others do the same, in words, with the numbers behind them.

    >>> as_others(12, 1028, "entries")
    'as hardly any other entries here do (12 of 1,028)'
    """
    share = n / max(1, known)
    word = next(word for most, word in _SHARES if share <= most)
    return f"as {word} other {what} here do ({n:,} of {known:,})"


class JudgesTexts(ABC):
    """A detector whose score of an entry is the larger of those of its text and of its context."""

    traits: Traits

    @abstractmethod
    def scores_of(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each text."""

    @abstractmethod
    def evidence_of(self, texts: Sequence[str]) -> list[Evidence]:
        """Return why each text has its score."""

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the larger of the scores of each entry's text and context, (n_entries,)."""
        scores = self.scores_of(batch.texts)
        rows = [row for row, context in enumerate(batch.contexts) if context is not None]
        if rows:
            beside = self.scores_of([batch.contexts[row] or "" for row in rows])
            scores[rows] = np.maximum(scores[rows], beside)
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the evidence of the text or of the context of each row, whichever scores higher.

        Of a text that scores higher it also says whether its context is above the floor as well.
        """
        texts = [batch.texts[row] for row in rows]
        contexts = [batch.contexts[row] or "" for row in rows]
        of_texts, of_contexts = self.scores_of(texts), self.scores_of(contexts)
        higher = of_contexts > of_texts
        suspicious = of_contexts > self.traits.floor
        chosen = [c if h else t for t, c, h in zip(texts, contexts, higher, strict=True)]
        found = self.evidence_of(chosen)
        for row, evidence in enumerate(found):
            if higher[row]:  # without a span: that is of the text
                found[row] = replace(evidence, sentence=f"{BESIDE}: {evidence.sentence}", span=None)
            elif suspicious[row]:
                sentence = f"{BESIDE}, and in the text: {evidence.sentence}"
                found[row] = replace(evidence, sentence=sentence)
        return found
