"""Entries that are held already and come again, and stored entries that others replace."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import PoisonedEntryError, QuarantineError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.store.inner import chosen
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import keepable, lacks_vector
from ragshield_core.store.updates import is_part

logger = logging.getLogger("ragshield")  # ids and counts, never text


def stays_held(report: Report, guard: Guard, updated: Collection[str] = ()) -> Report:
    """Keep held entries in quarantine until a reviewer decides, even if they look admissible now.

    Detectors may judge a document otherwise after a new calibration or once others have left.
    If it were stored then, it would be live and held at once, and a reviewer would judge an
    entry that is being served already. The decision on another revision under a held id stands,
    with a remark: releasing the held revision would replace it. Parts of new versions
    (``updated``) supersede held ones. An entry that was held because its vector could not be
    used was never judged: its decision stands as well, and it leaves the quarantine.

    Raises PoisonedEntryError if an entry stays held and the policy says ``on_detect="raise"``.
    """
    rows = [row for row, kept in enumerate(report.admitted) if kept]
    quarantine = guard.quarantine
    if not rows or not quarantine.exists():
        return report
    held = quarantine.held_ids([report.batch.ids[row] for row in rows])
    if not held:
        return report
    held -= _judged_at_last(
        [entry for row in rows if (entry := report.batch[row]).id in held], guard
    )
    changed: dict[int, Decision] = {}
    stay = 0
    for row in rows:
        entry, decision = report.batch[row], report.decisions[row]
        item = _waiting(quarantine, entry.id) if entry.id in held else None
        if item is None or _comes_in(item, entry, updated):
            continue
        since = f"held by {item.held_by} since {item.held_at.isoformat()}"
        if _same(item, entry):
            stay += 1
            note = f"{since}, and no reviewer has released it"
            changed[row] = replace(decision, verdict=Verdict.QUARANTINE, note=note)
        else:
            note = f"another revision is {since}; releasing that one would replace this one"
            changed[row] = replace(decision, note="; ".join(filter(None, (decision.note, note))))
    report = replace(report, remarkable={**report.remarkable, **changed})
    if stay and guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    if stay:
        logger.warning("%d entries stay in quarantine until a reviewer decides", stay)
    if len(changed) > stay:
        logger.warning("of %d admitted entries, other revisions are held", len(changed) - stay)
    return report


def _judged_at_last(entries: Sequence[Entry], guard: Guard) -> set[str]:
    """Let entries leave the quarantine that were held because their vectors could not be used."""
    found = []
    for entry in entries:
        item = _waiting(guard.quarantine, entry.id) if entry.embedding.size else None
        if item is not None and lacks_vector(item) and _same(item, entry):
            found.append(entry.id)
    gone = guard.quarantine.supersede(found, note="it came again with a vector that can be used")
    guard.writes.forget_held(gone)
    return set(gone)


def _same(held: HeldEntry, entry: Entry) -> bool:
    return held.entry.fingerprint in (entry.fingerprint, entry.text_fingerprint)


def _comes_in(held: HeldEntry, entry: Entry, updated: Collection[str]) -> bool:
    """Return whether an entry comes in with a version that takes the place of the held one's."""
    if _same(held, entry):
        return is_part(held)
    return entry.id in updated


def keep_replaced(keeper: Keeper[Any], older: Sequence[Batch], newer: Batch) -> dict[str, str]:
    """Keep stored texts that others of another lineage take the place of: perhaps intruders.

    A text takes the place of one under the same id, and of all of its document. A document
    whose texts stay as they are was moved. Returns a remark on each of the newer ones, by id.
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
        entries = keepable(chosen(some, kept)).entries
        if len(entries):
            remarks = [kept[entry_id] for entry_id in entries.ids]
            quarantine.keep_stored(entries, Status.REPLACED, remarks)
            logger.warning(
                "%d entries are replaced by others of another lineage, such as %r",
                *(len(entries), printable(entries.ids[0])),
            )
    quarantine.readmit(chosen(newer, notes))  # these may have been stored there before
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
    """Return the remark on a text that takes the place of one of another lineage."""
    return f"{_claimed(newer)}, it replaces a text {_claimed(older)}; restore puts that back"


def _claimed(lineage: str | None) -> str:
    return "of no lineage" if lineage is None else f"of lineage {printable(lineage, 80)!r}"


def _waiting(quarantine: Quarantine, entry_id: str) -> HeldEntry | None:
    """Return the held revision under an id; None if a reviewer has judged it meanwhile."""
    try:
        item = quarantine.show(entry_id)  # a revision that is held is the latest
    except QuarantineError:
        return None
    return item if item.status is Status.HELD else None
