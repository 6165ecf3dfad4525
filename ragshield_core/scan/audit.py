"""Audit of a whole knowledge base: every entry judged against all the others, worst first."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration import Calibration, JointCalibration
from ragshield_core.detectors.base import Detector, Need
from ragshield_core.detectors.registry import check_detectors
from ragshield_core.entries import Batch
from ragshield_core.errors import CalibrationError, InvalidBatchError
from ragshield_core.findings import (
    Decision,
    Finding,
    Report,
    Skipped,
    Verdict,
    finding_to_dict,
    why,
)
from ragshield_core.policy import Policy
from ragshield_core.screening import checked, crash, explained, findings_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Told what is being done, how many are done, and of how many.
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanReport(Report):
    """The outcome of an audit; a :class:`~ragshield_core.findings.Report` that knows its order.

    Attributes
    ----------
    fpr
        Accepted share of clean entries among the findings, of all detectors together.
    thresholds
        Per detector, the score above which an entry is a finding.
    n_clean
        Trusted entries behind the thresholds; 0 where they are estimates.
    failed
        Names of detectors that crashed: what they would have found is missing.
    by_rule
        Names of detectors that acted by their default thresholds, which follow no rate.
    """

    fpr: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=dict)
    n_clean: int = 0
    failed: tuple[str, ...] = ()
    by_rule: tuple[str, ...] = ()

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Rows of the findings, worst first.

        Scores of different detectors have different units: what is compared is the share of
        entries of this knowledge base that the same detector scores as high.
        """
        keys = {
            row: min((self._rarity(f), f.threshold - f.score) for f in decision.findings)
            for row, decision in self.remarkable.items()
        }
        return tuple(sorted(keys, key=lambda row: (*keys[row], row)))

    @property
    def found(self) -> tuple[Decision, ...]:
        """Decisions against entries, worst first; those that people released are not among them."""
        return tuple(self.remarkable[row] for row in self.ranking if not self.admitted[row])

    def overruled(self, released: Mapping[str, str]) -> ScanReport:
        """Return the report with entries admitted that people released before.

        Parameters
        ----------
        released
            Remarks who did, by id; as :meth:`Quarantine.hold` returns them.
        """
        remarkable = {
            row: replace(decision, verdict=Verdict.ADMIT, note=released[decision.entry_id])
            if decision.entry_id in released
            else decision
            for row, decision in self.remarkable.items()
        }
        return replace(self, remarkable=remarkable)

    @property
    def audited(self) -> bool:
        """Whether any detector had an opinion: without one, no finding means nothing."""
        return bool(self.scores) or not len(self.batch)

    @property
    def note(self) -> str:
        """What the findings are worth."""
        if not self.audited:
            return "Nothing was audited: every detector was skipped."
        rules = (
            f" Default thresholds are in force for {', '.join(self.by_rule)}, whatever the rate: "
            "they may find many clean entries."
            if self.by_rule
            else ""
        )
        if self.n_clean:
            return (
                f"Thresholds from {self.n_clean} trusted entries: of the other clean ones, a share "
                f"of at most {self.fpr:g} is expected among the findings.{rules}"
            )
        return (
            "A ranked list, not a verdict: without trusted entries the thresholds are estimated "
            f"from the knowledge base itself, and the false-positive rate of {self.fpr:g} is an "
            f"estimate.{rules} Name trusted entries to have it kept."
        )

    def summary(self) -> str:
        """Return the counts in one line, without any text of an entry."""
        unjudged = self._unjudged
        missed = f", {unjudged} of them judged by no detector" if unjudged else ""
        found = int(np.count_nonzero(~self.admitted))
        return f"{len(self.batch)} entries audited{missed}: {found} found suspicious"

    def to_json(self) -> str:
        """Return the findings, worst first, as JSON; no texts, no vectors, no other entries."""
        return json.dumps(
            {
                "entries": len(self.batch),
                "judged": len(self.batch) - self._unjudged,
                "fpr": self.fpr,
                "calibrated": bool(self.n_clean),
                "trusted_entries": self.n_clean,
                "note": self.note,
                "thresholds": {name: _json_number(v) for name, v in self.thresholds.items()},
                "findings": [
                    {
                        "entry_id": decision.entry_id,
                        "findings": [
                            {
                                key: _json_number(value) if isinstance(value, float) else value
                                for key, value in finding_to_dict(finding).items()
                            }
                            for finding in decision.findings
                        ],
                    }
                    for decision in self.found
                ],
                "skipped": [{"detector": s.detector, "reason": s.reason} for s in self.skipped],
                "failed": list(self.failed),
                "timings": dict(self.timings),
            },
            allow_nan=False,
        )

    @cached_property
    def _unjudged(self) -> int:
        judged = np.zeros(len(self.batch), dtype=np.bool_)
        for scores in self.scores.values():
            judged |= ~np.isnan(scores)
        return int(np.count_nonzero(~judged))

    @cached_property
    def _ordered(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.sort(scores[~np.isnan(scores)]) for name, scores in self.scores.items()}

    def _remarkable(self) -> list[tuple[str, ...]]:
        """Rows to show, worst first."""
        shown: list[tuple[str, ...]] = []
        for row in self.ranking:
            decision = self.remarkable[row]
            finding = self.strongest(decision)
            p_value = "" if finding.p_value is None else f"{finding.p_value:.4f}"
            found_by = ", ".join(
                one.detector for one in sorted(decision.findings, key=self._rarity)
            )
            numbers = (f"{finding.score:.3f}", f"{finding.threshold:.3f}", p_value)
            row_shown = (decision.entry_id, str(decision.verdict), found_by, *numbers)
            shown.append((*row_shown, why(decision)))
        return shown

    def strongest(self, decision: Decision) -> Finding:
        """Return the finding whose score is rarest in this knowledge base."""
        return min(decision.findings, key=self._rarity)

    def _rarity(self, finding: Finding) -> float:
        """Return the share of entries that the detector scores as high, in (0, 1]."""
        scores = self._ordered[finding.detector]
        return 1.0 - int(np.searchsorted(scores, finding.score)) / len(scores)

    def __repr__(self) -> str:
        return f"<ScanReport {self.summary()}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415 - only where something is shown

        yield from super().__rich_console__(console, options)
        yield Text(self.note)


class _Audited(NamedTuple):
    """One detector that had opinions."""

    detector: Detector
    scores: NDArray[np.float64]  # (n_entries,), NaN where it had none
    seconds: float

    @property
    def name(self) -> str:
        return self.detector.name

    @property
    def has_estimate(self) -> bool:
        """Whether its threshold follows the rate without trusted entries."""
        return type(self.detector).audit_threshold is not Detector.audit_threshold


def scan(
    batch: Batch,
    detectors: Sequence[Detector],
    *,
    fpr: float = 0.01,
    clean_ids: Iterable[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ScanReport:
    """Judge every entry of a knowledge base against the others.

    Parameters
    ----------
    batch
        The knowledge base; some of it may be poisoned.
    detectors
        Are fitted anew, so pass none that guard something. Those whose needs are not met are
        skipped and named.
    fpr
        Accepted share of clean entries among the findings, of all detectors together; without
        ``clean_ids`` each gets an equal part.
    clean_ids
        Entries of the batch that are known to be clean, drawn like the others: thresholds come from
        their scores, and they are no findings themselves. Without them thresholds are estimates.
    seed
        Of random choices.
    progress
        Told before each detector, and when all are done.

    Returns
    -------
    ScanReport
        Findings with their evidence, worst first in ``ranking``.

    Raises
    ------
    TypeError
        If a class, or anything else, is given in place of a detector.
    InvalidBatchError
        If one of ``clean_ids`` is not in the batch.
    CalibrationError
        If the trusted entries are too few for the rate; names how many would do.

    Notes
    -----
    With ``clean_ids`` the rate is that of split-conformal p-values: it holds in expectation if
    trusted and other clean entries are exchangeable, poison among the others or not, since all are
    scored in the presence of the same entries.

    Examples
    --------
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> rng = np.random.default_rng(0)
    >>> labels = ["ham", "spam"] * 50
    >>> axes = np.array([[1.0, 0.0], [0.0, 1.0]] * 50)
    >>> labels[7] = "ham"
    >>> batch = Batch.of(ids=[f"e{i}" for i in range(100)], texts=[""] * 100, labels=labels,
    ...                  embeddings=axes + rng.uniform(0, 0.2, (100, 2)))
    >>> report = scan(batch, [LabelCentroidDetector()])
    >>> [decision.entry_id for decision in report.found]
    ['e7']
    """
    check_detectors(detectors)
    policy = Policy().accepting(fpr)
    trusted = _rows_of(batch, clean_ids)
    tell = progress or (lambda _what, _done, _total: None)
    audited, skipped, failed = _audits(batch, detectors, seed, tell)
    if trusted is not None:
        audited, unjudged = _with_clean_scores(audited, trusted)
        skipped += unjudged
    calibration = None if trusted is None else _calibration(audited, trusted)
    thresholds = _thresholds(audited, policy, calibration)
    skipped += [_judged_too_few(item, trusted) for item in audited if item.name not in thresholds]
    audited = [item for item in audited if item.name in thresholds]
    timings = {}
    findings: dict[int, list[Finding]] = {}
    for item in audited:
        start = time.perf_counter()
        name = item.name
        suspicious = item.scores > thresholds[name]  # never where NaN
        if trusted is not None:
            suspicious[trusted] = False
        rows = np.flatnonzero(suspicious).tolist()
        clean = None if calibration is None else calibration.calibrations.get(name)
        for row, finding in _findings(item, batch, rows, thresholds[name], clean):
            findings.setdefault(row, []).append(finding)
        timings[name] = item.seconds + time.perf_counter() - start
    tell("auditing", len(detectors), len(detectors))
    return ScanReport(
        batch=batch,
        remarkable={row: policy.decide(batch.ids[row], findings[row]) for row in sorted(findings)},
        scores={item.name: item.scores for item in audited},
        skipped=tuple(skipped),
        timings=timings,
        fpr=fpr,
        thresholds=thresholds,
        n_clean=0 if trusted is None else len(trusted),
        failed=tuple(failed),
        by_rule=tuple(
            item.name
            for item in audited
            if not (item.detector.exchangeable and calibration) and not item.has_estimate
        ),
    )


def _audits(
    batch: Batch, detectors: Sequence[Detector], seed: int, tell: Progress
) -> tuple[list[_Audited], list[Skipped], list[str]]:
    """Let each detector audit; return those with opinions, those without, and those that crashed.

    A crash costs the findings of that detector, not those of the others.
    """
    audited, skipped, failed = [], [], []
    for number, detector in enumerate(detectors):
        tell(f"auditing: {detector.name}", number, len(detectors))
        start = time.perf_counter()
        reason = _skip_reason(detector, batch)
        if reason is None:
            try:
                scores = checked(
                    detector.name, detector.audit(batch, seed), len(batch), partial=True
                )
                if not np.isnan(scores).all():
                    seconds = time.perf_counter() - start
                    audited.append(_Audited(detector, scores, seconds))
                    continue
                why_not = next(iter(detector.unjudged(batch).values()), "no reason given")
                reason = f"it could judge none of the entries: {why_not}"
            except NotImplementedError:
                reason = "it cannot audit a knowledge base"
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                reason = crash(error)
                logger.error("%s, auditing: %s", detector.name, reason)  # noqa: TRY400
                failed.append(detector.name)
        skipped.append(Skipped(detector=detector.name, reason=reason))
    return audited, skipped, failed


def _skip_reason(detector: Detector, batch: Batch) -> str | None:
    if not len(batch):
        return "there are no entries"
    if Need.QUERY in detector.needs:
        return "needs queries, and an audit has none"
    return detector.skip_reason(batch)


def _rows_of(batch: Batch, ids: Iterable[str] | None) -> NDArray[np.intp] | None:
    """Return the rows of trusted entries, each once."""
    if ids is None:
        return None
    wanted = dict.fromkeys(ids)
    row_of = {entry_id: row for row, entry_id in enumerate(batch.ids) if entry_id in wanted}
    unknown = [entry_id for entry_id in wanted if entry_id not in row_of]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (", ..." if unknown[5:] else "")
        msg = (
            f"{len(unknown)} of {len(wanted)} trusted ids are not in the knowledge base ({shown}), "
            "expected ids of entries that are scanned; trust is in entries of this knowledge base, "
            "scored in its midst."
        )
        raise InvalidBatchError(msg)
    return np.array(sorted(row_of.values()), dtype=np.intp)


def _with_clean_scores(
    audited: list[_Audited], trusted: NDArray[np.intp]
) -> tuple[list[_Audited], list[Skipped]]:
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


def _judged_too_few(item: _Audited, trusted: NDArray[np.intp] | None) -> Skipped:
    judged = 0 if trusted is None else int(np.count_nonzero(~np.isnan(item.scores[trusted])))
    reason = f"not calibrated: it could judge {judged} of the trusted entries, too few"
    return Skipped(detector=item.name, reason=reason)


def _calibration(audited: Sequence[_Audited], trusted: NDArray[np.intp]) -> JointCalibration | None:
    """Return what the trusted entries score, unless no detector can be compared with them."""
    detectors = [item.detector for item in audited if item.detector.exchangeable]
    scores = {i.detector.name: i.scores[trusted] for i in audited if i.detector.exchangeable}
    return JointCalibration(scores, {d.name: d.floor for d in detectors}) if scores else None


def _thresholds(
    audited: Sequence[_Audited], policy: Policy, calibration: JointCalibration | None
) -> dict[str, float]:
    """Return thresholds from trusted entries, or else estimates, each of an equal part.

    None for a detector that judged too few of the trusted entries.
    """
    part = policy.quarantine_at / max(1, len(audited))
    known = {} if calibration is None else calibration.calibrations
    rules = {
        item.name: item.detector.audit_threshold(part) for item in audited if item.name not in known
    }
    try:
        thresholds = policy.thresholds(rules, calibration)
    except CalibrationError as error:
        names = ", ".join(calibration.calibrations if calibration is not None else ())
        msg = f"{names} together, at fpr={policy.quarantine_at:g}: {error}"
        raise CalibrationError(msg) from None
    return {name: threshold.quarantine for name, threshold in thresholds.items()}


def _findings(
    item: _Audited,
    batch: Batch,
    rows: list[int],
    threshold: float,
    calibration: Calibration | None,
) -> list[tuple[int, Finding]]:
    why = explained(item.name, item.detector.explain_audit, batch, rows)
    ids = [batch.ids[row] for row in rows]
    found = findings_of(item.detector, ids, item.scores[rows], threshold, why, calibration)
    return list(zip(rows, found, strict=True))


def _json_number(value: Any) -> Any:
    return value if math.isfinite(value) else None
