"""The check of a knowledge base on disk by an opened guard, which learns and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ragshield_core.guard import Guard
from ragshield_core.model.findings import Decision, Finding, Verdict
from ragshield_core.screening.screening import overruled
from ragshield_core.tools.audit.knowledge_base import KnowledgeBase
from ragshield_core.tools.audit.report import ScanReport

# Name, among detectors, of a person's decision against a copy of the entry.
REVIEWER = "reviewer"
NEXT_STEPS = (
    "Read each case, the worst first. Look for what it makes a reader do or believe.",
    "Take out what is wrong. The guard holds the same entries when they are written.",
    "If good ones are held, release them then: ragshield review, or ragshield rules.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckReport(ScanReport):
    """The decisions that a guard would make about entries, with a ranking and cases."""

    whole: ClassVar[bool] = False
    n_known: int = 0  # entries that the guard knows

    @property
    def verdict(self) -> str:
        """The answer: the number of entries that would be held, and that of judged entries."""
        n_found, judged = len(self.found), self.n_audited - self.n_unjudged
        told = [f"{n_found:,} of {self.n_audited:,} entries would be held."]
        if not n_found and not self.enough:
            told.append("Not enough was judged.")
        if self.retroactive:
            told.append(f"With them, {len(self.retroactive):,} known entries would be held.")
        told.append(
            f"{judged:,} entries were judged, by {len(self.scores)} of "
            f"{len(self.scores) + len(self.idle)} detectors of a guard that knows "
            f"{self.n_known:,} entries."
        )
        return " ".join(told)

    @property
    def note(self) -> str:
        """A sentence on the reliability of the findings."""
        if not self.audited:
            return "Nothing was judged: every detector was skipped."
        if not self.n_clean:
            return (
                "The guard is not calibrated: its detectors use their default thresholds, which "
                "follow no rate."
            )
        return (
            f"Thresholds are those of the guard, from {self.n_clean:,} clean entries: it holds a "
            f"share of about {self.fpr:g} of clean ones."
        )


def check(guard: Guard, knowledge: KnowledgeBase) -> CheckReport:
    """Return the decisions of a guard on a knowledge base; nothing is learned or written.

    Decisions of people and rules count, as in a write.
    """
    batch = knowledge.batch
    if knowledge.embedder is not None:
        guard.state.offer_embedder(knowledge.embedder.embed)
    report = guard.screen(batch)
    confirmed = guard.quarantine.confirmed_among(batch)
    report = overruled(report, confirmed, Verdict.QUARANTINE)
    rows = np.flatnonzero(~report.admitted).tolist()
    decisions = [report.remarkable[row] for row in rows]
    released = guard.quarantine.released_among(batch.take(rows), decisions)
    report = overruled(report, released, Verdict.ADMIT)
    remarkable = {row: _with_reviewer(one, confirmed) for row, one in report.remarkable.items()}
    in_force = guard.state.calibrator.thresholds
    thresholds = {name: float(in_force[name].quarantine) for name in report.scores}
    scores = {name: column[~np.isnan(column)] for name, column in report.scores.items()}
    high = {name: np.sort(one[one > thresholds[name]]) for name, one in scores.items()}
    return CheckReport(
        batch=batch,
        remarkable={row: one for row, one in remarkable.items() if one.findings},
        scores=report.scores,
        skipped=report.skipped,
        timings=report.timings,
        retroactive=report.retroactive,
        fpr=guard.policy.quarantine_at,
        thresholds=thresholds,
        n_clean=guard.status().n_sample if guard.calibrated else 0,
        failed=tuple({one.detector for one in report.unjudged if one.failed}),
        idle=tuple(one.detector for one in report.skipped if one.waiting),
        n_audited=len(batch),
        n_unjudged=len(report.not_judged()),
        has_texts=any(batch.texts),
        judged={name: len(one) for name, one in scores.items()} | {REVIEWER: len(batch)},
        high=high | {REVIEWER: np.zeros(0)},
        n_known=guard.n_known,
    )


def _with_reviewer(decision: Decision, confirmed: Mapping[str, str]) -> Decision:
    """Return a decision with the finding of the person who confirmed a copy of the entry."""
    if (why := confirmed.get(decision.entry_id)) is None:
        return decision
    finding = Finding(
        detector=REVIEWER,
        entry_id=decision.entry_id,
        score=1.0,
        threshold=0.0,
        p_value=None,
        evidence=f"the same text was {why}",
    )
    return replace(decision, findings=(finding, *decision.findings))
