"""Scope and needs of a detector, and the evidence that explains a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import BESIDE


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


def of_texts_and_contexts(
    batch: Batch, score: Callable[[Sequence[str]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the larger of the scores of each entry's text and of its context, (n_entries,).

    Parameters
    ----------
    batch
        Entries.
    score
        Of texts, shape (n_texts,) each.
    """
    scores = score(batch.texts)
    rows = [row for row, context in enumerate(batch.contexts) if context is not None]
    if rows:
        beside = score([batch.contexts[row] or "" for row in rows])
        scores[rows] = np.maximum(scores[rows], beside)
    return scores


def explained_with_contexts(
    batch: Batch,
    rows: Sequence[int],
    score: Callable[[Sequence[str]], NDArray[np.float64]],
    explain: Callable[[Sequence[str]], list[Evidence]],
    floor: float,
) -> list[Evidence]:
    """Return the evidence of the text or of the context of each row, whichever scores higher.

    Of a text that scores higher it also says whether its context is suspicious as well.

    Parameters
    ----------
    batch, rows
        Entries, and which of them.
    score, explain
        Of texts, one each.
    floor
        The score up to which a context is not suspicious.
    """
    texts = [batch.texts[row] for row in rows]
    contexts = [batch.contexts[row] or "" for row in rows]
    of_texts, of_contexts = score(texts), score(contexts)
    higher = of_contexts > of_texts
    found = explain([c if h else t for t, c, h in zip(texts, contexts, higher, strict=True)])
    explained = []
    for evidence, alone, suspicious in zip(found, higher, of_contexts > floor, strict=True):
        if alone:  # without a span: that is of the text
            sentence = f"{BESIDE}: {evidence.sentence}"
            explained.append(Evidence(sentence=sentence, related_ids=evidence.related_ids))
        elif suspicious:
            sentence = f"{BESIDE}, and in the text: {evidence.sentence}"
            explained.append(replace(evidence, sentence=sentence))
        else:
            explained.append(evidence)
    return explained
