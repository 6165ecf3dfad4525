"""Digests of what the log does not tell of: what guards have learned, cases and canaries.

The log says how far the journal of each namespace had come, so that nobody sets that back unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from sqlalchemy import Table, bindparam, func, inspect, select, tuple_, update
from sqlalchemy.orm import Session

from ragshield_core.database import TableBase, table_of
from ragshield_core.database.tables import (
    CaseRow,
    ChunkRow,
    HeadRow,
    HeldRow,
    IndexedRow,
    JournalRow,
    LogRow,
    MemberRow,
    PendingRow,
    RuleRow,
    SnapshotRow,
)
from ragshield_core.model.errors import TamperedError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import PLAIN, Digests, check_key
from ragshield_core.quarantine.entries import Status
from ragshield_core.quarantine.evidence import (
    ADVICE,
    SNAPSHOT,
    is_line,
    last_line,
    verify_lines,
    verify_rows,
)
from ragshield_core.quarantine.searching import checked

# Rows that are read at a time: one may be of megabytes.
PAGE = 16
SHOWN = 60  # characters of a namespace
RESTORE = "restore the database from a backup, or fit the guard again in another namespace."
REGROUP = "run `ragshield quarantine regroup`."


def tables() -> list[type[TableBase]]:
    """Return the tables whose rows have digests that no line of the log tells of."""
    told = (HeldRow, LogRow, RuleRow, IndexedRow)
    kinds = [cast("type[TableBase]", one.class_) for one in TableBase.registry.mappers]
    sealed = [one for one in kinds if one not in told and "digest" in table_of(one).columns]
    return sorted(sealed, key=lambda one: one.__tablename__)


def verify_all(
    session: Session, digests: Digests, namespace: str, anchor: str | None = None
) -> None:
    """Check that all rows of all tables are as they were written.

    Raises
    ------
    TamperedError
        Names the first line or row that is not; the entry only if it is of the namespace.
    QuarantineError
        If there is another key, or the anchor is none.
    """
    told = verify_lines(session, digests, anchor)
    verify_rows(session, digests, told, namespace)
    heads = session.scalars(select(HeadRow.namespace)).all()
    for name in sorted({*heads, *told.positions}, key=str):  # SQLite keeps any type
        positions = (told.positions.get(name, 0), told.snapshots.get(name, 0))
        _check_journal(session, digests, name, *positions)
    complete = _verify_snapshots(session)
    for kind in tables():
        for row in _rows(session, kind):
            unfinished = kind is SnapshotRow and row["manifest"] is None
            if unfinished or (kind is ChunkRow and row["snapshot"] not in complete):
                continue  # nobody reads it
            if not digests.match(kind, row):
                raise changed(kind, row, digests)
    _verify_cases(session)


def check_journal(session: Session, digests: Digests, namespace: str) -> None:
    """Check that the journal of a namespace is whole, and as far as the log has seen it.

    A part of :func:`verify_all` that is quick: the events themselves are checked when they are
    read.

    Raises
    ------
    TamperedError
        Says what is missing.
    QuarantineError
        If the journal is kept with another key.
    """
    last = last_line(session)
    if last is not None:
        check_key("the audit log", last.key_name, digests)
    if digests.key_name is None:  # who has changed rows could have made their digests
        head_of_journal(session, digests, namespace)
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
        if line is not None and not is_line(
            session, PLAIN if line.key_name is None else digests, line
        ):
            where = f"line {line.seq}"
            msg = f"the audit log is broken at {where}: it was changed; {ADVICE}"
            raise TamperedError(msg, where=where)
        positions.append(0 if line is None else line.journal_position or 0)
    _check_journal(session, digests, namespace, max(positions), positions[1])


def reseal(session: Session, digests: Digests) -> None:
    """Give all rows digests by another key."""
    for kind in tables():
        table = table_of(kind)
        change = update(table).values(digest=bindparam("made"))
        if kind is HeadRow:
            change = change.values(key_name=digests.key_name)
        for column in table.primary_key:
            change = change.where(column == bindparam(f"the_{column.name}"))
        for row in _rows(session, kind):
            if row["digest"] is None:
                continue  # a snapshot that is not complete
            made = digests.of(kind, row | {"key_name": digests.key_name})
            keys = {f"the_{column.name}": row[column.name] for column in table.primary_key}
            session.execute(change, keys | {"made": made})


def changed(kind: type[TableBase], row: Mapping[Any, Any], digests: Digests) -> TamperedError:
    """Return the error for a row that has not the digest that it must have."""
    where = _where(kind, [row[column.name] for column in table_of(kind).primary_key])
    made, found = digests.of(kind, row), printable(str(row["digest"]), 64)
    way_out = REGROUP if kind in (CaseRow, MemberRow) else RESTORE
    msg = f"{where} was changed: it has the digest {found}, expected {made}; {way_out}"
    return TamperedError(msg, where=where)


def _check_journal(
    session: Session, digests: Digests, namespace: str, told: int, told_of_snapshot: int
) -> None:
    """Compare the journal of a namespace with its head, and with the positions that the log has."""
    head = head_of_journal(session, digests, namespace)
    names = ("position", "pruned", "pending")
    position, pruned, pending = (0 if head is None else head[name] for name in names)
    events = select(func.count(), func.min(JournalRow.position), func.max(JournalRow.position))
    found = session.execute(events.where(JournalRow.namespace == namespace)).one()
    n_pending = session.scalar(
        select(func.count()).select_from(PendingRow).where(PendingRow.namespace == namespace)
    )
    latest = session.scalar(
        select(func.max(SnapshotRow.position)).where(
            SnapshotRow.namespace == namespace, SnapshotRow.manifest.is_not(None)
        )
    )
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
            isinstance(latest or 0, int) and (latest or 0) >= told_of_snapshot,
            f"has the latest snapshot at position {latest}",
            f"{told_of_snapshot} or more",
        ),
    ):
        if not is_so:
            where = _where(kind, [namespace])
            why = f"it {is_there}, expected {expected}: rows were deleted, added or set back"
            msg = f"{where} is not as it was written: {why}; {RESTORE}"
            raise TamperedError(msg, where=where)


def head_of_journal(session: Session, digests: Digests, namespace: str) -> Mapping[Any, Any] | None:
    """Return where a journal stands, if that is as it was written."""
    query = select(table_of(HeadRow)).where(HeadRow.namespace == namespace)
    head = session.execute(query).mappings().one_or_none()
    if head is not None:
        name = printable(namespace, SHOWN)
        check_key(f"the journal of namespace {name!r}", head["key_name"], digests)
        if not digests.match(HeadRow, head):
            raise changed(HeadRow, head, digests)
    return head


def _verify_snapshots(session: Session) -> set[str]:
    """Check that the pieces of every complete snapshot are there; return its id."""
    count = select(ChunkRow.snapshot, func.count()).group_by(ChunkRow.snapshot)
    n_chunks = dict(session.execute(count).tuples().all())
    manifests = dict(session.execute(select(SnapshotRow.id, SnapshotRow.manifest)).tuples().all())
    complete = {snapshot for snapshot, manifest in manifests.items() if manifest is not None}
    for snapshot in sorted({*complete, *n_chunks}, key=str):
        # A snapshot is written before its first piece, and deleted after the last.
        expected = n_chunks.get(snapshot, 0) if snapshot in manifests else 0
        if snapshot in complete:
            # A manifest that cannot be read has another digest; the next check finds it.
            with suppress(ValueError, TypeError, KeyError):
                expected = sum(n for _, _, n in json.loads(manifests[snapshot] or "")["parts"])
        if (n_found := n_chunks.get(snapshot, 0)) != expected:
            where = _where(ChunkRow, [snapshot])
            msg = f"{where} has {n_found} pieces, expected {expected}; {RESTORE}"
            raise TamperedError(msg, where=where)
    return complete


def _verify_cases(session: Session) -> None:
    """Check that every entry that waits is in a case, and that cases have all of their entries."""
    alone = (
        select(HeldRow.number)
        .outerjoin(MemberRow, MemberRow.number == HeldRow.number)
        .where(HeldRow.status == Status.HELD, MemberRow.number.is_(None))
    )
    if (number := session.scalar(alone.limit(1))) is not None:
        where = _where(MemberRow, [number])
        msg = f"{where} is missing, expected one for the held entry; {REGROUP}"
        raise TamperedError(msg, where=where)
    members = select(MemberRow.case_number, func.count()).group_by(MemberRow.case_number)
    found = dict(session.execute(members).tuples().all())
    wanted = dict(session.execute(select(CaseRow.number, CaseRow.n_members)).tuples().all())
    if found != wanted:
        number = min(n for n in {*found, *wanted} if found.get(n) != wanted.get(n))
        where = _where(CaseRow, [number])
        why = f"it counts {wanted.get(number, 0)} entries, expected {found.get(number, 0)}"
        msg = f"{where} is not as it was written: {why}; {REGROUP}"
        raise TamperedError(msg, where=where)


def _where(kind: type[TableBase], key: Sequence[object]) -> str:
    shown = ", ".join(printable(str(part), SHOWN) for part in key)
    return f"row {shown} of {kind.__tablename__}"


def _rows(session: Session, kind: type[TableBase]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, in the order of their keys, without keeping them."""
    table: Table = table_of(kind)
    key = tuple(inspect(kind).primary_key)
    keys = session.execute(select(*key).order_by(*key)).all()
    for start in range(0, len(keys), PAGE):
        some = [tuple(one) for one in keys[start : start + PAGE]]
        query = select(table).where(tuple_(*key).in_(some)).order_by(*key)
        for row in session.execute(query).mappings():
            yield dict(row)
