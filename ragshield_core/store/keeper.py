"""A store with its guard: operations one at a time, each begun with what a crash has left to do.

Operations are functions that take a keeper: :mod:`ragshield_core.store.writing` and its neighbours.
Where processes share a guard, each is told of a write before the store is written. If the write
fails or its process dies, the store is asked which entries it has.
"""

from __future__ import annotations

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
from ragshield_core.model.entries import Batch, Entry, concatenate
from ragshield_core.model.errors import InvalidBatchError, RAGShieldError
from ragshield_core.model.findings import Decision, Report
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store import recalling
from ragshield_core.store.inner import (
    NOTHING,
    PART,
    Item,
    StoreAccess,
    StoredEntries,
    T,
    chosen,
    in_thread,
)
from ragshield_core.store.malformed import keepable
from ragshield_core.store.mask import Mask
from ragshield_core.store.steps import Step
from ragshield_core.store.updates import NewVersion, came_in

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Called with what is being done, how many are done, and of how many; 0 of 0 if that is unknown.
Progress = Callable[[str, int, int], object]

# Ids of the keepers that this context is inside of, so that a callback may begin an operation.
_INSIDE: ContextVar[frozenset[int]] = ContextVar("ragshield_inside", default=frozenset())


class Keeper(ABC, Generic[Item]):
    """Keeps a store and a guard in step: one operation after the other.

    A keeper of a new framework defines the first five methods, and the sixth if its store can name
    ids; the others have defaults. The mask hides held entries from reads of the store.
    """

    access: StoreAccess[Item]  # of the packages for frameworks

    def __init__(self, guard: Guard, mask: Mask[Item]) -> None:
        self.guard = guard
        self.mask = mask
        self.mask.load(guard.quarantine)
        if guard.writes.shared:
            self.mask.watch(guard.quarantine, lambda: guard.policy.fail_open)
        self.last_report = Report(batch=NOTHING)
        # Async operations have a thread of their own, which no read ever waits for.
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="ragshield-writes")
        self._lock = threading.Lock()

    # Operations

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other operations out; a callback of an operation is inside already."""
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
        """Do an operation once no other is being done.

        Recovery comes first, and entries that were let in unscreened are screened at the end.
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
                    f"on it came to no end ({self.guard.quarantine!r}). What was judged suspicious "
                    "is held; repeat the operation once they answer: what has the same ids is not "
                    "there twice then."
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
        """Do an operation in a thread; once begun it is finished, whoever is cancelled."""
        return await in_thread(partial(self.run, work, *args, **kwargs), self.worker)

    def step(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step:
        """Return an operation as a step of another, which does not keep others out between."""
        given = (work, *args)
        return Step(partial(self.run, *given, **kwargs), partial(self.arun, *given, **kwargs))

    def ready(self) -> None:
        """Prepare the store before it is used."""

    # The store

    @abstractmethod
    def stored(self, ids: Sequence[str]) -> StoredEntries[Item]:
        """Return the stored entries under the ids; missing ones are ignored."""

    @abstractmethod
    def write_entries(self, batch: Batch, how: Any, older: Sequence[Item]) -> None:
        """Store entries, at least one, in place of the older items under their ids; all or none.

        ``how`` is what the package for a framework has prepared, ``None`` for held entries.
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

        One that has none is refused where nothing embeds it, and one that the store cannot keep.
        """

    def everything(self, part: int = PART, tell: Progress = lambda *_: None) -> Batch:
        """Return all entries that reads of the guarded store can return, fetched in parts.

        One that cannot be judged is refused by name.
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
        return concatenate(batches) if batches else NOTHING

    def ids(self) -> list[str]:
        """Return the ids of all stored entries, without reading these if that is possible."""
        msg = f"{type(self).__name__} does not say which ids its store holds."
        raise NotImplementedError(msg)

    # Hooks for documents and related entries

    def judge_related(self, report: Report, *, stored: bool) -> Report:  # noqa: ARG002 - for those who know
        """Return a report that also holds entries which would serve the text of held ones.

        Of new entries, it may change metadata and contexts instead, as they are written then;
        ``stored`` ones stay as the store has them.
        """
        return report

    def annotated(self, report: Report) -> Report:
        """Return a report with further remarks, once its suspicious entries are held."""
        return report

    def on_held(self, entries: Batch) -> None:
        """Take note of entries that are held now."""

    def same_as_held(self, stored: Entry, held: Entry) -> bool:
        """Return whether the store has a held entry as it is to be released."""
        return stored.fingerprint == held.fingerprint

    def updated_document(self, entry: Entry) -> str | None:  # noqa: ARG002 - for those who know
        """Return the document whose new version an entry is a part of, if its id is known."""
        return None

    def document_of(self, entry: Entry) -> str | None:  # noqa: ARG002 - for those who know
        """Return the document whose parts are replaced together."""
        return None

    def parts_of(self, entries: Batch) -> list[str]:  # noqa: ARG002
        """Return the ids of all stored parts of the documents of entries."""
        return []

    def held_under(self, ids: Sequence[str]) -> list[str]:
        """Return ids; those of documents are replaced by the ids of their held parts."""
        return list(dict.fromkeys(ids))

    def replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the entries that were replaced last under ids; refuse an id without any."""
        return [self.guard.quarantine.show(i, Status.REPLACED) for i in dict.fromkeys(ids)]

    def leaving(
        self, there: StoredEntries[Item], because: Mapping[str, Decision] | None
    ) -> tuple[Batch, Sequence[Decision] | None]:
        """Return entries that are to leave, with others that must leave too, and why each does."""
        return there.entries, None if because is None else [because[i] for i in there.entries.ids]

    def superseded(self, versions: Sequence[NewVersion]) -> None:
        """Release held parts of earlier versions from waiting, since later ones are stored."""
        self.guard.writes.forget_held(came_in(versions, self.guard.quarantine))

    def refresh(self) -> None:
        """Ask the quarantine again which entries are held."""
        self.mask.load(self.guard.quarantine)

    # Intended writes, and recovery from those that did not end

    def delete_or_hide(self, ids: Sequence[str]) -> None:
        """Delete entries that the mask hides; they stay hidden if the store cannot delete."""
        if ids:
            with suppress(NotImplementedError):
                self.delete_entries(ids)

    @contextmanager
    def carrying_out(self, intent: Intent) -> Iterator[None]:
        """Have a write finished or, if the store fails, given up."""
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
        """Return stored entries in the form in which other processes are told of them."""
        return keepable(entries) if self.guard.writes.shared else entries

    def give_up(self, intent: Intent | None) -> None:
        """Recover a write that failed, by the entries that the store has."""
        if intent is None or not self.guard.writes.shared:
            return
        self.guard.writes.failed(intent)
        try:
            self.recover()
        except Exception as error:  # noqa: BLE001 - the error of the write itself is raised
            logger.warning("a failed write is not recovered yet (%s)", type(error).__name__)

    def recover(self) -> int:
        """Recover events that crashed processes have left pending; return how many there were.

        The store is asked which entries it has. Where nothing is shared, nothing is pending.
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
