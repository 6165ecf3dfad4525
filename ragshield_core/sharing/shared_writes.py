"""Writes of a guard that several processes share, recorded in a journal."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from numpy.typing import NDArray
from sqlalchemy.orm import Session

from ragshield_core.database import Transaction
from ragshield_core.learning.events import Change, Event, Intent
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.status import Standing
from ragshield_core.learning.writes import Writes
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import (
    NeighborsError,
    OvertakenError,
    PrunedError,
    QuarantineError,
    StateError,
    TakenOverError,
)
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.evidence import SNAPSHOT, check_journal
from ragshield_core.screening.screening import crash
from ragshield_core.sharing.heartbeat import Heartbeat
from ragshield_core.sharing.journal import MEASURES, SAVES, Journal, new_writer
from ragshield_core.sharing.lease import DEFAULT_LEASE
from ragshield_core.sharing.snapshots import Snapshots
from ragshield_core.sharing.standing import standing
from ragshield_core.sharing.turns import BEATS, PAUSE, Turns
from ragshield_core.state import give_back
from ragshield_core.text.readings import given, read

J = TypeVar("J")
T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# A snapshot is written when the journal since the latest one holds this share of the known entries,
# and at least so many entries: few are quick to read. The cost of a snapshot grows with the number
# of entries, so the cost per entry is fixed, and a starting process replays at most a fifth.
SNAPSHOT_AFTER, SNAPSHOT_AT_LEAST = 0.2, 2000
# The share when a process closes, because a process is likely to start soon.
SNAPSHOT_AT_CLOSE = 0.01
# Replaying a row costs more than its entries: .15 ms an entry and 1.2 ms a row, with 20,000 known.
# A row counts as this many entries besides its own, so that single writes lead to a shorter
# journal; as eight, single writes would mostly pay for snapshots.
ROW_COST = 2
SHOWN = 60  # characters of a name


class Whole(NamedTuple):
    """The whole state at a position."""

    position: int
    values: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class SharedWrites(Writes):
    """Writes the events of a guard into a journal, and applies the events of other processes.

    All guards of a namespace apply all events in the order of the journal, intended ones at the
    position where they were recorded. Guards at the same position therefore have equal states.

    Parameters
    ----------
    quarantine
        Quarantine of the guard. Its database has the journal and snapshots, with the same digests.
    namespace
        Another guard in that database, which is only read; ``None`` for the quarantine's own.
    lease
        As in :class:`Journal`.

    Attributes
    ----------
    in_background
        Whether recalibrations and snapshots are made in threads, while writers go on.
    """

    shared = True

    def __init__(
        self,
        quarantine: Quarantine,
        namespace: str | None = None,
        *,
        lease: float = DEFAULT_LEASE,
    ) -> None:
        self.quarantine, self.in_background = quarantine, True
        self._log = quarantine.log if namespace is None else quarantine.log.of(namespace)
        self._database = self._log.database
        self._journal = Journal(self._log.namespace, lease=lease, digests=self._log.digests)
        self._snapshots = Snapshots(self._log.namespace, digests=self._log.digests)
        self._seen: tuple[int, ...] | None = None  # version of the database when it was read last
        self._collected: list[tuple[Event, Intent | None]] | None = None
        self._later: list[Callable[[], object]] = []  # steps that wait for the larger write
        self._tail: deque[tuple[int, int]] = deque()  # positions, and the cost of each
        self._times_replaced = 0
        self.position = 0  # of the last event that was read
        self._take_part()

    def __repr__(self) -> str:
        return f"the journal of namespace {printable(self._journal.namespace, SHOWN)!r}"

    def _take_part(self) -> None:
        """Take part under a new writer name."""
        self._pid = os.getpid()
        self._writer = new_writer()
        self._alive = {self._writer}
        self._open: weakref.WeakSet[Intent] = weakref.WeakSet()
        self._heartbeat = Heartbeat(self._beat, self._journal.lease / BEATS)
        self._turns = Turns(
            *(self._database, self._journal, self._writer, self._heartbeat),
            catch_up=self.catch_up,
            position=lambda: self.position,
        )
        self._uncontested = True  # no other process wrote between this one's latest writes
        self._measuring: threading.Thread | None = None
        self._saving: threading.Thread | None = None
        self._measure_again_at = 0.0  # set when another process had begun, or after a failure
        self._measured = True  # also if another process measures

    @property
    def writer(self) -> str:
        """The name of this process; a forked process gets another."""
        self._check_process()
        return self._writer

    def _check_process(self) -> None:
        """Take part under a name of its own in a forked process."""
        if os.getpid() != self._pid:
            self._take_part()

    # Beginning

    def of(self, state: GuardState) -> Self:
        """Record the events of a guard from now on."""
        super().__init__(state, self.quarantine)
        return self

    def check(self) -> None:
        """Check that the journal was neither set back nor written with another key.

        Raises
        ------
        QuarantineError
            If it was; the message states the expected value.
        """
        with self._database.read(still=True) as session:
            check_journal(session, self._log.digests, self._log.namespace)

    def latest(self) -> Whole | None:
        """Return the latest readable snapshot; ``None`` if there never was one.

        Raises
        ------
        StateError
            If all snapshots are damaged.
        """
        damaged: StateError | None = None
        with self._database.read(still=True) as session:
            for snapshot in self._snapshots.list(session):
                try:
                    return Whole(snapshot.position, *self._snapshots.read(session, snapshot))
                except StateError as error:
                    logger.error("a snapshot cannot be read: %s", error)  # noqa: TRY400 - names no text
                    damaged = error
        if damaged is not None:
            raise damaged
        return None

    def start(self, whole: Whole, *, read_on: bool = True) -> None:
        """Continue from the snapshot that the guard was built from: at once, or on demand."""
        self.position = whole.position
        self._tail.clear()
        self._seen = None
        if read_on:
            self.catch_up()

    def found(self) -> bool:
        """Write the guard's current state to an empty journal; return ``False`` if not empty."""
        try:
            self._replace()
        except OvertakenError:
            return False
        return True

    # Reading

    def catch_up(self) -> int:
        """Apply the events of other processes; return their number."""
        version = self._database.version()
        if version == self._seen:
            return 0
        with self._state.lock:
            if self._collecting:
                return 0
            before = self.position
            self._read_to(None)
            self._seen = version
            return self.position - before

    def standing(self) -> Standing:
        """Return the position of this process."""
        with self._database.read(still=True) as session:
            check_journal(session, self._log.digests, self._log.namespace)
            return standing(
                session, self._journal, self._snapshots, self.position, self._database.url
            )

    # Writing

    @property
    def _collecting(self) -> bool:
        return self._collected is not None

    def _record(self, events: Sequence[Event], intent: Intent | None = None) -> None:
        with self._state.lock:
            if self._collected is not None:
                self._collected += [(event, intent) for event in events]
                return
        if events:
            self.together(partial(self._record, events, intent))

    def in_turn(self, judge: Callable[[], J], write: Callable[[J], T]) -> T:
        """Judge and write, in a turn if other processes write, too.

        To queue takes a transaction. A process that nobody overtook lately does without.
        """
        if self._uncontested:
            with suppress(OvertakenError):
                return self._in_turn(judge, write, queue=False)
        return self._in_turn(judge, write, queue=True)

    def _in_turn(self, judge: Callable[[], J], write: Callable[[J], T], *, queue: bool) -> T:
        latest = self._turns.at
        turn = self.take_turn(queue=queue)
        try:
            if queue:
                self._uncontested = self._turns.at == latest
            return self.together(partial(write, judge()), turn=turn)
        finally:
            self.give_up_turn(turn)

    def together(self, work: Callable[[], T], *, turn: object | None = None) -> T:
        """Do work, and write its events and changes to the quarantine in one transaction.

        The turn, from :meth:`take_turn`, ends with this write. An
        :class:`~ragshield_core.model.errors.OvertakenError` means that the turn was lost: nothing
        was written, and the caller must judge again.
        """
        queued = False
        while True:
            with self._state.lock:
                if self._collected is not None:  # the larger write takes its steps
                    return work()
                self._turns.check(turn)
                ours = self._turns.current  # taken by this thread or another one
                try:
                    attempt = partial(self._attempt, work=work, turn=turn)
                    answer, happened, positions = self._database.write_rows(attempt)
                except OvertakenError:
                    self._turns.lost(ours)
                    if turn is not None:
                        raise
                else:
                    later, self._later = self._later, []
                    if positions and turn is not None:
                        self._turns.over()
                    self._turns.at = positions.stop - 1
                    self._apply_mine(happened, positions)
                    self._keep_short(in_background=self.in_background)
                    break
            if ours is None:  # another process has it
                self._turns.wait()
                queued = True
        if queued and not positions:
            self._turns.leave_queue()
        for step in later:
            step()
        return answer

    def _attempt(
        self, session: Transaction, work: Callable[[], T], turn: object | None
    ) -> tuple[T, Sequence[tuple[Event, Intent | None]], range]:
        """Do work, and write its events."""
        # This process keeps its place in the queue if that belongs to another thread: if this one
        # has no turn and another has, or if this one did not queue for its turn. None can begin to
        # queue before this transaction ends.
        kept = self._turns.taken if turn is None else not self._turns.taken
        # First: a process that has lost its turn must not write or read anything.
        judged_at = None if self._turns.current is None else self._turns.at
        head = self._journal.lock(session, writer=self.writer, in_turn_since=judged_at)
        collected: list[tuple[Event, Intent | None]] = []
        self._collected, self._later = collected, []
        try:
            answer = work()
        finally:
            self._collected = None
        if not collected:
            return answer, (), range(self.position + 1, self.position + 1)
        # Held entries last: what detectors prepare is about the state before this write.
        collected.sort(key=lambda happened: happened[0].change is Change.HELD)
        positions = self._journal.append(
            session,
            self._for_others([event for event, _ in collected], head.position),
            writer=self.writer,
            pending=[intent is not None for _, intent in collected],
            head=head,
            keep_turn=kept,
        )
        return answer, collected, positions

    def _for_others(self, events: Sequence[Event], head: int) -> list[Event]:
        """Return events with this process's findings, so that no other one has to search.

        Detectors prepare the first entries that they learn after the head of the journal.
        """
        state, told = self._state, list[Event]()
        current = {one.name for one in state.detectors} if head == self.position else set()
        for event in events:
            if event.change is Change.LEARNED and event.entries is not None:
                event = replace(  # noqa: PLW2901 - a copy for others
                    event,
                    readings=read(event.entries.texts, state.readers),
                    prepared=state.knowledge.prepared(event.entries, current),
                )
            told.append(event)
            current -= state.changed_by(event)
        return told

    def afterwards(self, step: Callable[[], object]) -> None:
        """Run ``step`` once the current write is durable; at once if there is no such write."""
        with self._state.lock:
            if self._collecting:
                self._later.append(step)
                return
        step()

    def _apply_mine(
        self, happened: Sequence[tuple[Event, Intent | None]], positions: range
    ) -> None:
        """Apply the events that this process has written, after those that others wrote before."""
        self._read_to(positions.start - 1)
        refused: Exception | None = None
        for (event, intent), position in zip(happened, positions, strict=True):
            if intent is not None:
                intent.positions += (position,)
                self._heartbeat.during(intent)
                self._open.add(intent)
            if position <= self.position:  # included in a snapshot taken over in the meantime
                continue
            self._passed(position, event)
            try:
                self._state.apply(event)
            except Exception as error:  # noqa: BLE001 - others apply the later events as well
                refused = refused or error
        if refused is not None:
            for _, intent in happened:
                if intent is not None:  # the caller will not get to write the store
                    self.failed(intent)
            raise refused

    def _settle(self, intent: Intent) -> None:
        with self._state.lock:
            try:
                self._close(intent, ())
            except TakenOverError:
                # The other process took this one for dead, and may have read the store too early.
                logger.warning("a write took so long that another process has recovered it")
                self.catch_up()
                self._make_true(intent)
            finally:
                self.failed(intent)

    def _make_true(self, intent: Intent) -> None:
        """Learn and forget the entries of an intent that did happen, after another recovered it."""
        for event in intent.events:
            if event.entries is None:
                continue
            known = set(self.known(event.entries.ids))
            learned = event.change is Change.LEARNED
            rows = [r for r, i in enumerate(event.entries.ids) if (i in known) is not learned]
            if rows:
                change = Change.LEARNED if learned else Change.FORGOTTEN
                self.happened(change, entries=event.entries.take(rows))

    def failed(self, intent: Intent) -> None:
        """Leave the intent to be recovered."""
        with self._state.lock:
            self._open.discard(intent)
            self._heartbeat.over(intent)

    def abandoned(self) -> Intent | None:
        """Take over the intents of crashed processes, and return them for recovery.

        They include intents of this process that were neither finished nor recovered.
        """
        with self._state.lock:
            mine = {position for intent in self._open for position in intent.positions}
            with self._database.connection() as session:
                others = [p for p in self._journal.pending(session) if p.position not in mine]
            if not others:
                return None
            lost = any(not each.alive for each in others)
            take_over = partial(self._journal.take_over, writer=self.writer)
            records = self._database.write_rows(take_over) if lost else []
            dropped = [each.position for each in others if each.writer == self.writer]
            with self._database.connection() as session:
                records += self._journal.at(session, dropped)
            if not records:
                return None
            records.sort(key=lambda record: record.position)
            intent = Intent(
                tuple(record.event for record in records),
                tuple(record.position for record in records),
            )
            self._open.add(intent)
            self._heartbeat.during(intent)
            return intent

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that a process is about to write or delete."""
        with self._database.read(still=True) as session:
            positions = [each.position for each in self._journal.pending(session)]
            records = self._journal.at(session, positions)
        batches = [record.event.entries for record in records]
        return frozenset(i for batch in batches if batch is not None for i in batch.ids)

    def recover(self, intent: Intent, stored: Batch) -> None:
        """Settle the intent by the contents of the store."""
        with self._state.lock:
            self.catch_up()
            knowledge = self._state.knowledge
            prints = {entry.id: entry.fingerprint for entry in stored}
            coming: dict[str, Batch] = {}
            for event in intent.events:
                if event.change is Change.LEARNED and event.entries is not None:
                    coming |= {i: event.entries.take([r]) for r, i in enumerate(event.entries.ids)}
            gone = {
                i: one
                for i, one in coming.items()
                if i in knowledge and prints.get(i) != one[0].fingerprint
            }
            back = [r for r, i in enumerate(stored.ids) if i in gone or i not in knowledge]
            fixes = []
            if gone:
                fixes.append(Event(change=Change.FORGOTTEN, entries=concatenate([*gone.values()])))
            if back:
                fixes.append(Event(change=Change.LEARNED, entries=stored.take(back)))
            try:
                self._close(intent, fixes)
            except TakenOverError:
                logger.warning("another process has recovered the same writes")
            finally:
                self.failed(intent)

    def _close(self, intent: Intent, fixes: Sequence[Event]) -> None:
        """Close the events of an intent, with fixes for events that did not happen."""
        if not intent.positions:
            return

        def work(session: Transaction) -> range:
            return self._journal.close_pending(session, intent.positions, fixes, writer=self.writer)

        positions = self._database.write_rows(work)
        if positions:
            self._apply_mine([(event, None) for event in fixes], positions)

    # As a whole

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Yield while the guard's state is replaced; other writers wait until it is, everywhere."""
        with self._state.lock:
            if self._collecting:
                msg = "a guard cannot be fitted, adopted or calibrated within a write of its own."
                raise RuntimeError(msg)
        turn = self.take_turn()
        try:
            with self._replacing():
                yield
        finally:
            self.give_up_turn(turn)

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        with self._state.lock:
            try:
                self.catch_up()
                yield
                self._state.let_go()  # before it is saved
                self._replace_after_all()
            except BaseException:
                self._become()  # back to the state of all other processes
                raise

    def _replace_after_all(self) -> None:
        """Write the whole state, after events that others have undone: that needs no turn."""
        times = self._times_replaced
        while True:
            try:
                return self._replace()
            except OvertakenError:
                self._read_to(None)
                if self._times_replaced != times:  # it took so long that another process had a turn
                    raise

    def _replace(self) -> None:
        """Write the whole state, and an event that tells all processes to take it over."""
        event = Event(change=Change.REPLACED)
        append = partial(
            self._journal.append, events=[event], writer=self.writer, expected=self.position
        )
        values, arrays = self._state.to_parts()
        gone = self._write_snapshot(self.position + 1, json.dumps(values), arrays, append)
        self.position += 1
        self._turns.over()
        self._sweep(gone)

    def _become(self, at_least: int = 0, last: int | None = None) -> None:
        """Take over the latest snapshot, at ``at_least`` or later, and the events after it."""
        whole = self.latest()
        if whole is None or whole.position < at_least:
            msg = (
                f"no snapshot of {self._journal!r} at position {at_least} or later can be read, "
                "expected one; restore the database from a backup."
            )
            raise StateError(msg)
        detectors = self._state.detectors
        self._state.become(GuardState.from_parts(whole.values, whole.arrays, detectors))
        whole.arrays.clear()  # the guard has copies, and they are large
        give_back()
        self._times_replaced += 1
        self.position = whole.position
        self._tail.clear()
        self._read_to(last)

    # Thresholds

    def _thresholds_are_due(self) -> None:
        # The first calibration: entries that others write meanwhile would be let in unjudged.
        if self._state.recalibration.collecting or not self._state.can_be_copied:
            if (confirmed := self._confirmed()) is None:
                return
            turn = self.take_turn(hurry=True)
            try:
                if self._state.recalibration.due:
                    with self._replacing():
                        self._state.apply(Event(change=Change.RECALIBRATED, ids=confirmed))
            finally:
                self.give_up_turn(turn)
        elif not self.in_background:
            self._measure()
        elif self._measuring is None and time.monotonic() >= self._measure_again_at:
            self._measuring = threading.Thread(
                target=self._measure, name="ragshield-thresholds", daemon=True
            )
            self._measuring.start()

    def _measure(self) -> None:
        """Recalibrate a copy and put its thresholds in force, in one process for all."""
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - looks for libraries

        began = time.monotonic()
        self._measure_again_at = began + self._journal.lease / BEATS
        self._measured = False
        try:
            confirmed = self._confirmed()
            if confirmed is None:
                return
            self._measured = True
            with self._alone(MEASURES) as claimed:
                if not claimed:
                    return
                with self._state.lock:
                    self.catch_up()
                    at = self._times_replaced, self._state.calibrator.calibrated_at
                    frozen = self._state.frozen() if self._state.recalibration.due else None
                if frozen is None:
                    return
                copy = self._state.thawed(*frozen)
                with threadpool_limits(1, user_api="openmp"):  # limits only this thread
                    measured = copy.recalibration.measured(confirmed)
                turn = self.take_turn(hurry=True)  # the knowledge base grows while it waits
                try:
                    with self._state.lock:
                        if at == (self._times_replaced, self._state.calibrator.calibrated_at):
                            if not measured.why_not:
                                usual = self._state.recalibration.usual_of(copy.recalibration)
                                measured = measured._replace(usual=usual)
                            change = Change.RECALIBRATED
                            self.happened(change, ids=confirmed, measured=measured)
                finally:
                    self.give_up_turn(turn)
                logger.info("taking thresholds took %.1f s", time.monotonic() - began)
                self._measure_again_at = 0.0
        except Exception as error:  # noqa: BLE001 - the entries are written already
            self._measured = False
            logger.error("thresholds stay as they were: %s", crash(error))  # noqa: TRY400
        finally:
            self._measuring = None

    @contextmanager
    def _alone(self, task: str) -> Iterator[bool]:
        """Yield whether this process has a task that one does for all; give it up at the end."""
        claim = partial(self._journal.claim, task=task, writer=self.writer)
        if not self._database.write_rows(claim):
            yield False
            return
        me, reason = f"{task}{self.writer}", Intent(())  # keeps the heartbeat running
        self._alive.add(me)
        self._heartbeat.during(reason)
        try:
            yield True
        finally:
            self._heartbeat.over(reason)
            self._alive.discard(me)
            with suppress(QuarantineError):  # others wait for it no longer than the lease
                self._database.write_rows(partial(self._journal.retire, writer=me))

    def settled(self) -> None:
        """Wait until this process saves nothing, and none recalibrates, in the background."""
        while True:
            for thread in (self._measuring, self._saving):
                if thread is not None:
                    thread.join()
            self.catch_up()
            recalibration = self._state.recalibration
            in_thread = self._state.can_be_copied and not recalibration.collecting
            if not (in_thread and recalibration.due and self._measured):
                return
            self._measure_again_at = 0.0
            self._thresholds_are_due()
            time.sleep(PAUSE)

    # Turns and signs of life

    def take_turn(self, *, queue: bool = True, hurry: bool = False) -> object:
        """Wait until no other thread or process writes; return the turn.

        Other processes wait until this one has written with the turn, see :meth:`together`, or has
        given it up. Without ``queue`` they do not: the turn is lost as soon as one writes. With
        ``hurry``, this process goes before those that wait.
        """
        self._check_process()
        return self._turns.take(queue=queue, hurry=hurry)

    def give_up_turn(self, turn: object) -> None:
        """Let other writers go on, if nothing was written in the turn."""
        with self._state.lock:
            if self._turns.current is turn:
                self._turns.give_up(turn)

    def _beat(self) -> None:
        for writer in tuple(self._alive):
            self._database.write_rows(partial(self._journal.beat, writer=writer))

    def leave(self) -> None:
        """Stop taking part; others recover the pending events of this process at once."""
        self._database.write_rows(partial(self._journal.retire, writer=self.writer))

    def close(self) -> None:
        """Stop taking part, and close the connections."""
        for thread in (self._measuring, self._saving):
            if thread is not None:
                thread.join()
        with self._state.lock:
            self._keep_short(SNAPSHOT_AT_CLOSE, in_background=False)
        self.leave()
        self._database.close()

    # In parts

    def _read_to(self, last: int | None) -> None:
        """Apply the events of others, up to a position or to the end."""
        while last is None or self.position < last:
            try:
                with self._database.connection() as session:
                    if last is None and self._journal.head(session) == self.position:
                        return
                    records = self._journal.since(session, self.position)
            except PrunedError:
                self._become(last=last)
                continue
            for record in records:
                if last is not None and record.position > last:
                    return
                event = record.event
                if event.change is Change.REPLACED:
                    self._become(record.position, last)
                    break
                try:
                    texts = () if event.entries is None else event.entries.texts
                    with given(texts, event.readings, self._state.readers):
                        self._state.apply(event)
                except NeighborsError:  # a failure of this process alone: the caller retries
                    raise
                except Exception as error:  # noqa: BLE001 - its writer failed in the same way
                    logger.error(  # noqa: TRY400 - its message may quote entries
                        "event %d of the journal was not applied: %s",
                        record.position,
                        crash(error),
                    )
                self._passed(record.position, event)

    def _passed(self, position: int, event: Event) -> None:
        self.position = position
        size = len(event.entries) if event.entries is not None else 0
        self._tail.append((position, size + ROW_COST))

    def _keep_short(self, share: float = SNAPSHOT_AFTER, *, in_background: bool = True) -> None:
        """Write a snapshot if many events follow the latest one, and drop the events it covers.

        One process does so for all; in the background, no writer waits for it.
        """
        wanted = max(SNAPSHOT_AT_LEAST, share * len(self._state.knowledge))
        if self._saving is not None or self._length() < wanted:
            return
        try:
            with self._database.read() as session:
                latest = self._snapshots.latest(session)
                busy = self._journal.claimed(session, SAVES)
        except Exception as error:  # noqa: BLE001 - the events are written, and can be read
            self._not_saved(error)
            return
        if latest is not None:
            self._covered(latest.position)  # another process wrote a snapshot
        if busy or self._length() < wanted:
            return
        if not in_background:
            self._save()
            return
        self._saving = threading.Thread(target=self._save, name="ragshield-snapshot", daemon=True)
        self._saving.start()

    def _save(self) -> None:
        """Write a snapshot of a copy of the present state, which writers may overtake meanwhile."""
        try:
            with self._alone(SAVES) as claimed:
                if not claimed:
                    return
                with self._state.lock:
                    position, frozen = self.position, self._state.frozen()
                self._sweep(self._write_snapshot(position, *frozen))
        except OvertakenError as error:
            logger.info("no snapshot was written: %s", error)
        except Exception as error:  # noqa: BLE001 - the events are written, and can be read
            self._not_saved(error)
        finally:
            self._saving = None

    def _not_saved(self, error: Exception) -> None:
        logger.error("no snapshot was written: %s", crash(error))
        self._covered(self.position)  # tries again after as many events

    def _covered(self, position: int) -> None:
        """Forget the events that a snapshot covers."""
        with self._state.lock:
            while self._tail and self._tail[0][0] <= position:
                self._tail.popleft()

    def _length(self) -> int:
        return sum(size for _, size in self._tail)

    def _write_snapshot(
        self,
        position: int,
        values: str,
        arrays: dict[str, NDArray[Any]],
        also: Callable[[Session], object] = lambda _session: None,
    ) -> tuple[str, ...]:
        """Write a snapshot, and prune the journal; return the snapshots to sweep."""
        pieces = self._snapshots.write_pieces(self._database.write, values, arrays)

        def work(session: Session) -> tuple[str, ...]:
            gone = self._snapshots.finish(session, pieces, position)
            also(session)
            self._tell(session, position)
            self._journal.prune(session)
            return gone

        gone = self._log.write(work)
        self._covered(position)
        return gone

    def _sweep(self, snapshots: Sequence[str]) -> None:
        """Delete what no process needs, some at a time; others have as much time in between."""
        pieces = [partial(self._snapshots.sweep, snapshot=one) for one in snapshots]
        sweeps: list[Callable[[Session], bool]] = [*pieces, self._journal.sweep]
        try:
            for sweep in sweeps:
                more = True
                while more:
                    began = time.monotonic()
                    more = self._database.write(sweep)
                    time.sleep(time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - the snapshot is written; the next one sweeps
            kind = type(error).__name__
            logger.warning("old snapshots and events are not all deleted yet (%s)", kind)

    def _tell(self, session: Session, position: int) -> None:
        """Record the snapshot in the log, if there is a key; setting it back is then noticed."""
        if self._log.digests.key_name is not None:
            changes = Changes(session, self._log.digests, self._log.namespace)
            changes.tell(SNAPSHOT, position)
            changes.write("ragshield", f"at position {position} of the journal")
