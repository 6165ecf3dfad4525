"""Status of a guard among its processes, and of a guard in a database, read from outside.

Reading from outside writes nothing and needs no detector: the latest snapshot has the state of the
guard, and the journal after it has the entries that were learned and held since.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, inspect, make_url, select
from sqlalchemy.orm import Session

from ragshield_core.calibration.arrivals import Arrivals, Question
from ragshield_core.calibration.clean_sample import first_size
from ragshield_core.calibration.recalibration import REFRESH_AFTER
from ragshield_core.database.tables import HeadRow, HeldRow
from ragshield_core.learning.events import Change, Event
from ragshield_core.learning.status import GuardStatus, Standing, since_calibration
from ragshield_core.model.errors import StateError
from ragshield_core.model.findings import printable
from ragshield_core.model.policy import Policy
from ragshield_core.quarantine import Status as Verdict
from ragshield_core.quarantine.alerts import n_open_alerts
from ragshield_core.quarantine.digests import Digests, given_key
from ragshield_core.quarantine.evidence import check_journal
from ragshield_core.screening.knowledge import SAVED, known_ids
from ragshield_core.sharing.journal import Journal
from ragshield_core.sharing.lease import DEFAULT_LEASE
from ragshield_core.sharing.snapshots import Snapshot, Snapshots
from ragshield_core.state import part_of

ARRIVALS = "arrivals."  # prefix of the arrays of a snapshot that record arrivals and shifts


def standing(
    session: Session, journal: Journal, snapshots: Snapshots, position: int, url: str
) -> Standing:
    """Return the standing of a process that has read the journal up to a position."""
    latest = snapshots.latest(session)
    calibrated = journal.replaced_at(session)
    return Standing(
        position=position,
        behind=journal.head(session) - position,
        writers=journal.intending(session),
        calibrated_on=None if calibrated is None else _time(calibrated),
        snapshot=None if latest is None else (latest.position, _time(latest.made_at)),
        database=make_url(url).render_as_string(hide_password=True),
        namespace=journal.namespace,
        sealed=journal.digests.key_name is not None,
    )


def namespaces(session: Session) -> list[str]:
    """Return the namespaces of a database that have a guard."""
    if not inspect(session.connection()).has_table(HeadRow.__tablename__):
        return []
    return list(session.scalars(select(HeadRow.namespace).order_by(HeadRow.namespace)))


def status_of(
    session: Session,
    url: str,
    namespace: str,
    *,
    lease: float = DEFAULT_LEASE,
    digests: Digests | None = None,
) -> GuardStatus:
    """Return the status of the guard of a namespace, read from outside.

    Without ``digests``, the key of the environment is used, if there is one. Raises StateError
    if there is no guard or no readable snapshot, and QuarantineError if its rows have another
    key, or were set back.
    """
    return status_and_known(session, url, namespace, lease=lease, digests=digests)[0]


def status_and_known(
    session: Session,
    url: str,
    namespace: str,
    *,
    lease: float = DEFAULT_LEASE,
    digests: Digests | None = None,
) -> tuple[GuardStatus, set[str]]:
    """Return the status as :func:`status_of` does, and the ids of the known entries."""
    digests = digests if digests is not None else Digests(given_key(None))
    journal = Journal(namespace, lease=lease, digests=digests)
    snapshots = Snapshots(namespace, digests=digests)
    state, position, snapshot = _state_of(session, url, journal, snapshots)
    held = select(func.count()).where(
        HeldRow.namespace == namespace, HeldRow.status == Verdict.HELD
    )
    status = state.status(
        standing(session, journal, snapshots, position, url),
        snapshot,
        int(session.scalar(held) or 0),
        n_open_alerts(session, namespace),
    )
    return status, state.known


def questions_of(
    session: Session, url: str, namespace: str, *, digests: Digests | None = None
) -> tuple[Question, ...]:
    """Return the sources that a person has to decide on; quicker than :func:`status_of`."""
    digests = digests if digests is not None else Digests(given_key(None))
    journal = Journal(namespace, digests=digests)
    snapshots = Snapshots(namespace, digests=digests)
    state, _, _ = _state_of(session, url, journal, snapshots, known=False)
    return state.arrivals.questions(state.policy.quarantine_at)


def _state_of(
    session: Session, url: str, journal: Journal, snapshots: Snapshots, *, known: bool = True
) -> tuple[_State, int, int]:
    """Return the state of a guard, its position and the position of its snapshot."""
    namespace = journal.namespace
    found: tuple[Snapshot, ...] = ()
    if namespace in namespaces(session):
        check_journal(session, journal.digests, namespace)
        found = snapshots.list(session)
    if not found:
        msg = (
            f"there is no guard in namespace {printable(namespace, 60)!r} of "
            f"{make_url(url).render_as_string(hide_password=True)!r}, expected one that "
            "Guard.open(url, namespace) has made."
        )
        raise StateError(msg)
    only = (ARRIVALS, SAVED) if known else (ARRIVALS,)
    for snapshot in found:
        try:
            state = _State(*snapshots.read(session, snapshot, only=only), known=known)
            return state, state.read_on(session, journal, snapshot.position), snapshot.position
        except StateError:  # damaged
            if snapshot is found[-1]:
                raise
    raise AssertionError  # pragma: no cover - found is not empty


class _State:
    """State of a guard from its snapshot and later events, without its detectors."""

    def __init__(
        self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, known: bool = True
    ) -> None:
        self.values = values
        self.known = set(known_ids(arrays)) if known else set[str]()
        self.calibrated = bool(values["calibrated"])
        self.calibrated_at = int(values["calibrated_at"])
        self.arrivals = Arrivals.restored(values["arrivals"], part_of(arrays, ARRIVALS))

    def read_on(self, session: Session, journal: Journal, position: int) -> int:
        """Apply all events after a position; return the position of the last."""
        head = journal.head(session)
        while position < head:
            for record in journal.since(session, position):
                self.apply(record.event)
                position = record.position
        return position

    def apply(self, event: Event) -> None:
        """Apply an event that came after the snapshot."""
        ids = () if event.entries is None else event.entries.ids
        match event.change:
            case Change.LEARNED:
                self.known.update(ids)
            case Change.FORGOTTEN | Change.RECALLED:
                self.known.difference_update(ids)
            case Change.RECALIBRATED:
                self.calibrated_at = len(self.known)
                if event.measured is not None and not event.measured.why_not:
                    self.calibrated_at = event.measured.n_known
                    self.arrivals.calibrated()
        if event.change is Change.RECALLED and event.entries is not None:
            self.arrivals.recalled(event.entries, event.accused)
        if event.counted is not None and self.calibrated:
            self.arrivals.count(event.counted, {}, {})
            for name, scores in event.counted.scores.items():
                self.arrivals.spent[name, "judged"] += int(np.count_nonzero(~np.isnan(scores)))

    @property
    def policy(self) -> Policy:
        """Policy of the guard."""
        return Policy.model_validate(self.values["policy"])

    @property
    def next_at(self) -> int | None:
        """Size of the knowledge base at the next calibration; ``None`` if none will follow."""
        if not self.calibrated and self.values["collecting"]:
            return first_size(self.policy.quarantine_at)
        if not self.calibrated or "sample" not in self.values:
            return None
        size = self.calibrated_at
        return size + math.ceil(size * REFRESH_AFTER - 1e-9)

    def status(self, standing: Standing, as_of: int, held: int, alerts: int) -> GuardStatus:
        """Return the whole status."""
        sample = self.values.get("sample", {})
        force = self.values["standing"]
        why_not = dict(force) | dict(self.values["left_out"])
        return GuardStatus(
            n_known=len(self.known),
            calibrated=self.calibrated,
            calibrated_at=self.calibrated_at if self.calibrated else None,
            calibrated_on=standing.calibrated_on if self.calibrated else None,
            next_at=self.next_at,
            n_sample=sum(len(sample[part]["ids"]) for part in ("inside", "outside") if sample),
            vetted=bool(sample.get("vetted")),
            wanted_rate=self.values["wanted_rate"],
            **since_calibration(self.arrivals, self.policy.quarantine_at, force, why_not),
            held=held,
            contradictions=alerts,
            position=standing.position,
            pending=sum(one.n_events for one in standing.writers),
            writers=standing.writers,
            database=standing.database,
            namespace=standing.namespace,
            sealed=standing.sealed,
            snapshot=standing.snapshot,
            as_of=as_of,
            neighbors=str(self.values["neighbors"]),
            doubted=dict(self.values["doubted"]),
            power=dict(self.values["power"]),
        )


def _time(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
