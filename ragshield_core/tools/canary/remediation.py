"""What is done about drift: suspects are held, and put back where they turn out not to matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.passages import Revision
from ragshield_core.tools.canary.traceback import SUSPECT_AT, Suspect

if TYPE_CHECKING:
    from ragshield_core.tools.canary.monitor import CanaryMonitor


@dataclass(frozen=True, kw_only=True)
class Remediation:
    """What :meth:`CanaryMonitor.remediate` did.

    Attributes
    ----------
    quarantined
        Ids that were put into quarantine.
    restored
        Ids that were left out on trial and are back, because the canaries do as well with them.
    before, after
        The checks at the start and at the end. What ``after.still_served`` names is held, and
        retrieved nevertheless: take it out of the knowledge base.
    """

    quarantined: tuple[str, ...]
    restored: tuple[str, ...]
    before: DriftReport
    after: DriftReport

    @property
    def clean(self) -> bool:
        """Whether no canary is flagged any more, and nothing that is held is retrieved."""
        return not (self.after.flagged or self.after.still_served)


def remediate(monitor: CanaryMonitor, max_entries: int, by: str) -> Remediation:
    """Hold suspects until the drift is gone, as :meth:`CanaryMonitor.remediate` says."""
    before = report = monitor.check()
    held: dict[str, Suspect] = {}
    trial: dict[str, Suspect] = {}
    seen: set[str] = set()  # with those that a person has released
    while report.flagged and len(held) + len(trial) < max_entries:
        trace = monitor.traceback(report)
        fresh = [s for s in trace.candidates if s.entry_id not in seen]
        if not fresh:
            break
        # The notebook's score has no scale of its own: one at a time.
        sure = [s for s in fresh if s.responsibility >= SUSPECT_AT and monitor.rule != "notebook"]
        some = (sure or fresh[:1])[: max_entries - len(held) - len(trial)]
        seen.update(s.entry_id for s in some)
        if sure:
            gone = monitor.quarantine(some, by=by)
            held.update((s.entry_id, s) for s in some if s.entry_id in gone)
        else:
            trial.update((s.entry_id, s) for s in some)
        report = monitor.compare(baseline=before.baseline, without=_revisions(trial.values()))
    needed = _needed(monitor, trial, report)
    gone = monitor.quarantine([*needed.values()], by=by)
    return Remediation(
        quarantined=(*held, *(i for i in needed if i in gone)),
        restored=tuple(i for i in trial if i not in needed),
        before=before,
        after=monitor.check(baseline=before.baseline) if seen else before,
    )


def _needed(
    monitor: CanaryMonitor, trial: Mapping[str, Suspect], report: DriftReport
) -> dict[str, Suspect]:
    """Return those on trial with which more canaries would be flagged than in a report."""
    needed = dict(trial)
    one_by_one = sorted(trial, key=lambda entry_id: trial[entry_id].responsibility)
    for back in [{*trial}, *({entry_id} for entry_id in one_by_one)] if trial else []:
        left = {i: suspect for i, suspect in needed.items() if i not in back}
        if left == needed:  # all came back at once
            continue
        now = monitor.compare(baseline=report.baseline, without=_revisions(left.values()))
        if {c.name for c in now.flagged} <= {c.name for c in report.flagged}:
            needed = left
    return needed


def _revisions(suspects: Iterable[Suspect]) -> set[Revision]:
    return {(s.entry_id, s.passage.revision) for s in suspects}
