"""Reconciliation of a store with its guard: differences are found and repaired.

They differ after documents have bypassed the guard, a backup was restored, or a store was lost.
When a store is opened, only ids are compared; :func:`reconciled` reads all entries.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragshield_core.model.entries import NO_ENTRIES, Batch, concatenate
from ragshield_core.model.errors import StoreDiffersWarning
from ragshield_core.model.findings import Report, printable
from ragshield_core.quarantine import Status, unkeepable
from ragshield_core.store.inner import PART
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import Sifted, admitted_by, keepable
from ragshield_core.store.recalling import recall_found
from ragshield_core.store.writing import recall_overdue, screen_and_hold, uncover

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Number of ids named in a warning or a table, and of characters shown of each.
NAMED, SHOWN_ID = 5, 60

# The first rows of a report, which name differences; the others name repairs.
DIFFERENCES = 6

# True for all ids found, False for none, or a selection of ids.
Chosen = bool | Collection[str]


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """Differences between a store and its guard, and their repair.

    Attributes
    ----------
    n_stored, n_known
        Numbers of entries in the store, and of entries known to the guard, at the comparison.
    unguarded
        Ids of entries that the store has and the guard does not know: these were never judged.
    changed
        Ids of entries whose text or claims in the store differ from those that the guard knows.
    missing
        Ids of entries that the guard knows and the store lacks.
    released
        Ids of entries that a reviewer has released and the store lacks: the index was not saved
        after the release, or the command line released them. ``store.release(ids)`` puts them
        back, from the quarantine. They are not among the ``missing``.
    readable
        Ids of held entries that are still in the store inside: reads of the guarded store hide
        them, other reads do not. ``store.recall(ids)`` takes them out.
    unreadable
        Ids of stored entries that cannot be judged, since the store returns no usable vectors for
        them.
    n_moving
        Number of entries left out because a process was just writing or deleting them.
    adopted, held, forgotten
        Ids of entries that were screened and learned, screened and held, or forgotten, on
        request.
    """

    n_stored: int
    n_known: int
    unguarded: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    n_moving: int = 0
    adopted: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether store and guard agreed before the repair."""
        return not any(ids for _, ids, _ in self._rows()[:DIFFERENCES])

    def summary(self) -> str:
        """Return the differences in a few lines: numbers, the first ids, and the way out."""
        lines = [f"{self.n_stored} entries in the store, {self.n_known} known to the guard"]
        if self.agrees:
            lines[0] += ": they agree"
        for what, ids, way_out in self._rows():
            if ids:
                lines.append(f"{len(ids)} {what}: {named(ids)}" + (f"; {way_out}" * bool(way_out)))
        if self.n_moving:
            lines.append(f"{self.n_moving} entries were left out: somebody is just writing them")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def _rows(self) -> list[tuple[str, tuple[str, ...], str]]:
        return [
            ("unguarded", self.unguarded, "adopt= screens and learns them"),
            ("changed past the guard", self.changed, "adopt= screens and learns them"),
            ("missing in the store", self.missing, "forget= has the guard forget them"),
            ("released and not in the store", self.released, "store.release(ids) puts them back"),
            ("held and still in the store", self.readable, "store.recall(ids) takes them out"),
            ("not to be judged", self.unreadable, "write them again, with vectors"),
            ("adopted", self.adopted, ""),
            ("held now", self.held, "review them"),
            ("forgotten", self.forgotten, ""),
        ]


def reconciled(
    keeper: Keeper[Any], *, adopt: Chosen = False, forget: Chosen = False
) -> Reconciliation:
    """Compare a whole store with its guard, and repair the chosen differences.

    See :meth:`ragshield_core.store.guarded.Guarded.reconcile`. Entries are adopted in parts of a
    thousand; if the policy raises on one, the earlier parts are learned.
    """
    for name, chosen in (("adopt", adopt), ("forget", forget)):
        if isinstance(chosen, str) or not isinstance(chosen, bool | Iterable):
            msg = f"{name} is {type(chosen).__name__}, expected True, False or a list of ids."
            raise TypeError(msg)
    keeper.refresh()
    found = _compared(keeper)
    adopted: list[str] = []
    held: list[str] = []
    for part in _parts(_selected((*found.unguarded, *found.changed), adopt)):
        learned, suspicious = _adopted(keeper, part)
        adopted += learned
        held += suspicious
    forgotten: list[str] = []
    wanted = found.missing if forget is True else (*found.missing, *found.released)
    for part in _parts(_selected(wanted, forget)):
        forgotten += _forget_lost(keeper, part)
    if adopted or held or forgotten:
        logger.warning(
            "store and guard were reconciled: %d entries adopted, %d held, %d forgotten",
            *(len(adopted), len(held), len(forgotten)),
        )
    return replace(found, adopted=tuple(adopted), held=tuple(held), forgotten=tuple(forgotten))


def warn_if_different(keeper: Keeper[Any], what: str, *, stacklevel: int) -> None:
    """Compare the ids of a store with those that an opened guard knows, and warn once.

    A guard that knows nothing has a warning of its own. A store that cannot name its entries is
    not compared.
    """
    guard = keeper.guard
    if not guard.writes.shared:
        return
    try:
        guard.writes.catch_up()
        before = guard.writes.known_ids()
        if not before:
            return
        moving = guard.writes.moving()  # includes known entries that are not written yet
        stored = keeper.ids()
    except (NotImplementedError, RuntimeError) as error:
        logger.info("store and guard were not compared: %s", type(error).__name__)
        return
    except Exception as error:  # noqa: BLE001 - any error of the store; the first write says more
        logger.warning("store and guard could not be compared (%s)", type(error).__name__)
        return
    guard.writes.catch_up()
    after = guard.writes.known_ids()
    there = set(stored)
    known = before | after | moving
    unguarded = [i for i in stored if i not in known and not keeper.mask.knows(i)]
    missing = sorted(i for i in before if i not in there and i in after and i not in moving)
    if not unguarded and not missing:
        return
    logger.warning(
        "store and guard differ: %d entries are not known, %d are missing",
        *(len(unguarded), len(missing)),
    )
    parts = []
    if unguarded:
        parts.append(f"it holds {len(unguarded)} that the guard does not know ({named(unguarded)})")
    if missing:
        parts.append(f"it lacks {len(missing)} that the guard knows ({named(missing)})")
    msg = (
        f"the {what} and its guard differ: {', and '.join(parts)}. store.reconcile() says all of "
        "it; reconcile(adopt=True) screens and learns the former, reconcile(forget=True) has the "
        "guard forget the latter. check=False opens without this comparison."
    )
    warnings.warn(msg, StoreDiffersWarning, stacklevel=stacklevel)


def named(ids: Sequence[str]) -> str:
    """Return the first few ids, safe to print."""
    shown = ", ".join(repr(printable(entry_id, SHOWN_ID)) for entry_id in ids[:NAMED])
    return shown + (", ..." if len(ids) > NAMED else "")


def _compared(keeper: Keeper[Any]) -> Reconciliation:
    writes, quarantine = keeper.guard.writes, keeper.guard.quarantine
    writes.catch_up()
    before, moving = writes.known_ids(), writes.moving()
    stored = list(dict.fromkeys(keeper.ids()))
    states: dict[str, str] = {}
    readable: list[str] = []
    for part in _parts(stored):
        states |= _states(keeper, part, readable)
    writes.catch_up()
    after = writes.known_ids()
    moved = moving.union(i for i, state in states.items() if state == "moving")
    prints = quarantine.prints() if quarantine.exists() else ()
    latest = {one.id: one.status for one in prints}
    released = [
        i
        for i, status in latest.items()
        if status is Status.RELEASED and i not in states and i not in moved
    ]
    lacking = before.intersection(after).difference(states, moving, released)

    def ids_of(state: str) -> tuple[str, ...]:
        return tuple(i for i in stored if states.get(i) == state)

    return Reconciliation(
        n_stored=len(stored),
        n_known=len(after),
        unguarded=ids_of("unguarded"),
        changed=ids_of("changed"),
        missing=tuple(sorted(lacking)),
        released=tuple(released),
        readable=tuple(readable),
        unreadable=ids_of("unreadable"),
        n_moving=len(moved),
    )


def _states(keeper: Keeper[Any], ids: Sequence[str], readable: list[str]) -> dict[str, str]:
    """Return the state of each stored entry that reads can return, compared with the guard.

    An entry that changes meanwhile is being written by another process. ``readable`` collects the
    ids of held entries.
    """
    writes, mask = keeper.guard.writes, keeper.mask
    writes.catch_up()
    moving, before = writes.moving(), writes.fingerprints(ids)
    entries, items, odd = _read(keeper, ids)
    writes.catch_up()
    after = writes.fingerprints(ids)
    hidden = {mask.id_of(item) for item in items if mask.hides(item)}
    readable += [i for i in ids if i in hidden]
    visible = {mask.id_of(item) for item in items if not mask.hides(item)}
    states = dict.fromkeys(visible.union(odd), "unreadable")
    for entry in entries:
        i = entry.id
        if i not in visible or mask.covers(entry):
            continue
        if i in moving or before.get(i) != after.get(i):
            states[i] = "moving"
        elif i not in after:
            states[i] = "unguarded"
        else:
            states[i] = "same" if after[i] == entry.fingerprint else "changed"
    return states


def _read(keeper: Keeper[Any], ids: Sequence[str]) -> tuple[Batch, list[Any], list[str]]:
    """Return entries, items, and the ids of items that cannot be read as entries.

    An item with an unusable vector, of another length or of zeros, does not stop the others.
    """
    try:
        there = keeper.stored(ids)
    except ValueError:
        if len(ids) == 1:
            return NO_ENTRIES, [], list(ids)
    else:
        dim = keeper.guard.judge.dim
        if len(there.entries) and dim not in (None, there.entries.dim):
            return NO_ENTRIES, [], list(ids)
        return there.entries, list(there.items), []
    batches: list[Batch] = []
    items: list[Any] = []
    odd: list[str] = []
    for some in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
        batch, of_batch, not_read = _read(keeper, some)
        items += of_batch
        odd += not_read
        if len(batch) and batches and batch.dim != batches[0].dim:
            odd += batch.ids
        elif len(batch):
            batches.append(batch)
    return concatenate(batches) if batches else NO_ENTRIES, items, odd


def _adopted(keeper: Keeper[Any], ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Screen entries that still differ; return the ids of the learned and of the held ones."""
    guard = keeper.guard
    guard.writes.catch_up()
    moving = guard.writes.moving()
    known = guard.writes.fingerprints(ids)
    entries, _, _ = _read(keeper, ids)
    rows = [
        row
        for row, entry in enumerate(entries)
        if entry.id not in moving
        and not keeper.mask.covers(entry)
        and known.get(entry.id) != entry.fingerprint
    ]
    coming = entries.take(rows)
    if not len(coming):
        return [], []
    # The store no longer has the revisions that the guard knows of changed entries.
    if stale := [i for i in coming.ids if i in known]:
        guard.writes.forget_lost(stale)
    report = _take_in(keeper, coming)
    held = [decision.entry_id for decision in report.quarantined]
    learned = guard.writes.known(coming.ids)
    return [i for i in learned if i not in held], held


def _take_in(keeper: Keeper[Any], there: Batch) -> Report:
    """Screen stored entries that bypassed the guard, as if they were written now.

    Admitted entries are learned in place. Held ones leave the store; an entry whose metadata the
    quarantine cannot keep in full is only hidden.
    """
    writes, mask = keeper.guard.writes, keeper.mask
    whole = keepable(there)
    cut = {there.ids[row] for row in unkeepable(there)}
    sifted = Sifted.of(whole)
    report, intent = screen_and_hold(keeper, sifted, stored=True)
    keeper.last_report = report
    admitted = admitted_by(report)
    try:
        recall_found(keeper, report.retroactive, report.batch)
        held = [one.entry_id for one in report.quarantined if one.entry_id not in cut]
        items = keeper.stored(held).items
        hidden = [mask.id_of(item) for item in items if mask.hides(item)]
        keeper.delete_or_hide(hidden)
        stored = keeper.stored(admitted.ids).entries
        prints = {entry.id: entry.fingerprint for entry in stored}
    except Exception:
        keeper.give_up(intent)
        raise
    if any(prints.get(entry.id) != entry.fingerprint for entry in admitted):
        keeper.give_up(intent)  # others wrote meanwhile: the store decides
        return report
    if intent is None:
        intent = writes.intend(admitted)
    writes.finish(intent)
    uncover(keeper, admitted, report)
    return recall_overdue(keeper, report)


def _forget_lost(keeper: Keeper[Any], ids: Sequence[str]) -> list[str]:
    """Make the guard forget the entries that the store lacks; return their ids."""
    writes, mask = keeper.guard.writes, keeper.mask

    def lost() -> list[str]:
        writes.catch_up()
        moving = writes.moving()
        items = keeper.stored(ids).items
        kept = {*moving, *(mask.id_of(i) for i in items if not mask.hides(i))}
        return [entry_id for entry_id in writes.known(ids) if entry_id not in kept]

    def forget(gone: list[str]) -> list[str]:
        writes.forget_lost(gone)
        return gone

    return writes.in_turn(lost, forget)


def _selected(found: Sequence[str], chosen: Chosen) -> list[str]:
    """Return the chosen ids among those that were found."""
    if isinstance(chosen, bool):
        return list(found) if chosen else []
    wanted = set(chosen)
    return [entry_id for entry_id in found if entry_id in wanted]


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + PART] for start in range(0, len(ids), PART))
