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
    """Entries that a score depends on."""

    ENTRY = "entry"  # on the entry and the knowledge base
    BATCH = "batch"  # also on the rest of its batch
    CORPUS = "corpus"  # on the whole knowledge base with the batch in it
    RETRIEVAL = "retrieval"  # on a retrieved set and its query


class Need(StrEnum):
    """Data that a detector requires."""

    TEXT = "text"
    EMBEDDING = "embedding"
    LABEL = "label"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties that tell the kernel how to treat a detector.

    Attributes
    ----------
    taxonomy
        Ids for its findings, of :data:`~ragshield_core.model.taxonomy.TAXONOMY`.
    floor
        The policy never acts on a score up to this, however rare it is among clean entries.
    scope
        The entries that a score depends on.
    acts_unfitted
        Whether the default threshold applies before the detector has learned a knowledge base. If
        False, a guard that starts empty waits.
    exchangeable
        Whether calibration applies: the score of a clean entry can be compared with that of a new
        one. If False, the default threshold stays in force.
    beyond_doubt
        An audit takes every score above this for poison, however many entries have one; the
        accepted rate applies to the others. In a source that a person has adopted, too, the
        detector acts on every score above this.
    reads_contexts
        Whether it judges the contexts of entries like their texts.
    reads
        Its slow readers of texts. A writer that shares its guard reads before its turn. If the
        detector learns, events keep the results, so that other processes need not read the texts.
    on_request
        Whether it needs options before it is of use: then it is not part of the default guard.
    unsaved
        The part of this detector that a saved guard cannot hold, such as your own model; mostly
        None.
        The loaded guard requires this very detector again.
    unsaved_name
        The name of the ``unsaved`` part, if it has one: no part of another name replaces it.
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
    """Explanation of one score."""

    sentence: str  # with the number that convinced
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
    """A detector that scores the text and the context of an entry, and keeps the larger score."""

    traits: Traits

    @abstractmethod
    def scores_of(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each text."""

    @abstractmethod
    def evidence_of(self, texts: Sequence[str]) -> list[Evidence]:
        """Return the evidence for the score of each text."""

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

        If the text scores higher, the sentence also says whether the context is above the floor.
        """
        texts = [batch.texts[row] for row in rows]
        contexts = [batch.contexts[row] or "" for row in rows]
        of_texts, of_contexts = self.scores_of(texts), self.scores_of(contexts)
        higher = of_contexts > of_texts
        suspicious = of_contexts > self.traits.floor
        chosen = [c if h else t for t, c, h in zip(texts, contexts, higher, strict=True)]
        found = self.evidence_of(chosen)
        for row, evidence in enumerate(found):
            if higher[row]:  # no span: spans refer to the text
                found[row] = replace(evidence, sentence=f"{BESIDE}: {evidence.sentence}", span=None)
            elif suspicious[row]:
                sentence = f"{BESIDE}, and in the text: {evidence.sentence}"
                found[row] = replace(evidence, sentence=sentence)
        return found
