"""A guard as one of several processes that share what they know."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from numpy.typing import NDArray
from sqlalchemy.orm import Session

from ragshield_core.learning.events import Change, Event
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.recorder import Intent, Recorder, Standing
from ragshield_core.model.errors import (
    NeighborsError,
    OvertakenError,
    PrunedError,
    StateError,
    TakenOverError,
)
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.evidence import SNAPSHOT
from ragshield_core.quarantine.log import AuditLog
from ragshield_core.quarantine.sealed import check_journal
from ragshield_core.screening.screening import crash
from ragshield_core.sharing.events import JournalRecord
from ragshield_core.sharing.heartbeat import Heartbeat
from ragshield_core.sharing.journal import DEFAULT_LEASE, Journal, new_writer
from ragshield_core.sharing.snapshots import Snapshot, Snapshots
from ragshield_core.sharing.standing import standing
from ragshield_core.state import give_back

T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# What is in the journal behind the latest snapshot, as a share of what is known, at which the next
# is written: a snapshot costs as much as there is, so that each entry has a fixed share in the cost
# of snapshots, and who starts replays a tenth at the most. At least so many: few are quick to read.
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


class Sharing(Recorder):
    """Writes what happens to a guard into a journal, and applies what others have written there.

    All guards of a namespace apply all events in the order of the journal, each at its place: what
    is intended when it is written down, whoever writes it. They are therefore alike at a position.

    Parameters
    ----------
    log
        Of the namespace, in whose database journal and snapshots are, with the same digests.
    lease
        As of :class:`Journal`.
    """

    shared = True

    def __init__(self, log: AuditLog, *, lease: float = DEFAULT_LEASE) -> None:
        self.position: int = 0
        self._log, self._database = log, log.database
        self._journal = Journal(log.namespace, lease=lease, digests=log.digests)
        self._snapshots = Snapshots(log.namespace, digests=log.digests)
        self._seen: tuple[int, ...] | None = None  # version of the database when it was read last
        self._collected: list[tuple[Event, Intent | None]] | None = None
        self._tail: deque[tuple[int, int]] = deque()  # positions, and what each costs
        self._times_replaced = 0
        self._begin()

    def __repr__(self) -> str:
        return f"the journal of namespace {printable(self._journal.namespace, SHOWN)!r}"

    def _begin(self) -> None:
        """Take part as another writer than any before."""
        self._pid = os.getpid()
        self._writer = new_writer()
        self._open: weakref.WeakSet[Intent] = weakref.WeakSet()
        self._in_turn: object | None = None
        self._heartbeat = Heartbeat(self._beat, self._journal.lease / BEATS)

    @property
    def writer(self) -> str:
        """The name of this process; a forked one has another."""
        if os.getpid() != self._pid:
            self._begin()
        return self._writer

    # Beginning

    def of(self, state: GuardState) -> Self:
        """Write down from now on what happens to a guard."""
        super().__init__(state)
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
        while True:
            with self._database.read() as session:
                found = self._snapshots.list(session)
            if not found:
                return None
            # What comes after it is kept from now on.
            begun = partial(self._journal.beat, writer=self.writer, position=found[-1].position)
            self._database.write(begun)
            try:
                return self._readable(found)
            except PrunedError:  # there are later ones
                continue

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
        """Apply what has happened elsewhere; return how many events that were."""
        version = self._database.version()
        if version == self._seen:
            return 0
        with self._state.lock:
            if self.collecting:
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
    def collecting(self) -> bool:
        """Whether what happens now is written with other things, and applied then."""
        return self._collected is not None

    def happened(self, event: Event) -> None:
        """Write an event down, and apply it behind all that were there before."""
        self._collect([event], None)

    def intend(self, events: Sequence[Event]) -> Intent:
        """Write down what is going to happen; everybody reckons with it from now on."""
        intent = Intent(tuple(events))
        if events:
            self._collect(events, intent)
        return intent

    def _collect(self, events: Sequence[Event], intent: Intent | None) -> None:
        if self._collected is None:
            self.together(partial(self._collect, events, intent), None)
        else:
            self._collected += [(event, intent) for event in events]

    def together(self, work: Callable[[], T], at: int | None) -> T:
        """Do work whose events, and changes of the quarantine, are written in one transaction."""
        if self.collecting:
            return work()
        while True:
            try:
                answer, happened, positions = self._database.write(
                    lambda session: self._write(session, work, at)
                )
                break
            except OvertakenError:
                if at is not None:
                    raise
                self.take_turn()  # another has it
        self._turn_is_over()
        self._read_to(positions.start - 1)
        self._apply_mine(happened, positions)
        self._keep_short()
        return answer

    def _write(
        self, session: Session, work: Callable[[], T], at: int | None
    ) -> tuple[T, Sequence[tuple[Event, Intent | None]], range]:
        # First: nothing is to be written, or asked for, by who was overtaken.
        head = self._journal.lock(session, writer=self.writer, expected=at)
        collected: list[tuple[Event, Intent | None]] = []
        self._collected = collected
        try:
            answer = work()
        finally:
            self._collected = None
        if not collected:
            return answer, (), range(self.position + 1, self.position + 1)
        events = [event for event, _ in collected]
        pending = [intent is not None for _, intent in collected]
        positions = self._journal.append(
            session, events, writer=self.writer, read=self.position, pending=pending, head=head
        )
        return answer, collected, positions

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
                    self.drop(intent)
            raise refused

    def finish(self, intent: Intent) -> None:
        """Say that what was intended has happened."""
        try:
            self._settle(intent, ())
        finally:
            self.drop(intent)

    def drop(self, intent: Intent) -> None:
        """Leave what was intended to be recovered."""
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
            records = self._database.write(self._taken_over) if lost else ()
            dropped = [each.position for each in others if each.writer == self.writer]
            with self._database.read() as session:
                for position in dropped:
                    records += self._journal.since(session, position - 1, 1)
            if not records:
                return None
            records = tuple(sorted(records, key=lambda record: record.position))
            intent = Intent(
                tuple(record.event for record in records),
                tuple(record.position for record in records),
            )
            self._open.add(intent)
            self._heartbeat.during(intent)
            return intent

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that somebody is about to write or delete just now."""
        records: list[JournalRecord] = []
        with self._database.read() as session:
            for each in self._journal.pending(session):
                with suppress(PrunedError):  # it was closed meanwhile
                    records += self._journal.since(session, each.position - 1, 1)
        batches = [record.event.entries for record in records]
        return frozenset(i for batch in batches if batch is not None for i in batch.ids)

    def _taken_over(self, session: Session) -> tuple[JournalRecord, ...]:
        return self._journal.take_over(session, writer=self.writer)

    def correct(self, intent: Intent, fixes: Sequence[Event]) -> None:
        """End what was intended, with what makes up for that it did not happen, if so."""
        try:
            self._settle(intent, fixes)
        except TakenOverError:
            logger.warning("another process has recovered what this one was recovering")
        finally:
            self.drop(intent)

    def _settle(self, intent: Intent, fixes: Sequence[Event]) -> None:
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
    def replacing(self) -> Iterator[None]:
        """Yield while the guard becomes another one; nobody else writes until it is, everywhere."""
        if self.collecting:
            msg = "a guard cannot be fitted, adopted or calibrated within another write of its own."
            raise RuntimeError(msg)
        self.take_turn()
        try:
            self.catch_up()
            yield
            self._replace_after_all()
        except BaseException:
            self.give_up_turn()
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
        self._state.become(whole.values, whole.arrays)
        whole.arrays.clear()  # the guard has its own, and they are large
        give_back()
        self._times_replaced += 1
        self.position = whole.position
        self._tail.clear()
        self._read_to(last)

    # Turns and signs of life

    def take_turn(self) -> None:
        """Wait until nobody else writes, until the next write."""
        if self._in_turn is not None:
            return
        waiting = Intent(())  # a reason to give signs of life
        self._heartbeat.during(waiting)
        self._in_turn = waiting
        take = partial(self._journal.take_turn, writer=self.writer)
        try:
            mine, seen, until = False, None, 0.0
            while not mine:
                if time.monotonic() >= until:  # again, if it was believed dead meanwhile
                    mine = self._database.write(take)
                    until = time.monotonic() + self._journal.lease / BEATS
                elif (version := self._database.version()) != seen:
                    seen = version
                    self.catch_up()  # what is read now need not be read in the turn
                    with self._database.read() as session:
                        mine = self._journal.turn(session) == self.writer
                else:
                    time.sleep(PAUSE)
        except BaseException:
            self.give_up_turn()
            raise

    def give_up_turn(self) -> None:
        """Let others write, if nothing was written in the turn."""
        if self._in_turn is not None:
            self._turn_is_over()
            give_up = partial(self._journal.give_up_turn, writer=self.writer)
            self._database.write(give_up)

    def _turn_is_over(self) -> None:
        if self._in_turn is not None:
            self._heartbeat.over(self._in_turn)
            self._in_turn = None

    def _beat(self) -> None:
        self._database.write(partial(self._journal.beat, writer=self.writer))

    def leave(self) -> None:
        """Take no part any more; what this process left pending, others recover at once."""
        self._database.write(partial(self._journal.retire, writer=self.writer))

    def close(self) -> None:
        """Take no part any more, and give the connections back."""
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

    def _readable(self, found: Sequence[Snapshot]) -> Whole:
        """Return the first of some snapshots that is not damaged."""
        damaged: StateError | None = None
        for snapshot in found:
            try:
                with self._database.read() as session:
                    return Whole(snapshot.position, *self._snapshots.read(session, snapshot))
            except StateError as error:
                logger.error("a snapshot cannot be read: %s", error)  # noqa: TRY400 - names no text
                damaged = error
        assert damaged is not None  # noqa: S101 - there is one at least
        raise damaged

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
        self, position: int, beside: Callable[[Session], object] = lambda _session: None
    ) -> None:
        values, arrays = self._state.to_parts()
        plain: Mapping[str, Any] = json.loads(json.dumps(values))

        def told(session: Session) -> None:
            beside(session)  # first: it may lock the journal
            self._tell(session, position)

        self._snapshots.write(self._log.write, position, plain, arrays, told)
        self._tail.clear()
        self._snapshots.prune(self._database.write)
        while self._database.write(self._journal.prune):
            pass

    def _tell(self, session: Session, position: int) -> None:
        """Tell the log of a snapshot, where there is a key: nobody sets it back unseen then."""
        if self._log.digests.key_name is not None:
            changes = Changes(session, self._log.digests, self._log.namespace)
            changes.tell(SNAPSHOT, position)
            changes.write("ragshield", f"at position {position} of the journal")
