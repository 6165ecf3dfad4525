"""The journal: numbered events, each stored exactly once even if writers compete or crash."""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)

from ragshield_core.database import Transaction, chunks
from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.database.tables import (
    HeadRow,
    JournalRow,
    PendingRow,
    SnapshotRow,
    WriterRow,
    table_of,
)
from ragshield_core.learning.events import Change, Event
from ragshield_core.learning.status import Intending
from ragshield_core.model.errors import OvertakenError, PrunedError, StateError, TakenOverError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import PLAIN, Digests, check_key
from ragshield_core.sharing.lease import DEFAULT_LEASE
from ragshield_core.sharing.rows import JournalRecord, now, raise_damaged, read, written
from ragshield_core.sharing.snapshots import CHUNK, KEPT, SWEPT

LONGEST_HOST = 20
MOST_SWEPT = 1_000  # events that a transaction deletes: those of single writes are small
# Tasks that one process does for all, as prefixes of the name under which it takes part meanwhile.
MEASURES, SAVES = "thresholds of ", "snapshot of "
# Distance of two tickets. Between them is room for a writer that goes next; a second one may have
# the same ticket as a waiting writer, never as the writer that has the turn.
STEP = 2

_HEADS, _EVENTS, _PENDING, _SNAPSHOTS, _WRITERS = map(
    table_of, (HeadRow, JournalRow, PendingRow, SnapshotRow, WriterRow)
)


def _of(table: Table) -> ColumnElement[bool]:
    return table.c.namespace == bindparam("of")


# Statements of every write are built once: building one costs eight times as much as running it.
_MINE = and_(_of(_WRITERS), _WRITERS.c.writer == bindparam("by"))
_ALIVE = _WRITERS.c.heartbeat > now() - bindparam("lease")
_HEAD = select(_HEADS).where(_of(_HEADS))
_SET_HEAD = update(_HEADS).where(_of(_HEADS))
_QUEUE = (
    select(_WRITERS.c.writer)
    .where(_of(_WRITERS), _WRITERS.c.ticket.is_not(None), _ALIVE)
    .order_by(_WRITERS.c.ticket, _WRITERS.c.writer)
    .limit(bindparam("most"))
)
_TICKET = select(_WRITERS.c.ticket).where(_MINE)
_NOTE = update(_WRITERS).where(_MINE).values(heartbeat=now())
# A writer that was silent for longer than its lease loses its turn, even if it wakes up later.
_BEAT = _NOTE.values(ticket=case((_ALIVE, _WRITERS.c.ticket)))
_DOING = select(_WRITERS.c.writer).where(
    _of(_WRITERS), _ALIVE, _WRITERS.c.writer.startswith(bindparam("task"))
)
_APPEND = insert(_EVENTS).values(at=now())
_RECORDS = select(_EVENTS).where(_of(_EVENTS)).order_by(_EVENTS.c.position)
_SINCE = _RECORDS.where(_EVENTS.c.position > bindparam("after")).limit(bindparam("most"))
_THESE = _RECORDS.where(_EVENTS.c.position.in_(bindparam("some", expanding=True)))
_INTENDED = (
    select(_PENDING, (now() - _WRITERS.c.heartbeat).label("silent"))
    .join_from(
        _PENDING,
        _WRITERS,
        and_(_WRITERS.c.namespace == _PENDING.c.namespace, _WRITERS.c.writer == _PENDING.c.writer),
        isouter=True,
    )
    .where(_of(_PENDING))
    .order_by(_PENDING.c.position)
)
_TO_CLOSE = and_(
    _of(_PENDING),
    _PENDING.c.writer == bindparam("by"),
    _PENDING.c.position.in_(bindparam("some", expanding=True)),
)
_CLOSING, _CLOSE = select(_PENDING.c.position).where(_TO_CLOSE), delete(_PENDING).where(_TO_CLOSE)


class Pending(NamedTuple):
    """A pending event, and the writer that must close it."""

    position: int
    writer: str
    silent_for: float | None  # seconds since the writer's last sign of life; None if it is gone
    alive: bool


def new_writer() -> str:
    """Return a unique name for this process as a writer; each call returns another name.

    It contains the host and process id, for people who look into the database.
    """
    host = "".join(c for c in socket.gethostname() if c.isascii() and c.isprintable())
    return f"{host[:LONGEST_HOST]}-{os.getpid()}-{uuid.uuid4().hex[:16]}"


class Journal:
    """Operations on the journal of one namespace; each runs in the caller's transaction.

    Operations that write need a session of :meth:`.Database.write`, which excludes other writers.

    Parameters
    ----------
    namespace
        Name of a tenant, the same as the quarantine's.
    lease
        Seconds without a heartbeat after which a writer counts as crashed; the same in every
        process. Writers that wait or work for longer than a third of it should call :meth:`beat`.
    digests
        Digests of the rows, the same in every process.
    """

    def __init__(
        self,
        namespace: str = "default",
        *,
        lease: float = DEFAULT_LEASE,
        digests: Digests = PLAIN,
    ) -> None:
        if not lease > 0:
            msg = f"lease is {lease!r}, expected seconds above 0."
            raise ValueError(msg)
        self.namespace = checked_namespace(namespace)
        self.lease = lease
        self.digests = digests

    def __repr__(self) -> str:
        return f"Journal({printable(self.namespace, 60)!r}, lease={self.lease!r})"

    # Reading

    def head(self, session: Transaction) -> int:
        """Return the position of the last event; 0 before the first."""
        head = self._head(session)
        return 0 if head is None else head.position

    def since(
        self, session: Transaction, position: int, limit: int = 100
    ) -> tuple[JournalRecord, ...]:
        """Return up to ``limit`` events after a position, in order, including pending ones.

        Raises
        ------
        PrunedError
            If some of them are in snapshots only: start again from the latest.
        StateError
            If one is damaged or missing, or the journal ends before that position.
        """
        head = self.head(session)
        if position > head:
            msg = (
                f"the journal of {self!r} is at position {head}, and this process at {position}: "
                "the database was replaced by an older one; start the process again."
            )
            raise StateError(msg)
        if position == head:
            return ()
        found: list[JournalRecord] = []
        for record in self._records(session, _SINCE, after=position, most=limit):
            if record.position != position + len(found) + 1:
                break
            found.append(record)
        else:
            if found or not limit:
                return tuple(found)
        raise self._missing(session, position + len(found) + 1)

    def pending(self, session: Transaction) -> tuple[Pending, ...]:
        """Return the pending events, which are intended and not closed yet.

        If their writer was silent for longer than its lease, they are abandoned.
        """
        found = []
        for row in session.execute(_INTENDED, {"of": self.namespace}).mappings():
            position, writer, silent = row["position"], row["writer"], row["silent"]
            if not self.digests.match(PendingRow, row):
                raise_damaged(f"that event {position} of {self!r} is pending", PendingRow)
            alive = silent is not None and silent < self.lease
            found.append(Pending(position, writer, silent, alive))
        return tuple(found)

    def intending(self, session: Transaction) -> tuple[Intending, ...]:
        """Return the writers of pending events, and whether they are alive."""
        pending = self.pending(session)
        counts = Counter(each.writer for each in pending)
        stands = {each.writer: (each.silent_for, each.alive) for each in pending}
        return tuple(Intending(writer, n, *stands[writer]) for writer, n in counts.items())

    def replaced_at(self, session: Transaction) -> float | None:
        """Return the time of the last calibration; ``None`` if its event was pruned."""
        kinds = map(str, (Change.REPLACED, Change.RECALIBRATED))
        replaced = and_(_of(_EVENTS), _EVENTS.c.kind.in_(list(kinds)))
        query = select(func.max(_EVENTS.c.at)).where(replaced)
        at: float | None = session.execute(query, {"of": self.namespace}).scalar()
        return at

    def turn(self, session: Transaction) -> str | None:
        """Return the writer that has the turn; meanwhile no other can append."""
        return next(iter(self.queue(session, 1)), None)

    def queue(self, session: Transaction, most: int) -> Sequence[str]:
        """Return the first writers that have or wait for the turn, up to ``most``."""
        values = {"of": self.namespace, "lease": self.lease, "most": most}
        return session.execute(_QUEUE, values).scalars().all()

    # Writing

    def lock(
        self,
        session: Transaction,
        *,
        writer: str,
        expected: int | None = None,
        in_turn_since: int | None = None,
    ) -> Any:
        """Check that a writer may write now; return the head of the journal.

        ``expected`` is the position of the state that the writer is about to save whole;
        ``None`` if it writes events. ``in_turn_since`` is the position at which it judges,
        if it has taken a turn.

        Raises OvertakenError if the journal has grown since, another living writer has the
        turn, or this writer has lost its turn.
        """
        row = self._begun(session)
        head: int = row.position
        if expected is not None and head != expected:
            msg = (
                f"the journal of {self!r} is at position {head}, expected {expected}: "
                "another process wrote first; catch up, screen again and try again."
            )
            raise OvertakenError(msg)
        turn = self.turn(session)
        if turn not in (None, writer):
            msg = (
                f"in the journal of {self!r} it is the turn of {turn}; wait for it to write, catch "
                "up, screen again and try again."
            )
            raise OvertakenError(msg)
        if in_turn_since is not None and turn is None and head != in_turn_since:
            msg = (
                f"{writer} gave no sign of life for {self.lease:g} s and lost its turn in the "
                f"journal of {self!r}: nothing of this write was written; write it again."
            )
            raise OvertakenError(msg)
        return row

    def append(
        self,
        session: Transaction,
        events: Sequence[Event],
        *,
        writer: str,
        expected: int | None = None,
        pending: Sequence[bool] = (),
        head: Any = None,
        keep_turn: bool = False,
    ) -> range:
        """Write events at the end of the journal, and give up the turn; return their positions.

        ``pending`` marks events that are only intended, until :meth:`close_pending`; by
        default, none is. ``head`` is the result of :meth:`lock`, if this transaction has
        called it. Raises the errors of :meth:`lock`; TypeError if an event holds a value
        that cannot be stored, ValueError if an event is too large.
        """
        rows = [written(event) for event in events]
        head = self.lock(session, writer=writer, expected=expected) if head is None else head
        self._note(session, writer, **({} if keep_turn else {"ticket": None}))
        return self._append(session, head, rows, writer, pending=pending)

    def close_pending(
        self,
        session: Transaction,
        positions: Collection[int],
        contrary: Sequence[Event] = (),
        *,
        writer: str,
    ) -> range:
        """Close pending events: they have happened, or contrary events undo them.

        Closing waits for no turn, because events that did not happen must not stay. Returns the
        positions of the contrary events.

        Raises
        ------
        TakenOverError
            If another writer took the events over, because this one counted as crashed. It may
            have undone this writer's changes to the store, or will do so.
        """
        rows = [written(event) for event in contrary]
        head = self._begun(session)
        wanted = sorted(set(positions))
        theirs: list[int] = []
        for some in chunks(wanted):
            these = {"of": self.namespace, "by": writer, "some": list(some)}
            theirs += sorted(set(some).difference(session.execute(_CLOSING, these).scalars()))
            session.execute(_CLOSE, these)
        if theirs:
            msg = (
                f"{len(theirs)} of {len(wanted)} events ({', '.join(map(str, theirs[:5]))}"
                f"{', ...' if theirs[5:] else ''}) of the journal of {self!r} are not pending for "
                f"{writer}, expected them to be: another process closed them, or is about to, "
                f"because this one gave no sign of life for {self.lease:g} s; read their "
                "outcome, and undo later changes."
            )
            raise TakenOverError(msg)
        return self._append(session, head, rows, writer, closed=len(wanted))

    def at(self, session: Transaction, positions: Sequence[int]) -> list[JournalRecord]:
        """Return events by their positions, in order."""
        found: list[JournalRecord] = []
        for some in chunks(positions):
            found += self._records(session, _THESE, some=list(some))
        if len(found) != len(positions):
            raise self._missing(session, min({*positions} - {one.position for one in found}))
        return found

    def take_over(self, session: Transaction, *, writer: str) -> list[JournalRecord]:
        """Assign all abandoned events to the writer, which must close them; return them.

        Only one writer gets them. If that one crashes as well, they are abandoned again.
        """
        self._note(session, writer)
        positions = [each.position for each in self.pending(session) if not each.alive]
        for some in chunks(positions):
            query = delete(_PENDING).where(_of(_PENDING), _PENDING.c.position.in_(some))
            session.execute(query, {"of": self.namespace})
            session.execute(insert(_PENDING), self._intended(some, writer))
        return self.at(session, positions)

    # Writers and their turns

    def beat(self, session: Transaction, writer: str) -> None:
        """Record that a writer is alive."""
        self._note(session, writer)

    def claim(self, session: Transaction, *, task: str, writer: str) -> bool:
        """Claim a task, unless a living process has it; return whether the claim succeeded.

        The process takes part under a second name, ``task + writer``: it must call :meth:`beat`
        for that name meanwhile, and :meth:`retire` at the end.
        """
        if self.claimed(session, task):
            return False
        self._note(session, task + writer)
        return True

    def claimed(self, session: Transaction, task: str) -> bool:
        """Return whether a living process has a task."""
        doing = {"of": self.namespace, "lease": self.lease, "task": task}
        return session.execute(_DOING, doing).first() is not None

    def retire(self, session: Transaction, writer: str) -> None:
        """Forget a writer that has stopped; its pending events are abandoned."""
        session.execute(delete(_WRITERS).where(_MINE), {"of": self.namespace, "by": writer})

    def take_turn(self, session: Transaction, writer: str, *, hurry: bool = False) -> bool:
        """Queue for a turn; return whether it has come. If not, poll :meth:`turn` until it has.

        Turns come in the order in which writers queued; with ``hurry``, the turn comes after the
        current one. Each ends with one :meth:`append`, with :meth:`give_up_turn`, or when the
        writer crashes. Calling this again keeps the place in the queue; a waiting writer must call
        :meth:`beat`.
        """
        head = self._begun(session)
        current = self.turn(session)
        ticket = None if current is None else self._ticket(session, writer)
        if hurry and current not in (None, writer):
            ticket = self._ticket(session, current) + 1
        elif ticket is None:
            ticket = head.tickets + STEP
        if ticket > head.tickets:
            self._set_head(session, head, tickets=ticket)
        self._note(session, writer, ticket=ticket)
        return current is None or self.turn(session) == writer

    def _ticket(self, session: Transaction, writer: str) -> Any:
        return session.execute(_TICKET, {"of": self.namespace, "by": writer}).scalar()

    def give_up_turn(self, session: Transaction, writer: str) -> None:
        """Leave the queue."""
        self._note(session, writer, ticket=None)

    # Room

    def prune(self, session: Transaction) -> None:
        """Delete crashed writers, and note which events no process needs, for :meth:`sweep`.

        The journal keeps the events after the last two snapshots (one may be damaged), and all
        events from the first pending one. A process that is further behind starts from a snapshot.
        """
        ours = {"of": self.namespace, "lease": self.lease}
        session.execute(delete(_WRITERS).where(_of(_WRITERS), ~_ALIVE), ours)
        newest = select(_SNAPSHOTS.c.position).where(_of(_SNAPSHOTS))
        newest = newest.order_by(_SNAPSHOTS.c.position.desc()).limit(KEPT)
        kept = session.execute(newest, ours).scalars().all()
        first_pending = select(func.min(_PENDING.c.position)).where(_of(_PENDING))
        pending = session.execute(first_pending, ours).scalar()
        until = min([*kept[KEPT - 1 :], *([] if pending is None else [pending - 1])], default=0)
        head = self._begun(session)
        if len(kept) == KEPT and until > head.pruned:
            self._set_head(session, head, pruned=until)

    def sweep(self, session: Transaction) -> bool:
        """Delete some events that no process needs; return whether more are left."""
        head, ours = self._head(session), {"of": self.namespace}
        if head is None:
            return False
        old = and_(_of(_EVENTS), _EVENTS.c.position <= head.pruned)
        sizes = select(_EVENTS.c.position, func.length(_EVENTS.c.arrays)).where(old)
        sizes = sizes.order_by(_EVENTS.c.position).limit(MOST_SWEPT)
        last, size = 0, 0
        for position, more in session.execute(sizes, ours):
            if last and size + more > SWEPT * CHUNK:
                break
            last, size = position, size + more
        session.execute(delete(_EVENTS).where(_of(_EVENTS), _EVENTS.c.position <= last), ours)
        return bool(0 < last < head.pruned)

    # In parts

    def _head(self, session: Transaction) -> Any:
        """Return the head row of the journal; ``None`` if the journal does not exist yet."""
        head = session.execute(_HEAD, {"of": self.namespace}).one_or_none()
        if head is not None:
            if head.key_name != self.digests.key_name:
                check_key(f"the journal of {self!r}", head.key_name, self.digests)
            if not self.digests.match(HeadRow, head._mapping):  # noqa: SLF001 - public, see SQLAlchemy
                raise_damaged(f"where {self!r} stands", HeadRow)
        return head

    def _begun(self, session: Transaction) -> Any:
        """Return the head row, in a transaction that writes; create it if needed."""
        if (head := self._head(session)) is not None:
            return head
        start: dict[str, Any] = dict.fromkeys(("position", "pruned", "pending", "tickets"), 0)
        start |= {"namespace": self.namespace, "key_name": self.digests.key_name}
        start["digest"] = self.digests.of(HeadRow, start)
        session.execute(insert(_HEADS), start)
        return self._head(session)

    def _set_head(self, session: Transaction, head: Any, **values: Any) -> None:
        row = {**head._mapping, **values}  # noqa: SLF001 - public, see SQLAlchemy
        row["digest"] = self.digests.of(HeadRow, row)
        session.execute(_SET_HEAD, {**row, "of": self.namespace})

    def _intended(self, positions: Iterable[int], writer: str) -> list[dict[str, Any]]:
        """Return the rows of pending events."""
        common = {"namespace": self.namespace, "writer": writer}
        rows: list[dict[str, Any]] = [{**common, "position": position} for position in positions]
        return [row | {"digest": self.digests.of(PendingRow, row)} for row in rows]

    def _append(
        self,
        session: Transaction,
        head: Any,
        rows: Sequence[dict[str, Any]],
        writer: str,
        *,
        pending: Sequence[bool] = (),
        closed: int = 0,
    ) -> range:
        """Write events after the head."""
        positions = range(head.position + 1, head.position + 1 + len(rows))
        events: list[dict[str, Any]] = [
            {"namespace": self.namespace, "writer": writer, "position": position} | row
            for position, row in zip(positions, rows, strict=True)
        ]
        for event in events:
            event["digest"] = self.digests.of(JournalRow, event)
        if events:
            session.execute(_APPEND, events)
        if intended := self._intended(compress(positions, pending), writer):
            session.execute(insert(_PENDING), intended)
        if rows or closed:
            n_pending = head.pending + len(intended) - closed
            self._set_head(session, head, position=head.position + len(rows), pending=n_pending)
        return positions

    def _note(self, session: Transaction, writer: str, **ticket: int | None) -> None:
        """Record that a writer is alive, and its ticket if given."""
        change = {**ticket, "of": self.namespace, "by": writer, "lease": self.lease}
        found: Any = session.execute(_NOTE if ticket else _BEAT, change)
        if not found.rowcount:
            row = {"ticket": None, **ticket, "namespace": self.namespace, "writer": writer}
            session.execute(insert(_WRITERS).values(heartbeat=now(), **row))

    def _records(
        self, session: Transaction, query: Select[Any], **which: Any
    ) -> Iterator[JournalRecord]:
        for row in session.execute(query, {"of": self.namespace, **which}).mappings():
            yield read(row, self.digests)

    def _missing(self, session: Transaction, position: int) -> Exception:
        head = self._head(session)
        if head is not None and position <= head.pruned:
            msg = (
                f"events up to {head.pruned} of the journal of {self!r} are in snapshots only, "
                f"expected event {position}; start again from the latest snapshot."
            )
            return PrunedError(msg)
        msg = (
            f"event {position} of the journal of {self!r} is missing: it was deleted by hand; "
            "restore the database from a backup, or fit the guard again in another namespace."
        )
        return StateError(msg)
