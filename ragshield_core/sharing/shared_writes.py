"""Writes of a guard that several processes share: a journal of what happens, in one order."""

from __future__ import annotations

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
from ragshield_core.sharing.journal import DEFAULT_LEASE, MEASURES, Journal, new_writer
from ragshield_core.sharing.snapshots import Snapshots
from ragshield_core.sharing.standing import standing
from ragshield_core.state import give_back
from ragshield_core.text.readings import given, read

T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# A snapshot is written when the journal since the latest one holds this share of what is known, and
# at least so many entries, since few are quick to read. A snapshot costs as much as there is: each
# entry has a fixed share in the cost, and a process that starts replays a tenth at the most.
SNAPSHOT_AFTER, SNAPSHOT_AT_LEAST = 0.1, 1000
# The same for who closes, as somebody is about to start again.
SNAPSHOT_AT_CLOSE = 0.01
# To replay a row costs as much as so many entries besides its own: measured with 91,000 entries
# known, 3 ms an entry and 7 ms a row; who writes one by one leaves a shorter journal.
ROW_COST = 2
# Seconds between two looks at whose turn it is.
PAUSE = 0.02
# Signs of life within a lease.
BEATS = 3
SHOWN = 60  # characters of a name


class Whole(NamedTuple):
    """All that was learned, at a position."""

    position: int
    values: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class SharedWrites(Writes):
    """Writes what happens to a guard into a journal, and applies what others have written there.

    All guards of a namespace apply all events in the order of the journal, each at its place: what
    is intended when it is written down, whoever writes it. They are therefore alike at a position.

    Parameters
    ----------
    quarantine
        Of the guard, in whose database journal and snapshots are, with the same digests.
    namespace
        Of another guard in that database, which is only read; ``None`` for the quarantine's own.
    lease
        As of :class:`Journal`.

    Attributes
    ----------
    in_background
        Whether thresholds are taken in a thread, and writers go by the old ones until then.
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
        self._tail: deque[tuple[int, int]] = deque()  # positions, and what each costs
        self._times_replaced = 0
        self.position = 0  # of the last event that was read
        self._begin()

    def __repr__(self) -> str:
        return f"the journal of namespace {printable(self._journal.namespace, SHOWN)!r}"

    def _begin(self) -> None:
        """Take part as another writer than any before."""
        self._pid = os.getpid()
        self._writer = new_writer()
        self._alive = {self._writer}
        self._open: weakref.WeakSet[Intent] = weakref.WeakSet()
        self._turn_lock = threading.Lock()  # of the thread that queues for a turn, or has it
        self._in_turn: object | None = None
        self._turn_at = 0  # position at which this process judges, in its turn
        self._heartbeat = Heartbeat(self._beat, self._journal.lease / BEATS)
        self._measuring: threading.Thread | None = None
        self._measure_again_at = 0.0  # after somebody else had begun, or it failed
        self._measured = True  # or somebody else does

    @property
    def writer(self) -> str:
        """The name of this process; a forked one has another."""
        if os.getpid() != self._pid:
            self._begin()
        return self._writer

    # Beginning

    def of(self, state: GuardState) -> Self:
        """Write down from now on what happens to a guard."""
        super().__init__(state, self.quarantine)
        return self

    def check(self) -> None:
        """Check that nobody has set the journal back, or written it with another key.

        Raises
        ------
        QuarantineError
            Says what was expected.
        """
        with self._database.read(still=True) as session:
            check_journal(session, self._log.digests, self._log.namespace)

    def latest(self) -> Whole | None:
        """Return the latest snapshot that can be read; ``None`` if there never was one.

        Raises
        ------
        StateError
            If all are damaged.
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
        """Go on from a snapshot that the guard is made of, at once or when somebody asks."""
        self.position = whole.position
        self._tail.clear()
        self._seen = None
        if read_on:
            self.catch_up()

    def found(self) -> bool:
        """Write down the guard as it is now, where nobody was before; return whether it was so."""
        try:
            self._replace()
        except OvertakenError:
            return False
        return True

    # Reading

    def catch_up(self) -> int:
        """Learn what other processes have learned; return how many events that were."""
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
        """Return how far this process has read."""
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

    def together(self, work: Callable[[], T], *, turn: object | None = None) -> T:
        """Do work whose events, and changes of the quarantine, are written in one transaction."""
        queued = False
        while True:
            with self._state.lock:
                if self._collected is not None:  # the larger write takes its steps
                    return work()
                ours = self._in_turn  # of this thread or another one
                # Who queues or judges in another thread of this process goes on afterwards.
                keep_turn = self._turn_lock.locked() and (turn is None or turn is not ours)
                if turn is not None and turn is not ours:
                    msg = "this turn to write is over: it was lost, or used; write again."
                    raise OvertakenError(msg)
                try:
                    attempt = partial(self._attempt, work=work, keep_turn=keep_turn)
                    answer, happened, positions = self._database.write(attempt)
                except OvertakenError:
                    if ours is not None:  # this process was silent for too long
                        self._turn_is_over()
                        raise
                else:
                    later, self._later = self._later, []
                    if positions and not keep_turn:
                        self._turn_is_over()
                    self._turn_at = positions.stop - 1
                    self._read_to(positions.start - 1)
                    self._apply_mine(happened, positions)
                    self._keep_short()
                    break
            self._wait_for_turn(self.writer)  # another has it
            queued = True
        if queued and not positions and not self._turn_lock.locked():
            self._leave_queue()
        for step in later:
            step()
        return answer

    def _attempt(
        self, session: Session, work: Callable[[], T], *, keep_turn: bool
    ) -> tuple[T, Sequence[tuple[Event, Intent | None]], range]:
        # First: nothing is to be written, or asked for, by who has lost its turn.
        judged_at = None if self._in_turn is None else self._turn_at
        head = self._journal.lock(session, writer=self.writer, in_turn_since=judged_at)
        collected: list[tuple[Event, Intent | None]] = []
        self._collected, self._later = collected, []
        try:
            answer = work()
        finally:
            self._collected = None
        if not collected:
            return answer, (), range(self.position + 1, self.position + 1)
        positions = self._journal.append(
            session,
            [self._with_readings(event) for event, _ in collected],
            writer=self.writer,
            pending=[intent is not None for _, intent in collected],
            head=head,
            keep_turn=keep_turn,
        )
        return answer, collected, positions

    def _with_readings(self, event: Event) -> Event:
        """Return what was learned with what was read in its texts, so that no other need."""
        if event.change is not Change.LEARNED or event.entries is None:
            return event
        return replace(event, readings=read(event.entries.texts, self._state.readers))

    def afterwards(self, step: Callable[[], object]) -> None:
        """Run ``step`` once the write that it is part of is durable; at once if there is none."""
        with self._state.lock:
            if self._collecting:
                self._later.append(step)
                return
        step()

    def _apply_mine(
        self, happened: Sequence[tuple[Event, Intent | None]], positions: range
    ) -> None:
        refused: Exception | None = None
        for (event, intent), position in zip(happened, positions, strict=True):
            if intent is not None:
                intent.positions += (position,)
                self._heartbeat.during(intent)
                self._open.add(intent)
            if position <= self.position:  # in a snapshot that was taken over meanwhile
                continue
            self._passed(position, event)
            try:
                self._state.apply(event)
            except Exception as error:  # noqa: BLE001 - others apply what follows as well
                refused = refused or error
        if refused is not None:
            for _, intent in happened:
                if intent is not None:  # who intended it does not get to do it
                    self.failed(intent)
            raise refused

    def _settle(self, intent: Intent) -> None:
        with self._state.lock:
            try:
                self._close(intent, ())
            except TakenOverError:
                # Who believed this process dead has asked the store, perhaps before it was written.
                logger.warning("a write took so long that another process has recovered it")
                self.catch_up()
                self._make_true(intent)
            finally:
                self.failed(intent)

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
                self.happened(change, entries=event.entries.take(rows))

    def failed(self, intent: Intent) -> None:
        """Leave what was intended to be recovered."""
        with self._state.lock:
            self._open.discard(intent)
            self._heartbeat.over(intent)

    def abandoned(self) -> Intent | None:
        """Return what processes intended that are gone, now this one's to be recovered.

        What this one intended, and neither finished nor recovered, is among it.
        """
        with self._state.lock:
            mine = {position for intent in self._open for position in intent.positions}
            with self._database.read() as session:
                others = [p for p in self._journal.pending(session) if p.position not in mine]
            if not others:
                return None
            lost = any(not each.alive for each in others)
            take_over = partial(self._journal.take_over, writer=self.writer)
            records = self._database.write(take_over) if lost else []
            dropped = [each.position for each in others if each.writer == self.writer]
            with self._database.read() as session:
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
        """Return the ids of entries that somebody is about to write or delete just now."""
        with self._database.read(still=True) as session:
            positions = [each.position for each in self._journal.pending(session)]
            records = self._journal.at(session, positions)
        batches = [record.event.entries for record in records]
        return frozenset(i for batch in batches if batch is not None for i in batch.ids)

    def recover(self, intent: Intent, standing: Batch) -> None:
        """End what was intended by what the store says."""
        with self._state.lock:
            self.catch_up()
            knowledge = self._state.knowledge
            prints = {entry.id: entry.fingerprint for entry in standing}
            coming: dict[str, Batch] = {}
            for event in intent.events:
                if event.change is Change.LEARNED and event.entries is not None:
                    coming |= {i: event.entries.take([r]) for r, i in enumerate(event.entries.ids)}
            gone = {
                i: one
                for i, one in coming.items()
                if i in knowledge and prints.get(i) != one[0].fingerprint
            }
            back = [r for r, i in enumerate(standing.ids) if i in gone or i not in knowledge]
            fixes = []
            if gone:
                fixes.append(Event(change=Change.FORGOTTEN, entries=concatenate([*gone.values()])))
            if back:
                fixes.append(Event(change=Change.LEARNED, entries=standing.take(back)))
            try:
                self._close(intent, fixes)
            except TakenOverError:
                logger.warning("another process has recovered what this one was recovering")
            finally:
                self.failed(intent)

    def _close(self, intent: Intent, fixes: Sequence[Event]) -> None:
        """Close what was intended, with what makes up for that it did not happen, if so."""
        if not intent.positions:
            return

        def work(session: Session) -> range:
            return self._journal.close_pending(session, intent.positions, fixes, writer=self.writer)

        positions = self._database.write(work)
        if positions:
            self._read_to(positions.start - 1)
            self._apply_mine([(event, None) for event in fixes], positions)

    # As a whole

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Yield while the guard becomes another one; nobody else writes until it is, everywhere."""
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
                self._become()  # what all others still are
                raise

    def _replace_after_all(self) -> None:
        """Write the whole, with what others have undone meanwhile: they need no turn for that."""
        times = self._times_replaced
        while True:
            try:
                return self._replace()
            except OvertakenError:
                self._read_to(None)
                if self._times_replaced != times:  # it lasted so long that another had its turn
                    raise

    def _replace(self) -> None:
        """Write the whole, and that everybody has to take it over, at once."""
        event = Event(change=Change.REPLACED)
        append = partial(
            self._journal.append, events=[event], writer=self.writer, expected=self.position
        )
        self._write_snapshot(self.position + 1, append)
        self.position += 1
        self._turn_is_over()

    def _become(self, at_least: int = 0, last: int | None = None) -> None:
        """Take over the latest snapshot, if it is late enough, and what came after it."""
        whole = self.latest()
        if whole is None or whole.position < at_least:
            msg = (
                f"no snapshot of {self._journal!r} at position {at_least} or later can be read, "
                "expected one; restore the database from a backup."
            )
            raise StateError(msg)
        detectors = self._state.detectors
        self._state.become(GuardState.from_parts(whole.values, whole.arrays, detectors))
        whole.arrays.clear()  # the guard has its own, and they are large
        give_back()
        self._times_replaced += 1
        self.position = whole.position
        self._tail.clear()
        self._read_to(last)

    # Thresholds

    def _thresholds_are_due(self) -> None:
        # At first all is learned anew.
        if self._state.recalibration.collecting or not self._state.can_be_copied:
            if (confirmed := self._confirmed()) is None:
                return
            turn = self.take_turn()
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
        """Take thresholds of a copy, and put them in force: one process for all of them."""
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - looks for libraries

        began, me = time.monotonic(), f"{MEASURES}{self.writer}"
        claim = Intent(())  # a reason to give signs of life
        self._measure_again_at = began + self._journal.lease / BEATS
        self._measured = False
        try:
            confirmed = self._confirmed()
            if confirmed is None:
                return
            self._measured = True
            if not self._database.write(partial(self._journal.begin_measuring, writer=me)):
                return
            self._alive.add(me)
            self._heartbeat.during(claim)
            with self._state.lock:
                self.catch_up()
                at = self._times_replaced, self._state.calibrator.calibrated_at
                copy = self._state.copied() if self._state.recalibration.due else None
            if copy is not None:
                with threadpool_limits(1, user_api="openmp"):  # of this thread: others go on
                    measured = copy.recalibration.measured(confirmed)
                turn = self.take_turn()
                try:
                    with self._state.lock:
                        if at == (self._times_replaced, self._state.calibrator.calibrated_at):
                            self.happened(Change.RECALIBRATED, ids=confirmed, measured=measured)
                finally:
                    self.give_up_turn(turn)
                logger.info("taking thresholds took %.1f s", time.monotonic() - began)
                self._measure_again_at = 0.0
        except Exception as error:  # noqa: BLE001 - the entries are written already
            self._measured = False
            logger.error("thresholds stay as they were: %s", crash(error))  # noqa: TRY400
        finally:
            self._heartbeat.over(claim)
            self._alive.discard(me)
            with suppress(QuarantineError):  # nobody waits for it longer than the lease
                self._database.write(partial(self._journal.retire, writer=me))
            self._measuring = None

    def settled(self) -> None:
        """Wait until no thresholds are being taken in the background, by any process."""
        while True:
            if (thread := self._measuring) is not None:
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

    def take_turn(self) -> object:
        """Wait until nobody else writes, in this process or another; return the turn."""
        turn, writer = Intent(()), self.writer  # what this process gives signs of life for
        self._turn_lock.acquire()
        self._heartbeat.during(turn)
        try:
            self._wait_for_turn(writer)
            self.catch_up()
        except BaseException:
            self._turn_is_over(turn)
            self._leave_queue()
            raise
        self._turn_at, self._in_turn = self.position, turn
        return turn

    def _wait_for_turn(self, writer: str) -> None:
        mine, seen, until = False, None, 0.0
        while not mine:
            if time.monotonic() >= until:  # again, if it was believed dead meanwhile
                mine = self._database.write(partial(self._journal.take_turn, writer=writer))
                until = time.monotonic() + self._journal.lease / BEATS
            elif (version := self._database.version()) != seen:
                seen = version
                self.catch_up()  # what is read now need not be read in the turn
                with self._database.read() as session:
                    mine = self._journal.turn(session) == writer
            else:
                time.sleep(PAUSE)

    def give_up_turn(self, turn: object) -> None:
        """Let others write, if nothing was written in the turn."""
        with self._state.lock:
            if self._in_turn is not turn:
                return
            self._turn_is_over()
        self._leave_queue()

    def _leave_queue(self) -> None:
        self._database.write(partial(self._journal.give_up_turn, writer=self.writer))

    def _turn_is_over(self, turn: object | None = None) -> None:
        if (turn := turn or self._in_turn) is not None:
            self._in_turn = None
            self._heartbeat.over(turn)
            self._turn_lock.release()

    def _beat(self) -> None:
        for writer in tuple(self._alive):
            self._database.write(partial(self._journal.beat, writer=writer))

    def leave(self) -> None:
        """Take no part any more; what this process left pending, others recover at once."""
        self._database.write(partial(self._journal.retire, writer=self.writer))

    def close(self) -> None:
        """Take no part any more, and give the connections back."""
        if (measuring := self._measuring) is not None:
            measuring.join()
        with self._state.lock:
            self._keep_short(SNAPSHOT_AT_CLOSE)
        self.leave()
        self._database.close()

    # In parts

    def _read_to(self, last: int | None) -> None:
        """Apply what others have written, up to a position, or up to the end."""
        while last is None or self.position < last:
            try:
                with self._database.read() as session:
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
                except NeighborsError:  # it was not so where it was written: to be tried again
                    raise
                except Exception as error:  # noqa: BLE001 - so it was where it was written
                    logger.error(  # noqa: TRY400 - what it says may quote entries
                        "event %d of the journal was not applied: %s",
                        record.position,
                        crash(error),
                    )
                self._passed(record.position, event)

    def _passed(self, position: int, event: Event) -> None:
        self.position = position
        size = len(event.entries) if event.entries is not None else 0
        self._tail.append((position, size + ROW_COST))

    def _keep_short(self, share: float = SNAPSHOT_AFTER) -> None:
        """Write a snapshot if there is much to replay since the latest, and drop what it covers."""
        wanted = max(SNAPSHOT_AT_LEAST, share * len(self._state.knowledge))
        if self._length() < wanted:
            return
        try:
            with self._database.read() as session:
                latest = self._snapshots.latest(session)
            while latest is not None and self._tail and self._tail[0][0] <= latest.position:
                self._tail.popleft()  # somebody else has
            if self._length() >= wanted:
                self._write_snapshot(self.position)
        except Exception as error:  # noqa: BLE001 - what was to be written is, and is read all the same
            logger.error("no snapshot was written: %s", crash(error))  # noqa: TRY400
            self._tail.clear()

    def _length(self) -> int:
        return sum(size for _, size in self._tail)

    def _write_snapshot(
        self, position: int, first: Callable[[Session], object] = lambda _session: None
    ) -> None:
        """Write all that is known, and delete what nobody needs any more."""
        values, arrays = self._state.to_parts()

        def work(session: Session) -> None:
            first(session)
            self._snapshots.write(session, position, values, arrays)
            self._tell(session, position)
            self._journal.prune(session)

        self._log.write(work)
        self._tail.clear()

    def _tell(self, session: Session, position: int) -> None:
        """Tell the log of a snapshot, where there is a key: nobody sets it back unseen then."""
        if self._log.digests.key_name is not None:
            changes = Changes(session, self._log.digests, self._log.namespace)
            changes.tell(SNAPSHOT, position)
            changes.write("ragshield", f"at position {position} of the journal")


class Heartbeat:
    """Beats as long as somebody holds what :meth:`during` was given, and not in a forked child.

    Every write is a sign of life in itself: a thread runs only while one may stay away.

    Parameters
    ----------
    beat
        Gives a sign of life.
    every
        Seconds between two of them.
    """

    def __init__(self, beat: Callable[[], object], every: float) -> None:
        self._beat, self._every = beat, every
        self._reasons: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def during(self, reason: object) -> None:
        """Beat until :meth:`over`, or until nobody holds the reason any more."""
        with self._lock:
            self._reasons.add(reason)
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                run = (weakref.ref(self), self._stop, self._every)
                self._thread = threading.Thread(
                    target=_run, args=run, name="ragshield-heartbeat", daemon=True
                )
                self._thread.start()

    def over(self, reason: object) -> None:
        """Beat no longer for that reason."""
        with self._lock:
            self._reasons.discard(reason)
            if not self._reasons:
                self._stop.set()
                self._thread = None

    def _once(self) -> bool:
        """Beat, if there still is a reason; return whether there was."""
        with self._lock:
            if not self._reasons:
                self._thread = None
                return False
        try:
            self._beat()
        except Exception as error:  # noqa: BLE001 - the next beat may succeed; the write will tell
            logger.warning("no sign of life could be given: %s", type(error).__name__)
        return True


def _run(which: weakref.ref[Heartbeat], stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        heartbeat = which()
        if heartbeat is None or not heartbeat._once():  # noqa: SLF001 - of this very module
            return
        del heartbeat
