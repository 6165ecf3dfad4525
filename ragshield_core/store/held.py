"""Held entries that are written again, replaced stored entries, and steps without a store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import MalformedEntriesError, PoisonedEntryError, QuarantineError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Quarantine, Status, batches_of
from ragshield_core.store.inner import chosen
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import RawEntries, Sifted, keepable, lacks_vector, sift
from ragshield_core.store.outranked import held_in_step, proven_at_last
from ragshield_core.store.updates import is_part

logger = logging.getLogger("ragshield")  # ids and counts, never text


def stays_held(report: Report, guard: Guard, updated: Collection[str] = ()) -> Report:
    """Keep held entries in quarantine until a reviewer decides, even if they look admissible now.

    Detectors may judge a document differently after a recalibration or once others have left.
    If it were stored then, it would be live and held at once, and a reviewer would judge an
    entry that is being served already. The decision on another revision under a held id stands,
    with a remark: releasing the held revision would replace it. Parts of new versions
    (``updated``) supersede held ones. An entry that was held for a vector that could not be used,
    or for the lack of a proof of its origin, may come again without that fault: its new decision
    stands as well, and it leaves the quarantine.

    Raises PoisonedEntryError if an entry stays held and the policy says ``on_detect="raise"``.
    """
    quarantine = guard.quarantine
    admitted = {report.batch.ids[row]: row for row, kept in enumerate(report.admitted) if kept}
    held = quarantine.held_ids([*admitted]) if admitted and quarantine.exists() else frozenset()
    if not held:
        return report
    changed: dict[int, Decision] = {}
    stay, judged_at_last = 0, list[str]()
    for row, item in [(admitted[i], _waiting(quarantine, i)) for i in admitted if i in held]:
        if item is None:
            continue
        entry, decision = report.batch[row], report.decisions[row]
        same = item.entry.fingerprint in (entry.fingerprint, entry.text_fingerprint)
        if same and (
            (entry.embedding.size and lacks_vector(item)) or proven_at_last(guard, item, entry)
        ):
            judged_at_last.append(entry.id)
            continue
        # It belongs to a new version that replaces the held entry's version.
        if is_part(item) if same else entry.id in updated:
            continue
        since = f"held by {item.held_by} since {item.held_at.isoformat()}"
        if same:
            stay += 1
            note = f"{since}, and no reviewer has released it"
            changed[row] = replace(decision, verdict=Verdict.QUARANTINE, note=note)
        else:
            note = f"another revision is {since}; releasing that one would replace this one"
            changed[row] = replace(decision, note="; ".join(filter(None, (decision.note, note))))
    gone = quarantine.supersede(judged_at_last, note="it came again without the fault")
    guard.writes.forget_held(gone)
    report = replace(report, remarkable={**report.remarkable, **changed})
    if stay and guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    if stay:
        logger.warning("%d entries stay in quarantine until a reviewer decides", stay)
    if len(changed) > stay:
        logger.warning("of %d admitted entries, other revisions are held", len(changed) - stay)
    return report


def keep_replaced(keeper: Keeper[Any], older: Sequence[Batch], newer: Batch) -> dict[str, str]:
    """Keep stored texts in quarantine if texts of another lineage, perhaps intruders, replace them.

    A text replaces the one under its id, and all texts of its document. If a document's texts stay
    the same, it was only moved. Returns a remark on each of the newer entries, by id.
    """
    notes: dict[str, str] = {}
    kept: dict[str, str] = {}
    for olds, news in _counterparts(keeper, older, newer):
        lineages = {new.lineage for new in news}
        lost = [old for old in olds if old.lineage not in lineages]
        if news and lost and {old.text for old in olds} != {new.text for new in news}:
            kept |= {old.id: _replacement(news[0].lineage, old.lineage) for old in lost}
            notes |= {new.id: _replacement(new.lineage, lost[0].lineage) for new in news}
    if not kept:
        return notes
    quarantine = keeper.guard.quarantine
    for some in older:
        entries = keepable(chosen(some, kept))
        if len(entries):
            remarks = [kept[entry_id] for entry_id in entries.ids]
            quarantine.keep_stored(entries, Status.REPLACED, remarks)
            logger.warning(
                "%d entries are replaced by others of another lineage, such as %r",
                *(len(entries), printable(entries.ids[0])),
            )
    quarantine.readmit(chosen(newer, notes))  # the quarantine may have kept these before
    return notes


def _counterparts(
    keeper: Keeper[Any], older: Sequence[Batch], newer: Batch
) -> Iterator[tuple[list[Entry], list[Entry]]]:
    """Yield older entries of one document or id, and the newer entries of the same."""
    groups: dict[tuple[str | None, str], list[Entry]] = {}
    for old in (entry for batch in older for entry in batch):
        document = keeper.document_of(old)
        groups.setdefault((document, old.id if document is None else ""), []).append(old)
    by_id = {new.id: new for new in newer} if groups else {}
    by_document: dict[str, list[Entry]] = {}
    for new in by_id.values():
        if (document := keeper.document_of(new)) is not None:
            by_document.setdefault(document, []).append(new)
    for (document, _), olds in groups.items():
        of_document = [] if document is None else by_document.get(document, [])
        same_ids = [by_id[old.id] for old in olds if old.id in by_id]
        yield olds, list({new.id: new for new in (*same_ids, *of_document)}.values())


def _replacement(newer: str | None, older: str | None) -> str:
    """Return the remark on a text that replaces one of another lineage."""
    return f"{_claimed(newer)}, it replaces a text {_claimed(older)}; restore puts that back"


def _claimed(lineage: str | None) -> str:
    return "of no lineage" if lineage is None else f"of lineage {printable(lineage, 80)!r}"


def _waiting(quarantine: Quarantine, entry_id: str) -> HeldEntry | None:
    """Return the held revision under an id; None if a reviewer has judged it meanwhile."""
    try:
        item = quarantine.show(entry_id)  # a held revision is the latest
    except QuarantineError:
        return None
    return item if item.status is Status.HELD else None


# Steps in front of a store, which pass on the entries that are not held


def sifted_for_step(columns: RawEntries, guard: Guard) -> Sifted:
    """Separate malformed entries from the others, for a step that writes nothing.

    An entry that can be neither passed on nor held is refused at once, and the step passes no
    entry on.
    """
    sifted = sift(columns, guard)
    sifted.check(guard)
    if sifted.refused:
        raise MalformedEntriesError(sifted.refused, written=False)
    return sifted


def judged(
    guard: Guard,
    sifted: Sifted,
    screen: Callable[[], Report],
    *,
    learn: bool,
    remarks: Callable[[Report], Report] = lambda report: report,
) -> Report:
    """Judge entries by the knowledge of all processes, and hold suspicious ones.

    Processes that share a guard judge one after the other. ``screen`` judges the entries that are
    not malformed; with ``learn`` the guard learns the admitted ones, each id once.
    """

    def decide(report: Report) -> Report:
        report = stays_held(guard.hold(report), guard)
        report = held_in_step(guard, remarks(sifted.hold_malformed(report, guard)))
        if learn:
            _learn(guard, report.batch.take(report.admitted))
        return report

    report = guard.writes.in_turn(screen, decide)
    return guard.judge.with_spent(report) if guard.writes.shared else report


def let_in(
    guard: Guard, ids: Sequence[str], by: str, note: str | None, *, learn: bool = False
) -> tuple[HeldEntry, ...]:
    """Release held entries where no store is attached to the guard; return them."""

    def released() -> tuple[HeldEntry, ...]:
        held = guard.quarantine.release(ids, by=by, note=note)
        for batch in batches_of(held) if learn else ():
            _learn(guard, batch)
        guard.writes.forget_held(ids)
        guard.trust(ids)
        return held

    return guard.writes.together(released)


def _learn(guard: Guard, entries: Batch) -> None:
    """Learn the new entries only: known ones may come again."""
    known = set(guard.writes.known(entries.ids))
    guard.learn(entries.take([r for r, i in enumerate(entries.ids) if i not in known]))
