"""The write protocol: screen, hold durably, write the store, finish, in this order.

The way of one write, :func:`add`:

1. :func:`screen_and_hold` takes the turn, screens, and holds suspicious entries. They are durable
   once it returns, in the quarantine's database. A guard that processes share announces and learns
   the other entries in the same transaction.
2. Held entries that the store has leave it, and so do earlier ones that look poisoned now.
3. :func:`write` keeps what is replaced, writes the store, and ends with ``Writes.finish``: a guard
   of one process learns the entries now, a shared one closes the announcement.
4. Readers see the entries, older parts of documents leave, and what was found late is recalled.

If the store fails, the quarantine has what was held, and a shared guard asks the store which of the
announced entries it has; so does the next process after a crash. No transaction of the quarantine
is open while the store is asked for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import PoisonedEntryError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import Quarantine, Status
from ragshield_core.store.adapter import (
    NOTHING,
    Adapter,
    as_told,
    carry_out,
    chosen,
    delete_or_hide,
    give_up,
    leave,
)
from ragshield_core.store.held import keep_replaced, stays_held
from ragshield_core.store.malformed import Sifted, admitted_by, keepable
from ragshield_core.store.recalling import recall_found
from ragshield_core.store.steps import Steps, own
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

# How many copies of a held entry are looked for in the store.
COPIES = 16


def add(
    adapter: Adapter[Any],
    sifted: Sifted,
    how: Callable[[Report], Any],
    *,
    replacing: Sequence[str] = (),
    versions: Sequence[NewVersion] = (),
    delete: bool = False,
) -> Steps[Report]:
    """Screen entries; hold the suspicious ones, and store and learn the others.

    ``how`` makes the argument of :meth:`Adapter.write_entries` from a report; ``delete`` has
    the older parts of new versions deleted. A new version of a document is stored whole or not
    at all, see :mod:`ragshield_core.store.updates`.
    """
    # Screen, and hold.
    versions = yield from _new_versions(adapter, sifted.batch, replacing, versions)
    report, intent = yield from screen_and_hold(adapter, sifted, replacing, versions)
    adapter.last_report = report
    waiting = rejected(report, versions) if versions else []
    coming = [version for version in versions if version not in waiting]
    # Write the store. If that fails, the store is asked which entries it has.
    try:
        if report.quarantined:
            yield from _take_out(adapter, report.batch.take(~report.admitted))
        if report.retroactive:
            yield from recall_found(adapter, report.retroactive)
        writing = to_write(report, waiting) if waiting else report
        admitted = admitted_by(writing)
        older = older_than(coming) if delete and coming else []
        leaving = (yield from adapter.stored(older)).entries if older else NOTHING
        if len(admitted):
            notes = yield from write(adapter, admitted, how(writing), leaving, intent)
            report = report.noted(notes)
    except Exception:
        yield own(unfinished, waiting, adapter.guard.quarantine)
        yield from give_up(adapter, intent)
        raise
    # Then readers see the entries, older parts of documents leave, late suspects are recalled.
    if len(admitted):
        yield own(uncover, adapter, admitted, report)
    if coming:
        yield from _replace(adapter, coming, older, leaving)
    return (yield from recall_overdue(adapter, report))


def screen_and_hold(
    adapter: Adapter[Any],
    sifted: Sifted,
    replacing: Sequence[str] = (),
    versions: Sequence[NewVersion] = (),
    *,
    stored: bool = False,
) -> Steps[tuple[Report, Intent | None]]:
    """Judge entries, hold suspicious ones, and tell other processes of those to be stored.

    Processes that share a guard judge one after the other. ``stored`` says that the store has all
    of the entries already: then held ones have to leave it.
    """
    guard = adapter.guard
    if versions:
        replacing = list(dict.fromkeys([*replacing, *older_than(versions)]))
    turn = yield own(guard.writes.take_turn)
    try:
        # Screen, and look for copies of suspicious entries in the store.
        if versions and not stored:
            known = yield own(decided_before, sifted.batch, versions, guard.quarantine)
            sifted = sifted.but(known)
        report: Report = yield own(partial(guard.screen, sifted.whole, replacing=replacing))
        judged, related = report.batch, partial(adapter.judge_related, stored=stored)
        report = yield own(sifted.beside, report, related)
        if report.batch is not judged:
            sifted = sifted.changed(report)
        report = yield from note_copies(adapter, report)
        older = NOTHING
        if guard.writes.shared:
            older = keepable((yield from adapter.stored(sifted.batch.ids)).entries).entries
        # Hold the suspicious ones, and tell others of the write of the rest: both or neither.
        hold = partial(_hold, adapter, report, sifted, versions)
        intend = partial(_intend_admitted, adapter, older, versions, stored=stored)
        report, intent = yield own(guard.writes.together, lambda: intend(hold()), turn=turn)
        if guard.writes.shared:
            report = yield own(guard.judge.with_spent, report)
        return report, intent
    finally:
        guard.writes.give_up_turn(turn)


def write(
    adapter: Adapter[Any],
    batch: Batch,
    how: Any,
    leaving: Batch = NOTHING,
    intent: Intent | None = None,
) -> Steps[dict[str, str]]:
    """Write entries in place of older revisions, and learn them in their place.

    The store is asked for the older ones: others may write to it, and the guard does not know
    of that. ``leaving`` are further entries that these replace: the older version of a
    document. ``intent`` is of this write, if other processes were told of it before. Returns a
    remark, by id, on each entry that takes the place of a text of another lineage.
    """
    older = yield from adapter.stored(batch.ids)
    notes: dict[str, str] = {}
    if len(leaving) or len(older.entries):
        replaced = {entry.id: entry for entry in (*leaving, *older.entries)}
        visible = [entry.id for entry in replaced.values() if not adapter.mask.covers(entry)]
        places = [
            chosen(leaving, visible, but=older.entries.ids),
            chosen(older.entries, visible),
        ]
        notes = yield own(keep_replaced, adapter, places, batch)
    if intent is None:
        intent = yield own(_intend, adapter, batch, older.entries)
    yield from carry_out(adapter, intent, adapter.write_entries(batch, how, older.items))
    return notes


def uncover(adapter: Adapter[Any], admitted: Batch, report: Report) -> None:
    """Show entries that were held, and released or purged elsewhere, now that they are written.

    An entry that was recalled since it was admitted, as a canary may recall it, stays hidden.
    """
    back = set(adapter.mask.remove(admitted))
    back |= {decision.entry_id for decision in report.remarkable.values() if decision.note}
    entries = chosen(admitted, back) if back else NOTHING
    guard, quarantine = adapter.guard, adapter.guard.quarantine

    def show() -> None:
        held, recalled = quarantine.held_ids(entries.ids), set[str]()
        if held:  # parts of a version that waited, recalled entries, or other revisions
            same = _same_as_held(chosen(entries, held), quarantine)
            parts = [one.id for one in quarantine.list(ids=same) if is_part(one)]
            recalled = set(same).difference(parts)
            held -= set(quarantine.supersede(parts, note="it came in with a later version"))
        shown = chosen(entries, entries.ids, recalled)
        guard.writes.forget_held([i for i in entries.ids if i not in held])
        guard.trust(list(quarantine.released_among(shown)))
        quarantine.readmit(shown)
        adapter.mask.add(chosen(entries, recalled))

    if len(entries):
        guard.writes.together(show)


def recall_overdue(adapter: Adapter[Any], report: Report) -> Steps[Report]:
    """Recall entries that came before a first calibration, in this very batch perhaps."""
    if overdue := (yield own(adapter.guard.judge.overdue)):
        yield from recall_found(adapter, overdue)
        report = replace(report, retroactive=(*report.retroactive, *overdue))
    adapter.last_report = report
    return report


def delete(adapter: Adapter[Any], ids: Sequence[str], options: Any = None) -> Steps[None]:
    """Delete entries from the store and from quarantine; confirmed poison stays there."""
    older = yield from known_entries(adapter, ids)
    if ids:
        yield from leave(adapter, older, adapter.delete_entries(ids, options))
    yield own(forget_deleted, adapter, ids)


def known_entries(adapter: Adapter[Any], ids: Sequence[str]) -> Steps[Batch]:
    """Return the entries under the ids that the guard knows and the store has."""
    known: list[str] = yield own(adapter.guard.writes.known, ids)
    return (yield from adapter.stored(known)).entries if known else NOTHING


def forget_deleted(adapter: Adapter[Any], ids: Sequence[str]) -> None:
    """Delete held revisions of deleted entries from the quarantine."""
    guard = adapter.guard

    def purge() -> None:
        guard.writes.forget_held(ids)
        if guard.quarantine.exists():
            guard.quarantine.purge(ids, note="deleted through the store", evidence=False)

    guard.writes.together(purge)
    adapter.mask.discard(ids)


def hold_back(adapter: Adapter[Any], versions: Sequence[NewVersion]) -> Steps[list[str]]:
    """Take stored parts of new versions out again, since another part of theirs is held.

    Returns the ids of those that left; they wait in quarantine, and are no suspects.
    """
    of = {i: version for version in versions for i in version.ids}
    there = (yield from adapter.stored(list(of))).entries
    visible = [row for row, one in enumerate(there) if not adapter.mask.covers(one)]
    leaving = keepable(there.take(visible)).entries
    because = [
        Decision(entry_id=i, verdict=Verdict.QUARANTINE, note=remark(of[i].document))
        for i in leaving.ids
    ]

    def keep_waiting() -> None:
        quarantine = adapter.guard.quarantine
        quarantine.hold(leaving, because)
        for version in versions:
            note_waiting(version, sorted(version.ids), quarantine)

    if len(leaving):
        yield own(adapter.guard.writes.together, keep_waiting)
        adapter.mask.add(leaving)
        yield from leave(adapter, leaving, delete_or_hide(adapter, leaving.ids))
    return list(leaving.ids)


def note_copies(adapter: Adapter[Any], report: Report) -> Steps[Report]:
    """Note on entries to be held that the store has the very same under another id.

    A reviewer who confirms the held copy does not mean the stored one, and the quarantine remembers
    that.
    """
    if not report.quarantined or adapter.guard.policy.on_detect == "raise":
        return report
    mask = adapter.mask
    held = report.batch.take(~report.admitted)
    notes: dict[str, str] = {}
    stored: dict[str, None] = {}
    for entry, vector in zip(held, held.vectors, strict=True):
        if not vector.size:
            continue
        near = yield from adapter.nearest(vector.tolist(), COPIES)
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
        found = keepable((yield from adapter.stored(list(stored))).entries).entries
        yield own(adapter.guard.quarantine.keep_stored, found, Status.READMITTED)
    return report.noted(notes)


# Parts of screening, holding and writing


def _new_versions(
    adapter: Adapter[Any], batch: Batch, replacing: Sequence[str], given: Sequence[NewVersion]
) -> Steps[tuple[NewVersion, ...]]:
    """Return the new versions of documents among entries, with the parts that stay as they are.

    A document comes in a new version where the id of an entry is known, or where it replaces
    stored ones.
    """
    known: list[str] = yield own(adapter.guard.writes.known, batch.ids)
    wanted = list(dict.fromkeys([*known, *replacing]))
    if not wanted:
        return tuple(given)
    found = (yield from adapter.stored(wanted)).entries
    visible = [entry for entry in found if not adapter.mask.covers(entry)]
    prints = {entry.id: entry.fingerprint for entry in visible}
    kept = {entry.id for entry in batch if prints.get(entry.id) == entry.fingerprint}
    named = frozenset[str]().union(*(version.ids for version in given))
    parts: dict[str, set[str]] = {}
    for entry in batch:
        document = None if entry.id in named else adapter.updated_document(entry)
        if document is not None:
            parts.setdefault(document, set()).add(entry.id)
    coming = frozenset(batch.ids)
    older: dict[str, set[str]] = {}
    for entry in visible:
        document = adapter.updated_document(entry)
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
    adapter: Adapter[Any], report: Report, sifted: Sifted, versions: Sequence[NewVersion]
) -> Report:
    """Hold suspicious and malformed entries, and the other parts of their documents' versions."""
    guard = adapter.guard
    updated = frozenset[str]().union(*(version.ids for version in versions))
    report = stays_held(guard.hold(report), guard, updated)
    report = sifted.hold_malformed(report, guard)
    if sifted.decided_before and guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    if versions:
        report = held_whole(report, versions, guard.quarantine)
    if not report.admitted.all():
        held = report.batch.take(~report.admitted)

        def hide() -> None:
            adapter.mask.add(held)
            adapter.on_held(held)

        guard.writes.afterwards(hide)
    return adapter.annotated(report)


def _intend_admitted(
    adapter: Adapter[Any],
    older: Batch,
    versions: Sequence[NewVersion],
    report: Report,
    *,
    stored: bool,
) -> tuple[Report, Intent | None]:
    """Tell other processes of the entries that are about to be written, in place of others."""
    writes = adapter.guard.writes
    if not writes.shared:
        return report, None
    coming = admitted_by(to_write(report, rejected(report, versions)))
    leaving = older if stored else _left_for(adapter, coming, older)
    some = len(coming) or len(leaving)
    return report, writes.intend(coming, leaving) if some else None


def _take_out(adapter: Adapter[Any], held: Batch) -> Steps[None]:
    """Delete held entries from the store that looked admissible before."""
    guard = adapter.guard
    known: list[str] = yield own(guard.writes.known, held.ids)
    # Another process may be about to write what it intends; the store is read after asking.
    moving: frozenset[str] = (yield own(guard.writes.moving)) if known else frozenset()
    there = (yield from adapter.stored(held.ids)).entries
    lost = chosen(held, known, but=moving.union(there.ids))
    if len(lost):
        yield own(guard.forget, lost)
    same = there.take([row for row, e in enumerate(there) if adapter.mask.covers(e)])
    if len(same):
        yield from leave(adapter, same, delete_or_hide(adapter, same.ids))


def _replace(
    adapter: Adapter[Any], versions: Sequence[NewVersion], older: Sequence[str], leaving: Batch
) -> Steps[None]:
    """Delete older parts of versions that are stored now; their held parts wait no more."""
    guard = adapter.guard
    if older:
        known = chosen(leaving, (yield own(guard.writes.known, leaving.ids)))
        yield from leave(adapter, known, adapter.delete_entries(older))
    yield own(guard.writes.together, partial(adapter.superseded, versions))


def _intend(adapter: Adapter[Any], coming: Batch, older: Batch) -> Intent:
    leaving = _left_for(adapter, coming, as_told(adapter, older))
    return adapter.guard.writes.intend(coming, leaving)


def _left_for(adapter: Adapter[Any], coming: Batch, older: Batch) -> Batch:
    """Return the entries whose place others take: those in the store, and those lost from it.

    After a crash, a store in memory may be older than the guard. Entries that the guard knows and
    the store lacks are, as a rule, written once more.
    """
    known = adapter.guard.writes.known(coming.ids)
    if not known and not len(older):
        return NOTHING
    older = chosen(older, coming.ids)
    lost = chosen(coming, known, but=older.ids)
    return concatenate([batch for batch in (older, lost) if len(batch)] or [older])


def _same_as_held(entries: Batch, quarantine: Quarantine) -> list[str]:
    """Return the ids of entries that are held as they are."""
    prints = {entry.id: entry.fingerprint for entry in entries}
    held = quarantine.prints(ids=entries.ids)
    return [
        one.id for one in held if one.status is Status.HELD and one.fingerprint == prints[one.id]
    ]
