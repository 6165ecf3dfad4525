"""Proven origin in the write protocol: a lower tier replaces and recalls nothing of a higher one.

Without configured keys nothing here applies, see :class:`ragshield_core.origin.Origins`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import PoisonedEntryError
from ragshield_core.model.findings import Decision, Report, Verdict
from ragshield_core.origin import Origin, Tier
from ragshield_core.store.inner import PART

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.quarantine import HeldEntry
    from ragshield_core.store.keeper import Keeper
    from ragshield_core.store.updates import NewVersion

logger = logging.getLogger("ragshield")  # ids and counts, never text


# Beginning of the note on an entry that came without the tier that the guard demands.
TOO_LOW = "its tier is"


class Replaced(NamedTuple):
    """Stored entries whose places the entries of a write take.

    Attributes
    ----------
    own
        The entry under the same id, by id.
    strongest
        The highest and latest origin among all that an entry takes the place of, by its id.
    """

    own: Mapping[str, Entry]
    strongest: Mapping[str, Origin]


def held_below(
    keeper: Keeper[Any],
    report: Report,
    versions: Sequence[NewVersion],
    *,
    stored: bool,
) -> Report:
    """Hold admitted entries of too low a tier, and those whose stamp does not fit.

    The tier is too low for an entry that replaces one of a higher tier, or below that of the guard.

    Detectors are not told: such an entry need not look like poison, and a person decides. Released
    entries are not held again. An entry that comes again without its proof keeps the metadata that
    proves it. ``stored`` entries have come past the guard: the texts that they replaced
    are gone.
    """
    guard, batch = keeper.guard, report.batch
    if not guard.origins or not len(batch):
        return report
    origins = guard.origins.of_batch(batch, arriving=not stored)
    older = Replaced({}, {}) if stored else _replaced(keeper, batch, versions)
    kept, why = dict[int, Mapping[str, Any]](), dict[int, str]()
    for row in np.flatnonzero(report.admitted).tolist():
        new, entry = origins[row], batch[row]
        own, strongest = older.own.get(entry.id), older.strongest.get(entry.id, Origin())
        if own is not None and own.fingerprint == entry.fingerprint and strongest.tier > new.tier:
            kept[row] = own.metadata
        elif new.broken:
            why[row] = f"{new.why}; stamp it last, once its text and metadata are complete"
        elif note := _why_not(new, strongest) or _too_low(new, guard.origins.least_tier):
            why[row] = note
    if kept:
        metadatas = [kept.get(row, one) for row, one in enumerate(batch.metadatas)]
        batch = replace(batch, metadatas=tuple(metadatas))
        report = replace(report, batch=batch)
    return _held(guard, report, why)


def held_in_step(guard: Guard, report: Report) -> Report:
    """Hold admitted entries below the tier of a guard that has no store to compare with."""
    least = guard.origins.least_tier
    if least is Tier.UNKNOWN or not len(report.batch):
        return report
    origins = guard.origins.of_batch(report.batch, arriving=True)
    admitted = np.flatnonzero(report.admitted).tolist()
    return _held(guard, report, {r: n for r in admitted if (n := _too_low(origins[r], least))})


def proven_at_last(guard: Guard, held: HeldEntry, entry: Entry) -> bool:
    """Return whether an entry was held for its tier alone, and comes again with a proof."""
    if held.findings or not (held.note or "").startswith(TOO_LOW):
        return False
    return guard.origins.of_entry(entry, arriving=True).tier >= guard.origins.least_tier


def _held(guard: Guard, report: Report, why: Mapping[int, str]) -> Report:
    """Hold entries for a reason by row, but for those that a person has released."""
    batch, rows = report.batch, sorted(why)
    if rows and guard.quarantine.exists():
        released = guard.quarantine.released_among(batch.take(rows))
        rows = [row for row in rows if batch.ids[row] not in released]
    if not rows:
        return report
    changed = {
        row: Decision(entry_id=batch.ids[row], verdict=Verdict.QUARANTINE, note=why[row])
        for row in rows
    }
    report = replace(report, remarkable={**report.remarkable, **changed})
    if guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    guard.quarantine.hold(batch.take(rows), list(changed.values()))
    logger.warning("%d entries are held for their origin", len(rows))
    return report


def origins_in(keeper: Keeper[Any], ids: Sequence[str] | None) -> dict[str, Origin]:
    """Return the origin of visible stored entries by id; ``None`` for all ids."""
    wanted = list(dict.fromkeys(keeper.ids() if ids is None else ids))
    found: dict[str, Origin] = {}
    for start in range(0, len(wanted), PART):
        there = keeper.stored(wanted[start : start + PART]).entries
        visible = [entry for entry in there if not keeper.mask.covers(entry)]
        found |= {entry.id: keeper.guard.origins.of_entry(entry) for entry in visible}
    return found


def spared(
    keeper: Keeper[Any], entries: Batch, decisions: Sequence[Decision], coming: Batch
) -> tuple[Batch, Sequence[Decision]]:
    """Return the entries to recall, without those that only lower or earlier origins accuse.

    Otherwise, texts that imitate a page would take it out. ``coming`` are the entries of the write:
    the stored and held ones were there before, and accused nobody. Without ``coming``, nothing is
    spared.
    """
    origins, quarantine = keeper.guard.origins, keeper.guard.quarantine
    if not origins or not len(entries) or not len(coming):
        return entries, decisions
    known = [origins.of_entry(entry) for entry in entries]
    proven = [row for row, origin in enumerate(known) if origin.tier > Tier.UNKNOWN]
    if not proven:
        return entries, decisions
    confirmed = quarantine.confirmed_among(entries.take(proven))
    accusers = dict(zip(coming.ids, origins.of_batch(coming, arriving=True), strict=True))
    stay = set()
    for row in proven:
        findings = decisions[row].findings
        if entries.ids[row] in confirmed or not all(one.related_ids for one in findings):
            continue
        related = {i for one in findings for i in one.related_ids}.intersection(accusers)
        if not any(_may_accuse(accusers[i], known[row]) for i in related):
            stay.add(row)
    if not stay:
        return entries, decisions
    logger.warning("%d entries stay, since only lower or earlier origins accuse them", len(stay))
    rows = [row for row in range(len(entries)) if row not in stay]
    return entries.take(rows), [decisions[row] for row in rows]


def _replaced(keeper: Keeper[Any], batch: Batch, versions: Sequence[NewVersion]) -> Replaced:
    """Return the visible stored entries whose places the entries of a write take."""
    wanted = set(batch.ids).union(*(version.older for version in versions))
    known = keeper.guard.writes.known(sorted(wanted))
    there = {
        entry.id: entry
        for entry in (keeper.stored(list(known)).entries if known else ())
        if not keeper.mask.covers(entry)
    }
    origins = {i: keeper.guard.origins.of_entry(entry) for i, entry in there.items()}

    def strongest(ids: Iterable[str]) -> Origin:
        return max((origins[i] for i in ids if i in origins), key=_rank, default=Origin())

    found = {i: strongest([i]) for i in batch.ids}
    for version in versions:
        older = strongest(version.older)
        found |= {i: max(older, found.get(i, older), key=_rank) for i in version.ids}
    return Replaced(there, found)


def _rank(origin: Origin) -> tuple[Tier, float]:
    return origin.tier, 0.0 if origin.at is None else origin.at.timestamp()


def _may_accuse(new: Origin, old: Origin) -> bool:
    """Return whether an entry may take out another, which is proven; an earlier one is a replay."""
    later = new.at is not None and old.at is not None and new.at >= old.at
    return new.tier > old.tier or (new.tier == old.tier and later)


def _why_not(new: Origin, old: Origin) -> str | None:
    """Return why an entry does not replace another; ``None`` if it may."""
    if new.tier < old.tier:
        return (
            f"it would replace an entry of the tier {old.tier} ({old.why}), and its own tier is "
            f"{new.tier} ({new.why})"
        )
    if old.tier > Tier.UNKNOWN and new.at is not None and old.at is not None and new.at < old.at:
        return f"it would replace a later entry: {new.why}, the other {old.why}"
    return None


def _too_low(new: Origin, least: Tier) -> str | None:
    """Return why an entry may not come in by its tier; ``None`` if it may."""
    if new.tier >= least:
        return None
    return f"{TOO_LOW} {new.tier} ({new.why}), and the guard admits {least} at least"
