"""Verification: replays the log against entries and rules, and finds the first that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session, aliased

from ragshield_core.database import TableBase, chunks
from ragshield_core.database.tables import HeldRow, IndexedRow, LogRow, RuleRow
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import KEY_VARIABLE, PLAIN, Digests
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.searching import checked

Row = TypeVar("Row", bound=TableBase)

# Rows that are read at a time.
PAGE = 1000
ADVICE = "compare it with a backup."
# Action of the lines that tell of a snapshot of what a guard has learned.
SNAPSHOT = "snapshot"


class Told(NamedTuple):
    """The digests that rows must have, by their numbers, as the log says.

    And how far journal and snapshots of each namespace have come.
    """

    held: dict[int, str]
    rules: dict[int, str]
    positions: dict[str, int]
    snapshots: dict[str, int]

    def hear(self, line: LogRow) -> None:
        """Take note of what a line tells of."""
        for rows, row, digest in (
            (self.held, line.held_number, line.held_digest),
            (self.rules, line.rule_number, line.rule_digest),
        ):
            if row is not None:
                rows.pop(row, None)
                if digest is not None:
                    rows[row] = digest
        if (at := line.journal_position) is not None:
            self.positions[line.namespace] = max(at, self.positions.get(line.namespace, 0))
            if line.action == SNAPSHOT:
                self.snapshots[line.namespace] = at


def head_of(session: Session) -> str:
    """Return the number and the digest of the log's last line."""
    last = last_line(session)
    return "0:" if last is None else f"{last.seq}:{last.digest}"


def last_line(session: Session) -> LogRow | None:
    """Return the log's last line."""
    return session.scalars(select(LogRow).order_by(LogRow.seq.desc()).limit(1)).first()


def verify_lines(session: Session, digests: Digests, anchor: str | None = None) -> Told:
    """Return the digests that held entries and rules must have, as the log says.

    Raises
    ------
    TamperedError
        Where the chain is broken; names the line.
    QuarantineError
        If the anchor is none.
    """
    before, expected, key = "", 1, None
    told = Told({}, {}, {}, {})
    number, anchored = parts_of_anchor(anchor)
    for line in _all(session, LogRow):
        if line.seq != expected:
            raise _broken(expected, f"expected line {expected}, found line {line.seq}")
        _check_key(line, key, digests)
        maker = digests if line.key_name is not None else PLAIN
        if line.digest != maker.of_line(line, before):
            raise _broken(expected, "it was changed after it was written, or one was removed")
        if line.seq == number and line.digest != anchored:
            raise _broken(expected, f"expected the digest of the anchor, {anchored}")
        told.hear(line)
        before, key, expected = line.digest, line.key_name, expected + 1
    if expected <= number:
        why = f"the anchor has seen it, and the log ends at line {expected - 1}: lines were cut off"
        raise _broken(number, why)
    if digests.key_name is not None and key is None and expected > 1:
        raise _broken(expected - 1, "expected the key's digest; the log was written without a key")
    return told


def verify_rows(session: Session, digests: Digests, told: Told, namespace: str) -> None:
    """Compare held entries, rules and notes of indexes with the log.

    All of them, of whichever namespace; entries of others than the one that asks are not named.

    Raises
    ------
    TamperedError
        Names the first row that is another, is missing, or was slipped in.
    """
    kind: type[HeldRow | RuleRow]
    for kind, known in ((HeldRow, told.held), (RuleRow, told.rules)):
        expected = dict(known)
        for row in _all(session, kind):
            wanted, found = expected.pop(row.number, None), digests.of_row(row)
            if wanted is None:
                why = "the log knows of no such row: it was slipped in"
                raise _changed(row, why, namespace)
            if not wanted == found == row.digest:
                why = f"the log says that its digest is {wanted}, found {found}: it was changed"
                raise _changed(row, why, namespace)
        if expected:
            number = min(expected)
            where = f"row {number} of {kind.__tablename__}"
            msg = f"{where} is missing; the log knows it: {ADVICE}"
            raise TamperedError(msg, where=where)
    for note in _all(session, IndexedRow):
        found = digests.of_row(note)
        if note.digest != found:
            wanted = printable(str(note.digest), 64)
            why = f"expected the digest {wanted}, found {found}: it was changed"
            raise _changed(note, why, namespace)


def verify_some(session: Session, digests: Digests, rows: Sequence[HeldRow]) -> None:
    """Compare rows with their digests, and those with the last lines of the log that tell of them.

    Raises
    ------
    TamperedError
        If one was changed behind the quarantine's back; names the entry.
    """
    told = last_lines_of(session, digests, rows)
    for row in rows:
        if row.number not in told:
            raise tampered(row)


def log_is_complete(session: Session) -> bool:
    """Return whether no line is missing between the first and the last.

    Without a look at what they say: who deletes the line that revokes a rule leaves a gap.
    """
    n, last = session.execute(select(func.count(), func.max(LogRow.seq)).select_from(LogRow)).one()
    return bool(n == (last or 0))


def is_vouched(session: Session, digests: Digests, row: HeldRow | RuleRow) -> bool:
    """Return whether a row has its digest, and the last line of the log that tells of it, too."""
    return row.number in last_lines_of(session, digests, [row])


def is_line(session: Session, digests: Digests, line: LogRow) -> bool:
    """Return whether a line is as it was written by who has the key, after the one before it."""
    earlier = session.get(LogRow, line.seq - 1)
    return line.digest == digests.of_line(line, "" if earlier is None else earlier.digest)


def last_lines_of(
    session: Session, digests: Digests, rows: Sequence[HeldRow | RuleRow]
) -> dict[int, LogRow]:
    """Return the last line of the log that tells of each row, by the row's number.

    Those of rows that are not as their lines say are left out, and those of forged lines.
    """
    found: dict[int, LogRow] = {}
    of_rules = any(isinstance(row, RuleRow) for row in rows)
    number, told = LogRow.held_number, LogRow.held_digest
    if of_rules:
        number, told = LogRow.rule_number, LogRow.rule_digest
    earlier = aliased(LogRow)
    query = select(LogRow, earlier.digest).outerjoin(earlier, earlier.seq == LogRow.seq - 1)
    for some in chunks([row for row in rows if digests.matches(row)]):
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
    return _changed(row, why, row.namespace)


def _check_key(line: LogRow, key: str | None, digests: Digests) -> None:
    """Refuse a line that was written with another key, or without one after ``key``."""
    if key is not None and line.key_name is None:
        raise _broken(line.seq, "it was written without the key of the lines before")
    if line.key_name is not None and line.key_name != digests.key_name:
        why = f"it was written with the key {printable(line.key_name, 16)!r}"
        have = f"that of {KEY_VARIABLE} is {digests.key_name!r}"
        raise _broken(line.seq, f"{why}, {have if digests.key_name else 'and none is given'}")


def parts_of_anchor(anchor: str | None) -> tuple[int, str]:
    """Return the number of the line that an anchor has seen, 0 for none, and its digest.

    Raises
    ------
    QuarantineError
        If it is no anchor.
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


def _all(session: Session, kind: type[Row]) -> Iterator[Row]:
    """Yield all rows in order, without keeping them."""
    (key,) = inspect(kind).primary_key
    last = None
    while True:
        query = select(kind).order_by(key).limit(PAGE)
        page = session.scalars(query if last is None else query.where(key > last)).all()
        if not page:
            return
        for row in page:
            last = getattr(row, key.name)
            yield row
            session.expunge(row)


def _broken(line: int, why: str) -> TamperedError:
    msg = f"the audit log is broken at line {line}: {why}; {ADVICE}"
    return TamperedError(msg, where=f"line {line}")


def _changed(row: HeldRow | IndexedRow | RuleRow, why: str, namespace: str) -> TamperedError:
    if row.namespace != namespace:
        entry = "of another namespace"
    elif isinstance(row, RuleRow):
        entry = "a rule"
    else:
        entry = f"entry {printable(row.entry_id, SHOWN_ID)!r}"
    where = f"row {row.number} of {row.__tablename__}"
    return TamperedError(f"{where} ({entry}) is broken: {why}; {ADVICE}", where=where)
