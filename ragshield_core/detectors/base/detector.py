"""The kinds of detectors that learn the knowledge base, and that learn nothing."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.evidence import Evidence, Need, Traits
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CalibrationError

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
    together is a :class:`~ragshield_core.detectors.base.group.GroupDetector`. What only some
    detectors can do is in :mod:`ragshield_core.detectors.base.abilities`.

    Attributes
    ----------
    name
        The name in findings, unique within a guard; that of the class is the one under which the
        registry knows it.
    needs
        What it cannot do without; entries that lack it are reported as not judged.
    default_threshold
        Without a calibration, a score above it is suspicious.
    traits
        How the detector is to be treated, see :class:`Traits`.
    """

    name: str
    needs: ClassVar[frozenset[Need]]
    default_threshold: float = 0.0
    traits: Traits = Traits()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again, JSON-ready.

        By default these are the attributes that have the names of the parameters.
        """
        given = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}

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
        """Measure anew what is usual, in entries that stand for all clean ones as they are now.

        A guard calls it when the knowledge base has grown, before it asks for held-out scores of
        the same entries. By default it does nothing: what is usual is measured as it is learned.
        """

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries, (n_fitted,), each by a model that did not know it.

        NaN for entries that cannot be judged then; ``seed`` is that of random choices. By default
        each of :data:`N_FOLDS` random parts is forgotten, scored, and learned again.
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
        """Return which scores of a sample are those of poison, shape (n_entries,); none by default.

        A guard asks it of a sample that nobody has vouched for. ``scores`` are those of all
        entries, NaN where one cannot be judged. Entries ``held`` in quarantine say nothing about
        what the knowledge base is about.
        """
        return np.zeros(len(scores), dtype=np.bool_)


def learns(detector: object) -> bool:
    """Return whether scores depend on the knowledge base; where not, an entry is scored once."""
    return isinstance(detector, Detector) and not isinstance(detector, StatelessDetector)


def judged_scores(detector: Detector, batch: Batch) -> NDArray[np.float64]:
    """Return the score of each entry, shape (n_entries,); NaN where it cannot be judged."""
    unjudged = detector.unjudged(batch)
    rows = [row for row in range(len(batch)) if row not in unjudged]
    scores = np.full(len(batch), np.nan)
    if rows:
        # Who looks at no vectors needs no copy of all of them.
        as_it_is = len(rows) == len(batch) and Need.EMBEDDING not in detector.needs
        judged = detector.score(batch if as_it_is else batch.take(rows))
        if not np.isfinite(judged).all():
            msg = f"{detector.name} gave clean entries scores that are not finite numbers."
            raise CalibrationError(msg)
        scores[rows] = judged
    return scores


def out_of_fold(detector: Detector, fitted: Batch, seed: int) -> NDArray[np.float64]:
    """Return scores of fitted entries, of each random part while the detector has forgotten it.

    It knows them, before and afterwards. NaN for entries that cannot be judged then.
    """
    order = np.random.default_rng(seed).permutation(len(fitted))
    scores = np.full(len(fitted), np.nan)
    for rows in np.array_split(order, N_FOLDS):
        part = fitted.take(rows)
        detector.forget(part)
        try:
            scores[rows] = judged_scores(detector, part)
        finally:
            detector.learn(part)
    return scores
