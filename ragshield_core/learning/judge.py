"""Judgement of entries by detectors, and by the decisions of people."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import learns
from ragshield_core.hooks import excused, screening
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.writes import Writes
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError
from ragshield_core.model.findings import Decision, Report, Verdict
from ragshield_core.model.policy import Policy
from ragshield_core.neighbors.known import KnownNeighbors
from ragshield_core.neighbors.stored import IndexOwner
from ragshield_core.screening.screening import (
    InForce,
    crash,
    overlooking,
    scores_again,
    screened,
)
from ragshield_core.text.readings import read_ahead
from ragshield_core.time_budget import TimeBudget

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")


class Judge:
    """Judges new entries, and admitted entries again."""

    def __init__(self, state: GuardState, writes: Writes) -> None:
        self._state, self._writes = state, writes
        self._budget = TimeBudget()

    @property
    def _policy(self) -> Policy:
        return self._state.calibrator.policy

    def screen(self, batch: Batch, replacing: Collection[str] = ()) -> Report:
        """Judge entries; see :meth:`ragshield_core.Guard.screen`."""
        with self._state.lock:
            times_late = self._budget.times_late
            try:
                with screening("ingestion", len(batch)) as told:
                    report = self._screened(batch, replacing)
                    for one in told:
                        one.found(report)
            finally:
                if self._budget.times_late != times_late:
                    self._leave_detectors()
            judged = {name for name, column in report.scores.items() if not np.isnan(column).all()}
            failed = {item.detector: item.reason for item in report.unjudged if item.failed}
            self._state.failing = {
                n: why for n, why in self._state.failing.items() if n not in judged
            } | failed
            calibrated_at = self._state.calibrator.calibrated_at if self._state.calibrated else None
        skipped = (*self._state.left_out, *report.skipped)
        return replace(report, skipped=skipped, calibrated_at=calibrated_at)

    def read_ahead(self, batch: Batch) -> None:
        """Read texts that are to be judged: a writer does so before its turn."""
        readers = [reader for one in self._state.detectors for reader in one.traits.reads]
        read_ahead(batch.texts, readers)

    def rehearse(self, batch: Batch) -> Report:
        """Judge made-up entries: tools do not count them."""
        with self._state.lock:
            return self._screened(batch, ())

    def finds_nothing(self, batch: Batch) -> NDArray[np.bool_]:
        """Return a mask of entries in which detectors that read contexts find nothing suspicious.

        Tools are not told: an adapter tests how an entry looks without a part of its context.
        """
        quiet = np.ones(len(batch), dtype=np.bool_)
        with self._state.lock:
            detectors, in_force, scores = self._state.detectors, self._in_force(), {}
            for name in [one.name for one in detectors if one.traits.reads_contexts]:
                args = (detectors, self._budget, self._policy, name)
                found = scores_again(*args, batch, range(len(batch)))
                if found is None or name not in in_force.thresholds:
                    return np.zeros(len(batch), dtype=np.bool_)
                scores[name] = found
            limits = in_force.supported(scores, batch.sources)
            for name, column in scores.items():
                quiet &= column <= np.minimum(in_force.thresholds[name].flag, limits[name])
        return quiet

    def _in_force(self) -> InForce:
        calibrator = self._state.calibrator
        return InForce(
            thresholds=calibrator.thresholds,
            clean=calibrator.clean,
            waiting=self._state.recalibration.waiting(),
            by_source=calibrator.by_source,
            support=calibrator.support,
            unusual=calibrator.arrivals.unusual.keys(),
        )

    def _screened(self, batch: Batch, replacing: Collection[str]) -> Report:
        self._state.check()
        self._writes.catch_up()
        self._writes.hear_of_confirmed()
        leaving = {*replacing, *self._state.knowledge.among(batch.ids)}
        with overlooking(self._state.detectors, leaving):
            self.check_dim(batch)
            report = screened(
                batch,
                self._state.detectors,
                self._policy,
                self._in_force(),
                leaving={*batch.ids, *replacing},
                overdue=self._state.recalibration.overdue(),
                budget=self._budget,
                excuse=self._excused,
            )
            return self._flagged_while_asked(report)

    def _flagged_while_asked(self, report: Report) -> Report:
        """Return a report that flags entries of sources with an open question, if the policy asks.

        Entries stay held if a detector that needs no comparison objects to them.
        """
        if self._policy.on_shift != "flag" or not report.quarantined:
            return report
        questions = self._state.calibrator.arrivals.questions(self._policy.quarantine_at)
        asked = {question.source for question in questions}
        comparing = {detector.name for detector in self._state.detectors if learns(detector)}
        changed = dict(report.remarkable)
        for row, decision in report.remarkable.items():
            names = {f.detector for f in decision.findings if f.score > f.threshold}
            held = decision.verdict is Verdict.QUARANTINE and bool(names)
            if held and report.batch.sources[row] in asked and names <= comparing:
                note = "of a source that is asked about: a new source, or a mass attack"
                changed[row] = replace(decision, verdict=Verdict.FLAG, note=note)
        return replace(report, remarkable=changed)

    def accused(
        self, entries: Batch, decisions: Sequence[Decision]
    ) -> tuple[Batch, list[Decision], dict[str, str]]:
        """Return the admitted entries that must leave, after the decisions of people.

        Entries of an adopted source may stay if their scores are usual for that source. Rules
        decide on the others: :meth:`screen` applies them to the decisions on its batch, this method
        to decisions on earlier entries. Entries that a person confirmed as poisoned always leave.

        Returns
        -------
        tuple[Batch, list[Decision], dict[str, str]]
            Entries that leave, the decisions against them, and remarks on those that stay, by id.
        """
        if not any(decision.findings for decision in decisions):
            return entries, list(decisions), {}
        confirmed = self._writes.quarantine.confirmed_among(entries)
        before = {r: d for r, d in enumerate(decisions) if d.entry_id not in confirmed}
        after = dict(enumerate(decisions))
        with self._state.lock:
            calibrator, others = self._state.calibrator, dict(before)
            for row, decision in before.items():
                own = calibrator.by_source.get(entries.sources[row], {})
                if decision.findings and all(
                    f.score <= own.get(f.detector, -math.inf) for f in decision.findings
                ):
                    note = "usual for its source, which a person has adopted"
                    after[row] = Decision(
                        entry_id=decision.entry_id, verdict=Verdict.ADMIT, note=note
                    )
                    del others[row]
            after |= self._excused(entries, others)
        stays = {
            row: after[row].note or ""
            for row, decision in before.items()
            if after[row] is not decision and after[row].verdict is not Verdict.QUARANTINE
        }
        rows = [row for row in range(len(entries)) if row not in stays]
        remarks = {entries.ids[row]: note for row, note in stays.items()}
        return entries.take(rows), [after[row] for row in rows], remarks

    def _excused(self, batch: Batch, decisions: Mapping[int, Decision]) -> Mapping[int, Decision]:
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy

        quarantine = self._writes.quarantine
        if not isinstance(quarantine, Quarantine):  # a stand-in without rules
            return decisions
        return excused(quarantine, batch, decisions, self._policy)

    def _leave_detectors(self) -> None:
        """Replace the detectors by copies, because a late call still uses the old ones.

        A detector with state that cannot be saved is kept; scoring does not change it.
        """
        new = [type(d) if d.traits.unsaved is None else d for d in self._state.detectors]
        try:
            values, arrays = self._state.to_parts()
            self._state.become(GuardState.from_parts(json.loads(json.dumps(values)), arrays, new))
        except Exception as error:  # noqa: BLE001 - a detector could not be built again
            logger.error("detectors go on beside a call that took too long: %s", crash(error))  # noqa: TRY400

    def overdue(self) -> tuple[Decision, ...]:
        """Return decisions against admitted entries that the next report will name.

        They arise when a guard that began empty is first calibrated, and judges again the entries
        that it had admitted before. A writer may recall them at once; ``retroactive`` of the next
        report lists them, too.
        """
        with self._state.lock:
            found = self._state.recalibration.overdue()
            return tuple(self._policy.decide(entry_id, why) for entry_id, why in found.items())

    @property
    def dim(self) -> int | None:
        """Length of the vectors of the knowledge base; ``None`` before there are any."""
        return self._state.knowledge.dim or None

    def nearest(self, batch: Batch, k: int) -> KnownNeighbors:
        """Return the k nearest known entries of each entry, except those under its own id.

        Raises
        ------
        NotFittedError
            If no detector keeps vectors, or no entry is known yet.
        InvalidBatchError
            If the dimension of the vectors differs from that of the knowledge base.
        """
        with self._state.lock:
            self._state.check()
            self._writes.catch_up()
            self.check_dim(batch)
            lender = next((d for d in self._state.detectors if isinstance(d, IndexOwner)), None)
            if lender is None or not len(self._state.knowledge):
                msg = "no detector of this guard knows vectors of entries to compare with."
                raise NotFittedError(msg)
            return lender.neighbors().known_neighbors(batch, k)

    def with_spent(self, report: Report) -> Report:
        """Return the report with the share of the accepted rate that is spent so far."""
        with self._state.lock:
            if not self._state.calibrated:
                return report
            return replace(report, spent=self._state.calibrator.arrivals.of().share)

    def check_dim(self, batch: Batch) -> None:
        """Refuse vectors unless their dimension is that of the learned and borrowed ones."""
        self._state.knowledge.check_dim(batch)
        self._state.calibrator.check_dim(batch)
