"""Abilities that only some detectors have: the kernel asks for them by these classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.detector import (
    Detector,
    out_of_fold,
)
from ragshield_core.detectors.base.evidence import Evidence, Need
from ragshield_core.model.entries import Batch


class Overlooks(ABC):
    """A detector that compares with known entries and can leave some of them out of account."""

    @abstractmethod
    def overlook(self, ids: Collection[str]) -> None:
        """Leave known entries out of account in what is scored from now on; none brings them back.

        A batch replaces them: a new revision resembles its older one, which is no evidence against
        it. Statistics over the whole knowledge base may go on counting them.
        """


class UsesEmbedder(ABC):
    """A detector that embeds parts of texts with the knowledge base's own model."""

    @property
    @abstractmethod
    def embedder(self) -> Callable[[list[str]], Any] | None:
        """The model at hand: from a list of texts to a vector each."""

    @abstractmethod
    def lacks(self) -> str | None:
        """Return what it cannot judge anything without; ``None`` if it has all it needs."""

    @abstractmethod
    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> None:
        """Take a model, ``None`` for none; raises StateError if another's was learned."""


class DoubtsSample(ABC):
    """A detector that finds outliers in a sample that nobody has vouched for.

    Up to a twentieth of the sample may be poisoned.
    """

    @abstractmethod
    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries of a sample are far from all that is usual, shape (n,)."""

    @abstractmethod
    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which held entries are far from all that is usual, shape (n,).

        Poison does not become clean by being held. A guard asks it after ``refresh``, with the
        scores of the entries, NaN where they cannot be judged.
        """


class Audits(Detector):
    """A detector that has its own way of judging each entry of a knowledge base by the others."""

    @abstractmethod
    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and score each of its entries against the others.

        Some entries may be poisoned. Shape (n_entries,); NaN where the detector has no opinion.
        """

    def audit_threshold(self, fpr: float) -> float:  # noqa: ARG002 - for those that estimate it
        """Return the score of :meth:`audit` above which an entry is worth a look.

        Without known-clean entries this is the default threshold or an estimate, no guarantee.
        """
        return self.default_threshold

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return why rows have the scores that :meth:`audit` gave them."""
        return self.explain(entries, rows)


def skip_reason(detector: Detector, batch: Batch) -> str | None:
    """Return why a detector cannot take part in a screening at all, if so."""
    if Need.EMBEDDING in detector.needs and len(batch) and not batch.dim:
        return "needs vectors, and the entries have none"
    if (lacking := lacking_in(detector)) is not None:
        return lacking
    unlabelled = len(batch) > 0 and all(label is None for label in batch.labels)
    if Need.LABEL in detector.needs and unlabelled:
        return "needs labels, and no entry has one"
    return None


def lacking_in(detector: Detector) -> str | None:
    """Return what a detector cannot judge anything without, and does not have."""
    return detector.lacks() if isinstance(detector, UsesEmbedder) else None


def audited(detector: Detector, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
    """Fit a detector on a knowledge base and return the score of each entry by the others.

    NaN where the detector has no opinion; shape (n_entries,).
    """
    if isinstance(detector, Audits):
        return detector.audit(entries, seed)
    return out_of_fold(detector.fit(entries), entries, seed)


def explained_audit(detector: Detector, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
    """Return why rows have the scores that :func:`audited` gave them."""
    explain = detector.explain_audit if isinstance(detector, Audits) else detector.explain
    return explain(entries, rows)
