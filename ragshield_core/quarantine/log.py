"""The audit log: the actors and their actions, in lines whose digests reveal later changes."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database import Database
from ragshield_core.database.tables import LogRow, checked
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.quarantine.changes import Changes, rekey
from ragshield_core.quarantine.digests import KEY_VARIABLE, PLAIN, Digests
from ragshield_core.quarantine.entries import LogRecord
from ragshield_core.quarantine.evidence import (
    head_of,
    is_line,
    parts_of_anchor,
    verify_all,
    verify_lines,
)

T = TypeVar("T")

logger = logging.getLogger("ragshield")

_END = select(func.max(LogRow.seq))  # read at every write, so built once
# Action of the lines that record verifications.
VERIFY = "verify"


class AuditLog:
    """The audit log of a database, as one namespace sees it; see :attr:`Quarantine.log`.

    It makes all changes of the quarantine: a change and its lines are one transaction.

    Parameters
    ----------
    database
        The log's database. All namespaces share one chain of digests.
    namespace
        The namespace whose lines are returned.
    digests
        Computes the digests of rows and lines.
    anchor
        As of :class:`ragshield_core.Quarantine`.

    Examples
    --------
    >>> from ragshield_core import Batch, Quarantine
    >>> quarantine = Quarantine("sqlite://")
    >>> quarantine.log.head()
    '0:'
    >>> _ = quarantine.hold(Batch.of(ids=["a"], texts=["buy now"], embeddings=None), by="anna")
    >>> [(line.action, line.entry_id, line.actor) for line in quarantine.log.lines()]
    [('hold', 'a', 'anna')]
    >>> quarantine.log.verify()
    """

    def __init__(
        self,
        database: Database,
        namespace: str,
        digests: Digests,
        anchor: Callable[[str], object] | None,
    ) -> None:
        self.database, self.namespace, self.digests = database, namespace, digests
        self._anchor = anchor

    def of(self, namespace: str) -> AuditLog:
        """Return the same log as another namespace sees it."""
        return AuditLog(self.database, namespace, self.digests, self._anchor)

    # Reading

    def lines(
        self,
        ids: Sequence[str] | None = None,
        *,
        since: int = 0,
        until: int | None = None,
        limit: int | None = None,
    ) -> tuple[LogRecord, ...]:
        """Return the lines of the log, in order.

        Parameters
        ----------
        ids
            Only lines about these entries, a few hundred at most.
        since, until
            Only lines after the first number, up to the second; ``None`` for the end.
        limit
            The maximum number of lines, earliest first; ``None`` for all.
        """
        query = select(LogRow).where(LogRow.seq > since).order_by(LogRow.seq).limit(limit)
        if until is not None:
            query = query.where(LogRow.seq <= until)
        if ids is None:
            query = query.where(checked(LogRow.namespace) == self.namespace)
        else:
            query = query.where(LogRow.namespace == self.namespace, LogRow.entry_id.in_(ids))
        with self.database.read() as session:
            return tuple(record_of(row) for row in session.scalars(query))

    def end(self) -> int:
        """Return the number of the last line."""
        with self.database.connection() as connection:
            return int(connection.scalar(_END) or 0)

    def head(self) -> str:
        """Return the number and digest of the last line, which covers all earlier lines."""
        with self.database.read() as session:
            return head_of(session)

    def changed_since(
        self, line: int, actions: Collection[str] | None = None
    ) -> tuple[int, frozenset[str]]:
        """Return the number of the last line, and the ids of entries changed after an earlier one.

        ``line`` comes from :meth:`end`, called *before* all entries were read, or from this
        method.
        """
        end = self.end()
        if end <= line:
            return end, frozenset()
        query = (
            select(LogRow.entry_id)
            .where(LogRow.seq > line, LogRow.seq <= end)
            .where(checked(LogRow.namespace) == self.namespace)
        )
        if actions is not None:
            query = query.where(LogRow.action.in_(actions))
        with self.database.connection() as connection:
            return end, frozenset(connection.scalars(query).all())

    # Writing

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in this thread's transaction, or in a new one; anchor the head."""
        session = self.database.writing
        step = work if self._anchor is None else partial(self._anchored, work)
        return self.database.write(step) if session is None else step(session)

    def change(
        self,
        work: Callable[[Session, Changes], T],
        *,
        by: str,
        note: Callable[[T], str] | str | None = None,
    ) -> T:
        """Change entries or rules, with lines in the log, durably.

        The note may be computed from the result of ``work``.
        """

        def once(session: Session) -> T:
            changes = Changes(session, self.digests, self.namespace)
            answer = work(session, changes)
            changes.write(by, note(answer) if callable(note) else note)
            return answer

        return self.write(once)

    def record(self, action: str, *, by: str, note: str) -> None:
        """Write a line about a person's decision on the guard rather than an entry.

        The action has at most 16 characters.
        """
        self.change(lambda _, changes: changes.tell(action), by=by, note=note)

    # Verifying

    def verify_lines(self) -> None:
        """Check that no line was changed, removed from the middle or inserted.

        :meth:`verify` also checks the entries, and with an anchor, that no line was cut off at the
        end. The chain spans all namespaces of the database.

        Raises
        ------
        QuarantineError
            If the chain of digests is broken; names the line.
        """
        with self.database.read() as session:
            verify_lines(session, self.digests)

    def verify(self, anchor: str | None = None, *, by: str | None = None) -> None:
        """Check that no table of any namespace was changed outside ragshield.

        The log is replayed against entries and rules; the state of guards, cases and canaries have
        digests of their own, and the log records the guards' journal positions. Without a key, any
        writer of the database can forge all of it; with one, a writer can only set the whole
        database back to an earlier state, which an anchor reveals.

        Parameters
        ----------
        anchor
            An earlier :meth:`head`, kept where the database's writers cannot write.
        by
            The verifying person: the log gets a line with the outcome if it can be written, see
            :meth:`verification`. ``None`` writes no line. Nor does a log that ends before the
            anchor get one: the line would take the number of one that was cut off.

        Raises
        ------
        TamperedError
            Names the first broken line or row and the expected value; names the entry only if it
            is in this namespace.
        QuarantineError
            If the anchor is malformed, or the database cannot be read.
        """
        end = self.end()
        reached = parts_of_anchor(anchor)[0] <= end
        try:
            with self.database.read(still=True) as session:
                verify_all(session, self.digests, self.namespace, anchor)
        except TamperedError as error:
            self._record_verified(by if reached else None, f"broken up to line {end}: {error}")
            raise
        self._record_verified(by, f"whole up to line {end}")

    def _record_verified(self, by: str | None, note: str) -> None:
        if by is None:
            return
        try:
            self.record(VERIFY, by=by, note=note)
        except QuarantineError as error:  # another key, or a read-only database
            logger.error("the log could not be told that it was verified: %s", error)  # noqa: TRY400

    def verification(self) -> tuple[LogRecord | None, bool]:
        """Return the line of the last :meth:`verify` with ``by``, and whether its digest holds.

        The digest fails if the line was changed, or written with another key: then the outcome is
        unknown. Only lines of this namespace count.
        """
        query = select(LogRow).where(LogRow.namespace == self.namespace, LogRow.entry_id == "")
        query = query.where(checked(LogRow.action) == VERIFY).order_by(LogRow.seq.desc())
        with self.database.read() as session:
            line = session.scalars(query.limit(1)).first()
            if line is None:
                return None, True
            ours = line.key_name == self.digests.key_name
            return record_of(line), ours and is_line(session, self.digests, line)

    # Keys

    def seal(self, *, by: str = "ragshield") -> None:
        """Start to use a key, as :meth:`rekey` does, after checking all rows written without one.

        Raises
        ------
        QuarantineError
            If a row or line was changed, no key is given, or the log already has one.
        """
        if self.digests.key_name is None:
            msg = f"there is no key to seal with; set {KEY_VARIABLE}, or pass audit_key=."
            raise QuarantineError(msg)
        self.write(lambda session: rekey(session, PLAIN, self.digests, by, self.namespace))

    def rekey(self, key: str | bytes, *, by: str = "ragshield") -> None:
        """Exchange the key, after checking all rows written with the old one, or without.

        One transaction computes all digests anew; earlier anchors become invalid, and a line of the
        log records the old head. Processes with the old key can then neither write nor verify, and
        do not admit released entries: restart them with the new key.

        Parameters
        ----------
        key
            The new secret.
        by
            The person who exchanges it, for the log.

        Raises
        ------
        QuarantineError
            If a row or line was changed, or the key is too short, or already in use.
        """
        new = Digests(key)
        if new.key_name == self.digests.key_name:
            msg = "the new audit key is the one that is used already; draw another one at random."
            raise QuarantineError(msg)
        self.write(lambda session: rekey(session, self.digests, new, by, self.namespace))
        self.digests.become(new)

    def _anchored(self, work: Callable[[Session], T], session: Session) -> T:
        """Run ``work``; if the head has changed, call the anchor once the write is durable."""
        before, answer, after = head_of(session), work(session), head_of(session)
        if after != before:
            self.database.afterwards(partial(self._send, after))
        return answer

    def _send(self, head: str) -> None:
        try:
            if self._anchor is not None:
                self._anchor(head)
        except Exception:
            logger.exception("the head of the audit log, %s, could not be anchored", head)


def record_of(line: LogRow) -> LogRecord:
    """Return a row of the log as a record."""
    return LogRecord(
        seq=line.seq,
        at=dt.datetime.fromisoformat(line.at),
        action=line.action,
        entry_id=line.entry_id,
        fingerprint=line.fingerprint,
        actor=line.actor,
        note=line.note,
    )
