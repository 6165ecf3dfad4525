"""Writes of a guard: what it learns is applied as events, before and after a store is written."""

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

T = TypeVar("T")

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Actions in the log by which entries become confirmed, or no longer are.
CONFIRMING = ("confirm", "reopen", "purge")
# Confirmed entries of one event: a journal keeps them in full.
AT_ONCE = 256
# How often an entry is screened again by itself: where the detector judges others, and fails on it
# time and again, it is the entry's own doing.
TRIES = 3


class Writes:
    """Take note of what a guarded store writes, for a guard of one process.

    Guards that processes share are told by
    :class:`~ragshield_core.sharing.shared_writes.SharedWrites`, which keeps a journal of events.
    """

    shared = False  # whether other processes know what this guard learns: it was opened

    def __init__(self, state: GuardState, quarantine: Quarantine) -> None:
        self._state, self.quarantine = state, quarantine
        # Called with the entries that were learned here, each time. They are in the knowledge base
        # by then: what a callback raises is logged, by its type, and stops nothing. Not saved.
        self.on_learned: list[Callable[[Batch], object]] = []
        # By what the last look for confirmations went: a fit or a load puts another table into the
        # place of this one.
        self._told = dict[str, str]()
        self._told_version: tuple[int, ...] = ()
        self._told_line = 0

    def known(self, ids: Sequence[str]) -> list[str]:
        """Return which of the ids were learned, each once."""
        with self._state.lock:  # tables of ids are renumbered by writes
            return self._state.knowledge.among(ids)

    def fingerprints(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the fingerprints of those of the ids that were learned, as they were learned."""
        with self._state.lock:
            known = self._state.knowledge.among(ids)
            return dict(zip(known, self._state.knowledge.known.prints_of(known), strict=True))

    def known_ids(self) -> frozenset[str]:
        """Return the ids of all entries that were learned."""
        with self._state.lock:
            return frozenset(self._state.knowledge.known)

    def unscreened(self) -> dict[str, Mapping[str, str]]:
        """Return the known entries that were let in although detectors failed on them.

        By id, with what is said of each detector. A guarded store screens them again, see its
        ``rescreen``, and recalls what is suspicious.
        """
        with self._state.lock:
            return self._state.known_unscreened()

    def due_for_screening(self) -> list[str]:
        """Return the ids of what was let in unscreened, as far as detectors seem to work again."""
        with self._state.lock:
            waiting = self._state.known_unscreened() if self._state.unscreened else {}
            tries, failing = self._state.tries, self._state.failing.keys()
            return [i for i, w in waiting.items() if tries[i] < TRIES and not w.keys() & failing]

    # Events

    def happened(self, change: Change, **what: Any) -> None:
        """Record an event and apply it: all that is learned after a fit goes this way."""
        self._record([Event(change=change, **what)])

    def _record(self, events: Sequence[Event], intent: Intent | None = None) -> None:  # noqa: ARG002 - of a journal
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
        """Take thresholds where they are due, and tell those of :attr:`on_learned`."""
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
        """Return which entries people have confirmed; ``None`` if nobody can say.

        Read here and not where thresholds are taken: elsewhere it may say more by then.
        """
        try:
            return tuple(self.quarantine.confirmed_ids())
        except Exception as error:  # noqa: BLE001 - the entries are written already
            kind = type(error).__name__
            logger.error("thresholds stay as they were: the quarantine failed with %s", kind)  # noqa: TRY400
            return None

    def settled(self) -> None:
        """Wait until no thresholds are being taken.

        A guard that was opened takes them in the background once its knowledge base has grown by a
        tenth, in one process and on one core. Until then everybody goes by those before.
        """

    def forget_lost(self, ids: Sequence[str]) -> None:
        """Forget entries that left the knowledge base unseen, so that nobody has them any more.

        By their ids, labels and vectors; detectors that count words or phrases keep theirs.
        """
        with self._state.lock:
            lost = self._state.knowledge.remembered(ids)
            if len(lost):
                self.happened(Change.FORGOTTEN, entries=lost)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Say that held entries were released, or deleted for good."""
        if ids:
            self.happened(Change.HELD_FORGOTTEN, ids=tuple(ids))

    def screened_again(self, ids: Sequence[str], failed: Sequence[str] = ()) -> None:
        """Say which entries that were let in unscreened every detector has judged, or are gone.

        On those that are ``failed``, a detector has failed again.
        """
        with self._state.lock:
            self._state.tries.update(failed)
        if ids:
            self.happened(Change.SCREENED, ids=tuple(ids))

    def hear_of_confirmed(self) -> None:
        """Have group detectors remember what people have confirmed as poisoned since the last look.

        Any process may have confirmed it. A look that finds nothing new costs microseconds where
        nothing was written, else a query.
        """
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy

        quarantine, knowledge = self.quarantine, self._state.knowledge
        if not isinstance(quarantine, Quarantine) or self._collecting or knowledge.dim is None:
            return
        try:
            version = quarantine.database.version()
            seen = version == self._told_version and self._told is knowledge.confirmed
            if seen or not version:  # empty: there is no database, and asking makes none
                return
            self._tell_of_confirmed(quarantine)
        except QuarantineError as error:
            logger.warning("detectors hear of no new confirmation: %s", error)
            return
        self._told_version, self._told = version, knowledge.confirmed

    def _tell_of_confirmed(self, quarantine: Quarantine) -> None:
        """Tell detectors what was confirmed, and note which decisions were taken back."""
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
            # The latest revision under each id, if its vector is of the model of the others.
            latest = {one.id: one for one in confirmed if one.vector.size in (0, dim)}
            for entries in batches_of([*latest.values()]):
                self.happened(Change.CONFIRMED, entries=entries)
        self._told_line = line

    # Writes of a store: intended before it is written, finished afterwards

    def intend(self, entering: Batch | None = None, leaving: Batch | None = None) -> Intent:
        """Say that entries are about to be written to the store, in place of others that leave it.

        Processes that share what they know reckon with both from now on; others have nothing to do
        with it before :meth:`finish`.
        """
        events = []
        if leaving is not None and len(leaving):
            events.append(Event(change=Change.FORGOTTEN, entries=leaving))
        if entering is not None and len(entering):
            if self.shared:  # before others are told
                self._state.knowledge.check_learnable(entering)
            events.append(Event(change=Change.LEARNED, entries=entering))
        return self._intended(Intent(tuple(events)))

    def intend_recall(self, gone: Batch, decisions: Sequence[Decision]) -> Intent:
        """Say that entries that were admitted earlier, and are held now, are about to leave."""
        left = set(gone.ids)
        accused = accusers(d for d in decisions if d.entry_id in left)
        recalled = Event(change=Change.RECALLED, entries=gone, accused=accused)
        return self._intended(Intent((recalled,) if len(gone) else ()))

    def _intended(self, intent: Intent) -> Intent:
        if self.shared:
            self._record(intent.events, intent)
        return intent

    def finish(self, intent: Intent) -> None:
        """Say that the store was written as intended."""
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

    # Sharing with other processes: here there are none

    @property
    def _collecting(self) -> bool:
        """Whether what happens now is applied later, see :meth:`together`."""
        return False

    def catch_up(self) -> int:
        """Learn what other processes have learned; return how many events that were.

        Screening does it by itself. Nothing happens where the guard was not opened.
        """
        return 0

    def together(self, work: Callable[[], T], *, turn: object | None = None) -> T:  # noqa: ARG002 - there are none
        """Do work of which processes learn all or nothing: held entries, and what follows of them.

        It calls methods of the guard and its quarantine, which take effect when it returns. No
        store may be written in it, and what tells others of it waits for :meth:`afterwards`. The
        turn, from :meth:`take_turn`, ends with this write. An
        :class:`~ragshield_core.model.errors.OvertakenError` says that it was lost, because this
        process gave no sign of life during its lease: nothing was written, do it all again.
        """
        return work()

    def afterwards(self, step: Callable[[], object]) -> None:
        """Run ``step`` once the write that it is part of is durable; at once if there is none.

        A write that fails drops its steps, and one that is tried again collects them anew: people
        and callbacks hear of each write once, and of failed ones never.
        """
        step()

    def take_turn(self) -> object:
        """Wait until nobody else writes; return the turn.

        Nobody does before this one has written something with it, see :meth:`together`, or gives it
        up. In one process, writes wait for nobody.
        """
        return None

    def give_up_turn(self, turn: object) -> None:
        """Let others write, if nothing was written in the turn."""

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that some process is about to write or delete just now."""
        return frozenset()

    def failed(self, intent: Intent) -> None:
        """Say that nobody knows whether the store was written as intended: see :meth:`recover`."""

    def abandoned(self) -> Intent | None:
        """Return what processes that are gone have intended and not finished, to recover it."""
        return None

    def recover(self, intent: Intent, standing: Batch) -> None:
        """End what :meth:`abandoned` returned by what the store has of it now, and is not held."""

    def standing(self) -> Standing | None:
        """Return how far this process has read; ``None`` where nothing is shared."""
        return None

    def close(self) -> None:
        """Take no part any more."""
