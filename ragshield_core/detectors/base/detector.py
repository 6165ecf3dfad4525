"""Detector base classes, and optional abilities that the kernel checks for by class."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.evidence import Evidence, Need, Traits
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CalibrationError
from ragshield_core.text.readings import SMALL_REMEMBERED

# Five folds hold out a fifth at a time: each score comes from a model of nearly full size, and
# every fitted entry gives one.
N_FOLDS = 5


class Detector(ABC):
    """Base class of detectors that learn the knowledge base.

    A detector learns entries (:meth:`fit`, :meth:`learn`, :meth:`forget`), scores new ones
    (:meth:`score`, higher is more suspicious, changes nothing) and explains a score
    (:meth:`explain`). The policy decides what is suspicious enough.

    A detector that learns nothing is a
    :class:`StatelessDetector`; one that judges entries
    together is a :class:`GroupDetector`.

    Attributes
    ----------
    name
        The name in findings, unique within a guard; the registry uses the name of the class.
    needs
        The data that it requires; entries without them are reported as not judged.
    default_threshold
        Without a calibration, a score above it is suspicious.
    traits
        How the kernel treats the detector, see :class:`Traits`.
    """

    name: str
    needs: ClassVar[frozenset[Need]]
    default_threshold: float = 0.0
    traits: Traits = Traits()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again, JSON-ready.

        By default these are the attributes with the names of the parameters.
        """
        given = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}

    @abstractmethod
    def learn(self, entries: Batch) -> None:
        """Add entries to the detector's knowledge of the knowledge base."""

    @abstractmethod
    def forget(self, entries: Batch) -> None:
        """Remove learned entries; needs the vectors and labels that were learned."""

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
        """Return the evidence for the scores of the given rows of ``batch``."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the learned state, as JSON-ready values and arrays."""

    @abstractmethod
    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return the rows that cannot be judged, each with the reason."""
        if Need.LABEL not in self.needs:
            return {}
        return {row: "it has no label" for row, label in enumerate(batch.labels) if label is None}

    def fit(self, reference: Batch) -> Self:
        """Learn ``reference`` and nothing else."""
        self.reset()
        self.learn(reference)
        return self

    def refresh(self, reference: Batch) -> None:  # noqa: B027 - optional
        """Measure the usual values again, on entries that represent all clean ones of today.

        A guard calls it when the knowledge base has grown, before it asks for held-out scores of
        the same entries. By default it does nothing: detectors measure while they learn.
        """

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries, (n_fitted,), each by a model that did not know it.

        NaN for entries that cannot be judged then; ``seed`` seeds random choices. By default each
        of :data:`N_FOLDS` random parts is forgotten, scored, and learned again.
        """
        return out_of_fold(self, fitted, seed)


class StatelessDetector(Detector):
    """Base class of detectors whose score of an entry depends on nothing else.

    A new one has a ``name``, ``needs``, a ``default_threshold`` and the methods ``score`` and
    ``explain``.
    """

    def learn(self, entries: Batch) -> None:
        """Do nothing."""

    def forget(self, entries: Batch) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return nothing."""
        return {}, {}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Do nothing."""

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of the entries: no model knew them."""
        return judged_scores(self, fitted)

    def doubtful(
        self,
        scores: NDArray[np.float64],
        held: NDArray[np.bool_] | None = None,  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        """Return which scores of a sample belong to poison, shape (n_entries,); none by default.

        A guard calls it for a sample that nobody has vouched for. ``scores`` has one score per
        entry, NaN where it cannot be judged. Entries ``held`` in quarantine are no evidence of the
        topics of the knowledge base.
        """
        return np.zeros(len(scores), dtype=np.bool_)


class Overlooks(ABC):
    """A detector that compares with known entries and can ignore some of them."""

    @abstractmethod
    def overlook(self, ids: Collection[str]) -> None:
        """Ignore these known entries in later scores; an empty collection brings them back.

        A batch replaces them: a new revision resembles its older one, which is no evidence against
        it. Statistics of the whole knowledge base may still count them.
        """


class UsesEmbedder(ABC):
    """A detector that embeds parts of texts with the knowledge base's own model."""

    @property
    @abstractmethod
    def embedder(self) -> Callable[[list[str]], Any] | None:
        """The current model: it maps a list of texts to one vector each."""

    @abstractmethod
    def lacks(self) -> str | None:
        """Return the name of a missing requirement; ``None`` if the detector has all it needs."""

    @abstractmethod
    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> None:
        """Set the model, ``None`` for none; raises StateError if another model was learned."""


class SharesUsual(ABC):
    """A detector whose usual values or outliers take long: one process measures them for all.

    Reading the texts of a sample is long. Without this class, each process measures under its lock,
    and all writers wait.
    """

    @abstractmethod
    def usual(self, earlier: Self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the latest ``refresh`` of a copy, as JSON-ready values and arrays.

        The copy was made earlier: its notes on an entry are left out if the entry or its neighbours
        have changed since. The outliers that it found before are sent along.
        """

    @abstractmethod
    def take_usual(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the result of :meth:`usual`, which another process returned in this state."""


class SharesLearning(ABC):
    """A detector that needs long to learn entries: one process prepares it for all."""

    @abstractmethod
    def prepared(self, entries: Batch) -> dict[str, NDArray[Any]]:
        """Return the findings of ``learn`` about entries before it is called, for other processes.

        It is empty if they have to search themselves.
        """

    @abstractmethod
    def take_prepared(self, entries: Batch, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Let the next ``learn`` of these entries use the findings of another process.

        Both were in the same state. Arrays that do not fit are ignored.
        """


class DoubtsSample(ABC):
    """A detector that finds outliers in a sample that nobody has vouched for.

    Up to a twentieth of the sample may be poisoned.
    """

    @abstractmethod
    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries of a sample are far from all usual entries, shape (n,)."""

    @abstractmethod
    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which held entries are far from all usual entries, shape (n,).

        Poison does not become clean by being held. A guard calls it after ``refresh``, with the
        scores of the entries, NaN where they cannot be judged.
        """


class Audits(Detector):
    """A detector with its own method to judge each entry of a knowledge base by the others."""

    @abstractmethod
    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and score each of its entries against the others.

        Some entries may be poisoned. Shape (n_entries,); NaN where the detector has no opinion.
        """

    def audit_threshold(self, fpr: float) -> float:  # noqa: ARG002 - for those that estimate it
        """Return the score of :meth:`audit` above which an entry is worth a look.

        Without known-clean entries this is the default threshold or an estimate, not a guarantee.
        """
        return self.default_threshold

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the evidence for the scores that :meth:`audit` gave to rows."""
        return self.explain(entries, rows)


class GroupDetector(Overlooks, DoubtsSample, Detector):
    """Base class of detectors that find groups whose members arrive one by one.

    They remember held entries, because the rest of a group may follow, and recall members that
    were admitted earlier.
    """

    @abstractmethod
    def remember_held(self, entries: Batch) -> None:
        """Remember entries that are held in quarantine: the rest of their group may follow."""

    @abstractmethod
    def forget_held(self, ids: Sequence[str]) -> None:
        """Forget held entries: they were released, or deleted for good."""

    @abstractmethod
    def retroactive(
        self, batch: Batch, condemned: NDArray[np.bool_], unusual: Collection[str] = ()
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return entries learned earlier that ``batch`` makes suspicious, with scores.

        Of an entry and its imitation, the later one is the suspect: name an earlier entry only on
        evidence that does not rest on a single newcomer.

        Parameters
        ----------
        batch
            New entries.
        condemned
            Shape (n_entries,): which of them are held, by any detector.
        unusual
            Ids of entries learned earlier that were unusual by themselves when they came, as one
            clean entry in fifty is: newcomers that imitate an entry cannot have caused that.
        """

    @abstractmethod
    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return the evidence for entries that :meth:`retroactive` named, with their new score."""

    @abstractmethod
    def trust(self, ids: Sequence[str]) -> None:
        """Stop judging these entries: a person has judged them good."""

    def confirm(self, ids: Sequence[str]) -> None:
        """Let held entries count in full: a person has judged them poisoned."""

    def distrust(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Watch suspicious fitted entries that nobody has vouched for.

        Returns
        -------
        NDArray[np.bool]
            Shape (n_ids,): which of them came after the evidence against them. Of an entry and its
            imitation, the newcomer is the suspect.
        """
        return np.ones(len(ids), dtype=np.bool_)

    def explain_held_out(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the evidence behind the held-out scores of rows of fitted entries."""
        return self.explain(batch, rows)

    @abstractmethod
    def n_doubted(self) -> int:
        """Return how many learned entries the detector takes for poison among them."""


def learns(detector: object) -> bool:
    """Return whether scores depend on the knowledge base; if not, an entry is scored once."""
    return isinstance(detector, Detector) and not isinstance(detector, StatelessDetector)


def judged_scores(detector: Detector, batch: Batch) -> NDArray[np.float64]:
    """Return the score of each entry, shape (n_entries,); NaN for one that cannot be judged."""
    unjudged = detector.unjudged(batch)
    rows = [row for row in range(len(batch)) if row not in unjudged]
    scores = np.full(len(batch), np.nan)
    if rows:
        # A detector that reads no vectors needs no copy of all of them.
        as_it_is = len(rows) == len(batch) and Need.EMBEDDING not in detector.needs
        judged = detector.score(batch if as_it_is else batch.take(rows))
        if not np.isfinite(judged).all():
            msg = f"{detector.name} gave clean entries scores that are not finite numbers."
            raise CalibrationError(msg)
        scores[rows] = judged
    return scores


def out_of_fold(detector: Detector, fitted: Batch, seed: int) -> NDArray[np.float64]:
    """Return scores of fitted entries, each random part scored while it is forgotten.

    The detector knows all of them before and after. NaN for entries that cannot be judged then.
    """
    order = np.random.default_rng(seed).permutation(len(fitted))
    scores = np.full(len(fitted), np.nan)
    # A part is read three times; the readings of that many texts are remembered.
    n_parts = max(N_FOLDS, math.ceil(len(fitted) / SMALL_REMEMBERED))
    for rows in np.array_split(order, n_parts):
        part = fitted.take(rows)
        detector.forget(part)
        try:
            scores[rows] = judged_scores(detector, part)
        finally:
            detector.learn(part)
    return scores


def skip_reason(detector: Detector, batch: Batch) -> str | None:
    """Return the reason if a detector cannot take part in a screening at all."""
    if Need.EMBEDDING in detector.needs and len(batch) and not batch.dim:
        return "needs vectors, and the entries have none"
    if (lacking := lacking_in(detector)) is not None:
        return lacking
    unlabelled = len(batch) > 0 and all(label is None for label in batch.labels)
    if Need.LABEL in detector.needs and unlabelled:
        return "needs labels, and no entry has one"
    return None


def lacking_in(detector: Detector) -> str | None:
    """Return the name of a requirement that a detector lacks, ``None`` if it lacks none."""
    return detector.lacks() if isinstance(detector, UsesEmbedder) else None


def audited(detector: Detector, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
    """Fit a detector on a knowledge base and return the score of each entry by the others.

    NaN where the detector has no opinion; shape (n_entries,).
    """
    if isinstance(detector, Audits):
        return detector.audit(entries, seed)
    return out_of_fold(detector.fit(entries), entries, seed)


def explained_audit(detector: Detector, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
    """Return the evidence for the scores that :func:`audited` gave to rows."""
    explain = detector.explain_audit if isinstance(detector, Audits) else detector.explain
    return explain(entries, rows)
