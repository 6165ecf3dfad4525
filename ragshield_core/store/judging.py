"""Judge entries in a step in front of a store, which passes on what is not held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import MalformedEntriesError
from ragshield_core.model.findings import Report
from ragshield_core.quarantine import HeldEntry, batches_of
from ragshield_core.store.held import stays_held
from ragshield_core.store.malformed import Columns, Sifted, sift


def sifted_for_step(columns: Columns, guard: Guard) -> Sifted:
    """Tell malformed entries from the others, for a step that writes nothing.

    Raises
    ------
    MalformedEntriesError
        If there are entries that can be neither passed on nor held: there is no later, since a step
        that raises passes nothing on.
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
    """Judge entries by all that any process has learned, and hold suspicious ones.

    Processes that share a guard judge one after the other.

    Parameters
    ----------
    guard
        Of this process.
    sifted
        The entries.
    screen
        Screens those that are not malformed.
    learn
        Whether the guard learns what passes, each id once, since no store does.
    remarks
        Adds remarks of an adapter to the report.
    """

    def decide(report: Report) -> Report:
        report = stays_held(guard.hold(report), guard)
        report = remarks(sifted.hold_malformed(report, guard))
        if learn:
            _learn(guard, report.batch.take(report.admitted))
        return report

    turn = guard.writes.take_turn()
    try:
        report = guard.writes.together(partial(decide, screen()), turn=turn)
        return guard.judge.with_spent(report) if guard.writes.shared else report
    finally:
        guard.writes.give_up_turn(turn)


def let_in(
    guard: Guard, ids: Sequence[str], by: str, note: str | None, *, learn: bool = False
) -> tuple[HeldEntry, ...]:
    """Judge held entries good, where no store keeps step with the guard; return them."""

    def released() -> tuple[HeldEntry, ...]:
        held = guard.quarantine.release(ids, by=by, note=note)
        for batch in batches_of(held) if learn else ():
            _learn(guard, batch)
        guard.writes.forget_held(ids)
        guard.trust(ids)
        return held

    return guard.writes.together(released)


def _learn(guard: Guard, entries: Batch) -> None:
    """Learn what is new: the same entries may come again."""
    known = set(guard.writes.known(entries.ids))
    guard.learn(entries.take([r for r, i in enumerate(entries.ids) if i not in known]))
