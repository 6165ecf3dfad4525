"""Recall of stored entries to quarantine: they are held durably before they are deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ragshield_core.hooks import answered, tools
from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import NO_ENTRIES, Batch
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import unkeepable
from ragshield_core.store.inner import PART, StoredEntries, chosen
from ragshield_core.store.malformed import keepable
from ragshield_core.store.outranked import spared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ragshield_core.store.keeper import Keeper
    from ragshield_core.tools.audit import ScanReport

logger = logging.getLogger("ragshield")  # ids and counts, never text


def recall(
    keeper: Keeper[Any],
    ids: Sequence[str],
    decisions: Sequence[Decision] | None = None,
    by: str = "ragshield",
    note: str | None = None,
    coming: Batch = NO_ENTRIES,
) -> tuple[str, ...]:
    """Move entries from the store into quarantine; return the ids of those that left.

    With decisions, one per id, entries that people have released or rules excuse stay, and so do
    those that only entries of a lower origin accuse; ``coming`` are entries of the present write.
    Without decisions a person decides, and all entries leave.
    """
    because = None if decisions is None else dict(zip(ids, decisions, strict=True))
    there = keeper.stored(list(dict.fromkeys(ids)))
    entries, reasons = keeper.leaving(there, because)
    if reasons is not None:
        entries, reasons, _ = keeper.guard.judge.accused(entries, reasons)
        entries, reasons = spared(keeper, entries, reasons, coming)
    return _move(keeper, entries, reasons, by, note)


def recall_found(
    keeper: Keeper[Any], decisions: Sequence[Decision], coming: Batch = NO_ENTRIES
) -> tuple[str, ...]:
    """Recall entries that detectors find suspicious, if there are any."""
    if not decisions:
        return ()
    return recall(keeper, [d.entry_id for d in decisions], decisions, coming=coming)


def rescreen(keeper: Keeper[Any], ids: Sequence[str] | None = None) -> int:
    """Screen entries that were admitted although detectors failed; recall suspicious ones.

    Operations rescreen them once the detectors work again, a thousand entries at a time. Returns
    the number of entries that are screened now.
    """
    guard = keeper.guard
    ids = list(guard.writes.unscreened()) if ids is None else ids
    n_screened = 0
    for start in range(0, len(ids), PART):
        some = ids[start : start + PART]
        found = keepable(keeper.stored(some).entries)
        report: Report = guard.screen(found)
        suspicious = [one for one in report.quarantined if one.findings]
        recall_found(keeper, [*suspicious, *report.retroactive], found)
        again = {item.entry_id for item in report.unjudged if item.failed}
        screened = [i for i in some if i not in again]
        guard.writes.screened_again(screened, sorted(again))
        n_screened += len(screened)
        logger.info("%d entries that were let in unscreened are screened now", len(screened))
    return n_screened


def scan(keeper: Keeper[Any], fpr: float, clean_ids: Iterable[str] | None, seed: int) -> ScanReport:
    """Audit all stored entries, each judged against the others."""
    with keeper.alone():
        batch = keeper.everything()
    fresh = [type(detector)(**detector.config()) for detector in keeper.guard.detectors]
    embed = keeper.guard.state.embedder
    options = {"fpr": fpr, "clean_ids": clean_ids, "seed": seed, "embed": embed}
    found = tools().scan(batch=batch, detectors=fresh, options=options)
    report: ScanReport = answered(found, "scan")
    return report


def take_out(keeper: Keeper[Any], report: ScanReport) -> ScanReport:
    """Hold the findings of an audit durably, and delete them from the store.

    Entries that a person has released before or a rule excuses stay in the store, as do entries
    that have changed since they were judged. The returned report says so.
    """
    because = {decision.entry_id: decision for decision in report.found}
    judged = {entry.id: entry.fingerprint for entry in report.batch if entry.id in because}
    there = keeper.stored(list(because))
    same = np.array([e.fingerprint == judged[e.id] for e in there.entries], dtype=np.bool_)
    unchanged = there.entries.take(same)
    names = set(unchanged.ids)
    items = [item for item in there.items if keeper.mask.id_of(item) in names]
    entries, reasons = keeper.leaving(StoredEntries(unchanged, items), because)
    excused: dict[str, str] = {}
    if reasons is not None:
        entries, reasons, excused = keeper.guard.judge.accused(entries, reasons)
    gone = _move(keeper, entries, reasons, "scan")
    staying = {
        i: excused.get(i, "released by a person before") for i in unchanged.ids if i not in gone
    }
    changed = because.keys() - names
    return report.overruled(
        staying | dict.fromkeys(changed, "changed or deleted while it was audited")
    )


def _move(
    keeper: Keeper[Any],
    entries: Batch,
    decisions: Sequence[Decision] | None,
    by: str,
    note: str | None = None,
) -> tuple[str, ...]:
    """Move entries from the store into quarantine; return the ids of those that left.

    The quarantine may be unable to keep all metadata of entries that bypassed the guard. Such an
    entry is hidden instead of deleted, so that nothing is lost.
    """
    if not len(entries):
        return ()
    # First, so that a crash leaves no stored entry that serves the text of a held one.
    keeper.before_leaving(entries, decisions)
    whole = keepable(entries)
    cut = {entries.ids[row] for row in unkeepable(entries)}
    if cut:
        logger.warning(
            "the quarantine cannot keep all metadata of %d entries, such as %r",
            *(len(cut), printable(min(cut))),
        )
    guard, quarantine = keeper.guard, keeper.guard.quarantine
    if decisions is None:  # a person decides, and overrules earlier releases
        quarantine.hold(chosen(whole, quarantine.released_among(whole)), by=by)
        verdict = Verdict.QUARANTINE
        decisions = [Decision(entry_id=i, verdict=verdict, note=note) for i in whole.ids]

    def move() -> tuple[Batch, Intent]:
        released = quarantine.hold(whole, decisions, by=by)
        gone = chosen(whole, whole.ids, but=released)
        return gone, guard.writes.intend_recall(gone, decisions)

    gone, intent = guard.writes.together(move)
    if not len(gone):
        return ()
    keeper.mask.add(gone)
    with keeper.carrying_out(intent):
        keeper.delete_or_hide([entry_id for entry_id in gone.ids if entry_id not in cut])
    return gone.ids
