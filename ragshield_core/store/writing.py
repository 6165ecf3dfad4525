"""The write protocol: screen, hold durably, write the store, finish, in this order.

The steps of one write, :func:`add`:

1. :func:`screen_and_hold` screens, and holds suspicious entries. They are durable once it returns,
   in the quarantine's database. A guard that processes share announces and learns the other entries
   in the same transaction; if another process was faster, it screens once more.
2. Held entries that the store has leave it, and so do earlier ones that look poisoned now.
3. :func:`write` keeps replaced texts of another lineage, writes the store, and ends with
   ``Writes.finish``: an unshared guard learns the entries now, a shared one ends the announcement.
4. Readers see the entries, older parts of documents leave, and late suspects are recalled.

If the store fails, the quarantine has the held entries, and a shared guard asks the store which of
the announced entries it has; so does the next process after a crash. No transaction of the
quarantine is open during a call of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import NO_ENTRIES, Batch, concatenate
from ragshield_core.model.errors import PoisonedEntryError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import Status
from ragshield_core.store.held import keep_replaced, stays_held
from ragshield_core.store.inner import chosen
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import Sifted, admitted_by, keepable
from ragshield_core.store.outranked import held_below
from ragshield_core.store.recalling import recall_found
from ragshield_core.store.updates import (
    NewVersion,
    decided_before,
    held_whole,
    is_part,
    note_waiting,
    older_than,
    rejected,
    remark,
    to_write,
    unfinished,
)

# Number of copies of a held entry that are looked for in the store.
COPIES = 16


def add(
    keeper: Keeper[Any],
    sifted: Sifted,
    how: Callable[[Report], Any],
    *,
    replacing: Sequence[str] = (),
    versions: Sequence[NewVersion] = (),
    delete: bool = False,
) -> Report:
    """Screen entries; hold the suspicious ones, and store and learn the others.

    ``how`` makes the argument of :meth:`Keeper.write_entries` from a report; with ``delete``,
    the older parts of new versions are deleted. A new version of a document is stored whole or
    not at all, see :mod:`ragshield_core.store.updates`.
    """
    # Screen, and hold.
    versions = _new_versions(keeper, sifted.batch, replacing, versions)
    report, intent = screen_and_hold(keeper, sifted, replacing, versions)
    keeper.last_report = report
    waiting = rejected(report, versions) if versions else []
    coming = [version for version in versions if version not in waiting]
    # Write the store. If that fails, the store is asked which entries it has.
    try:
        if report.quarantined:
            _take_out(keeper, report.batch.take(~report.admitted))
        if report.retroactive:
            recall_found(keeper, report.retroactive, report.batch)
        writing = to_write(report, waiting) if waiting else report
        admitted = admitted_by(writing)
        older = older_than(coming) if delete and coming else []
        leaving = keeper.stored(older).entries if older else NO_ENTRIES
        if len(admitted):
            notes = write(keeper, admitted, how(writing), leaving, intent)
            report = report.noted(notes)
    except Exception:
        unfinished(waiting, keeper.guard.quarantine)
        keeper.give_up(intent)
        raise
    # Then readers see the entries, older parts of documents leave, late suspects are recalled.
    if len(admitted):
        uncover(keeper, admitted, report)
    if coming:
        writes = keeper.guard.writes
        if older:
            with keeper.forgetting(chosen(leaving, writes.known(leaving.ids))):
                keeper.delete_entries(older)
        writes.together(partial(keeper.superseded, coming))
    return recall_overdue(keeper, report)


def screen_and_hold(
    keeper: Keeper[Any],
    sifted: Sifted,
    replacing: Sequence[str] = (),
    versions: Sequence[NewVersion] = (),
    *,
    stored: bool = False,
) -> tuple[Report, Intent | None]:
    """Judge entries, hold suspicious ones, and announce those to be stored to other processes.

    ``stored`` says that the store has all of the entries already, so that held ones have to leave
    it.
    """
    guard, writes = keeper.guard, keeper.guard.writes
    if versions:
        replacing = list(dict.fromkeys([*replacing, *older_than(versions)]))

    below = partial(held_below, keeper, versions=versions, stored=stored)

    def screened() -> tuple[Report, Sifted, Batch]:
        """Screen, and look for copies of suspicious entries in the store."""
        left = sifted
        if versions and not stored:
            left = left.but(decided_before(left.batch, versions, guard.quarantine))
        report = guard.screen(left.whole, replacing=replacing)
        judged = report.batch
        report = left.beside(report, partial(keeper.judge_related, stored=stored))
        if report.batch is not judged:
            left = left.changed(report)
        report = note_copies(keeper, report)
        older = keepable(keeper.stored(left.batch.ids).entries) if writes.shared else NO_ENTRIES
        return report, left, older

    def hold_and_tell(judged: tuple[Report, Sifted, Batch]) -> tuple[Report, Intent | None]:
        """Hold the suspicious ones, and tell others of the write of the rest: both or neither."""
        report, left, older = judged
        held = _hold(keeper, report, left, versions, below)
        if not writes.shared:
            return held, None
        coming = admitted_by(to_write(held, rejected(held, versions)))
        leaving = older if stored else _left_for(keeper, coming, older)
        return held, writes.intend(coming, leaving) if len(coming) or len(leaving) else None

    if writes.shared:
        guard.judge.read_ahead(sifted.whole)
    report, intent = writes.in_turn(screened, hold_and_tell)
    return guard.judge.with_spent(report) if writes.shared else report, intent


def write(
    keeper: Keeper[Any],
    batch: Batch,
    how: Any,
    leaving: Batch = NO_ENTRIES,
    intent: Intent | None = None,
) -> dict[str, str]:
    """Write entries in place of older revisions, and learn them in their place.

    The older revisions are read from the store, since others may write to it without the guard's
    knowledge. ``leaving`` are further entries that these replace: the older version of a
    document. ``intent`` belongs to this write, if it was announced before. Returns a remark, by
    id, on each entry that replaces a text of another lineage.
    """
    older = keeper.stored(batch.ids)
    notes: dict[str, str] = {}
    if len(leaving) or len(older.entries):
        replaced = {entry.id: entry for entry in (*leaving, *older.entries)}
        visible = [entry.id for entry in replaced.values() if not keeper.mask.covers(entry)]
        document = chosen(leaving, visible, but=older.entries.ids)
        notes = keep_replaced(keeper, [document, chosen(older.entries, visible)], batch)
    if intent is None:
        told = keeper.as_told(older.entries)
        intent = keeper.guard.writes.intend(batch, _left_for(keeper, batch, told))
    with keeper.carrying_out(intent):
        keeper.write_entries(batch, how, older.items)
    return notes


def uncover(keeper: Keeper[Any], admitted: Batch, report: Report) -> None:
    """Show written entries that were held before, and released or purged elsewhere.

    An entry that was recalled since its admission, by a canary say, stays hidden.
    """
    back = set(keeper.mask.remove(admitted))
    back |= {decision.entry_id for decision in report.remarkable.values() if decision.note}
    entries = chosen(admitted, back) if back else NO_ENTRIES
    guard, quarantine = keeper.guard, keeper.guard.quarantine

    def show() -> None:
        held, recalled = quarantine.held_ids(entries.ids), set[str]()
        if held:  # parts of a version that waited, recalled entries, or other revisions
            prints = {(entry.id, entry.fingerprint) for entry in chosen(entries, held)}
            found = [p for p in quarantine.prints(ids=list(held)) if p.status is Status.HELD]
            same = [one.id for one in found if (one.id, one.fingerprint) in prints]
            parts = [one.id for one in quarantine.list(ids=same) if is_part(one)]
            recalled = set(same).difference(parts)
            held -= set(quarantine.supersede(parts, note="it came in with a later version"))
        shown = chosen(entries, entries.ids, recalled)
        guard.writes.forget_held([i for i in entries.ids if i not in held])
        guard.trust(list(quarantine.released_among(shown)))
        quarantine.readmit(shown)
        keeper.mask.add(chosen(entries, recalled))

    if len(entries):
        guard.writes.together(show)


def recall_overdue(keeper: Keeper[Any], report: Report) -> Report:
    """Recall suspects that came before the first calibration, perhaps in this very batch."""
    if overdue := keeper.guard.judge.overdue():
        recall_found(keeper, overdue)
        report = replace(report, retroactive=(*report.retroactive, *overdue))
    keeper.last_report = report
    return report


def delete(keeper: Keeper[Any], ids: Sequence[str], options: Any = None) -> None:
    """Delete entries from the store and from quarantine; confirmed poison stays there."""
    older = known_entries(keeper, ids)
    if ids:
        with keeper.forgetting(older):
            keeper.delete_entries(ids, options)
    forget_deleted(keeper, ids)


def known_entries(keeper: Keeper[Any], ids: Sequence[str]) -> Batch:
    """Return the entries under the ids that the guard knows and the store has."""
    known = keeper.guard.writes.known(ids)
    return keeper.stored(known).entries if known else NO_ENTRIES


def forget_deleted(keeper: Keeper[Any], ids: Sequence[str]) -> None:
    """Delete held revisions of deleted entries from the quarantine."""
    guard = keeper.guard

    def purge() -> None:
        guard.writes.forget_held(ids)
        if guard.quarantine.exists():
            guard.quarantine.purge(ids, note="deleted through the store", evidence=False)

    guard.writes.together(purge)
    keeper.mask.discard(ids)


def hold_back(keeper: Keeper[Any], versions: Sequence[NewVersion]) -> list[str]:
    """Move stored parts of new versions to quarantine, since another part of each is held.

    Returns the ids of the moved parts; they wait there, and are no suspects.
    """
    of = {i: version for version in versions for i in version.ids}
    there = keeper.stored(list(of)).entries
    visible = [row for row, one in enumerate(there) if not keeper.mask.covers(one)]
    leaving = keepable(there.take(visible))
    because = [
        Decision(entry_id=i, verdict=Verdict.QUARANTINE, note=remark(of[i].document))
        for i in leaving.ids
    ]

    def keep_waiting() -> None:
        quarantine = keeper.guard.quarantine
        quarantine.hold(leaving, because)
        for version in versions:
            note_waiting(version, sorted(version.ids), quarantine)

    if len(leaving):
        keeper.guard.writes.together(keep_waiting)
        keeper.mask.add(leaving)
        with keeper.forgetting(leaving):
            keeper.delete_or_hide(leaving.ids)
    return list(leaving.ids)


def note_copies(keeper: Keeper[Any], report: Report) -> Report:
    """Note on entries to be held that the store has an identical one under another id.

    A reviewer who confirms the held copy does not mean the stored one, and the quarantine records
    that.
    """
    if not report.quarantined or keeper.guard.policy.on_detect == "raise":
        return report
    mask, notes, stored = keeper.mask, dict[str, str](), dict[str, None]()
    held = report.batch.take(~report.admitted)
    for entry, vector in zip(held, held.vectors, strict=True):
        near = keeper.nearest(vector.tolist(), COPIES) if vector.size else ()
        others = [(mask.id_of(item), item) for item in near if not mask.hides(item)]
        copies = [
            name
            for name, item in others
            if name != entry.id and entry.fingerprint in mask.prints_of(item)
        ]
        if copies:
            stored |= dict.fromkeys(copies)
            named = ", ".join(repr(printable(entry_id)) for entry_id in copies)
            notes[entry.id] = f"the very same is in the store under {named}, and stays there"
    if stored:
        found = keepable(keeper.stored(list(stored)).entries)
        keeper.guard.quarantine.keep_stored(found, Status.READMITTED)
    return report.noted(notes)


# Parts of screening, holding and writing


def _new_versions(
    keeper: Keeper[Any], batch: Batch, replacing: Sequence[str], given: Sequence[NewVersion]
) -> tuple[NewVersion, ...]:
    """Return the new versions of documents among entries, with their unchanged parts.

    A document has a new version if the guard knows the id of one of its entries, or if it replaces
    stored ones.
    """
    known = keeper.guard.writes.known(batch.ids)
    wanted = list(dict.fromkeys([*known, *replacing]))
    if not wanted:
        return tuple(given)
    found = keeper.stored(wanted).entries
    visible = [entry for entry in found if not keeper.mask.covers(entry)]
    prints = {entry.id: entry.fingerprint for entry in visible}
    kept = {entry.id for entry in batch if prints.get(entry.id) == entry.fingerprint}
    named = frozenset[str]().union(*(version.ids for version in given))
    parts: dict[str, set[str]] = {}
    for entry in batch:
        document = None if entry.id in named else keeper.updated_document(entry)
        if document is not None:
            parts.setdefault(document, set()).add(entry.id)
    coming = frozenset(batch.ids)
    older: dict[str, set[str]] = {}
    for entry in visible:
        document = keeper.updated_document(entry)
        if document is not None and entry.id not in coming:
            older.setdefault(document, set()).add(entry.id)
    versions = [
        NewVersion(document, frozenset(ids), frozenset(older.get(document, ())))
        for document, ids in parts.items()
        if document in older or not ids.isdisjoint(prints)
    ]
    other = frozenset(prints).intersection(batch.ids) - kept  # get another text
    return tuple(
        v._replace(kept=v.kept | kept & v.ids, older=v.older | other & v.ids)
        for v in (*given, *versions)
    )


def _hold(
    keeper: Keeper[Any],
    report: Report,
    sifted: Sifted,
    versions: Sequence[NewVersion],
    below: Callable[[Report], Report],
) -> Report:
    """Hold suspicious, malformed and outranked entries, and the other parts of their versions."""
    guard = keeper.guard
    updated = frozenset[str]().union(*(version.ids for version in versions))
    report = stays_held(guard.hold(report), guard, updated)
    report = below(sifted.hold_malformed(report, guard))
    if sifted.decided_before and guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    if versions:
        report = held_whole(report, versions, guard.quarantine)
    if not report.admitted.all():
        held = report.batch.take(~report.admitted)

        def hide() -> None:
            keeper.mask.add(held)
            keeper.on_held(held)

        guard.writes.afterwards(hide)
    return keeper.annotated(report)


def _take_out(keeper: Keeper[Any], held: Batch) -> None:
    """Delete held entries that were admitted before from the store."""
    guard = keeper.guard
    known = guard.writes.known(held.ids)
    # Another process may be about to carry out an intent: intents are read before the store.
    moving = guard.writes.moving() if known else frozenset()
    there = keeper.stored(held.ids).entries
    lost = chosen(held, known, but=moving.union(there.ids))
    if len(lost):
        guard.forget(lost)
    same = there.take([row for row, e in enumerate(there) if keeper.mask.covers(e)])
    if len(same):
        with keeper.forgetting(same):
            keeper.delete_or_hide(same.ids)


def _left_for(keeper: Keeper[Any], coming: Batch, older: Batch) -> Batch:
    """Return the entries that others replace: those in the store, and those lost from it.

    After a crash, a store in memory may be older than the guard. Entries that the guard knows and
    the store lacks are usually being written once more.
    """
    known = keeper.guard.writes.known(coming.ids)
    if not known and not len(older):
        return NO_ENTRIES
    older = chosen(older, coming.ids)
    lost = chosen(coming, known, but=older.ids)
    return concatenate([batch for batch in (older, lost) if len(batch)] or [older])
