"""What is done about drift: suspects are held, and put back where they turn out not to matter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Decision, Finding, Verdict
from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.embedder import Embedder
from ragshield_core.tools.canary.knowledge_base import (
    KnowledgeBase,
    WritableKnowledgeBase,
)
from ragshield_core.tools.canary.passages import Passage, Revision, batch_of
from ragshield_core.tools.canary.traceback import SUSPECT_AT, Suspect

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.tools.canary.monitor import CanaryMonitor

logger = logging.getLogger("ragshield")  # ids and counts, never text

BY = "ragshield canary"

Remove = Callable[[Sequence[str]], object]
Restore = Callable[[Batch], object]


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


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Puts suspects into quarantine and out of a knowledge base, and back.

    Attributes
    ----------
    knowledge_base
        Where they are.
    quarantine
        Where they go, unless the knowledge base has a guard of its own.
    embedder
        Gives vectors to those that were retrieved without.
    remove, restore
        Instead of the knowledge base's own methods.
    """

    knowledge_base: KnowledgeBase
    quarantine: Quarantine
    embedder: Embedder | None
    remove: Remove | None
    restore: Restore | None

    def hold(self, suspects: Sequence[Suspect], *, by: str = BY) -> tuple[str, ...]:
        """Hold suspects and return the ids of those that are held now.

        What a person has released before stays, and so does what has another text by now.
        """
        there = self.knowledge_base.texts([s.entry_id for s in suspects])
        suspects = [s for s in suspects if there.get(s.entry_id, s.passage.text) == s.passage.text]
        # Retrievers may give one id to several texts; the first suspect is the most responsible.
        suspects = [*{s.entry_id: s for s in reversed(suspects)}.values()][::-1]
        if not suspects:
            return ()
        decisions = [_decision(suspect) for suspect in suspects]
        guarded = self.knowledge_base.guarded
        if self.remove is None and guarded is not None:
            return guarded.recall([s.entry_id for s in suspects], decisions, by=by)
        batch = self._batch([suspect.passage for suspect in suspects])
        released = self.quarantine.hold(batch, decisions, by=by)
        gone = tuple(i for i in batch.ids if i not in released)
        self._take_out(gone)
        return gone

    def put_back(self, ids: Sequence[str], *, by: str = BY, note: str | None = None) -> None:
        """Judge held entries good and put them back."""
        if not ids:
            return
        knowledge_base, write = self.knowledge_base, self.restore
        if write is None and knowledge_base.guarded is not None:
            knowledge_base.guarded.release(list(ids), by=by, note=note)
            return
        if write is None and isinstance(knowledge_base, WritableKnowledgeBase):
            write = knowledge_base.restore
        if write is not None:
            from ragshield_core.quarantine import Status, batches_of  # noqa: PLC0415 - slow

            for batch in batches_of(self.quarantine.vouched(ids, Status.HELD)):
                write(batch)
        self.quarantine.release(ids, by=by, note=note)

    def _take_out(self, ids: Sequence[str]) -> None:
        """Take what is held out of the knowledge base, as far as it can be written."""
        if self.remove is not None:
            self.remove(ids)
        elif isinstance(self.knowledge_base, WritableKnowledgeBase):
            left = self.knowledge_base.remove(ids)
            if left:
                logger.warning("%d held entries could not be deleted from the store", len(left))
        elif ids:
            logger.warning(
                "%d entries are held, but not taken out of the knowledge base, which the monitor "
                "cannot write: pass remove= and restore=, or guard the index",
                len(ids),
            )

    def _batch(self, passages: Sequence[Passage]) -> Batch:
        vectors: Any = [p.vector for p in passages]
        if any(vector is None for vector in vectors):
            texts = [p.text for p in passages]
            vectors = None if self.embedder is None else self.embedder.documents(texts)
        return batch_of(passages, vectors)


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


def _decision(suspect: Suspect) -> Decision:
    finding = Finding(
        detector="canary_traceback",
        entry_id=suspect.entry_id,
        score=suspect.responsibility,
        threshold=SUSPECT_AT,
        p_value=None,
        evidence=suspect.why,
        related_ids=suspect.related_ids,
        taxonomy=("AML.T0070", "AML.T0066", "LLM08:2025"),
    )
    return Decision(entry_id=suspect.entry_id, verdict=Verdict.QUARANTINE, findings=(finding,))
