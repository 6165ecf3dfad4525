"""Decisions of reviewers, carried out in the store: release, restore and purge.

Held entries are written to the store before they are released. If a write fails, they stay held.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ragshield_core.model.entries import NO_ENTRIES, Batch
from ragshield_core.model.errors import QuarantineError
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.store.inner import chosen
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import keepable
from ragshield_core.store.recalling import recall
from ragshield_core.store.updates import forget, older_than, to_release
from ragshield_core.store.writing import write


def release(
    keeper: Keeper[Any], ids: Sequence[str], by: str, note: str | None, embed: Any = None
) -> tuple[HeldEntry, ...]:
    """Write held entries to the store, with the vectors they were held with, if any.

    Entries that were released elsewhere are written too, unless the store has them. Parts of a new
    version of a document are written only once all of its parts can be; then the version before
    leaves.
    """
    guard, quarantine = keeper.guard, keeper.guard.quarantine
    ids = keeper.held_under(ids)
    asked: list[HeldEntry] = _latest(quarantine, ids)
    held, decided, versions = to_release(asked, quarantine)
    parts = frozenset[str]().union(*(version.ids for version in versions))
    names = list(dict.fromkeys([one.id for one in held]))
    stored = keepable(keeper.stored(names).entries)  # in the form in which they were held
    there = {entry.id: entry for entry in stored}
    new = {h.id for h in held if h.id not in there or not keeper.same_as_held(there[h.id], h.entry)}
    late = {one.id for one in held if one.status is Status.RELEASED and one.id in new}
    not_held = [h.id for h in held if h.status is not Status.HELD and h.id not in late | parts]
    not_held += [one.id for one in decided if one.status is not Status.HELD]
    if not_held:
        quarantine.release(not_held)  # raises, and names one
    wanted = set(ids)
    waiting = [h.id for h in (*held, *decided) if h.status is Status.HELD and h.id in wanted]
    # Nobody has reviewed these: they were no suspects, and are not trusted more than others.
    following = [h.id for h in held if h.status is Status.HELD and h.id not in wanted]
    batch: Batch = keeper.entries_of(held, embed)
    # First the store: entries that fail here are still held. Then the quarantine, then the guard.
    hidden = batch.take([row for row, i in enumerate(batch.ids) if i not in new])
    coming = batch.take([row for row, i in enumerate(batch.ids) if i in new])
    leaving = keeper.stored(older_than(versions)).entries if versions else NO_ENTRIES
    if len(coming):
        write(keeper, coming, None, leaving)

    def let_in() -> tuple[HeldEntry, ...]:
        released = quarantine.release(waiting, by=by, note=note) if waiting else ()
        quarantine.supersede(following, by=by, note="its version was released")
        quarantine.readmit(chosen(batch, following), by=by)
        guard.forget(hidden)  # hidden entries are in the store, and are only learned now
        guard.learn(hidden)
        guard.writes.forget_held(batch.ids)
        guard.trust([i for i in batch.ids if i not in following])
        return released

    try:
        released = guard.writes.together(let_in)
    except QuarantineError:
        _take_back(keeper, coming)
        raise
    keeper.mask.discard(batch.ids)
    if len(leaving):
        with keeper.forgetting(chosen(leaving, guard.writes.known(leaving.ids))):
            keeper.delete_entries(leaving.ids)
    if versions:
        guard.writes.together(partial(forget, versions, quarantine))
    return (*released, *(one for one in held if one.id in late))


def restore(
    keeper: Keeper[Any], ids: Sequence[str], by: str, note: str | None
) -> tuple[HeldEntry, ...]:
    """Put back entries that texts of another lineage have replaced; recall those texts.

    The recalled entries are those under the same ids, and those of another lineage in the same
    documents.
    """
    guard, quarantine = keeper.guard, keeper.guard.quarantine
    latest: list[HeldEntry] = keeper.replaced_under(ids)
    replaced = quarantine.vouched([one.id for one in latest], Status.REPLACED)
    batch: Batch = keeper.entries_of(replaced, None)
    parts = keeper.parts_of(batch)
    live = keeper.stored(list(dict.fromkeys((*batch.ids, *parts)))).entries
    prints = {entry.id: entry.fingerprint for entry in batch}
    lineages = {entry.lineage for entry in batch}
    others = [
        entry.id
        for entry in live
        if (
            prints[entry.id] != entry.fingerprint
            if entry.id in prints
            else entry.lineage not in lineages
        )
    ]
    recall(keeper, others, None, by, note)
    write(keeper, batch, None)

    def let_in() -> tuple[HeldEntry, ...]:
        restored = quarantine.release(batch.ids, by=by, note=note, of=Status.REPLACED)
        guard.writes.forget_held(batch.ids)
        guard.trust(batch.ids)
        return restored

    restored: tuple[HeldEntry, ...] = guard.writes.together(let_in)
    keeper.mask.remove(batch)
    return restored


def purge(keeper: Keeper[Any], ids: Sequence[str], by: str, note: str | None) -> int:
    """Delete held entries for good, also from the store if they are only hidden there."""
    guard, quarantine = keeper.guard, keeper.guard.quarantine
    if not quarantine.exists():
        return 0
    wanted = keeper.held_under(ids)
    there = keeper.stored(wanted).items
    hidden = [keeper.mask.id_of(item) for item in there if keeper.mask.hides(item)]
    if hidden:
        keeper.delete_entries(hidden)

    def delete() -> int:
        deleted = quarantine.purge(wanted, by=by, note=note, held_only=True)
        guard.writes.forget_held(wanted)
        return deleted

    deleted: int = guard.writes.together(delete)
    keeper.mask.discard(wanted)
    return deleted


def _latest(quarantine: Quarantine, ids: Sequence[str]) -> list[HeldEntry]:
    """Return the latest revision under each id; refuse one that the log does not vouch for."""
    there = {one.id for one in quarantine.prints(ids=ids)}
    for entry_id in ids:
        if entry_id not in there:
            quarantine.show(entry_id, Status.HELD)  # raises, and says what was expected
    return list(quarantine.vouched(ids))


def _take_back(keeper: Keeper[Any], written: Batch) -> None:
    """Delete entries that were written for a release, but that others have judged otherwise."""
    quarantine = keeper.guard.quarantine
    released = quarantine.released_among(written)
    held = quarantine.held_ids(written.ids)  # hidden, and still undecided
    gone = chosen(written, set(written.ids) - set(released) - held)
    if len(gone):
        keeper.mask.add(gone)
        keeper.delete_or_hide(gone.ids)
        keeper.guard.forget(gone)
