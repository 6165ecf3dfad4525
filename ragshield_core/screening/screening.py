"""Runs of detectors on a batch: findings, unjudged entries and crashes."""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    Detector,
    Evidence,
    GroupDetector,
    Overlooks,
    Scope,
    judged_scores,
    skip_reason,
)
from ragshield_core.detectors.base.retrieved import RetrievalDetector
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidScoresError, NeighborsError
from ragshield_core.model.findings import Decision, Finding, Report, Skipped, Unjudged, Verdict
from ragshield_core.model.p_values import Calibration
from ragshield_core.model.policy import Policy, Thresholds
from ragshield_core.model.support import Support
from ragshield_core.time_budget import MOST_LATE, OutOfTimeError, TimeBudget

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

AnyDetector = Detector | RetrievalDetector
Said = TypeVar("Said")

# Calls of a detector on parts of a batch on which it crashed, to find the entries that crash it:
# enough for a few of them among a thousand.
ATTEMPTS = 64


class Outcome(NamedTuple):
    """Result of one detector on a batch."""

    scores: NDArray[np.float64]  # (n_entries,); NaN without an opinion
    findings: list[tuple[int, Finding]]  # by row
    unjudged: list[tuple[int, Unjudged]]  # by row
    part: Batch | None = None  # the scored entries
    rows: NDArray[np.intp] = np.empty(0, dtype=np.intp)  # their rows in the batch


# Evidence for a score that is high enough only because other detectors suspect the entry as well.
SUPPORTED = "; other detectors suspect it, too"
NOTHING = Outcome(np.empty(0), [], [])

# Returns the decisions after rules of people have excused findings.
Excuse = Callable[[Batch, Mapping[int, Decision]], Mapping[int, Decision]]


class InForce(NamedTuple):
    """Thresholds and clean scores in force, by the names of detectors."""

    thresholds: Mapping[str, Thresholds]
    clean: Mapping[str, Calibration]  # without detectors that are not calibrated
    waiting: Mapping[str, Skipped]  # detectors that take no part in any screening
    # Thresholds of sources that a person has adopted, by source and detector.
    by_source: Mapping[str | None, Mapping[str, float]] = MappingProxyType({})
    support: Support | None = None  # None without a calibration
    unusual: Collection[str] = ()  # ids of admitted entries that detectors found unusual

    def above(self, name: str, sources: Sequence[str | None]) -> NDArray[np.float64]:
        """Return by how much a source raises a detector's thresholds, one value per entry."""
        own = {source: found[name] for source, found in self.by_source.items() if name in found}
        if not own:
            return np.zeros(len(sources))
        base = self.thresholds[name].quarantine
        return np.array([max(0.0, own.get(source, base) - base) for source in sources])

    def supported(
        self, scores: Mapping[str, NDArray[np.float64]], sources: Sequence[str | None]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the score above which each detector acts on each entry, given all scores.

        On a source that a person has adopted, each detector acts by itself: entries that are a
        little unusual elsewhere are usual there.
        """
        adopted = np.array([source in self.by_source for source in sources], dtype=np.bool_)
        alone = {
            name: self.thresholds[name].quarantine + self.above(name, sources) for name in scores
        }
        if self.support is None:
            return alone
        told = {name: np.where(adopted, np.nan, column) for name, column in scores.items()}
        return self.support.limits(told, alone)


class Tally:
    """Results of all detectors on a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._findings: dict[int, list[Finding]] = {}
        self._unjudged: dict[int, list[Unjudged]] = {}
        self._judged = np.zeros(len(batch), dtype=np.bool_)
        self.scores: dict[str, NDArray[np.float64]] = {}

    def add(self, name: str, outcome: Outcome) -> None:
        """Add the result of one detector."""
        self.scores[name] = outcome.scores
        self._judged |= ~np.isnan(outcome.scores)
        self.find(outcome.findings)
        for row, item in outcome.unjudged:
            self._unjudged.setdefault(row, []).append(item)

    def find(self, findings: Sequence[tuple[int, Finding]]) -> None:
        """Add findings by row; they replace earlier ones of the same detector."""
        for row, finding in findings:
            before = self._findings.get(row, ())
            others = [one for one in before if one.detector != finding.detector]
            self._findings[row] = [*others, finding]

    def decisions(self, policy: Policy) -> dict[int, Decision]:
        """Return the decisions by row, without entries that were judged and have no finding."""
        unjudged = np.flatnonzero(~self._judged).tolist()
        return {
            row: policy.decide(
                self._batch.ids[row],
                self._findings.get(row, ()),
                self._unjudged.get(row, ()),
                judged=bool(self._judged[row]),
            )
            for row in sorted({*self._findings, *self._unjudged, *unjudged})
        }


def screened(
    batch: Batch,
    detectors: Sequence[Detector],
    policy: Policy,
    in_force: InForce,
    *,
    leaving: Collection[str],
    overdue: Mapping[str, Sequence[Finding]],
    budget: TimeBudget,
    excuse: Excuse,
) -> Report:
    """Return a report with the results of detectors on a batch, and the decisions.

    Known entries that leave when the batch is written (``leaving``, by id) are not judged again.
    The report includes unreported findings against entries admitted earlier (``overdue``). Excused
    entries do not condemn others. After a call that exceeded the budget and still runs, the
    knowledge of these detectors must not be changed.
    """
    seconds = policy.time_for(len(batch))
    tally, outcomes = Tally(batch), dict[str, Outcome]()
    skipped, timings = list[Skipped](), dict[str, float]()
    answers, took = _ask(detectors, in_force, batch, budget, seconds)
    for detector in detectors:
        name, start = detector.name, time.perf_counter()
        if name in in_force.waiting:
            skipped.append(in_force.waiting[name])
            continue
        try:
            run = partial(_outcome, detector, in_force)
            outcome = in_time(detector, batch, seconds, budget, run, answers[name])
        except OutOfTimeError as error:
            outcome = failure(name, batch, error)
            skipped.append(Skipped(detector=name, reason=crash(error)))
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
            continue
        outcomes[name] = outcome
        tally.add(name, outcome)
        timings[name] = took.get(name, seconds or 0.0) + time.perf_counter() - start
    tally.find(_found_together(detectors, outcomes, in_force, batch.sources, budget, seconds))
    remarkable = excuse(batch, tally.decisions(policy))
    condemned = np.zeros(len(batch), dtype=np.bool_)
    condemned[[r for r, d in remarkable.items() if d.verdict is Verdict.QUARANTINE]] = True
    earlier = {i: list(found) for i, found in overdue.items() if i not in leaving}
    for detector in detectors:
        name, outcome = detector.name, outcomes.get(detector.name, NOTHING)
        if outcome.part is None or not isinstance(detector, GroupDetector):
            continue
        left = None if seconds is None else max(0.0, seconds - timings[name])
        start = time.perf_counter()
        try:
            again = partial(_judged_again, detector, outcome, condemned[outcome.rows], in_force)
            found = budget.call(name, left, again)
        except Exception as error:  # noqa: BLE001 - any crash, of any detector
            found, reason = [], f"of entries admitted earlier it knows nothing: {crash(error)}"
            logger.error("%s: %s", name, reason)  # noqa: TRY400
            skipped.append(Skipped(detector=name, reason=reason))
        for finding in found:
            if finding.entry_id not in leaving:  # a new revision is judged by itself
                earlier.setdefault(finding.entry_id, []).append(finding)
        timings[name] += time.perf_counter() - start
    return Report(
        batch=batch,
        remarkable=remarkable,
        scores=tally.scores,
        skipped=tuple(skipped),
        timings=timings,
        retroactive=tuple(policy.decide(i, found) for i, found in earlier.items()),
    )


def scores_again(
    detectors: Sequence[Detector],
    budget: TimeBudget,
    policy: Policy,
    name: str,
    batch: Batch,
    rows: Sequence[int],
) -> NDArray[np.float64] | None:
    """Return the scores that a detector gives to rows of a batch; ``None`` if it fails."""
    detector = next((one for one in detectors if one.name == name), None)
    if detector is None:
        return None
    if detector.traits.scope is Scope.ENTRY:
        batch, rows = batch.take(list(rows)), range(len(rows))
    try:
        judge = partial(judged_scores, detector, batch)
        scores = budget.call(name, policy.time_for(len(batch)), judge)
    except Exception as error:  # noqa: BLE001 - any crash, of any detector
        logger.error("%s could not be asked again: %s", name, crash(error))  # noqa: TRY400
        return None
    return np.nan_to_num(scores[list(rows)], nan=np.inf)


@contextmanager
def overlooking(detectors: Sequence[Detector], ids: Collection[str]) -> Iterator[None]:
    """Let detectors ignore these known entries within the context."""
    if not ids:
        yield
        return
    comparing = [detector for detector in detectors if isinstance(detector, Overlooks)]
    for detector in comparing:
        detector.overlook(ids)
    try:
        yield
    finally:
        for detector in comparing:
            detector.overlook(())


def _ask(
    detectors: Sequence[Detector],
    in_force: InForce,
    batch: Batch,
    budget: TimeBudget,
    seconds: float | None,
) -> tuple[dict[str, Future[Outcome | Skipped]], dict[str, float]]:
    """Return the answers of detectors about a batch, and the seconds that each took, by name."""
    took: dict[str, float] = {}

    def ask(detector: Detector) -> Outcome | Skipped:
        start = time.perf_counter()
        outcome = _outcome(detector, in_force, batch)
        took[detector.name] = time.perf_counter() - start
        return outcome

    asked = [detector for detector in detectors if detector.name not in in_force.waiting]
    return budget.call_each({one.name: partial(ask, one) for one in asked}, seconds), took


def _outcome(detector: Detector, in_force: InForce, batch: Batch) -> Outcome | Skipped:
    """Return the result of a detector on a batch, also if it crashes, or why it takes no part."""
    try:
        return judged(detector, in_force, batch)
    except NeighborsError as error:  # no entry of the batch is the cause: do not try parts
        return failure(detector.name, batch, error)
    except Exception as error:  # noqa: BLE001 - any crash, of any detector
        return isolated(detector.name, batch, error, partial(judged, detector, in_force))


def judged(detector: Detector, in_force: InForce, batch: Batch) -> Outcome | Skipped:
    """Return one detector's scores, findings and unjudged entries, by row."""
    if (reason := skip_reason(detector, batch)) is not None:
        return Skipped(detector=detector.name, reason=reason)
    reasons = detector.unjudged(batch)
    missing = [
        (row, Unjudged(detector=detector.name, entry_id=batch.ids[row], reason=reason))
        for row, reason in reasons.items()
    ]
    rows = np.array([row for row in range(len(batch)) if row not in reasons], dtype=np.intp)
    column = np.full(len(batch), np.nan)
    if rows.size == 0:
        return Outcome(column, [], missing)
    part = batch.take(rows) if reasons else batch
    scores = checked(detector.name, detector.score(part), len(part))
    column[rows] = scores
    thresholds = in_force.thresholds[detector.name]
    above = in_force.above(detector.name, part.sources)
    hits = np.flatnonzero(scores > thresholds.flag + above)
    if not hits.size:
        return Outcome(column, [], missing, part, rows)
    found = findings_of(
        detector,
        [part.ids[hit] for hit in hits],
        scores[hits],
        thresholds.quarantine + above[hits],
        explained(detector.name, detector.explain, part, hits.tolist()),
        in_force.clean.get(detector.name),
    )
    listed = list(zip(rows[hits].tolist(), found, strict=True))
    return Outcome(column, listed, missing, part, rows)


def _found_together(
    detectors: Sequence[Detector],
    outcomes: Mapping[str, Outcome],
    in_force: InForce,
    sources: Sequence[str | None],
    budget: TimeBudget,
    seconds: float | None,
) -> list[tuple[int, Finding]]:
    """Return, by row, findings that detectors make together and none makes by itself."""
    told = [one for one in detectors if one.name in outcomes]
    scores = {one.name: outcomes[one.name].scores for one in told}
    limits = in_force.supported(scores, sources)
    found: list[tuple[int, Finding]] = []
    for detector in told:
        name, outcome = detector.name, outcomes[detector.name]
        lowered = limits[name] < in_force.thresholds[name].quarantine
        rows = np.flatnonzero(lowered & (outcome.scores > limits[name]))
        if not rows.size or outcome.part is None:
            continue
        hits = np.searchsorted(outcome.rows, rows).tolist()
        explain = partial(budget.call, name, seconds, partial(detector.explain, outcome.part, hits))
        why = explained(name, lambda _, __: explain(), None, hits)  # noqa: B023 - at once
        ids = [outcome.part.ids[hit] for hit in hits]
        high, clean = outcome.scores[rows], in_force.clean.get(name)
        alone = in_force.thresholds[name].quarantine
        new = findings_of(detector, ids, high, limits[name][rows], why, clean, alone)
        found += zip(rows.tolist(), new, strict=True)
    return found


def _judged_again(
    detector: GroupDetector, outcome: Outcome, condemned: NDArray[np.bool_], in_force: InForce
) -> list[Finding]:
    """Return findings against entries admitted earlier that a batch lifts above the threshold."""
    batch = outcome.part
    assert batch is not None  # noqa: S101 - called only if entries were scored
    threshold = in_force.thresholds[detector.name].recall
    ids, scores = detector.retroactive(batch, condemned, in_force.unusual)
    rows = np.flatnonzero(scores > threshold)
    names = [ids[row] for row in rows]
    why = explained(detector.name, detector.explain_retroactive, batch, names)
    clean = in_force.clean.get(detector.name)
    return findings_of(detector, names, scores[rows], threshold, why, clean)


def checked(name: str, scores: Any, n: int, *, partial: bool = False) -> NDArray[np.float64]:
    """Return n checked scores of a detector; NaN for no opinion is allowed if ``partial``.

    Raises
    ------
    InvalidScoresError
        If there is not one number per entry.
    """
    column = np.asarray(scores, dtype=np.float64)
    bad = np.isinf(column) if partial else ~np.isfinite(column)
    if column.shape != (n,) or bad.any():
        msg = f"{name} returned scores of shape {column.shape}, or not finite ones"
        raise InvalidScoresError(msg)
    return column


def findings_of(
    detector: AnyDetector,
    ids: Sequence[str],
    scores: NDArray[np.float64],
    threshold: float | NDArray[np.float64],
    explained: Sequence[Evidence],
    calibration: Calibration | None,
    alone: float = -np.inf,
) -> list[Finding]:
    """Return a finding per score, with its evidence and, if calibrated, its p-value.

    If its threshold is below ``alone``, the evidence says that other detectors support it.
    """
    p_values = [None] * len(ids) if calibration is None else calibration.p_values(scores)
    return [
        Finding(
            detector=detector.name,
            entry_id=entry_id,
            score=float(score),
            threshold=float(limit),
            p_value=None if p_value is None else float(p_value),
            evidence=evidence.sentence + (SUPPORTED if limit < alone else ""),
            related_ids=evidence.related_ids,
            span=evidence.span,
            taxonomy=detector.traits.taxonomy,
        )
        for entry_id, score, limit, p_value, evidence in zip(
            ids, scores, np.broadcast_to(threshold, len(ids)), p_values, explained, strict=True
        )
    ]


def explained(
    name: str, explain: Callable[[Any, list[Any]], Sequence[Evidence]], of: Any, which: list[Any]
) -> Sequence[Evidence]:
    """Explain scores; a score remains valid even if its explanation fails."""
    if not which:
        return []
    try:
        return explain(of, which)
    except Exception as error:  # noqa: BLE001 - any crash, of any detector
        kind = type(error).__name__
        logger.error("%s could not explain %d scores: %s", name, len(which), kind)  # noqa: TRY400
        return [
            Evidence(sentence=f"scored above the threshold ({kind} while explaining it)")
        ] * len(which)


def crash(error: Exception) -> str:
    """Return how and where a detector crashed, without the message: it may quote hostile text."""
    if isinstance(error, OutOfTimeError | NeighborsError):
        return f"the detector failed: {error}"  # our own words
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the detector failed with {type(error).__name__}{where}"


def failure(name: str, batch: Batch, error: Exception) -> Outcome:
    """Return an outcome in which the detector failed on every entry."""
    logger.error("%s on %d entries: %s", name, len(batch), crash(error))
    parts = _Parts(name, batch)
    parts.fail(np.arange(len(batch)), error)
    return parts.together()


def isolated(
    name: str, batch: Batch, error: Exception, run: Callable[[Batch], Outcome | Skipped]
) -> Outcome:
    """Judge as many entries as possible of a batch on which a detector crashed.

    The batch is halved until the entries that crash the detector are found: only they count as
    failed. A detector that crashes on every entry is called :data:`ATTEMPTS` times.
    """
    logger.error("%s on a batch of %d entries: %s", name, len(batch), crash(error))
    parts = _Parts(name, batch)
    waiting = [half for half in np.array_split(np.arange(len(batch)), 2) if half.size]
    for attempt in itertools.count():
        if not waiting:
            break
        rows = waiting.pop()
        if attempt < ATTEMPTS and not isinstance(error, InvalidScoresError):
            try:
                parts.add(rows, run(batch.take(rows)))
            except Exception as again:  # noqa: BLE001 - any crash, on fewer entries
                error = again
                if len(rows) > 1:
                    waiting += np.array_split(rows, 2)
                    continue
            else:
                continue
        parts.fail(rows, error)
    return parts.together()


def in_time(
    detector: AnyDetector,
    batch: Batch,
    seconds: float | None,
    budget: TimeBudget,
    run: Callable[[Batch], Said],
    answer: Future[Said] | None = None,
) -> Said | Outcome:
    """Return the result of a detector on a batch, except for entries that take too long.

    ``answer`` is the answer about the whole batch, if it was asked already.

    If the batch takes too long and the detector judges each entry by itself, it judges one entry
    after the other. Together they get the time of the batch once more, and each a part of it.
    :class:`OutOfTimeError` is raised if no entry was judged in time.
    """
    name = detector.name
    try:
        return (
            budget.call(name, seconds, partial(run, batch)) if answer is None else answer.result()
        )
    except OutOfTimeError as error:
        if seconds is None or detector.traits.scope is not Scope.ENTRY or len(batch) == 1:
            raise
        parts, end = _Parts(name, batch), time.monotonic() + seconds
        for row in range(len(batch)):
            rows, left = np.array([row]), end - time.monotonic()
            if left <= 0 or budget.late(name) >= MOST_LATE:
                parts.fail(np.arange(row, len(batch)), error)
                break
            each = min(left, seconds / MOST_LATE)
            try:
                outcome = budget.call(name, each, partial(run, batch.take(rows)))
            except Exception as again:  # noqa: BLE001 - any crash, of any detector
                logger.error("%s on one of %d entries: %s", name, len(batch), crash(again))  # noqa: TRY400
                parts.fail(rows, again)
            else:
                parts.add(rows, outcome)
        if not parts.heard:
            raise
        return parts.together()


class _Parts:
    """Results of a detector on parts of a batch."""

    def __init__(self, name: str, batch: Batch) -> None:
        self._name, self._batch = name, batch
        self._column = np.full(len(batch), np.nan)
        self._findings: list[tuple[int, Finding]] = []
        self._missing: list[tuple[int, Unjudged]] = []
        self._good: list[NDArray[np.intp]] = []
        self.heard = False  # whether it has returned any result

    def add(self, rows: NDArray[np.intp], outcome: object) -> None:
        """Add the result on some rows, unless the detector takes no part."""
        self.heard = True
        if not isinstance(outcome, Outcome):
            return
        self._column[rows] = outcome.scores
        self._findings += [(int(rows[row]), finding) for row, finding in outcome.findings]
        self._missing += [(int(rows[row]), item) for row, item in outcome.unjudged]
        self._good.append(rows[outcome.rows])

    def fail(self, rows: NDArray[np.intp], error: Exception) -> None:
        """Record that the detector failed on some rows."""
        name, ids, reason = self._name, self._batch.ids, crash(error)
        self._missing += [
            (row, Unjudged(detector=name, entry_id=ids[row], reason=reason, failed=True))
            for row in rows.tolist()
        ]

    def together(self) -> Outcome:
        """Return the result on the whole batch."""
        if not any(rows.size for rows in self._good):
            return Outcome(self._column, self._findings, self._missing)
        kept = np.sort(np.concatenate(self._good))
        part = self._batch.take(kept)
        return Outcome(self._column, self._findings, self._missing, part, rows=kept)


def overruled(report: Report, remarks: Mapping[str, str], verdict: Verdict) -> Report:
    """Return the report with earlier decisions of people, and a remark on who decided."""
    if not remarks:
        return report
    decided = {
        row: replace(report.decisions[row], verdict=verdict, note=remarks[entry_id])
        for row, entry_id in enumerate(report.batch.ids)
        if entry_id in remarks
    }
    return replace(report, remarkable={**report.remarkable, **decided})
