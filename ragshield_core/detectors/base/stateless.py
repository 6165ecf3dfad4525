"""The kind of detector that learns nothing: a name, a score and an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.detector import Detector, judged_scores
from ragshield_core.model.entries import Batch


class StatelessDetector(Detector):
    """Base class of detectors whose score of an entry depends on nothing else.

    A new one has a ``name``, ``needs``, a ``default_threshold`` and the methods ``score`` and
    ``explain``.
    """

    learns = False
    in_pieces = True

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
        """Return the scores of the entries: this detector knows none of them."""
        return judged_scores(self, fitted)

    def doubtful(
        self,
        scores: NDArray[np.float64],
        held: NDArray[np.bool_] | None = None,  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        """Return which scores of a sample are those of poison.

        A guard asks it of a sample that nobody has vouched for.

        Parameters
        ----------
        scores
            Shape (n_entries,): of all entries of the sample, NaN where it cannot be judged.
        held
            Shape (n_entries,): which of them are held in quarantine; ``None`` for none. They say
            nothing about what the knowledge base is about.

        Returns
        -------
        NDArray[np.bool]
            Shape (n_entries,); none by default.
        """
        return np.zeros(len(scores), dtype=np.bool_)
