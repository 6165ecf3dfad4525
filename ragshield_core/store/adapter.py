"""The interface of an adapter to its store: seven methods, and hooks for documents.

Where processes share a guard, each is told of a write before the store is written. If the write
fails or its process dies, the store is asked which entries it has.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from ragshield_core.guard import Guard
from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import Batch, Entry, concatenate
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import Decision, Report
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store.malformed import keepable
from ragshield_core.store.mask import Mask
from ragshield_core.store.steps import Steps, Turns, done, own
from ragshield_core.store.updates import NewVersion, came_in

logger = logging.getLogger("ragshield")  # ids and counts, never text

Item = TypeVar("Item")
# Called with what is being done, how many are done, and of how many; 0 of 0 if that is unknown.
Progress = Callable[[str, int, int], object]

NOTHING = Batch.of(ids=[], texts=[], embeddings=[])

# Entries that are read at a time when a store is adopted or audited.
PART = 1000


class Stored(NamedTuple, Generic[Item]):
    """The content of a store under some ids, including entries that came past the guard.

    ``entries`` have vectors, and no claims that cannot be used. ``items`` are as the store has
    them, and may be more: some stores keep several revisions under one id, or give no vectors.
    """

    entries: Batch
    items: Sequence[Item]


class Adapter(ABC, Generic[Item]):
    """A store with its guard, as the operations of this package use them.

    Operations are functions that take an adapter and return steps, see
    :mod:`ragshield_core.store.steps`. An adapter of a new framework defines the first six
    methods, and the seventh if its store can name ids; the others have defaults.

    Parameters
    ----------
    guard
        Of this store.
    mask
        Hides held entries from reads of the store.

    Attributes
    ----------
    last_report
        Of the latest write.
    turns
        Runs one operation at a time.
    """

    def __init__(self, guard: Guard, mask: Mask[Item]) -> None:
        self.guard = guard
        self.mask = mask
        self.mask.load(guard.quarantine)
        if guard.writes.shared:
            self.mask.watch(guard.quarantine, lambda: guard.policy.fail_open)
        self.last_report = Report(batch=NOTHING)
        self.turns = Turns()

    # The store

    @abstractmethod
    def stored(self, ids: Sequence[str]) -> Steps[Stored[Item]]:
        """Return the stored entries under the ids; missing ones are ignored."""

    @abstractmethod
    def write_entries(self, batch: Batch, how: Any, older: Sequence[Item]) -> Steps[None]:
        """Store entries in place of older ones under their ids; all of them or none.

        Parameters
        ----------
        batch
            At least one entry.
        how
            Prepared by the adapter; ``None`` for entries as they were held.
        older
            The store's items under these ids.
        """

    @abstractmethod
    def delete_entries(self, ids: Sequence[str], options: Any = None) -> Steps[None]:
        """Delete the entries under the ids; ``NotImplementedError`` if the store cannot."""

    @abstractmethod
    def nearest(self, vector: list[float], k: int) -> Steps[Sequence[Item]]:
        """Return the k nearest items to a vector; none if the store cannot search."""

    @abstractmethod
    def entries_of(self, held: Sequence[HeldEntry], embed: Any) -> Batch:
        """Return held entries with vectors, ready to be stored.

        Raises
        ------
        RagshieldError
            If one has none and there is nothing to embed it with, or the store cannot keep it.
        """

    def everything(self, part: int = PART, tell: Progress = lambda *_: None) -> Batch:
        """Return all entries that reads of the guarded store can return, fetched in parts.

        Raises
        ------
        InvalidBatchError
            If an entry cannot be judged; names it.
        """
        ids = list(dict.fromkeys(done(self.ids())))
        batches: list[Batch] = []
        for start in range(0, len(ids), part):
            tell("reading", start, len(ids))
            there = done(self.stored(ids[start : start + part]))
            hidden = {self.mask.id_of(item) for item in there.items if self.mask.hides(item)}
            shown = chosen(there.entries, there.entries.ids, hidden) if hidden else there.entries
            if len(shown):
                if batches and shown.dim != batches[0].dim:
                    msg = (
                        f"the vector of entry {shown.ids[0]!r} has {shown.dim} dimensions, "
                        f"expected {batches[0].dim} as before it; delete what another model "
                        "embedded."
                    )
                    raise InvalidBatchError(msg)
                batches.append(shown)
        tell("reading", len(ids), len(ids))
        return concatenate(batches) if batches else NOTHING

    def ids(self) -> Steps[list[str]]:
        """Return the ids of all stored entries, without reading these if that is possible.

        Raises
        ------
        NotImplementedError
            If the store cannot name them.
        """
        msg = f"{type(self).__name__} does not say which ids its store holds."
        raise NotImplementedError(msg)
        yield  # a generator that has nothing to ask

    # Hooks for documents and related entries

    def judge_related(self, report: Report, *, stored: bool) -> Report:  # noqa: ARG002 - for those who know
        """Return a report that also holds entries which would serve the text of held ones.

        Of new entries, it may change metadata and contexts instead, as they are written then;
        ``stored`` ones stay as the store has them.
        """
        return report

    def annotated(self, report: Report) -> Report:
        """Return a report with the adapter's own remarks, once its suspicious entries are held."""
        return report

    def on_held(self, entries: Batch) -> None:
        """Take note of entries that are held now."""

    def same_as_held(self, stored: Entry, held: Entry) -> bool:
        """Return whether the store has a held entry as it is to be released."""
        return stored.fingerprint == held.fingerprint

    def updated_document(self, entry: Entry) -> str | None:  # noqa: ARG002 - for adapters that override it
        """Return the document whose new version an entry is a part of, if its id is known."""
        return None

    def document_of(self, entry: Entry) -> str | None:  # noqa: ARG002 - for adapters that override it
        """Return the document whose parts are replaced together."""
        return None

    def parts_of(self, entries: Batch) -> Steps[list[str]]:  # noqa: ARG002 - as above
        """Return the ids of all stored parts of the documents of entries."""
        return []
        yield  # a generator that has nothing to ask

    def held_under(self, ids: Sequence[str]) -> list[str]:
        """Return ids; those of documents are replaced by the ids of their held parts."""
        return list(dict.fromkeys(ids))

    def replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the entries that were replaced last under ids.

        Raises
        ------
        QuarantineError
            If there are none; names the id.
        """
        return [self.guard.quarantine.show(i, Status.REPLACED) for i in dict.fromkeys(ids)]

    def leaving(
        self, there: Stored[Item], because: Mapping[str, Decision] | None
    ) -> Steps[tuple[Batch, Sequence[Decision] | None]]:
        """Return entries that are to leave, with others that must leave too, and why each does."""
        return there.entries, None if because is None else [because[i] for i in there.entries.ids]
        yield  # a generator that has nothing to ask

    def superseded(self, versions: Sequence[NewVersion]) -> None:
        """Release held parts of earlier versions from waiting, since later ones are stored."""
        self.guard.writes.forget_held(came_in(versions, self.guard.quarantine))

    def refresh(self) -> None:
        """Ask the quarantine again which entries are held."""
        self.mask.load(self.guard.quarantine)


def delete_or_hide(adapter: Adapter[Any], ids: Sequence[str]) -> Steps[None]:
    """Delete entries that the mask hides; they stay hidden if the store cannot delete."""
    if ids:
        with suppress(NotImplementedError):
            yield from adapter.delete_entries(ids)


def chosen(batch: Batch, ids: Iterable[str], but: Iterable[str] = ()) -> Batch:
    """Return the entries of a batch with some ids, without others."""
    wanted = set(ids) - set(but)
    return batch.take([row for row, entry_id in enumerate(batch.ids) if entry_id in wanted])


# Intended writes, and recovery from those that did not end


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
