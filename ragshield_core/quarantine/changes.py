"""Changes of held entries and rules, written together with their lines in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from ragshield_core.database import table_of
from ragshield_core.database.tables import HeadRow, HeldRow, IndexedRow, LogRow, RuleRow
from ragshield_core.quarantine.digests import Digests, check_key
from ragshield_core.quarantine.evidence import (
    PAGE,
    head_of,
    last_line,
    reseal,
    tampered,
    verify_all,
)
from ragshield_core.quarantine.grouping import Grouping
from ragshield_core.quarantine.rows import now
from ragshield_core.quarantine.status import Status

SEALED = "every row has a digest by this key from here on"
REKEYED = "all digests, those of earlier lines as well, are by another key; the head was"


class _Event(NamedTuple):
    """A change of one revision or rule that is still to be logged."""

    action: str
    row: HeldRow | RuleRow | Mapping[str, Any]
    gone: bool = False
    kind: type[HeldRow | RuleRow] = HeldRow
    position: int | None = None  # in the journal; None for its current position


class Changes:
    """Changes of one transaction.

    Parameters
    ----------
    session
        The session of the transaction.
    digests
        Computes the digests of rows and lines.
    namespace
        The tenant's namespace.
    """

    def __init__(self, session: Session, digests: Digests, namespace: str) -> None:
        self._session, self._digests, self._namespace = session, digests, namespace
        self._new: list[dict[str, Any]] = []
        self._updates: list[tuple[HeldRow, Mapping[str, Any]]] = []
        self._events: list[_Event] = []
        self._gone: dict[int, str] = {}

    def add(self, row: Mapping[str, Any], action: str) -> None:
        """Add a new revision."""
        if not self._new:
            self._number = next_number(self._session, HeldRow)
        numbered = dict(row) | {"number": self._number + len(self._new)}
        self._new.append(numbered | {"digest": self._digests.of(HeldRow, numbered)})
        self._events.append(_Event(action, self._new[-1]))

    def set(self, row: HeldRow, values: Mapping[str, Any], action: str) -> None:
        """Change a revision, unless it already has these values.

        Raises
        ------
        QuarantineError
            If it was changed outside the quarantine: a new digest would hide that.
        """
        if not self._digests.match(HeldRow, row):
            raise tampered(row)
        if any(getattr(row, name) != value for name, value in values.items()):
            self._updates.append((row, values))
            self._events.append(_Event(action, row))

    def remark(self, row: HeldRow, action: str) -> None:
        """Write a line about an unchanged revision.

        Raises
        ------
        QuarantineError
            As of :meth:`set`.
        """
        if not self._digests.match(HeldRow, row):
            raise tampered(row)
        self._events.append(_Event(action, row))

    def delete(self, row: HeldRow, action: str) -> None:
        """Delete a revision."""
        self._gone[row.number] = row.status
        self._session.delete(row)
        self._events.append(_Event(action, row, gone=True))

    def add_rule(self, row: Mapping[str, Any]) -> RuleRow:
        """Add a person's rule."""
        made = RuleRow(number=next_number(self._session, RuleRow), **row)
        made.digest = self._digests.of(RuleRow, made)
        self._session.add(made)
        self._events.append(_Event("rule", made, kind=RuleRow))
        return made

    def revoke_rule(self, row: RuleRow, by: str) -> None:
        """Mark a rule as revoked."""
        row.revoked_at, row.revoked_by = now(), by
        row.digest = self._digests.of(RuleRow, row)
        self._events.append(_Event("revoke", row, kind=RuleRow))

    def tell(self, action: str, position: int | None = None) -> None:
        """Note a person's decision on the guard, or a snapshot: no change of an entry or rule."""
        nothing = _nothing(self._namespace)
        self._events.append(_Event(action, nothing, gone=True, position=position))

    def write(self, by: str, note: str | None = None) -> None:
        """Write all changes, and their actor."""
        # Only one revision per id may be held: the older one must leave before the new one comes.
        self._updates.sort(key=lambda update: update[1].get("status") == Status.HELD)
        moved = [(row, row.status) for row, _ in self._updates]
        room = False
        for row, values in self._updates:
            if values.get("status") == Status.HELD and not room:
                self._session.flush()
                room = True
            for column, value in values.items():
                setattr(row, column, value)
            row.digest = self._digests.of(HeldRow, row)
        self._session.flush()
        if self._new:
            self._session.execute(insert(table_of(HeldRow)), self._new)
        if self._events:
            last = last_line(self._session)
            if last is not None:
                check_key("the audit log", last.key_name, self._digests)
            _append(self._session, self._digests, self._events, by, note)
            cases = Grouping(self._session, self._digests, self._namespace)
            cases.follow(self._new, moved, self._gone)


def rekey(session: Session, old: Digests, new: Digests, by: str, namespace: str) -> None:
    """Compute all digests anew with another key, or a first one, after a full verification.

    Raises
    ------
    QuarantineError
        If a row or line was changed.
    """
    verify_all(session, old, namespace)
    note = f"{REKEYED} {head_of(session)}"
    table, before = table_of(LogRow), ""
    change = update(table).where(table.c.seq == bindparam("line"))
    query = select(table).order_by(table.c.seq).limit(PAGE)
    last = 0
    while lines := session.execute(query.where(table.c.seq > last)).mappings().all():
        changed = []
        for line in lines:
            anew = dict(line) | {"key_name": new.key_name}
            before = new.of_line(anew, before)
            made = {"key_name": new.key_name, "digest": before}
            changed.append({"line": line["seq"]} | made)
        session.execute(change, changed)
        last = lines[-1]["seq"]
    _append(session, new, [_Event("rekey", _nothing(namespace), gone=True)], by, note)
    sealed = [_Event("seal", row, kind=kind) for kind, row in reseal(session, new)]
    _append(session, new, sealed, by, SEALED)


def next_number(session: Session, kind: type[HeldRow | IndexedRow | RuleRow]) -> int:
    """Return the next row's number, which its digest covers; there is only one writer."""
    return int(session.scalar(select(func.max(kind.number))) or 0) + 1


def _nothing(namespace: str) -> dict[str, Any]:
    """Return the columns of a line without a row."""
    return {"number": None, "namespace": namespace, "entry_id": "", "fingerprint": ""}


def _append(
    session: Session, digests: Digests, events: Sequence[_Event], by: str, note: str | None
) -> None:
    """Add lines to the log."""
    last = last_line(session)
    seq, before = (0, "") if last is None else (last.seq, last.digest)
    lines = []
    positions: dict[str, int | None] = {}
    for number, (action, about, gone, kind, position) in enumerate(events, start=seq + 1):
        row = about if isinstance(about, Mapping) else vars(about)
        if (namespace := row["namespace"]) not in positions:
            query = select(HeadRow.position).where(HeadRow.namespace == namespace)
            positions[namespace] = session.scalar(query)
        told, digest = row["number"], None if gone else row["digest"]
        of_rule = kind is RuleRow
        line: dict[str, Any] = {
            "seq": number,
            "at": now(),
            "action": action,
            "namespace": namespace,
            "entry_id": "" if of_rule else row["entry_id"],
            "fingerprint": "" if of_rule else row["fingerprint"],
            "actor": by,
            "note": note,
            "held_number": None if of_rule else told,
            "held_digest": None if of_rule else digest,
            "key_name": digests.key_name,
            "rule_number": told if of_rule else None,
            "rule_digest": digest if of_rule else None,
            "journal_position": positions[namespace] if position is None else position,
        }
        line["digest"] = before = digests.of_line(line, before)
        lines.append(line)
    if lines:
        session.execute(insert(table_of(LogRow)), lines)
