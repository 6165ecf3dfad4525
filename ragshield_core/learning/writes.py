"""Writes of a store, told to its guard: before they are made, and once they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ragshield_core.learning.confirmations import Confirmations
from ragshield_core.learning.events import Change, Event
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.recorder import Intent
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import TakenOverError
from ragshield_core.model.findings import Decision, accusers

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

T = TypeVar("T")

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")


class Writes:
    """What a guarded store tells its guard of writes, as one process or as one of several.

    Parameters
    ----------
    state
        Of the guard.
    quarantine
        Of the guard.

    Attributes
    ----------
    quarantine
        Of the guard: all of its namespace, or of one store once the guard is of one.
    on_learned
        Called with the entries that were learned here, each time. They are in the knowledge base by
        then: what a callback raises is logged, by its type, and stops nothing. Not saved.
    """

    def __init__(self, state: GuardState, quarantine: Quarantine) -> None:
        self._state, self.quarantine = state, quarantine
        self.on_learned: list[Callable[[Batch], object]] = []
        self._confirmations = Confirmations(state)
        self._later: list[Callable[[], object]] = []  # steps that wait for the larger write

    def known(self, ids: Sequence[str]) -> list[str]:
        """Return which of the ids were learned, each once."""
        with (
            self._state.lock
        ):  # tables of ids are read one after the other, and renumbered by writes
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

    @property
    def position(self) -> int | None:
        """Of the last event of the journal that was read; ``None`` where nothing is shared."""
        return self._state.recorder.position

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that some process is about to write or delete just now."""
        return self._state.recorder.moving()

    def learn(self, entries: Batch) -> None:
        """Learn entries that are in the knowledge base."""
        if len(entries):
            self._state.happened(Change.LEARNED, entries=entries)
            self.afterwards(partial(self._learned, entries))

    def _learned(self, entries: Batch) -> None:
        with self._state.lock:
            self._calibrate_if_due()
        self._tell(entries)

    def _calibrate_if_due(self) -> None:
        """Take thresholds where the knowledge base has grown enough."""
        if self._state.recalibration.due:
            self._recalibrate()

    def _tell(self, entries: Batch) -> None:
        """Tell those of :attr:`on_learned` of entries that were learned here."""
        for callback in self.on_learned:
            try:
                callback(entries)
            except Exception as error:  # noqa: BLE001 - the entries are written already
                logger.error("a callback of on_learned failed: %s", type(error).__name__)  # noqa: TRY400

    def _recalibrate(self) -> None:
        # Read here and not where thresholds are taken: elsewhere it may say more by then.
        try:
            confirmed = self.quarantine.confirmed_ids()
        except Exception as error:  # noqa: BLE001 - the entries are written already
            kind = type(error).__name__
            logger.error("thresholds stay as they were: the quarantine failed with %s", kind)  # noqa: TRY400
            return
        event = Event(change=Change.RECALIBRATED, ids=tuple(confirmed))
        if not self.shared:
            self._state.recorder.happened(event)
            return
        # One process takes thresholds, and the others load them: to score a sample takes seconds.
        self._state.recorder.take_turn()
        try:
            self._state.recorder.catch_up()
            if self._state.recalibration.due:
                with self._state.recorder.replacing():
                    self._state.apply(event)
        finally:
            self._state.recorder.give_up_turn()

    def forget_lost(self, ids: Sequence[str]) -> None:
        """Forget entries that left the knowledge base unseen, so that nobody has them any more.

        By their ids, labels and vectors; detectors that count words or phrases keep theirs.
        """
        with self._state.lock:
            lost = self._state.knowledge.remembered(ids)
            if len(lost):
                self._state.happened(Change.FORGOTTEN, entries=lost)

    def hear_of_confirmed(self) -> None:
        """Have detectors remember what people have confirmed as poisoned meanwhile."""
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy

        if isinstance(self.quarantine, Quarantine):  # others say no more than they are asked
            self._confirmations.look(self.quarantine)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Say that held entries were released, or deleted for good."""
        if ids:
            self._state.happened(Change.HELD_FORGOTTEN, ids=tuple(ids))

    def unscreened(self) -> dict[str, Mapping[str, str]]:
        """Return the known entries that were let in although detectors failed on them.

        By id, with what is said of each detector. A guarded store screens them again, see its
        ``rescreen``, and recalls what is suspicious.
        """
        with self._state.lock:
            return dict(self._state.unscreened.among(self._state.knowledge.known))

    def screened_again(self, ids: Sequence[str], failed: Sequence[str] = ()) -> None:
        """Say of entries that were let in unscreened that they are screened now.

        Parameters
        ----------
        ids
            Those that every detector has judged, or that are gone.
        failed
            Those on which one failed again.
        """
        with self._state.lock:
            self._state.unscreened.tried(failed)
        if ids:
            self._state.happened(Change.SCREENED, ids=tuple(ids))

    def due_for_screening(self) -> list[str]:
        """Return the ids of what was let in unscreened, as far as detectors seem to work again."""
        with self._state.lock:
            if not len(self._state.unscreened):
                return []
            return self._state.unscreened.due(self._state.knowledge.known, self._state.failing)

    def recalled(self, gone: Batch, decisions: Sequence[Decision]) -> None:
        """Forget entries that were admitted earlier, are held now, and have left the store.

        Parameters
        ----------
        gone
            As they were in the store.
        decisions
            Why, of these and perhaps of others.
        """
        self.finish(self.intend_recall(gone, decisions))

    # What processes share

    @property
    def shared(self) -> bool:
        """Whether other processes know what this guard learns: it was opened."""
        return self._state.recorder.shared

    def catch_up(self) -> int:
        """Learn what other processes have learned; return how many events that were.

        Screening does it by itself. Nothing happens where the guard was not opened.
        """
        return self._state.recorder.catch_up()

    def together(self, work: Callable[[], T], *, at: int | None = None) -> T:
        """Do work of which processes learn all or nothing: held entries, and what follows of them.

        Parameters
        ----------
        work
            Calls methods of the guard and its quarantine, which take effect when it returns. Called
            again where other processes were in the way; no store may be written in it, and what
            tells others of it waits for :meth:`afterwards`.
        at
            :attr:`Report.position` of the screening that it is based on.

        Raises
        ------
        OvertakenError
            If another process has learned something since; ``work`` was not called then. Screen
            again.
        """
        if not self.shared:
            return work()

        def once() -> T:
            self._later = []  # those of an earlier attempt
            return work()

        with self._state.lock:
            if self._state.recorder.collecting:  # the larger write takes its steps
                return work()
            answer = self._state.recorder.together(once, at)
            later, self._later = self._later, []
        for step in later:
            step()
        return answer

    def afterwards(self, step: Callable[[], object]) -> None:
        """Run ``step`` once the write that it is part of is durable; at once if there is none.

        A write that fails drops its steps, and one that is tried again collects them anew: people
        and callbacks hear of each write once, and of failed ones never.
        """
        with self._state.lock:
            if self._state.recorder.collecting:
                self._later.append(step)
                return
        step()

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
        with self._state.lock:
            return self._state.recorder.intend(events)

    def intend_recall(self, gone: Batch, decisions: Sequence[Decision]) -> Intent:
        """Say that entries that were admitted earlier, and are held now, are about to leave."""
        left = set(gone.ids)
        accused = accusers(d for d in decisions if d.entry_id in left)
        recalled = Event(change=Change.RECALLED, entries=gone, accused=accused)
        with self._state.lock:
            return self._state.recorder.intend([recalled] if len(gone) else [])

    def finish(self, intent: Intent) -> None:
        """Say that the store was written as intended."""
        entering = [e.entries for e in intent.events if e.change is Change.LEARNED and e.entries]
        with self._state.lock:
            try:
                self._state.recorder.finish(intent)
            except TakenOverError:
                # Who believed this process dead has asked the store, perhaps before it was written.
                logger.warning("a write took so long that another process has recovered it")
                self.catch_up()
                self._make_true(intent)
            if entering:
                self._calibrate_if_due()
        for batch in entering:
            self._tell(batch)
        for event in intent.events:
            if event.change is Change.RECALLED and event.entries is not None:
                n = len(event.entries)
                logger.warning("quarantined %d entries that were admitted earlier", n)

    def _make_true(self, intent: Intent) -> None:
        """Know what has happened, whatever another process has made of it."""
        for event in intent.events:
            if event.entries is None:
                continue
            known = set(self.known(event.entries.ids))
            learned = event.change is Change.LEARNED
            rows = [r for r, i in enumerate(event.entries.ids) if (i in known) is not learned]
            if rows:
                change = Change.LEARNED if learned else Change.FORGOTTEN
                self._state.happened(change, entries=event.entries.take(rows))

    def failed(self, intent: Intent) -> None:
        """Say that nobody knows whether the store was written as intended: see :meth:`recover`."""
        with self._state.lock:
            self._state.recorder.drop(intent)

    def abandoned(self) -> Intent | None:
        """Return what was intended, and neither finished nor recovered, by processes that are gone.

        It is this one's to :meth:`recover`.
        """
        return self._state.recorder.abandoned()

    def recover(self, intent: Intent, standing: Batch) -> None:
        """End what was intended by what the store says.

        Parameters
        ----------
        intent
            From :meth:`abandoned`.
        standing
            What the store has now, as far as it is not held, of all entries of the intent.
        """
        with self._state.lock:
            self.catch_up()
            prints = {entry.id: entry.fingerprint for entry in standing}
            coming: dict[str, tuple[Batch, int]] = {}
            for event in intent.events:
                if event.change is Change.LEARNED and event.entries is not None:
                    coming |= {i: (event.entries, r) for r, i in enumerate(event.entries.ids)}
            gone = [
                batch.take([row])
                for i, (batch, row) in coming.items()
                if i in self._state.knowledge and prints.get(i) != batch[row].fingerprint
            ]
            left = {i for batch in gone for i in batch.ids}
            back = [
                r for r, i in enumerate(standing.ids) if i in left or i not in self._state.knowledge
            ]
            fixes = []
            if gone:
                fixes.append(Event(change=Change.FORGOTTEN, entries=concatenate(gone)))
            if back:
                fixes.append(Event(change=Change.LEARNED, entries=standing.take(back)))
            self._state.recorder.correct(intent, fixes)

    def take_turn(self) -> None:
        """Wait until no other process writes, until this one has: others were always faster."""
        with self._state.lock:
            self._state.recorder.take_turn()

    def give_up_turn(self) -> None:
        """Let other processes write."""
        with self._state.lock:
            self._state.recorder.give_up_turn()
