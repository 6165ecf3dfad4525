"""Intended writes of a store, and recovery from writes that did not end.

Where processes share a guard, each is told of a write before the store is written. If the write
fails or its process dies, the store is asked which entries it has.
"""

from __future__ import annotations

import logging
from typing import Any

from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import Batch
from ragshield_core.store.adapter import Adapter, delete_or_hide
from ragshield_core.store.malformed import keepable
from ragshield_core.store.steps import Steps, own

logger = logging.getLogger("ragshield")  # ids and counts, never text


def carry_out(adapter: Adapter[Any], intent: Intent, steps: Steps[None]) -> Steps[None]:
    """Write the store by some steps, as it was intended."""
    try:
        yield from steps
    except Exception:
        yield from give_up(adapter, intent)
        raise
    yield own(adapter.guard.writes.finish, intent)


def leave(adapter: Adapter[Any], leaving: Batch, steps: Steps[None]) -> Steps[None]:
    """Delete entries from the store by some steps, and forget them."""
    writes = adapter.guard.writes
    intent: Intent = yield own(writes.intend, None, as_told(adapter, leaving))
    yield from carry_out(adapter, intent, steps)


def as_told(adapter: Adapter[Any], entries: Batch) -> Batch:
    """Return stored entries in the form in which other processes are told of them."""
    return keepable(entries).entries if adapter.guard.writes.shared else entries


def give_up(adapter: Adapter[Any], intent: Intent | None) -> Steps[None]:
    """Recover a write that failed, by the entries that the store has."""
    if intent is None or not adapter.guard.writes.shared:
        return
    yield own(adapter.guard.writes.failed, intent)
    try:
        yield from recover(adapter)
    except Exception as error:  # noqa: BLE001 - the error of the write itself is raised
        logger.warning("a failed write is not recovered yet (%s)", type(error).__name__)


def recover(adapter: Adapter[Any]) -> Steps[int]:
    """Recover events that crashed processes have left pending; return how many there were.

    The store is asked which entries it has. Where processes share a guard, every operation begins
    with recovery; elsewhere nothing is pending.
    """
    writes, mask = adapter.guard.writes, adapter.mask
    lost: Intent | None = yield own(writes.abandoned)
    if lost is None:
        return 0
    try:
        batches = [event.entries for event in lost.events if event.entries is not None]
        ids = list(dict.fromkeys(entry_id for batch in batches for entry_id in batch.ids))
        yield own(adapter.refresh)
        there = yield from adapter.stored(ids)
        recalled = [mask.id_of(item) for item in there.items if mask.hides(item)]
        yield from delete_or_hide(adapter, recalled)
        entries = keepable(there.entries).entries
        visible = [row for row, one in enumerate(entries) if not mask.covers(one)]
        yield own(writes.recover, lost, entries.take(visible))
    except Exception:
        yield own(writes.failed, lost)
        raise
    logger.warning("%d events that a process had left were recovered", len(lost.positions))
    return len(lost.positions)
