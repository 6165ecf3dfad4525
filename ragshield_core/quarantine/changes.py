"""Changes of held entries, and the lines of the log that tell of them: written together."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from ragshield_core.database import table_of
from ragshield_core.quarantine.entries import Status
from ragshield_core.quarantine.tables import LOGGED, HeldRow, LogRow


class _Event(NamedTuple):
    """What happened to one revision, on its way into the log."""

    action: str
    entry_id: str
    fingerprint: str


class Changes:
    """What one transaction changes.

    Parameters
    ----------
    session
        Of the transaction.
    namespace
        Of the entries.
    """

    def __init__(self, session: Session, namespace: str) -> None:
        self._session, self._namespace = session, namespace
        self._new: list[dict[str, Any]] = []
        self._updates: list[tuple[HeldRow, Mapping[str, Any]]] = []
        self._events: list[_Event] = []

    def add(self, row: dict[str, Any], action: str) -> None:
        """Keep a revision that is not here."""
        self._new.append(row)
        self._events.append(_Event(action, row["entry_id"], row["fingerprint"]))

    def set(self, row: HeldRow, values: Mapping[str, Any], action: str | None) -> None:
        """Change a revision; ``None`` for what the log says nothing of."""
        self._updates.append((row, values))
        if action is not None:
            self._events.append(_Event(action, row.entry_id, row.fingerprint))

    def delete(self, row: HeldRow, action: str) -> None:
        """Delete a revision."""
        self._session.delete(row)
        self._events.append(_Event(action, row.entry_id, row.fingerprint))

    def write(self, by: str, note: str | None = None) -> None:
        """Write all of them, and who made them."""
        # One revision under an id is held: an older one makes room before the later one comes.
        self._updates.sort(key=lambda update: update[1].get("status") == Status.HELD)
        for row, values in self._updates:
            if values.get("status") == Status.HELD:
                self._session.flush()
            for column, value in values.items():
                setattr(row, column, value)
        self._session.flush()
        if self._new:
            self._session.execute(insert(table_of(HeldRow)), self._new)
        if self._events:
            self._log(by, note)

    def _log(self, by: str, note: str | None) -> None:
        last = self._session.scalars(select(LogRow).order_by(LogRow.seq.desc()).limit(1)).first()
        seq, before = (0, "") if last is None else (last.seq, last.digest)
        lines = []
        for number, happened in enumerate(self._events, start=seq + 1):
            line = {
                "seq": number,
                "at": now(),
                "action": happened.action,
                "namespace": self._namespace,
                "entry_id": happened.entry_id,
                "fingerprint": happened.fingerprint,
                "actor": by,
                "note": note,
            }
            line["digest"] = before = digest(line, before)
            lines.append(line)
        self._session.execute(insert(table_of(LogRow)), lines)


def digest(line: Mapping[str, Any], before: str) -> str:
    """Return the digest of a line, chained to that of the one before."""
    fields = [before, *(line[column] for column in LOGGED)]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def now() -> str:
    """Return the time as it is kept."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
