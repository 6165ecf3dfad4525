"""Thresholds of an audit, and the findings above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Audits, Detector, Evidence, Need
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CalibrationError, InvalidBatchError
from ragshield_core.model.findings import Finding, Skipped
from ragshield_core.model.p_values import TIE, JointCalibration
from ragshield_core.model.policy import Policy
from ragshield_core.model.support import Support
from ragshield_core.screening.screening import findings_of
from ragshield_core.tools.audit.report import ScanReport

# A person can read this many findings, at any rate.
FEW = 20
# Thresholds from the knowledge base itself keep the rate in expectation: no entries follow.
EXPECTED = 0.5
# A score that only this share of clean entries reach means poison, in any knowledge base.
EXTREME = 1e-4
MOST_POISONED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectorScores:
    """A detector, with its scores and reasons for the numbered entries of a knowledge base."""

    detector: Detector
    scores: NDArray[np.float64]  # of all entries; NaN where there is no opinion
    # Returns the reasons for the scores of numbered entries
    explain: Callable[[NDArray[np.int64]], Sequence[Evidence]]

    @property
    def name(self) -> str:
        """Name of the detector."""
        return self.detector.name

    @property
    def judged(self) -> int:
        """Number of entries with a score."""
        return int(np.count_nonzero(~np.isnan(self.scores)))


def unknown_ids(unknown: Sequence[str], n_wanted: int) -> InvalidBatchError:
    """Return the error for trusted ids that are not in the knowledge base."""
    shown = ", ".join(map(repr, unknown[:5])) + (", ..." if unknown[5:] else "")
    return InvalidBatchError(
        f"{len(unknown)} of {n_wanted} trusted ids are not in the knowledge base ({shown}), "
        "expected ids of entries that are scanned; trust is in entries of this knowledge base, "
        "scored in its midst."
    )


def report_of(
    judges: Sequence[DetectorScores],
    policy: Policy,
    trusted: NDArray[np.int64] | None,
    ids_of: Callable[[NDArray[np.int64]], Sequence[str]],
    *,
    batch: Batch | None,
    skipped: Sequence[Skipped],
    **known: Any,
) -> ScanReport:
    """Return the report of entries above the thresholds; trusted entries are never findings.

    Parameters
    ----------
    judges
        Without trusted entries, each judge gets an equal part of the policy's rate.
    trusted
        Numbers of entries known to be clean, ascending; ``None`` estimates thresholds.
    ids_of
        Returns the ids of numbered entries.
    batch
        All entries, or ``None`` if memory cannot hold them: the report then has only found ones.
    skipped, known
        Detectors skipped so far, and further fields of the report.

    Raises
    ------
    CalibrationError
        If the trusted entries are too few for the rate, or no detector can judge them.
    """
    skipped, whole, calibration = [*skipped], _of_whole(judges, policy), None
    if trusted is not None:
        judges = _with_clean_scores(judges, trusted, skipped)
        comparable = [judge for judge in judges if judge.detector.traits.exchangeable]
        calibration = _calibration(comparable, trusted) if comparable else None
    if calibration is None:
        thresholds = {judge.name: whole[judge.name] for judge in judges}
    else:
        thresholds = _from_trusted(judges, policy, calibration)
        # In a large knowledge base, all entries show the usual scores better than a few trusted.
        if policy.quarantine_at * max(len(judge.scores) for judge in judges) >= FEW:
            thresholds = {name: min(one, whole[name]) for name, one in thresholds.items()}
    for judge in judges:
        if judge.name not in thresholds:
            n = 0 if trusted is None else np.count_nonzero(~np.isnan(judge.scores[trusted]))
            reason = f"not calibrated: it could judge {n} of the trusted entries, too few"
            skipped.append(Skipped(detector=judge.name, reason=reason))
    judges = [judge for judge in judges if judge.name in thresholds]
    calibrated = {} if calibration is None else calibration.calibrations
    limits = limits_of(judges, policy, thresholds, calibration)
    findings: dict[int, list[Finding]] = {}
    high: dict[str, NDArray[np.float64]] = {}
    for judge in judges:
        above = np.flatnonzero(judge.scores > limits[judge.name])  # never where NaN
        high[judge.name] = np.sort(judge.scores[above])
        numbers = above if trusted is None else np.setdiff1d(above, trusted)
        told = findings_of(
            judge.detector,
            ids_of(numbers),
            judge.scores[numbers],
            limits[judge.name][numbers],
            judge.explain(numbers),
            calibrated.get(judge.name) if trusted is not None else None,
            thresholds[judge.name],
        )
        for number, finding in zip(numbers.tolist(), told, strict=True):
            findings.setdefault(number, []).append(finding)
    found = sorted(findings)
    ids = ids_of(np.array(found, dtype=np.int64))
    rows, scores = found, {judge.name: judge.scores for judge in judges}
    if batch is None:
        batch = Batch.of(ids=ids, texts=[""] * len(ids), embeddings=None)
        rows = list(range(len(ids)))
        scores = {name: column[found] for name, column in scores.items()}
    silent = [np.isnan(judge.scores) for judge in judges]
    n_silent = np.count_nonzero(np.logical_and.reduce(silent)) if silent else known["n_audited"]
    return ScanReport(
        batch=batch,
        remarkable={
            row: policy.decide(entry_id, findings[number])
            for row, number, entry_id in zip(rows, found, ids, strict=True)
        },
        scores=scores,
        skipped=tuple(skipped),
        fpr=policy.quarantine_at,
        thresholds=thresholds,
        n_clean=0 if trusted is None else len(trusted),
        by_rule=tuple(
            judge.name
            for judge in judges
            if judge.name not in calibrated and not _has_estimate(judge)
        ),
        n_unjudged=int(n_silent),
        judged={judge.name: judge.judged for judge in judges},
        high=high,
        **known,
    )


def limits_of(
    judges: Sequence[DetectorScores],
    policy: Policy,
    thresholds: Mapping[str, float],
    calibration: JointCalibration | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Return the score above which each entry is a finding, by judge, shape (n_entries,).

    ``thresholds`` apply to each judge alone; the scores of several judges for an entry support each
    other. Without a calibration, all entries except poison beyond doubt stand for the clean ones.
    """
    alone = {one.name: np.full(len(one.scores), thresholds[one.name]) for one in judges}
    comparable = [one for one in judges if one.detector.traits.exchangeable and one.judged]
    if calibration is None:
        if not comparable:
            return alone
        poison = np.logical_or.reduce([doubtful(judge) for judge in comparable])
        calibration = _calibration(comparable, ~poison)
    _, rank = calibration.ranks(policy.quarantine_at, EXPECTED)
    support = Support(calibration, thresholds, rank)
    return support.limits({judge.name: judge.scores for judge in judges}, alone)


def _calibration(
    judges: Sequence[DetectorScores], rows: NDArray[Any], n_doubtful: int = 0
) -> JointCalibration:
    """Return a calibration on some entries, which stand for all clean ones."""
    return JointCalibration(
        {judge.name: judge.scores[rows] for judge in judges},
        {judge.name: judge.detector.traits.floor for judge in judges},
        n_doubtful,
    )


def _of_rule(judge: DetectorScores, part: float) -> float:
    """Return the detector's estimated threshold for part of the rate, or else its default."""
    if isinstance(judge.detector, Audits):
        return judge.detector.audit_threshold(part)
    return judge.detector.default_threshold


def _of_whole(judges: Sequence[DetectorScores], policy: Policy) -> dict[str, float]:
    """Return thresholds from the knowledge base itself, some of which may be poisoned.

    Each detector's own estimate is for an equal part of the rate. If together they find more
    entries than the rate allows, some kind of page is usual here but suspicious elsewhere:
    thresholds then rise until all entries except poison beyond doubt keep the rate.
    """
    part = policy.quarantine_at / max(1, len(judges))
    own = {judge.name: _of_rule(judge, part) for judge in judges}
    thresholds = _above(policy, own, None)
    # Label detectors are left out: the number of wrong labels says nothing about the texts.
    of_texts = [one for one in judges if Need.LABEL not in one.detector.needs]
    comparable = [judge for judge in of_texts if judge.detector.traits.exchangeable]
    found = sum((judge.scores > thresholds[judge.name] for judge in of_texts), np.zeros(1)) > 0
    if not comparable or np.count_nonzero(found) <= max(FEW, policy.quarantine_at * len(found)):
        return thresholds
    poison = np.logical_or.reduce([doubtful(judge) for judge in comparable])
    calibration = _calibration(comparable, ~poison, int(np.count_nonzero(poison)))
    try:
        risen = calibration.thresholds(policy.quarantine_at, EXPECTED)
    except CalibrationError:  # too few entries to tell a rate
        return thresholds
    for name, least in risen.items():
        # No entries follow: those at the threshold are themselves findings.
        thresholds[name] = max(thresholds[name], least - 2 * TIE)
    return thresholds


def doubtful(judge: DetectorScores) -> NDArray[np.bool_]:
    """Return a mask of the entries that are poison beyond doubt."""
    least = judge.detector.traits.beyond_doubt
    if _has_estimate(judge) and isinstance(judge.detector, Audits):
        least = judge.detector.audit_threshold(EXTREME)
    found = judge.scores > least
    # A larger share is a topic of the knowledge base, not poison.
    return found if found.mean() <= MOST_POISONED else np.zeros_like(found)


def _with_clean_scores(
    judges: Sequence[DetectorScores], trusted: NDArray[np.int64], skipped: list[Skipped]
) -> list[DetectorScores]:
    """Return the judges that can judge a trusted entry; add the others to ``skipped``."""
    blind = [judge for judge in judges if np.isnan(judge.scores[trusted]).all()]
    if judges and len(blind) == len(judges):
        names = ", ".join(judge.name for judge in judges)
        msg = (
            f"none of the {len(trusted)} trusted entries can be judged by {names}; name entries "
            "that carry what these detectors need."
        )
        raise CalibrationError(msg)
    reason = "not calibrated: it could judge none of the trusted entries"
    skipped += [Skipped(detector=judge.name, reason=reason) for judge in blind]
    return [judge for judge in judges if judge not in blind]


def _has_estimate(judge: DetectorScores) -> bool:
    """Return whether a threshold follows the rate without trusted entries."""
    return (
        isinstance(judge.detector, Audits)
        and type(judge.detector).audit_threshold is not Audits.audit_threshold
    )


def _from_trusted(
    judges: Sequence[DetectorScores], policy: Policy, calibration: JointCalibration
) -> dict[str, float]:
    """Return thresholds from trusted entries; a judge of too few of them gets none.

    A judge that cannot be calibrated on them keeps its detector's own threshold.
    """
    known = calibration.calibrations
    part = policy.quarantine_at / len(judges)
    rules = {judge.name: _of_rule(judge, part) for judge in judges if judge.name not in known}
    try:
        return _above(policy, rules, calibration)
    except CalibrationError as error:
        msg = f"{', '.join(known)} together, at fpr={policy.quarantine_at:g}: {error}"
        raise CalibrationError(msg) from None


def _above(
    policy: Policy, rules: Mapping[str, float], calibration: JointCalibration | None
) -> dict[str, float]:
    """Return the score above which an entry is a finding, by detector."""
    thresholds = policy.thresholds(rules, calibration)
    return {name: threshold.quarantine for name, threshold in thresholds.items()}
