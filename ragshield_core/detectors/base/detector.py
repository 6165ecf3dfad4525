"""What every detector is: evidence in the form of scores, and never a decision."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.pieces import Pieces
from ragshield_core.entries import Batch
from ragshield_core.errors import CalibrationError
from ragshield_core.findings import BESIDE

# Five folds hold out a fifth at a time: each score comes from a model of nearly full size, and
# every fitted entry gives one.
N_FOLDS = 5


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
class Evidence:
    """Why one score is what it is."""

    sentence: str  # holds the number that convinced
    related_ids: tuple[str, ...] = ()
    span: tuple[int, int] | None = None


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


class Detector(ABC):
    """Base class of all detectors.

    A detector learns the knowledge base (:meth:`fit`, :meth:`learn`, :meth:`forget`), scores new
    entries (:meth:`score`, higher is more suspicious, changes nothing) and explains a score
    (:meth:`explain`). What is suspicious enough is the policy's business.

    Attributes
    ----------
    kind
        The name under which the registry knows the class.
    on_request
        Whether it is of no use before it is said with what: known by its kind, for saved guards,
        and no part of the default guard.
    needs
        What it cannot do without; entries that lack it are reported as not judged.
    taxonomy
        MITRE ATLAS and OWASP ids for its findings.
    default_threshold
        The default threshold: without a calibration, a score above it is suspicious.
    floor
        A score up to this is never acted on, however rare it is among clean entries: nothing was
        found, or next to nothing.
    acts_unfitted
        Whether the default threshold means something before it is known what is usual in the
        knowledge base. Where False, a guard that began with nothing waits.
    learns
        Whether a score depends on the knowledge base. Where False, that of a clean entry is taken
        once and for all.
    reads_contexts
        Whether it judges the contexts of entries like their texts.
    exchangeable
        Whether the score of a clean entry can be compared with that of a new one, so that
        calibration applies. Where False, the default threshold stays in force.
    in_pieces
        Whether it can be fitted on a knowledge base that no memory holds: by :meth:`learn_piece`
        of one piece after the other, and :meth:`pieces_learned` once all were learned. True where
        :meth:`learn` comes to the same whether entries come at once or one after the other.
    """

    kind: ClassVar[str]
    on_request: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]]
    taxonomy: ClassVar[tuple[str, ...]] = ()

    default_threshold: float = 0.0
    floor: float = -math.inf
    acts_unfitted: bool = True
    learns: bool = True
    reads_contexts: bool = False
    scope: Scope = Scope.ENTRY
    exchangeable: bool = True
    in_pieces: bool = False

    @property
    def name(self) -> str:
        """The name in findings; unique within a guard."""
        return self.kind

    @property
    def unsaved(self) -> str | None:
        """What a saved guard cannot hold of this detector, such as a model of yours; mostly None.

        Where there is such a thing, this very detector is asked for again when a guard is loaded.
        """
        return None

    @property
    def unsaved_name(self) -> str | None:
        """The name of what :attr:`unsaved` says, if it has one: no other one takes its place."""
        return None

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again, JSON-ready."""

    @abstractmethod
    def learn(self, entries: Batch) -> None:
        """Add entries to what is known of the knowledge base."""

    @abstractmethod
    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out again; needs their vectors and labels as learned."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abstractmethod
    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return one finite score per entry, shape (n_entries,); higher is more suspicious.

        Raises
        ------
        NotFittedError
            If nothing was learned yet.
        InvalidBatchError
            If :meth:`unjudged` names one of the entries.
        """

    @abstractmethod
    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return why the given rows of ``batch`` have the scores they have."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what was learned, as JSON-ready values and arrays."""

    @abstractmethod
    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""

    def hold(self, entries: Batch) -> None:  # noqa: B027 - most detectors need not know
        """Remember entries that are held in quarantine: the rest of their group may follow."""

    def forget_held(self, ids: Sequence[str]) -> None:  # noqa: B027
        """Forget held entries: they were released, or deleted for good."""

    def overlook(self, ids: Collection[str]) -> None:  # noqa: B027 - most compare with no entry
        """Leave known entries out of account in what is scored from now on; none brings them back.

        They are what the batch at hand replaces: what a new revision resembles its older one by is
        no evidence against it. Statistics over the whole knowledge base may go on counting them.
        """

    def retroactive(
        self,
        batch: Batch,  # noqa: ARG002
        condemned: NDArray[np.bool_],  # noqa: ARG002
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return entries learned earlier that ``batch`` shows in another light, with scores.

        Of an entry and its imitation, the one that came later is the suspect: name a standing
        entry only on evidence that does not rest on a single newcomer.

        Parameters
        ----------
        batch
            New entries.
        condemned
            Shape (n_entries,): which of them are held, whichever detector it was.
        """
        return [], np.empty(0)

    def confirm(self, ids: Sequence[str]) -> None:  # noqa: B027
        """Believe what is said of held entries: a person has judged them poisoned."""

    def refresh(self, reference: Batch) -> None:  # noqa: B027
        """Measure anew what is usual, in the knowledge base as it is now.

        Called when the knowledge base has grown, before :meth:`held_out_scores` of the same
        entries. Detectors that measure nothing, or go on measuring as they learn, need not.

        Parameters
        ----------
        reference
            Entries of the knowledge base that stand for all that is clean.
        """

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries of a sample are far from all that is usual in it.

        Asked where nobody has vouched for the sample: up to a twentieth of it may be poisoned.

        Returns
        -------
        NDArray[np.bool]
            Shape (n_reference,); none by default.
        """
        return np.zeros(len(reference), dtype=np.bool_)

    def n_doubted(self) -> int:
        """Return how many entries it has learned that it takes for poison which came with them.

        Where nobody has vouched for what was learned; none by default. Operators are told.
        """
        return 0

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which entries of a sample are far from all that is usual, of those held since.

        What is poisoned does not become clean by being held: asked after :meth:`refresh`, where
        nobody has vouched for the sample.

        Parameters
        ----------
        entries
            n of them.
        scores
            Shape (n,): theirs, NaN without an opinion.

        Returns
        -------
        NDArray[np.bool]
            Shape (n,); none by default.
        """
        del scores
        return np.zeros(len(entries), dtype=np.bool_)

    def doubtful(
        self,
        scores: NDArray[np.float64],
        held: NDArray[np.bool_] | None = None,  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        """Return which scores of a sample are those of poison, of what it never learns from.

        Asked where :attr:`learns` is False and nobody has vouched for the sample, beside
        :meth:`outliers` and :meth:`held_outliers`: what such a score means is known without the
        sample.

        Parameters
        ----------
        scores
            Shape (n_entries,): of all entries of the sample, NaN without an opinion.
        held
            Shape (n_entries,): which of them the knowledge base does not hold, since they were held
            in quarantine; ``None`` for none. They say nothing about what it is about.

        Returns
        -------
        NDArray[np.bool]
            Shape (n_entries,); none by default.
        """
        return np.zeros(len(scores), dtype=np.bool_)

    def distrust(self, ids: Sequence[str]) -> None:  # noqa: B027
        """Watch entries that were fitted: nobody has vouched for them, and they look poisoned."""

    def latecomers(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return which of some suspicious fitted entries came after what speaks against them.

        Of an entry and its imitation, the newcomer is the suspect.
        """
        return np.ones(len(ids), dtype=np.bool_)

    def trust(self, ids: Sequence[str]) -> None:  # noqa: B027
        """Leave entries alone from now on: a person has judged them good."""

    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return why entries that :meth:`retroactive` named have the score they have now."""
        raise NotImplementedError

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return the rows that cannot be judged, each with the reason."""
        if Need.LABEL not in self.needs:
            return {}
        return {row: "it has no label" for row, label in enumerate(batch.labels) if label is None}

    def skip_reason(self, batch: Batch) -> str | None:
        """Return why this detector cannot take part in a screening at all, if so."""
        if Need.EMBEDDING in self.needs and len(batch) and not batch.dim:
            return "needs vectors, and the entries have none"
        unlabelled = len(batch) > 0 and all(label is None for label in batch.labels)
        if Need.LABEL in self.needs and unlabelled:
            return "needs labels, and no entry has one"
        return None

    def fit(self, reference: Batch) -> Self:
        """Learn ``reference`` and nothing else."""
        self.reset()
        self.learn(reference)
        return self

    def learn_piece(self, piece: Batch) -> None:
        """Learn entries of a knowledge base of which others follow."""
        self.learn(piece)

    def pieces_learned(self, pieces: Pieces, reference: Batch) -> None:  # noqa: ARG002
        """Measure what is usual, now that the whole knowledge base was learned.

        Parameters
        ----------
        pieces
            The knowledge base, to be read again if need be.
        reference
            Entries of it that stand for the others; all of them where there are few.
        """
        self.refresh(reference)

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of the fitted entries, each by a model that did not know it.

        Each of :data:`N_FOLDS` random parts is forgotten, scored, and learned again. Where
        :attr:`learns` is False they are merely scored: a model that knows none of them needs no
        copies of their vectors, and is asked for entries that it has not scored before.

        Parameters
        ----------
        fitted
            The entries that :meth:`fit` was given, or some of them.
        seed
            Of the random parts.

        Returns
        -------
        NDArray[np.float64]
            Shape (n_fitted,); NaN for entries that cannot be judged then.
        """
        return self._out_of_fold(fitted, seed) if self.learns else self.judged_scores(fitted)

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and score each of its entries against the others.

        Parameters
        ----------
        entries
            The knowledge base, in which some entries may be poisoned.
        seed
            Of any random choice.

        Returns
        -------
        NDArray[np.float64]
            Shape (n_entries,); NaN where the detector has no opinion.
        """
        self.fit(entries)
        return self._out_of_fold(entries, seed)

    def audit_threshold(self, fpr: float) -> float:  # noqa: ARG002 - for those that can estimate it
        """Return the score of :meth:`audit` above which an entry is worth a look.

        Without known-clean entries this is the default threshold or an estimate, no guarantee.
        """
        return self.default_threshold

    def explain_held_out(self, fitted: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return why rows of fitted entries have the scores of :meth:`held_out_scores`."""
        return self.explain(fitted, rows)

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return why rows have the scores that :meth:`audit` gave them."""
        return self.explain(entries, rows)

    def judged_scores(self, batch: Batch) -> NDArray[np.float64]:
        """Return the score of each entry, shape (n_entries,); NaN where it cannot be judged."""
        return self._scores_or_nan(batch)

    def _scores_or_nan(self, batch: Batch) -> NDArray[np.float64]:
        unjudged = self.unjudged(batch)
        rows = [row for row in range(len(batch)) if row not in unjudged]
        scores = np.full(len(batch), np.nan)
        if rows:
            # Who looks at no vectors needs no copy of all of them.
            as_it_is = len(rows) == len(batch) and Need.EMBEDDING not in self.needs
            judged = self.score(batch if as_it_is else batch.take(rows))
            if not np.isfinite(judged).all():
                msg = f"{self.name} gave clean entries scores that are not finite numbers."
                raise CalibrationError(msg)
            scores[rows] = judged
        return scores

    def _out_of_fold(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        order = np.random.default_rng(seed).permutation(len(fitted))
        scores = np.full(len(fitted), np.nan)
        for rows in np.array_split(order, N_FOLDS):
            part = fitted.take(rows)
            self.forget(part)
            try:
                scores[rows] = self._scores_or_nan(part)
            finally:
                self.learn(part)
        return scores
