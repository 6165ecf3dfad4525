"""From which score on an audit holds an entry for suspicious."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration import JointCalibration
from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.base.abilities import Audits
from ragshield_core.errors import CalibrationError, InvalidBatchError
from ragshield_core.findings import Skipped
from ragshield_core.policy import Policy


class Audited(NamedTuple):
    """One detector that had opinions."""

    detector: Detector
    scores: NDArray[np.float64]  # (n_entries,), NaN where it had none
    seconds: float

    @property
    def name(self) -> str:
        """The detector's."""
        return self.detector.name

    @property
    def has_estimate(self) -> bool:
        """Whether its threshold follows the rate without trusted entries."""
        return (
            isinstance(self.detector, Audits)
            and type(self.detector).audit_threshold is not Audits.audit_threshold
        )


def unknown_ids(unknown: Sequence[str], n_wanted: int) -> InvalidBatchError:
    """Return the error of trusted ids that are not there."""
    shown = ", ".join(map(repr, unknown[:5])) + (", ..." if unknown[5:] else "")
    return InvalidBatchError(
        f"{len(unknown)} of {n_wanted} trusted ids are not in the knowledge base ({shown}), "
        "expected ids of entries that are scanned; trust is in entries of this knowledge base, "
        "scored in its midst."
    )


def with_clean_scores(
    audited: list[Audited], trusted: NDArray[np.intp]
) -> tuple[list[Audited], list[Skipped]]:
    """Set detectors aside that have no opinion about any trusted entry."""
    usable = [item for item in audited if not np.isnan(item.scores[trusted]).all()]
    if audited and not usable:
        names = ", ".join(item.name for item in audited)
        msg = (
            f"none of the {len(trusted)} trusted entries can be judged by {names}; name entries "
            "that carry what these detectors need."
        )
        raise CalibrationError(msg)
    reason = "not calibrated: it could judge none of the trusted entries"
    return usable, [
        Skipped(detector=item.name, reason=reason)
        for item in audited
        if np.isnan(item.scores[trusted]).all()
    ]


def judged_too_few(item: Audited, trusted: NDArray[np.intp] | None) -> Skipped:
    """Say why a detector has no threshold."""
    judged = 0 if trusted is None else int(np.count_nonzero(~np.isnan(item.scores[trusted])))
    reason = f"not calibrated: it could judge {judged} of the trusted entries, too few"
    return Skipped(detector=item.name, reason=reason)


def calibration_of(
    audited: Sequence[Audited], trusted: NDArray[np.intp]
) -> JointCalibration | None:
    """Return what the trusted entries score, unless no detector can be compared with them."""
    detectors = [item.detector for item in audited if item.detector.exchangeable]
    scores = {i.detector.name: i.scores[trusted] for i in audited if i.detector.exchangeable}
    return JointCalibration(scores, {d.name: d.floor for d in detectors}) if scores else None


def by_rule(audited: Sequence[Audited], calibration: JointCalibration | None) -> tuple[str, ...]:
    """Return the names of detectors that act by default thresholds, which follow no rate."""
    return tuple(
        item.name
        for item in audited
        if not (item.detector.exchangeable and calibration) and not item.has_estimate
    )


def thresholds_of(
    audited: Sequence[Audited], policy: Policy, calibration: JointCalibration | None
) -> dict[str, float]:
    """Return thresholds from trusted entries, or else estimates, each of an equal part.

    None for a detector that judged too few of the trusted entries.
    """
    part = policy.quarantine_at / max(1, len(audited))
    known = {} if calibration is None else calibration.calibrations
    rules = {
        item.name: item.detector.audit_threshold(part)
        if isinstance(item.detector, Audits)
        else item.detector.default_threshold
        for item in audited
        if item.name not in known
    }
    try:
        thresholds = policy.thresholds(rules, calibration)
    except CalibrationError as error:
        names = ", ".join(calibration.calibrations if calibration is not None else ())
        msg = f"{names} together, at fpr={policy.quarantine_at:g}: {error}"
        raise CalibrationError(msg) from None
    return {name: threshold.quarantine for name, threshold in thresholds.items()}
