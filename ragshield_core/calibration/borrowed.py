"""A calibration that one guard takes from another: numbers, and nothing of its entries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.registry import kind_of
from ragshield_core.model.errors import CalibrationError
from ragshield_core.model.p_values import JointCalibration


class Borrowed(NamedTuple):
    """A calibration of another guard, in force until there is one of one's own."""

    calibration: JointCalibration
    dim: int  # of the vectors that were scored; 0 without any


@dataclass(frozen=True, kw_only=True, eq=False)
class Lent:
    """What a guard gives away of its calibration: how clean entries score, and not which.

    Attributes
    ----------
    detectors
        By name, kind and options of those that were calibrated.
    scores
        By name, shape (n_clean,); a row is an entry, in an order that says nothing of it.
    spent
        Shape (n_clean,), as of :class:`JointCalibration`.
    n_doubtful
        As of :class:`JointCalibration`.
    dim
        Length of the vectors that were scored; 0 without any.
    """

    detectors: Mapping[str, str]
    scores: Mapping[str, NDArray[np.floating[Any]]]
    spent: NDArray[np.bool_]
    n_doubtful: int
    dim: int

    @classmethod
    def of(
        cls, calibration: JointCalibration, detectors: Sequence[Detector], dim: int | None
    ) -> Self:
        """Return what is given away of a calibration by some detectors."""
        # In the order of the scores themselves: that of the sample would be that of the store.
        order = np.lexsort([*calibration.scores.values(), calibration.spent])
        return cls(
            detectors=_described(detectors),
            scores={name: column[order] for name, column in calibration.scores.items()},
            spent=calibration.spent[order],
            n_doubtful=calibration.n_doubtful,
            dim=dim or 0,
        )

    def check_fits(self, detectors: Sequence[Detector], dim: int | None) -> None:
        """Refuse detectors, or vectors, whose scores are no such scores.

        Raises
        ------
        CalibrationError
            If they are others; names the detectors, or both lengths.
        """
        mine = _described(detectors)
        others = sorted(
            name for name in {*mine, *self.detectors} if mine.get(name) != self.detectors.get(name)
        )
        if others:
            msg = (
                f"the calibration to take over is of other detectors: {', '.join(others)} is "
                "missing in one of both guards, or has other options; make both with the same "
                "detectors=, or calibrate this one by itself."
            )
            raise CalibrationError(msg)
        check_dim(self.dim, dim)


def check_dim(lent: int, dim: int | None) -> None:
    """Refuse vectors of another length than those that were scored elsewhere.

    Raises
    ------
    CalibrationError
        If both are known, and differ.
    """
    if lent and dim and lent != dim:
        msg = (
            f"the calibration that was taken over is of vectors with {lent} dimensions, and those "
            f"here have {dim}; embed with the same model, or calibrate this guard by itself."
        )
        raise CalibrationError(msg)


def _described(detectors: Sequence[Detector]) -> dict[str, str]:
    return {
        d.name: json.dumps([kind_of(d), d.config()], sort_keys=True)
        for d in detectors
        if d.traits.exchangeable
    }
