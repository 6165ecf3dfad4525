"""Learning of a guard: events that it applies before and after each write of a store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ragshield_core.learning.events import Change, Event, Intent
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision, accusers

if TYPE_CHECKING:
    from ragshield_core.learning.status import Standing
    from ragshield_core.quarantine import Quarantine

J = TypeVar("J")
T = TypeVar("T")

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Actions in the log that confirm entries, or end a confirmation.
CONFIRMING = ("confirm", "reopen", "purge")
# Confirmed entries in one event: a journal stores them in full.
AT_ONCE = 256
# Automatic attempts to screen an entry again: a detector that judges other entries and repeatedly
# fails on this one fails because of the entry.
TRIES = 3


class Writes:
    """Record the writes of a guarded store, for a guard of one process.

    For guards that processes share, use
    :class:`~ragshield_core.sharing.shared_writes.SharedWrites`, which keeps a journal of events.
    """

    shared = False  # whether other processes learn these entries, too: True if it was opened

    def __init__(self, state: GuardState, quarantine: Quarantine) -> None:
        self._state, self.quarantine = state, quarantine
        # Each is called with the entries learned here, which are in the knowledge base by then. An
        # exception of a callback is logged by its type, and stops nothing. Callbacks are not saved.
        self.on_learned: list[Callable[[Batch], object]] = []
        # Table of confirmations that the last look compared with: a fit or a load replaces the
        # table by another object.
        self._told = dict[str, str]()
        self._told_version: tuple[int, ...] = ()
        self._told_line = 0

    def known(self, ids: Sequence[str]) -> list[str]:
        """Return the ids among these that were learned, each once."""
        with self._state.lock:  # tables of ids are renumbered by writes
            return self._state.knowledge.among(ids)

    def fingerprints(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the fingerprints of the learned revisions, for the ids that were learned."""
        with self._state.lock:
            known = self._state.knowledge.among(ids)
            return dict(zip(known, self._state.knowledge.known.prints_of(known), strict=True))

    def known_ids(self) -> frozenset[str]:
        """Return the ids of all entries that were learned."""
        with self._state.lock:
            return frozenset(self._state.knowledge.known)

    def unscreened(self) -> dict[str, Mapping[str, str]]:
        """Return the known entries that were admitted although detectors failed on them.

        By id, with the message of each detector. A guarded store screens them again, see its
        ``rescreen``, and recalls suspicious ones.
        """
        with self._state.lock:
            return self._state.known_unscreened()

    def due_for_screening(self) -> list[str]:
        """Return the ids of unscreened entries whose detectors seem to work again."""
        with self._state.lock:
            waiting = self._state.known_unscreened() if self._state.unscreened else {}
            tries, failing = self._state.tries, self._state.failing.keys()
            return [i for i, w in waiting.items() if tries[i] < TRIES and not w.keys() & failing]

    # Events

    def happened(self, change: Change, **fields: Any) -> None:
        """Record an event and apply it; a fitted guard learns in no other way."""
        self._record([Event(change=change, **fields)])

    def _record(self, events: Sequence[Event], intent: Intent | None = None) -> None:  # noqa: ARG002 - for a journal
        for event in events:
            self._state.apply(event)

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Yield while the state is fitted, adopted, calibrated or refreshed, for all processes."""
        with self._state.lock:
            yield
            self._state.let_go()

    def learn(self, entries: Batch) -> None:
        """Learn entries that are in the knowledge base."""
        if len(entries):
            self.happened(Change.LEARNED, entries=entries)
            self.afterwards(partial(self._after_learning, [entries]))

    def _after_learning(self, batches: Sequence[Batch]) -> None:
        """Recalibrate if due, and call the callbacks in :attr:`on_learned`."""
        if batches and self._state.recalibration.due:
            self._thresholds_are_due()
        for batch in batches:
            for callback in self.on_learned:
                try:
                    callback(batch)
                except Exception as error:  # noqa: BLE001 - the entries are written already
                    kind = type(error).__name__
                    logger.error("a callback of on_learned failed: %s", kind)  # noqa: TRY400

    def _thresholds_are_due(self) -> None:
        if (confirmed := self._confirmed()) is not None:
            self.happened(Change.RECALIBRATED, ids=confirmed)

    def _confirmed(self) -> tuple[str, ...] | None:
        """Return the ids of confirmed entries; ``None`` if the quarantine cannot be read.

        Read here rather than during recalibration: another process could read more ids by then.
        """
        try:
            return tuple(self.quarantine.confirmed_ids())
        except Exception as error:  # noqa: BLE001 - the entries are written already
            kind = type(error).__name__
            logger.error("thresholds stay as they were: the quarantine failed with %s", kind)  # noqa: TRY400
            return None

    def settled(self) -> None:
        """Wait until no recalibration is running.

        An opened guard recalibrates in the background once its knowledge base has grown by a fifth,
        in one process and on one core. Until it ends, all processes use the previous thresholds.
        """

    def forget_lost(self, ids: Sequence[str]) -> None:
        """Forget entries that left the knowledge base unseen, although their texts are lost.

        Their ids, labels and vectors go; detectors that count words or phrases keep the counts.
        """
        with self._state.lock:
            lost = self._state.knowledge.remembered(ids)
            if len(lost):
                self.happened(Change.FORGOTTEN, entries=lost)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Record that held entries were released, or deleted for good."""
        if ids:
            self.happened(Change.HELD_FORGOTTEN, ids=tuple(ids))

    def screened_again(self, ids: Sequence[str], failed: Sequence[str] = ()) -> None:
        """Record unscreened entries that every detector has judged since, or that are gone.

        ``failed`` are the ids of entries on which a detector has failed again.
        """
        with self._state.lock:
            self._state.tries.update(failed)
        if ids:
            self.happened(Change.SCREENED, ids=tuple(ids))

    def hear_of_confirmed(self) -> None:
        """Let group detectors remember the entries that people confirmed since the last look.

        Any process may have confirmed them. A look that finds nothing new costs microseconds if
        the database was not written, otherwise a query.
        """
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy

        quarantine, knowledge = self.quarantine, self._state.knowledge
        if not isinstance(quarantine, Quarantine) or self._collecting or knowledge.dim is None:
            return
        try:
            version = quarantine.database.version()
            seen = version == self._told_version and self._told is knowledge.confirmed
            if seen or not version:  # an empty version means no database, and creates none
                return
            self._tell_of_confirmed(quarantine)
        except QuarantineError as error:
            logger.warning("detectors hear of no new confirmation: %s", error)
            return
        self._told_version, self._told = version, knowledge.confirmed

    def _tell_of_confirmed(self, quarantine: Quarantine) -> None:
        """Tell detectors of new confirmations, and of confirmations that were taken back."""
        from ragshield_core.quarantine.entries import batches_of  # noqa: PLC0415 - SQLAlchemy

        told, dim = self._state.knowledge.confirmed, self._state.knowledge.dim
        if told is self._told:
            line, ids = quarantine.log.changed_since(self._told_line, CONFIRMING)
        else:
            line = quarantine.log.end()
            ids = frozenset((*quarantine.confirmed_ids(), *told))
        prints = quarantine.prints(ids=list(ids)) if ids else ()
        now = {one.id: one.fingerprint for one in prints if one.status == "confirmed"}
        if gone := tuple(sorted(i for i in ids if i in told and i not in now)):
            self.happened(Change.CONFIRMED, ids=gone)
        new = [i for i, revision in now.items() if told.get(i) != revision]
        for start in range(0, len(new), AT_ONCE):
            confirmed = quarantine.list("confirmed", ids=new[start : start + AT_ONCE])
            # The latest revision under each id, if its vector has the dimension of the others.
            latest = {one.id: one for one in confirmed if one.vector.size in (0, dim)}
            for entries in batches_of([*latest.values()]):
                self.happened(Change.CONFIRMED, entries=entries)
        self._told_line = line

    # Writes of a store: an intent before the write, :meth:`finish` after it

    def intend(self, entering: Batch | None = None, leaving: Batch | None = None) -> Intent:
        """Announce that entries are about to enter the store, in place of others that leave it.

        Processes that share the guard expect both from now on; in a guard of one process, nothing
        changes before :meth:`finish`.
        """
        events = []
        if leaving is not None and len(leaving):
            events.append(Event(change=Change.FORGOTTEN, entries=leaving))
        if entering is not None and len(entering):
            if self.shared:  # before other processes are told
                self._state.knowledge.check_learnable(entering)
            events.append(Event(change=Change.LEARNED, entries=entering))
        return self._intended(Intent(tuple(events)))

    def intend_recall(self, gone: Batch, decisions: Sequence[Decision]) -> Intent:
        """Announce that admitted entries, which are now held, are about to leave the store."""
        left = set(gone.ids)
        accused = accusers(d for d in decisions if d.entry_id in left)
        recalled = Event(change=Change.RECALLED, entries=gone, accused=accused)
        return self._intended(Intent((recalled,) if len(gone) else ()))

    def _intended(self, intent: Intent) -> Intent:
        if self.shared:
            self._record(intent.events, intent)
        return intent

    def finish(self, intent: Intent) -> None:
        """Record that the store was written as intended."""
        self._settle(intent)
        learned = [e.entries for e in intent.events if e.change is Change.LEARNED and e.entries]
        self._after_learning(learned)
        for event in intent.events:
            if event.change is Change.RECALLED and event.entries is not None:
                n = len(event.entries)
                logger.warning("quarantined %d entries that were admitted earlier", n)

    def _settle(self, intent: Intent) -> None:
        with self._state.lock:
            self._record(intent.events)

    # Sharing with other processes: this class has none

    @property
    def _collecting(self) -> bool:
        """Whether events are collected and applied later, see :meth:`together`."""
        return False

    def catch_up(self) -> int:
        """Apply the events of other processes; return their number.

        Screening calls this by itself. It does nothing if the guard was not opened.
        """
        return 0

    def together(self, work: Callable[[], T]) -> T:
        """Do work as one write: other processes see all its changes or none.

        The work calls methods of the guard and its quarantine, which take effect when it returns.
        It may not write a store, and steps that notify others belong into :meth:`afterwards`.
        """
        return work()

    def afterwards(self, step: Callable[[], object]) -> None:
        """Run ``step`` once the current write is durable; at once if there is no such write.

        A failed write drops its steps, and a retried write collects them again. People and
        callbacks are told of each write once, and never of failed writes.
        """
        step()

    def in_turn(self, judge: Callable[[], J], write: Callable[[J], T]) -> T:
        """Judge, and write what follows from it; no other process writes between the two.

        ``write`` is the work of :meth:`together`. If another process is faster, both are repeated
        while the others wait. An :class:`~ragshield_core.model.errors.OvertakenError` means that
        this process was silent during its lease: nothing was written, and the caller must retry.
        """
        return write(judge())

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that a process is about to write or delete."""
        return frozenset()

    def failed(self, intent: Intent) -> None:
        """Record that it is unknown whether the store was written; see :meth:`recover`."""

    def abandoned(self) -> Intent | None:
        """Return the unfinished intents of crashed processes, to recover them."""
        return None

    def recover(self, intent: Intent, stored: Batch) -> None:
        """Settle the intent from :meth:`abandoned`; ``stored`` are its entries in the store."""

    def standing(self) -> Standing | None:
        """Return the position of this process; ``None`` if the guard is not shared."""
        return None

    def close(self) -> None:
        """Stop taking part."""
