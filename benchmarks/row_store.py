"""A shared store of row numbers, and its keeper, which synchronises it with a guard."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from ragshield_core import Batch, Guard, Report
from ragshield_core.model.entries import Entry
from ragshield_core.quarantine import HeldEntry
from ragshield_core.quarantine.entries import batch_of
from ragshield_core.store import writing
from ragshield_core.store.inner import StoredEntries
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.malformed import RawEntries, sift
from ragshield_core.store.mask import Claims, Mask


class Entries(Mask[Entry]):
    """A mask over entries themselves."""

    def id_of(self, item: Entry) -> str:
        """Return the id of an entry."""
        return item.id

    def claims_of(self, item: Entry) -> Claims:
        """Return the claims of an entry."""
        return Claims(item.text, item.label, item.lineage, item.context)


class RowKeeper(Keeper[Entry]):
    """Keeper that synchronises a store of row numbers by id with a guard.

    Parameters
    ----------
    guard
        The guard.
    rows
        All entries that the store can have.
    store
        Row numbers of the stored entries, by id.
    """

    def __init__(self, guard: Guard, rows: Batch, store: MutableMapping[str, int]) -> None:
        super().__init__(guard, Entries())
        self._rows, self._store = rows, store
        self._places = {entry_id: row for row, entry_id in enumerate(rows.ids)}

    def stored(self, ids: Sequence[str]) -> StoredEntries[Entry]:
        """Return the entries that are in the store."""
        found = [self._store.get(entry_id) for entry_id in ids]
        batch = self._rows.take([row for row in found if row is not None])
        return StoredEntries(batch, list(batch))

    def write_entries(self, batch: Batch, how: Any, older: Sequence[Entry]) -> None:  # noqa: ARG002
        """Store entries."""
        coming = {entry_id: self._places[entry_id] for entry_id in batch.ids}
        self._store.update(coming)

    def delete_entries(self, ids: Sequence[str], options: Any = None) -> None:  # noqa: ARG002
        """Delete entries."""
        [self._store.pop(entry_id, None) for entry_id in ids]

    def nearest(self, vector: list[float], k: int) -> Sequence[Entry]:  # noqa: ARG002
        """Return no entries: this store has no search."""
        return []

    def entries_of(self, held: Sequence[HeldEntry], embed: Any) -> Batch:  # noqa: ARG002
        """Return held entries."""
        return batch_of(held)

    def everything(self, *_: Any) -> Batch:
        """Return all stored entries."""
        return self._rows.take(sorted(self._store.values()))

    def write(self, rows: Sequence[int]) -> Report:
        """Write some of the rows, like an adapter."""
        batch = self._rows.take(rows)
        return self.run(writing.add, self, sift(RawEntries.of(batch), self.guard), lambda _: None)
