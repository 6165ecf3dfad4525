"""A store with its guard: operations run one at a time, each after recovery from crashes.

Operations are functions that take a keeper: :mod:`ragshield_core.store.writing` and its neighbours.
If processes share a guard, a write is announced to all of them before the store is written. If the
write fails or its process dies, the store is asked which entries it has.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic

from ragshield_core.guard import Guard
from ragshield_core.learning.events import Intent
from ragshield_core.model.entries import NO_ENTRIES, Batch, Entry, concatenate
from ragshield_core.model.errors import InvalidBatchError, RAGShieldError
from ragshield_core.model.findings import Decision, Report
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store import recalling
from ragshield_core.store.inner import PART, Item, StoreAccess, StoredEntries, T, chosen, in_thread
from ragshield_core.store.joining import Joiner, Waiting
from ragshield_core.store.malformed import keepable
from ragshield_core.store.mask import Mask
from ragshield_core.store.steps import Step
from ragshield_core.store.updates import NewVersion, came_in

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Called with the name of the work, the number of entries done, and their total; 0, 0 if unknown.
Progress = Callable[[str, int, int], object]

# Ids of the keepers whose lock this context holds, so that a callback may begin an operation.
_INSIDE: ContextVar[frozenset[int]] = ContextVar("ragshield_inside", default=frozenset())


class Keeper(ABC, Generic[Item]):
    """Keeps a store and a guard in step: one operation after the other.

    A keeper of a new framework defines the five abstract methods, and ``ids`` if its store can name
    them; the others have defaults. The mask hides held entries from reads of the store.
    """

    access: StoreAccess[Item]  # set by a framework's package

    def __init__(self, guard: Guard, mask: Mask[Item]) -> None:
        self.guard = guard
        self.mask = mask
        self.mask.load(guard.quarantine)
        if guard.writes.shared:
            self.mask.watch(guard.quarantine, lambda: guard.policy.fail_open)
        self.last_report = Report(batch=NO_ENTRIES)
        # Async operations run in a thread of their own, for which no read ever waits.
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="ragshield-writes")
        self._lock = threading.Lock()
        self._joiner = Joiner()

    # Operations

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock on operations; a callback of an operation holds it already."""
        inside = _INSIDE.get()
        if id(self) in inside:
            yield
            return
        with self._lock:
            token = _INSIDE.set(inside | {id(self)})
            try:
                yield
            finally:
                _INSIDE.reset(token)

    def run(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run an operation once no other is running.

        Recovery comes first. Entries that were admitted unscreened are screened at the end.
        """
        self.ready()
        with self.alone():
            if self.guard.writes.shared:
                self.recover()
            try:
                answer = work(*args, **kwargs)
            except RAGShieldError:
                raise
            except Exception as error:
                # The error is the store's or its embedding model's, and keeps its type.
                error.add_note(
                    "RAGShield: the store inside or its embedding model failed, and this operation "
                    f"on it came to no end ({self.guard.quarantine!r}). Entries that were judged "
                    "suspicious are held; repeat the operation once they answer: entries with the "
                    "same ids are not stored twice then."
                )
                raise
            if due := self.guard.writes.due_for_screening():
                try:
                    recalling.rescreen(self, due[:PART])
                except Exception as error:  # noqa: BLE001 - the operation itself is done
                    kind = type(error).__name__
                    logger.warning("entries let in unscreened could not be screened yet (%s)", kind)
            return answer

    async def arun(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run an operation in a thread; once begun, it ends even if the caller is cancelled."""
        return await in_thread(partial(self.run, work, *args, **kwargs), self.worker)

    def step(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step:
        """Return an operation as a step of a longer one, without the lock between steps."""
        given = (work, *args)
        return Step(partial(self.run, *given, **kwargs), partial(self.arun, *given, **kwargs))

    def joined(self, one: Waiting[Any, T]) -> Step:
        """Return a small write as a step; writes that wait meanwhile are carried out with it.

        A callback of an operation writes alone.
        """
        if id(self) in _INSIDE.get():
            return self.step(lambda: one.write([one.given])[0])

        def carried_out() -> T:
            if not one.answers:  # otherwise there is nothing to recover for
                self.run(self._joiner.carry_out, one)
            return one.answers[0]

        def work() -> T:
            with self._joiner.waiting(one):
                return carried_out()

        async def awork() -> T:
            one.loop = asyncio.get_running_loop()
            with self._joiner.waiting(one):
                return await in_thread(carried_out, self.worker)

        return Step(work, awork)

    def ready(self) -> None:
        """Prepare the store before it is used."""

    # The store

    @abstractmethod
    def stored(self, ids: Sequence[str]) -> StoredEntries[Item]:
        """Return the stored entries under the ids; missing ids are ignored."""

    @abstractmethod
    def write_entries(self, batch: Batch, how: Any, older: Sequence[Item]) -> None:
        """Store entries, at least one, in place of the older items under their ids; all or none.

        ``how`` is an argument from the framework's package, ``None`` for held entries.
        """

    @abstractmethod
    def delete_entries(self, ids: Sequence[str], options: Any = None) -> None:
        """Delete the entries under the ids; ``NotImplementedError`` if the store cannot."""

    @abstractmethod
    def nearest(self, vector: list[float], k: int) -> Sequence[Item]:
        """Return the k nearest items to a vector; none if the store cannot search."""

    @abstractmethod
    def entries_of(self, held: Sequence[HeldEntry], embed: Any) -> Batch:
        """Return held entries with vectors, ready to be stored.

        An entry is refused if it has no vector and no model embeds it, or the store cannot keep it.
        """

    def everything(self, part: int = PART, tell: Progress = lambda *_: None) -> Batch:
        """Return all entries that reads of the guarded store can return, fetched in parts.

        An entry that cannot be judged is refused by name.
        """
        ids = list(dict.fromkeys(self.ids()))
        batches: list[Batch] = []
        for start in range(0, len(ids), part):
            tell("reading", start, len(ids))
            there = self.stored(ids[start : start + part])
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
        return concatenate(batches) if batches else NO_ENTRIES

    def ids(self) -> list[str]:
        """Return the ids of all stored entries, without reading these if that is possible."""
        msg = f"{type(self).__name__} does not say which ids its store holds."
        raise NotImplementedError(msg)

    # Hooks for documents and related entries

    def judge_related(self, report: Report, *, stored: bool) -> Report:  # noqa: ARG002 - for subclasses
        """Return a report that also holds entries which would serve the text of held ones.

        It may instead change the metadata and contexts of new entries, which are written like that;
        ``stored`` entries stay as they are.
        """
        return report

    def annotated(self, report: Report) -> Report:
        """Return a report with further remarks, once its suspicious entries are held."""
        return report

    def on_held(self, entries: Batch) -> None:
        """Note the entries that are held now."""

    def same_as_held(self, stored: Entry, held: Entry) -> bool:
        """Return whether a stored entry equals the held entry that is to be released."""
        return stored.fingerprint == held.fingerprint

    def updated_document(self, entry: Entry) -> str | None:  # noqa: ARG002 - for subclasses
        """Return the document that has an entry in its new version, if its id is known."""
        return None

    def document_of(self, entry: Entry) -> str | None:  # noqa: ARG002 - for subclasses
        """Return an entry's document, whose parts are replaced together."""
        return None

    def parts_of(self, entries: Batch) -> list[str]:  # noqa: ARG002
        """Return the ids of all stored parts of the documents of entries."""
        return []

    def held_under(self, ids: Sequence[str]) -> list[str]:
        """Return ids, with each document's id replaced by the ids of its held parts."""
        return list(dict.fromkeys(ids))

    def replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the entry that was replaced last under each id; refuse an id without one."""
        return [self.guard.quarantine.show(i, Status.REPLACED) for i in dict.fromkeys(ids)]

    def leaving(
        self, there: StoredEntries[Item], because: Mapping[str, Decision] | None
    ) -> tuple[Batch, Sequence[Decision] | None]:
        """Return the leaving entries, others that must leave too, and each one's reason."""
        return there.entries, None if because is None else [because[i] for i in there.entries.ids]

    def before_leaving(self, leaving: Batch, because: Sequence[Decision] | None) -> None:
        """Take the text of entries that are about to be held out of the stored ones around them."""

    def superseded(self, versions: Sequence[NewVersion]) -> None:
        """Mark waiting parts of earlier versions superseded, since later ones are stored."""
        self.guard.writes.forget_held(came_in(versions, self.guard.quarantine))

    def refresh(self) -> None:
        """Ask the quarantine again which entries are held."""
        self.mask.load(self.guard.quarantine)

    # Intended writes, and recovery from unfinished ones

    def delete_or_hide(self, ids: Sequence[str]) -> None:
        """Delete entries that the mask hides; they stay hidden if the store cannot delete."""
        if ids:
            with suppress(NotImplementedError):
                self.delete_entries(ids)

    @contextmanager
    def carrying_out(self, intent: Intent) -> Iterator[None]:
        """Finish a write, or give it up if the store fails."""
        try:
            yield
        except Exception:
            self.give_up(intent)
            raise
        self.guard.writes.finish(intent)

    @contextmanager
    def forgetting(self, entries: Batch) -> Iterator[None]:
        """Forget entries once they are deleted from the store."""
        with self.carrying_out(self.guard.writes.intend(None, self.as_told(entries))):
            yield

    def as_told(self, entries: Batch) -> Batch:
        """Return stored entries in the form that is announced to other processes."""
        return keepable(entries) if self.guard.writes.shared else entries

    def give_up(self, intent: Intent | None) -> None:
        """Recover from a failed write by the entries that the store has."""
        if intent is None or not self.guard.writes.shared:
            return
        self.guard.writes.failed(intent)
        try:
            self.recover()
        except Exception as error:  # noqa: BLE001 - the error of the write itself is raised
            logger.warning("a failed write is not recovered yet (%s)", type(error).__name__)

    def recover(self) -> int:
        """Settle events that crashed processes have left pending; return their number.

        The store is asked which entries it has. A guard that is not shared has no pending events.
        """
        with self.alone():
            return self._recovered()

    def _recovered(self) -> int:
        writes, mask = self.guard.writes, self.mask
        lost = writes.abandoned()
        if lost is None:
            return 0
        try:
            batches = [event.entries for event in lost.events if event.entries is not None]
            ids = list(dict.fromkeys(entry_id for batch in batches for entry_id in batch.ids))
            self.refresh()
            there = self.stored(ids)
            self.delete_or_hide([mask.id_of(item) for item in there.items if mask.hides(item)])
            entries = keepable(there.entries)
            visible = [row for row, one in enumerate(entries) if not mask.covers(one)]
            writes.recover(lost, entries.take(visible))
        except Exception:
            writes.failed(lost)
            raise
        logger.warning("%d events that a process had left were recovered", len(lost.positions))
        return len(lost.positions)
