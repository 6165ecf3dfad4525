"""Verification that every row of every table is as it was written.

The log contains the digests of held entries and rules; it is replayed, and the error names the
first row that differs. Rows of other tables (state of guards, cases, canaries) have digests of
their own. The log also records the position of each namespace's journal, which reveals when a
journal is set back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from sqlalchemy import bindparam, func, inspect, select, tuple_, update
from sqlalchemy.orm import Session, aliased

from ragshield_core.database import TableBase, chunks, table_of
from ragshield_core.database.tables import (
    CaseRow,
    ChunkRow,
    HeadRow,
    HeldRow,
    JournalRow,
    LogRow,
    MemberRow,
    PendingRow,
    RuleRow,
    SnapshotRow,
    checked,
)
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import KEY_VARIABLE, Digests, check_key
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.status import Status

Row = Mapping[Any, Any]

# Rows to read at a time; fewer for tables with rows of megabytes.
PAGE, PAGE_OF_LARGE = 1_000, 16
SHOWN = 60  # characters of a namespace
ADVICE = "compare it with a backup."
RESTORE = "restore the database from a backup, or fit the guard again in another namespace."
REGROUP = "run `ragshield quarantine regroup`."
# Action of the lines that record a snapshot of a guard's learned state.
SNAPSHOT = "snapshot"
TOLD_OF = 2  # as many snapshots are kept
# Tables whose rows have their digests in the log.
TOLD: tuple[type[HeldRow | RuleRow], ...] = (HeldRow, RuleRow)


class LoggedState(NamedTuple):
    """State according to the log: digests by row number, and positions by namespace."""

    held: dict[int, str]
    rules: dict[int, str]
    positions: dict[str, int]  # of the journal
    snapshots: dict[str, tuple[int, ...]]  # the latest ones, which are kept

    def hear(self, line: Row) -> None:
        """Update this state by the next line."""
        for rows, row, digest in (
            (self.held, line["held_number"], line["held_digest"]),
            (self.rules, line["rule_number"], line["rule_digest"]),
        ):
            if row is not None:
                rows.pop(row, None)
                if digest is not None:
                    rows[row] = digest
        namespace, at = line["namespace"], line["journal_position"]
        if at is not None:
            self.positions[namespace] = max(at, self.positions.get(namespace, 0))
            if line["action"] == SNAPSHOT:
                self.snapshots[namespace] = (*self.snapshots.get(namespace, ()), at)[-TOLD_OF:]


# The log's lines


def head_of(session: Session) -> str:
    """Return the number and the digest of the log's last line."""
    last = last_line(session)
    return "0:" if last is None else f"{last.seq}:{last.digest}"


def last_line(session: Session) -> LogRow | None:
    """Return the log's last line."""
    return session.scalars(select(LogRow).order_by(LogRow.seq.desc()).limit(1)).first()


def is_line(session: Session, digests: Digests, line: LogRow) -> bool:
    """Return whether a line's digest holds for its content, the key and the previous line."""
    earlier = session.get(LogRow, line.seq - 1)
    return line.digest == digests.of_line(line, "" if earlier is None else earlier.digest)


def log_is_complete(session: Session) -> bool:
    """Return whether no line is missing between the first and the last.

    Does not read the lines: deleting the line that revokes a rule already leaves a gap.
    """
    n, last = session.execute(select(func.count(), func.max(LogRow.seq)).select_from(LogRow)).one()
    return bool(n == (last or 0))


def parts_of_anchor(anchor: str | None) -> tuple[int, str]:
    """Return the number and digest of the line in an anchor; 0 and "" without an anchor.

    Raises
    ------
    QuarantineError
        If the anchor is malformed.
    """
    if anchor is None:
        return 0, ""
    number, _, digest = anchor.strip().partition(":")
    if not number.isdecimal() or bool(digest) != bool(int(number)):
        msg = (
            f"the anchor is {printable(anchor, 100)!r}, expected what `ragshield quarantine verify "
            "--head` prints, a number, a colon and a digest."
        )
        raise QuarantineError(msg)
    return int(number), digest


def verify_lines(session: Session, digests: Digests, anchor: str | None = None) -> LoggedState:
    """Return the digests of held entries and rules according to the log.

    Raises
    ------
    TamperedError
        If the chain is broken; names the line.
    QuarantineError
        If the anchor is malformed.
    """
    before, expected = "", 1
    told = LoggedState({}, {}, {}, {})
    number, anchored = parts_of_anchor(anchor)
    for line in _rows(session, LogRow):
        if line["seq"] != expected:
            raise _broken(expected, f"expected line {expected}, found line {line['seq']}")
        _check_key(line, digests)
        if line["digest"] != digests.of_line(line, before):
            raise _broken(expected, "it was changed after it was written, or one was removed")
        if line["seq"] == number and line["digest"] != anchored:
            raise _broken(expected, f"expected the digest of the anchor, {anchored}")
        told.hear(line)
        before, expected = line["digest"], expected + 1
    if expected <= number:
        why = f"the anchor has seen it, and the log ends at line {expected - 1}: lines were cut off"
        raise _broken(number, why)
    return told


def _check_key(line: Row, digests: Digests) -> None:
    """Refuse a line that was written with another key, or without the key."""
    name, ours = line["key_name"], digests.key_name
    if name != ours:
        why = f"with the key {printable(name, 16)!r}" if name is not None else "without a key"
        have = f"that of {KEY_VARIABLE} is {ours!r}" if ours is not None else "and none is given"
        raise _broken(line["seq"], f"it was written {why}, {have}")


def _broken(line: int, why: str) -> TamperedError:
    return _error(f"line {line}", f"{why}; {ADVICE}", "the audit log is broken at {}: ")


def _error(where: str, why: str, how: str = "{} ") -> TamperedError:
    """Return the error for a row or line that was changed."""
    return TamperedError(how.format(where) + why, where=where)


# Single rows


def verify_some(session: Session, digests: Digests, rows: Sequence[HeldRow]) -> None:
    """Compare rows with their digests, and the digests with the rows' last lines in the log.

    Raises
    ------
    TamperedError
        If a row was changed outside the quarantine; names the entry.
    """
    told = last_lines_of(session, digests, rows)
    for row in rows:
        if row.number not in told:
            raise tampered(row)


def is_vouched(session: Session, digests: Digests, row: HeldRow | RuleRow) -> bool:
    """Return whether a row matches its digest, and its last line in the log has the same one."""
    return row.number in last_lines_of(session, digests, [row])


def last_lines_of(
    session: Session, digests: Digests, rows: Sequence[HeldRow | RuleRow]
) -> dict[int, LogRow]:
    """Return each row's last line in the log, by the row's number.

    Omits rows that differ from their lines, and rows whose lines are forged.
    """
    found: dict[int, LogRow] = {}
    kind = type(rows[0]) if rows else HeldRow
    number, told = LogRow.held_number, LogRow.held_digest
    if kind is RuleRow:
        number, told = LogRow.rule_number, LogRow.rule_digest
    earlier = aliased(LogRow)
    query = select(LogRow, earlier.digest).outerjoin(earlier, earlier.seq == LogRow.seq - 1)
    for some in chunks([row for row in rows if digests.match(kind, row)]):
        wanted = {row.number: row.digest for row in some}
        last = select(func.max(LogRow.seq)).where(number.in_(wanted)).group_by(number)
        lines = query.where(
            LogRow.seq.in_(session.scalars(last).all()),
            checked(LogRow.namespace).in_({row.namespace for row in some}),
        )
        for line, before in session.execute(lines):
            row, digest = getattr(line, number.key), getattr(line, told.key)
            if digest == wanted[row] and line.digest == digests.of_line(line, before or ""):
                found[row] = line
    return found


def tampered(row: HeldRow) -> TamperedError:
    """Return the error for a row that was changed after it was written."""
    why = "it is not as it was written, and nothing was done; purge it to go on without it"
    return _differs(HeldRow, vars(row), why, row.namespace)


def changed(
    kind: type[TableBase], row: TableBase | Mapping[Any, Any], digests: Digests
) -> TamperedError:
    """Return the error for a row with a wrong digest."""
    values = row if isinstance(row, Mapping) else vars(row)
    where = _where(kind, [values[column.name] for column in table_of(kind).primary_key])
    made, found = digests.of(kind, row), printable(str(values["digest"]), 64)
    way_out = REGROUP if kind in (CaseRow, MemberRow) else RESTORE
    return _error(where, f"was changed: it has the digest {found}, expected {made}; {way_out}")


def _differs(kind: type[TableBase], row: Row, why: str, namespace: str) -> TamperedError:
    """Return the error for a row that contradicts the log; names entries of the namespace only."""
    entry = (
        "a rule" if kind is RuleRow else f"entry {printable(row.get('entry_id', ''), SHOWN_ID)!r}"
    )
    if row["namespace"] != namespace:
        entry = "of another namespace"
    return _error(_where(kind, [row["number"]]), f"({entry}) is broken: {why}; {ADVICE}")


def _where(kind: type[TableBase], key: Sequence[object]) -> str:
    shown = ", ".join(printable(str(part), SHOWN) for part in key)
    return f"row {shown} of {kind.__tablename__}"


# All rows


def verify_all(
    session: Session, digests: Digests, namespace: str, anchor: str | None = None
) -> None:
    """Check that all rows of all tables are as they were written.

    Raises
    ------
    TamperedError
        Names the first line or row that is not; names the entry only if it is in the namespace.
    QuarantineError
        If the key differs, or the anchor is malformed.
    """
    told = verify_lines(session, digests, anchor)
    _verify_told(session, digests, told, namespace)
    heads = session.scalars(select(HeadRow.namespace)).all()
    for name in sorted({*heads, *told.positions}, key=str):  # SQLite stores any type
        positions = (told.positions.get(name, 0), told.snapshots.get(name, ()))
        _check_journal(session, digests, name, *positions)
    _verify_snapshots(session)
    for kind in _sealed():
        for row in _rows(session, kind):
            if not digests.match(kind, row):
                raise changed(kind, row, digests)
    _verify_cases(session)


def _verify_told(session: Session, digests: Digests, told: LoggedState, namespace: str) -> None:
    """Compare the held entries and rules of all namespaces with their digests in the log."""
    for kind, known in zip(TOLD, (told.held, told.rules), strict=True):
        expected = dict(known)
        for row in _rows(session, kind):
            wanted, found = expected.pop(row["number"], None), digests.of(kind, row)
            if wanted is None:
                why = "the log knows of no such row: it was slipped in"
                raise _differs(kind, row, why, namespace)
            if not wanted == found == row["digest"]:
                why = f"the log says that its digest is {wanted}, found {found}: it was changed"
                raise _differs(kind, row, why, namespace)
        if expected:
            where = _where(kind, [min(expected)])
            raise _error(where, f"is missing; the log knows it: {ADVICE}")


def reseal(session: Session, digests: Digests) -> list[tuple[type[HeldRow | RuleRow], Row]]:
    """Give all rows digests by another key; return those that need new lines in the log."""
    told: list[tuple[type[HeldRow | RuleRow], Row]] = []
    for kind in (*TOLD, *_sealed()):
        table = table_of(kind)
        change = update(table).values(digest=bindparam("made"))
        if kind is HeadRow:
            change = change.values(key_name=digests.key_name)
        for column in table.primary_key:
            change = change.where(column == bindparam(f"the_{column.name}"))
        for row in _rows(session, kind):
            made = digests.of(kind, {**row, "key_name": digests.key_name})
            keys = {f"the_{column.name}": row[column.name] for column in table.primary_key}
            session.execute(change, keys | {"made": made})
            if kind in TOLD:
                names = ("number", "namespace", "entry_id", "fingerprint")
                told.append((kind, {name: row.get(name) for name in names} | {"digest": made}))
    return told


def _sealed() -> list[type[TableBase]]:
    """Return the tables with digests that are not in the log."""
    kinds = [cast("type[TableBase]", one.class_) for one in TableBase.registry.mappers]
    told = (LogRow, *TOLD)
    sealed = [one for one in kinds if one not in told and "digest" in table_of(one).columns]
    return sorted(sealed, key=lambda one: one.__tablename__)


def _rows(session: Session, kind: type[TableBase]) -> Iterator[Row]:
    """Yield the rows of a table in key order, page by page."""
    key = tuple(inspect(kind).primary_key)
    page = PAGE if kind in (LogRow, *TOLD) else PAGE_OF_LARGE
    query = select(table_of(kind)).order_by(*key).limit(page)
    rest = query
    while rows := session.execute(rest).mappings().all():
        yield from rows
        rest = query.where(tuple_(*key) > tuple(rows[-1][column.name] for column in key))


def check_journal(session: Session, digests: Digests, namespace: str) -> None:
    """Check that a namespace's journal is whole, and not behind its position in the log.

    A quick part of :func:`verify_all`: the events themselves are checked when they are read.

    Raises
    ------
    TamperedError
        Names the missing part.
    QuarantineError
        If the journal was written with another key.
    """
    last = last_line(session)
    if last is not None:
        check_key("the audit log", last.key_name, digests)
    if digests.key_name is None:  # without a key, a forger could have computed all digests
        _head_of_journal(session, digests, namespace)
        return
    of_namespace = select(LogRow).where(LogRow.journal_position.is_not(None))
    of_namespace = of_namespace.order_by(LogRow.seq.desc()).limit(1)
    of_snapshot = of_namespace.where(LogRow.namespace == namespace, LogRow.entry_id == "")
    positions = []
    for query in (
        of_namespace.where(checked(LogRow.namespace) == namespace),
        of_snapshot.where(checked(LogRow.action) == SNAPSHOT),
    ):
        line = session.scalars(query).first()
        if line is not None and not is_line(session, digests, line):
            raise _broken(line.seq, "it was changed")
        positions.append(0 if line is None else line.journal_position or 0)
    snapshots = positions[1:] if positions[1] else ()
    _check_journal(session, digests, namespace, max(positions), snapshots)


def _check_journal(
    session: Session,
    digests: Digests,
    namespace: str,
    told: int,
    told_of_snapshots: Sequence[int],
) -> None:
    """Compare the journal of a namespace with its head, and with the positions in the log."""
    head = _head_of_journal(session, digests, namespace)
    names = ("position", "pruned", "pending")
    position, pruned, pending = (0 if head is None else head[name] for name in names)
    events = select(func.count(), func.min(JournalRow.position), func.max(JournalRow.position))
    found = session.execute(events.where(JournalRow.namespace == namespace)).one()
    n_pending = session.scalar(
        select(func.count()).select_from(PendingRow).where(PendingRow.namespace == namespace)
    )
    kept = select(SnapshotRow.position).where(SnapshotRow.namespace == namespace)
    snapshots = set(session.scalars(kept))
    n_events = position - pruned
    whole = (n_events, pruned + 1, position) if n_events else (0, None, None)
    for kind, is_so, is_there, expected in (
        (HeadRow, position >= told, f"is at position {position}", f"{told} or more"),
        (
            JournalRow,
            tuple(found) == whole,
            f"has {found[0]} events from {found[1]} to {found[2]}",
            "{} from {} to {}".format(*whole),
        ),
        (PendingRow, n_pending == pending, f"has {n_pending} events", str(pending)),
        (
            SnapshotRow,
            snapshots.issuperset(told_of_snapshots),
            f"has snapshots at positions {sorted(snapshots, key=str)}",
            f"those at {list(told_of_snapshots)}",
        ),
    ):
        if not is_so:
            why = f"it {is_there}, expected {expected}: rows were deleted, added or set back"
            where = _where(kind, [namespace])
            raise _error(where, f"is not as it was written: {why}; {RESTORE}")


def _head_of_journal(
    session: Session, digests: Digests, namespace: str
) -> Mapping[Any, Any] | None:
    """Return the head of a journal, after checking its key and digest."""
    query = select(table_of(HeadRow)).where(HeadRow.namespace == namespace)
    head = session.execute(query).mappings().one_or_none()
    if head is not None:
        name = printable(namespace, SHOWN)
        check_key(f"the journal of namespace {name!r}", head["key_name"], digests)
        if not digests.match(HeadRow, head):
            raise changed(HeadRow, head, digests)
    return head


def _verify_snapshots(session: Session) -> None:
    """Check that every snapshot has all its pieces; those of one being written have no list yet."""
    count = select(ChunkRow.snapshot, func.count()).group_by(ChunkRow.snapshot)
    found = dict(session.execute(count).tuples().all())
    manifests = dict(session.execute(select(SnapshotRow.id, SnapshotRow.manifest)).tuples().all())
    for snapshot in sorted(manifests, key=str):
        expected = n_found = found.get(snapshot, 0)
        # An unreadable manifest has another digest; the next check finds it.
        with suppress(ValueError, TypeError, KeyError):
            expected = sum(part[2] for part in json.loads(manifests[snapshot])["parts"])
        if n_found != expected:
            where = _where(ChunkRow, [snapshot])
            raise _error(where, f"has {n_found} pieces, expected {expected}; {RESTORE}")


def _verify_cases(session: Session) -> None:
    """Check that every held entry is in a case, and that cases have all of their entries."""
    alone = (
        select(HeldRow.number)
        .outerjoin(MemberRow, MemberRow.number == HeldRow.number)
        .where(HeldRow.status == Status.HELD, MemberRow.number.is_(None))
    )
    if (number := session.scalar(alone.limit(1))) is not None:
        where = _where(MemberRow, [number])
        raise _error(where, f"is missing, expected one for the held entry; {REGROUP}")
    members = select(MemberRow.case_number, func.count()).group_by(MemberRow.case_number)
    found = dict(session.execute(members).tuples().all())
    wanted = dict(session.execute(select(CaseRow.number, CaseRow.n_members)).tuples().all())
    if found != wanted:
        number = min(n for n in {*found, *wanted} if found.get(n) != wanted.get(n))
        why = f"it counts {wanted.get(number, 0)} entries, expected {found.get(number, 0)}"
        where = _where(CaseRow, [number])
        raise _error(where, f"is not as it was written: {why}; {REGROUP}")
