"""Alerts about contradictions, in the database of the quarantine until a person closes them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import ContradictionRow, chunks, table_of
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.digests import check_key
from ragshield_core.quarantine.evidence import changed, last_line
from ragshield_core.quarantine.rows import storable
from ragshield_core.tools.alerts import PER_DAY, Alert

# Characters of a reviewer's name and reason.
LONGEST = 2_000
_ORDER = (
    ContradictionRow.canaries.desc(),
    ContradictionRow.questions.desc(),
    ContradictionRow.p_value,
    ContradictionRow.score.desc(),
    ContradictionRow.number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAlert:
    """An alert in the database.

    Attributes
    ----------
    number
        Its number in the namespace; numbers are not used again.
    alert
        The alert, whose quotations are hostile text.
    opened_at, closed_at
        ISO 8601, UTC; ``closed_at`` is ``None`` while it is open.
    closed_by, reason
        Name of the person who closed it, and why.
    """

    number: int
    alert: Alert
    opened_at: str
    closed_at: str | None = None
    closed_by: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            "number": self.number,
            **self.alert.to_dict(),
            "opened_at": self.opened_at,
            "closed_at": self.closed_at,
            "closed_by": self.closed_by,
            "reason": self.reason,
        }


class KeptAlerts:
    """Alerts of a namespace, in the database of a quarantine, for all processes.

    Parameters
    ----------
    quarantine
        Its database keeps the alerts.
    now
        Clock, for tests.

    Notes
    -----
    Pass it as ``kept`` of a :class:`ContradictionChecker`.

    Examples
    --------
    >>> from ragshield_core import Quarantine
    >>> from ragshield_core.tools.contradictions import Alert
    >>> kept = KeptAlerts(Quarantine("sqlite://"))
    >>> alert = Alert(entry_id="new", claim="It opens at 9.", passage_id="old", score=0.9,
    ...               passage="It opens at 8.", p_value=0.01, relation="conflicts", pair="x")
    >>> _ = kept.add([alert]), kept.add([alert])
    >>> [(one.number, one.alert.entry_id) for one in kept.list()]
    [(1, 'new')]
    >>> kept.close(1, by="anna", reason="the hours have changed").closed_by
    'anna'
    >>> kept.list()
    ()
    """

    def __init__(
        self, quarantine: Quarantine, *, now: Callable[[], dt.datetime] | None = None
    ) -> None:
        self._quarantine = quarantine
        self._now = now or (lambda: dt.datetime.now(dt.UTC))

    def add(
        self, alerts: Sequence[Alert], per_day: int = PER_DAY
    ) -> tuple[Sequence[Alert], Sequence[Alert]]:
        """Keep alerts, each pair of entries once.

        Parameters
        ----------
        alerts
            Alerts.
        per_day
            Maximum number of alerts that are kept of a day in UTC, over all processes. A more
            consequential one takes the place of the day's least consequential open one.

        Returns
        -------
        sequence of Alert, sequence of Alert
            Those that are open now, and those beyond the budget, each the most consequential
            first. Alerts that a person has closed are in neither.

        Raises
        ------
        QuarantineError
            If the database cannot be written.
        """
        given = {alert.pair: alert for alert in sorted(alerts, key=lambda one: one.order)}
        at = self._now().astimezone(dt.UTC)

        def work(session: Session) -> tuple[Sequence[Alert], Sequence[Alert]]:
            self._check_key(session)
            known: dict[str, str | None] = {}  # time of closing by pair
            for pairs in chunks([*given]):
                found = self._select(ContradictionRow.pair, ContradictionRow.closed_at)
                some = session.execute(found.where(ContradictionRow.pair.in_(pairs)))
                known |= dict(some.tuples().all())
            today = ContradictionRow.opened_at >= f"{at:%Y-%m-%d}"
            rows = session.scalars(self._select(ContradictionRow).where(today)).all()
            waiting = [row for row in rows if row.closed_at is None]
            new = [alert for pair, alert in given.items() if pair not in known]
            # Of equals, the one that came first keeps its place.
            ranked: list[Alert | ContradictionRow] = sorted([*waiting, *new], key=_order_of)
            places = max(len(waiting), per_day - (len(rows) - len(waiting)))
            over = {one.pair for one in ranked[places:]}
            last = int(session.scalar(self._select(func.max(ContradictionRow.number))) or 0)
            kept = [alert for alert in new if alert.pair not in over]
            for number, alert in enumerate(kept, start=last + 1):
                self._insert(session, alert, number, at)
            session.flush()  # before the deletions: the number of a deleted row is not used again
            for row in waiting:
                if row.pair in over:
                    session.delete(row)
            told = [alert for pair, alert in given.items() if known.get(pair) is None]
            return (
                [alert for alert in told if alert.pair not in over],
                [alert for alert in told if alert.pair in over],
            )

        return self._quarantine.database.write(work)

    def list(self, limit: int = PER_DAY) -> tuple[KeptAlert, ...]:
        """Return open alerts, the most consequential first, at most ``limit``.

        Raises
        ------
        TamperedError
            If one of them was changed outside of RAGShield.
        """
        if not self._quarantine.exists():
            return ()
        query = self._select(ContradictionRow).where(ContradictionRow.closed_at.is_(None))
        with self._quarantine.database.read() as session:
            rows = session.scalars(query.order_by(*_ORDER).limit(limit)).all()
            return tuple(self._read(row) for row in rows)

    def close(self, number: int, *, by: str, reason: str) -> KeptAlert:
        """Close an open alert; the same two entries with the same texts raise none again.

        Parameters
        ----------
        number
            Of the alert, as listed.
        by, reason
            Name of the person who has read both sides, and what became of it; up to 2,000
            characters each.

        Raises
        ------
        QuarantineError
            If there is no such open alert, or ``by`` or ``reason`` is blank or too long.
        """
        for name, text in (("by", by), ("reason", reason)):
            if not text.strip() or len(text) > LONGEST:
                msg = f"{name} has {len(text)} characters, expected 1 to {LONGEST}, not blank."
                raise QuarantineError(msg)

        def work(session: Session) -> KeptAlert:
            self._check_key(session)
            row = session.scalar(
                self._select(ContradictionRow).where(ContradictionRow.number == number)
            )
            if row is None:
                msg = f"there is no alert {number} in {self._quarantine!r}; list() names those."
                raise QuarantineError(msg)
            self._read(row)
            if row.closed_at is not None:
                closer = printable(str(row.closed_by), 60)
                msg = f"alert {number} was closed by {closer!r} on {row.closed_at} already."
                raise QuarantineError(msg)
            row.closed_at = _iso(self._now())
            row.closed_by, row.reason = storable(by), storable(reason)
            row.digest = self._quarantine.log.digests.of(ContradictionRow, row)
            return self._read(row)

        return self._quarantine.database.write(work)

    def _select(self, *columns: Any) -> Select[Any]:
        mine = ContradictionRow.namespace == self._quarantine.namespace
        return select(*columns).where(mine)

    def _insert(self, session: Session, alert: Alert, number: int, at: dt.datetime) -> None:
        row: dict[str, Any] = {
            "namespace": self._quarantine.namespace,
            "number": number,
            "opened_at": _iso(at),
            **{name: getattr(alert, name) for name in ("pair", "canaries", "questions")},
            **{name: float(getattr(alert, name)) for name in ("p_value", "score")},
            "alert": json.dumps(alert.to_dict()),
            **dict.fromkeys(("closed_at", "closed_by", "reason")),
        }
        digest = self._quarantine.log.digests.of(ContradictionRow, row)
        session.add(ContradictionRow(**row, digest=digest))

    def _check_key(self, session: Session) -> None:
        """Refuse to write with another key than that of the log."""
        if (last := last_line(session)) is not None:
            check_key("the audit log", last.key_name, self._quarantine.log.digests)

    def _read(self, row: ContradictionRow) -> KeptAlert:
        """Return an unchanged row as an alert; raise TamperedError for a changed one."""
        digests = self._quarantine.log.digests
        columns = table_of(ContradictionRow).columns
        values = {column.name: getattr(row, column.name) for column in columns}
        if not digests.match(ContradictionRow, values):
            raise changed(ContradictionRow, values, digests)
        names = ("number", "opened_at", "closed_at", "closed_by", "reason")
        alert = Alert(**json.loads(row.alert))
        return KeptAlert(alert=alert, **{name: values[name] for name in names})


def _order_of(one: Alert | ContradictionRow) -> tuple[int, int, float, float]:
    return (-one.canaries, -one.questions, one.p_value, -one.score)


def _iso(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).isoformat(timespec="microseconds")
