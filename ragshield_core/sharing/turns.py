"""Turns to write: processes that share a guard, and their threads, write one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from ragshield_core.database import Database, Transaction
from ragshield_core.learning.events import Intent
from ragshield_core.model.errors import OvertakenError
from ragshield_core.sharing.heartbeat import Heartbeat
from ragshield_core.sharing.journal import Journal

# Writers at the head of the queue that read events while they wait. Others leave the processors to
# the writer that has the turn.
NEXT = 2
# Seconds between two looks at the turn, for the head of the queue and for the others.
PAUSE, LONG_PAUSE = 0.02, 0.06
# Signs of life within a lease.
BEATS = 3


class Turns:
    """The turns of one process.

    ``writer`` is the name of the process in the journal. ``catch_up`` reads the events of others,
    also while it waits near the head of the queue; ``position`` is the last event read.

    Attributes
    ----------
    current
        The turn that a thread of this process has; ``None`` if none has one.
    at
        Position of the journal at which this process judges in its turn, or wrote last.
    """

    def __init__(
        self,
        database: Database,
        journal: Journal,
        writer: str,
        heartbeat: Heartbeat,
        catch_up: Callable[[], object],
        position: Callable[[], int],
    ) -> None:
        self._database, self._journal, self._writer = database, journal, writer
        self._heartbeat, self._catch_up, self._position = heartbeat, catch_up, position
        self._lock = threading.Lock()  # held by the thread that queues for a turn, or has it
        self._queues = False  # whether that thread queues, or has queued for its turn
        self._hurries = False  # whether its turn is to be the next one
        self.current: object | None = None
        self.at = 0

    @property
    def taken(self) -> bool:
        """Whether a thread of this process queues for a turn, or has one that it queued for."""
        return self._queues

    def take(self, *, queue: bool = True, hurry: bool = False) -> object:
        """Wait until no other thread writes, with ``queue`` no other process; return the turn.

        Without ``queue``, the turn is lost as soon as another process writes. With ``hurry``, no
        process that waits goes first.
        """
        turn = Intent(())  # keeps the heartbeat running
        self._hurries |= hurry  # a thread of this process that queues goes before this one
        self._lock.acquire()
        self._queues, self._hurries = queue, hurry
        self._heartbeat.during(turn)
        try:
            if queue:
                self.wait()
            self._catch_up()
        except BaseException:
            self.give_up(turn)
            raise
        self.at, self.current = self._position(), turn
        return turn

    def check(self, turn: object | None) -> None:
        """Refuse a turn that is over."""
        if turn is not None and turn is not self.current:
            msg = "this turn to write is over: it was lost, or used; write again."
            raise OvertakenError(msg)

    def wait(self) -> None:
        """Queue until no other process has the turn."""
        mine, seen, until, pause, hurries = False, None, 0.0, PAUSE, False
        while not mine:
            # Queue again: in case it counted as crashed, or to go first.
            if time.monotonic() >= until or self._hurries is not hurries:
                hurries = self._hurries
                take_turn = partial(self._journal.take_turn, writer=self._writer, hurry=hurries)
                mine = self._database.write_rows(take_turn)
                until = time.monotonic() + self._journal.lease / BEATS
            elif (version := self._database.version()) != seen:
                seen = version
                with self._database.connection() as session:
                    queue = self._journal.queue(session, NEXT)
                mine, near = queue[:1] == [self._writer], self._writer in queue
                pause = PAUSE if near else LONG_PAUSE
                if near:
                    self._catch_up()  # these events need not be read in the turn
            else:
                time.sleep(pause)

    def leave_queue(self) -> None:
        """Let the next process have the turn, unless a thread of this one queues or has it."""

        def leave(session: Transaction) -> None:
            if not self.taken:  # asked here, where none can begin to queue
                self._journal.give_up_turn(session, writer=self._writer)

        self._database.write_rows(leave)

    def give_up(self, turn: object) -> None:
        """Let the next process have the turn, then the next thread of this process."""
        try:
            if self._queues:
                self._leave()  # first: the next thread would lose the turn that it takes
        finally:
            self.over(turn)

    def _leave(self) -> None:
        self._database.write_rows(partial(self._journal.give_up_turn, writer=self._writer))

    def lost(self, turn: object | None) -> None:
        """End a turn, if it is one: its thread did not queue, or the process was silent."""
        if turn is not None:
            self.over(turn)

    def over(self, turn: object | None = None) -> None:
        """Let the next thread of this process queue."""
        if (turn := turn or self.current) is not None:
            self.current, self._queues = None, False
            self._heartbeat.over(turn)
            self._lock.release()
