"""The quarantine, which holds entries durably until a reviewer decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import URL, ColumnElement, Select, Table, bindparam, func, make_url, select
from sqlalchemy.orm import Session

from ragshield_core.database import DEFAULT_URL, Database, chunks
from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.database.tables import ANY_STORE, JUDGED, HeldRow, checked, table_of
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.model.findings import Decision, printable
from ragshield_core.quarantine.alerts import n_open_alerts
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.digests import Digests, given_key
from ragshield_core.quarantine.entries import SHOWN_ID, HeldEntry, Print
from ragshield_core.quarantine.evidence import last_lines_of, tampered, verify_some
from ragshield_core.quarantine.grouping import Narrowing
from ragshield_core.quarantine.indexes import Indexes
from ragshield_core.quarantine.log import AuditLog
from ragshield_core.quarantine.rows import (
    check_one_store,
    columns_of,
    document_key,
    encoded,
    now,
    revisions,
    seen_by,
    storable,
    to_held,
)
from ragshield_core.quarantine.status import LET_IN, Status

logger = logging.getLogger("ragshield")

# Number of ids that errors name.
SHOWN_IDS = 5
# Statuses of stored revisions: the action in the log, and the earlier statuses that it overwrites.
STORED = {
    Status.READMITTED: ("stand", (Status.REPLACED,)),
    Status.REPLACED: ("replace", (Status.RELEASED, Status.READMITTED, Status.REPLACED)),
}
# Faster than the enum's own look-up.
STATUSES = {str(status): status for status in Status}

# Statements of every write are built once: building one costs several times as much as running it.


def _seen_in(table: Table, *, one_store: bool) -> list[ColumnElement[bool]]:
    """Return the conditions of :func:`.rows.seen_by` without their values."""
    conditions = [table.c.namespace == bindparam("of")]
    if one_store:
        conditions.append(table.c.store.in_(bindparam("stores", expanding=True)))
    return conditions


@cache
def _prints(by: str | None, *, metadata: bool, one_store: bool) -> Select[Any]:
    """Return the statement that reads prints, of all rows or by a column."""
    table = table_of(HeldRow)
    names = ("number", "entry_id", "fingerprint", "status", *["entry_metadata"] * metadata)
    query = select(*[table.c[name] for name in names]).where(*_seen_in(table, one_store=one_store))
    if by is not None:
        query = query.where(table.c[by].in_(bindparam("some", expanding=True)))
    return query


@cache
def _any_confirmed(one_store: bool) -> Select[Any]:  # noqa: FBT001 - of the cache
    """Return the statement that finds a confirmed row, if there is any."""
    table = table_of(HeldRow)
    confirmed = (table.c.status == Status.CONFIRMED, *_seen_in(table, one_store=one_store))
    return select(table.c.number).where(*confirmed).limit(1)


class Quarantine:
    """Keep held entries out of a knowledge base, in any database that SQLAlchemy supports.

    A method that writes, called within a write of :attr:`database` by the same thread, is part of
    that write, and as durable.

    Parameters
    ----------
    url
        SQLAlchemy database URL. The default is an SQLite file in the working directory, so that
        held entries outlive the process. The first use opens the database and creates its tables.
    namespace
        A tenant's namespace: entries, statuses and logs of other tenants in the same database are
        invisible. 1 to 200 characters, compared exactly.
    store
        Name of a store: entries of other stores in the namespace are invisible, and entries are
        held for this one. Guarded stores set it themselves. ``None`` sees all entries, and holds
        them for any store.
    audit_key
        A secret that keys the digests of all rows, so that nobody else can compute them; ``None``
        for that of the environment variable ``RAGSHIELD_AUDIT_KEY``, if set. All users of the
        database need the same key.
    anchor
        Called with :meth:`.AuditLog.head` after each write that adds to the log, to sign it or send
        it where the database's writers cannot write. A failure is logged, and the write stays. In
        a larger write, the call waits until the whole is durable.

    Attributes
    ----------
    database
        The database, for other tables that are written in the same transaction.
    log
        The audit log.
    indexes
        Notes of the indexes that submitted held entries.

    Raises
    ------
    QuarantineError
        If the URL can never work: it is malformed, its driver is not installed, or the folder of an
        SQLite file does not exist; or if the namespace is invalid. Later, every method raises it if
        the database cannot be used; ``__cause__`` is the driver's own error. Neither quotes texts
        or metadata.

    Examples
    --------
    >>> quarantine = Quarantine("sqlite://")  # in memory: for tests
    >>> batch = Batch.of(ids=["a"], texts=["buy now"], embeddings=[[0.0, 2.0]])
    >>> _ = quarantine.hold(batch, by="anna")
    >>> [(held.id, held.entry.text, held.vector.tolist()) for held in quarantine.list()]
    [('a', 'buy now', [0.0, 2.0])]
    >>> [held.id for held in quarantine.release(["a"], by="anna")]
    ['a']
    """

    def __init__(
        self,
        url: str | URL = DEFAULT_URL,
        *,
        namespace: str = "default",
        store: str | None = None,
        audit_key: str | bytes | None = None,
        anchor: Callable[[str], object] | None = None,
    ) -> None:
        if isinstance(url, URL):
            url = url.render_as_string(hide_password=False)
        digests = Digests(given_key(audit_key))
        self.database = Database(url)
        self.namespace = checked_namespace(namespace)
        self.store = None if store is None else _checked_name(store)
        self.log = AuditLog(self.database, self.namespace, digests, anchor)
        self.indexes = Indexes(self.log)

    def __repr__(self) -> str:
        # Keep a password in the URL out of logs.
        url = make_url(self.database.url).render_as_string(hide_password=True)
        store = f", store={self.store!r}" if self.store else ""
        return f"Quarantine({url!r}, namespace={self.namespace!r}{store})"

    def for_store(self, name: str) -> Quarantine:
        """Return the same quarantine as one store sees it, on the same connections.

        Parameters
        ----------
        name
            The store's name, the same in every process that uses it. All stores without a name
            share ``""``.

        Examples
        --------
        >>> quarantine = Quarantine("sqlite://")
        >>> batch = Batch.of(ids=["a"], texts=["buy now"], embeddings=None)
        >>> _ = quarantine.for_store("news").hold(batch)
        >>> [(held.id, held.store) for held in quarantine.list()]
        [('a', 'news')]
        >>> quarantine.for_store("mail").count()
        0
        """
        view = copy(self)
        view.store = _checked_name(name)
        return view

    def exists(self) -> bool:
        """Return whether the database exists, without creating it."""
        return self.database.exists()

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        self.database.close()

    # Writing

    def hold(
        self,
        batch: Batch,
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
    ) -> dict[str, str]:
        """Hold entries, durably when this returns; all of them or, on an exception, none.

        Holding the same revision again changes only the findings, so a retry is safe. An older
        revision held under the same id is marked superseded. A revision that a reviewer has
        released or confirmed stays so, unless a person holds it. An entry released in one context
        stays released in another, unless detectors find evidence there.

        Parameters
        ----------
        batch
            Entries to hold.
        decisions
            Reasons, one per entry; ``None`` if a person holds them by hand.
        by
            The actor, for the log.

        Returns
        -------
        dict[str, str]
            The entries that stay released, each with a remark that names the reviewer.

        Raises
        ------
        QuarantineError
            If the metadata of an entry is of a type that cannot be stored, see :func:`.unkeepable`,
            or the database cannot be written; names the entry.
        """
        if not isinstance(batch, Batch):
            msg = f"batch is a {type(batch).__name__}, expected a Batch: Batch.of(ids=[...], ...)."
            raise TypeError(msg)
        reasons = [None] * len(batch) if decisions is None else list(decisions)
        because = {d.entry_id: d for d in decisions or ()}
        rows = [
            columns_of(self, entry, vector, decision, by)
            for entry, vector, decision in zip(batch, batch.vectors, reasons, strict=True)
        ]

        def work(session: Session, changes: Changes) -> dict[str, str]:
            present = revisions(session, self, batch.ids)
            vouched = self._vouched_for(session, present)
            released = {}
            for row in rows:
                entry_id = row["entry_id"]
                older, decision = present.get(entry_id, ()), because.get(entry_id)
                covering = _held_again(changes, row, older, decision, vouched)
                if covering is not None:
                    released[entry_id] = _released(covering)
            return released

        try:
            return self.log.change(work, by=by)
        except QuarantineError as error:
            shown = ", ".join(repr(printable(i, SHOWN_ID)) for i in batch.ids[:SHOWN_IDS])
            more = f" and {len(batch) - SHOWN_IDS} more" if len(batch) > SHOWN_IDS else ""
            msg = f"entries cannot be held, and none was ({shown}{more}): {error}"
            raise QuarantineError(msg) from error.__cause__

    def keep_stored(
        self,
        batch: Batch,
        status: Status,
        notes: Sequence[str] | None = None,
        *,
        by: str = "ragshield",
    ) -> None:
        """Record revisions of the store itself; a reviewer's decision under the same id stands.

        Parameters
        ----------
        batch
            The stored revisions.
        status
            ``READMITTED``: they stay in the store, while copies are held under other ids. If a copy
            is confirmed as poisoned, its text is refused under any id except these.
            ``REPLACED``: texts of another lineage take their place; :meth:`release` restores them.
        notes
            Descriptions of their replacements, one per entry.
        by
            The actor, for the log.

        Raises
        ------
        QuarantineError
            If the metadata of an entry is of a type that cannot be stored; names the entry.
        """
        action, over = STORED[status]
        said: Sequence[str | None] = [None] * len(batch) if notes is None else notes
        rows = [
            columns_of(self, entry, vector, None, by) | {"status": status, "note": note}
            for entry, vector, note in zip(batch, batch.vectors, said, strict=True)
        ]

        def work(session: Session, changes: Changes) -> None:
            present = revisions(session, self, batch.ids)
            for row in rows:
                of_id = {old.fingerprint: old for old in present.get(row["entry_id"], ())}
                known = of_id.get(row["fingerprint"])
                if known is None:
                    changes.add(row, action)
                elif known.status in over:
                    changes.set(known, row, action)

        if rows:
            self.log.change(work, by=by)

    def readmit(self, batch: Batch, *, by: str = "ragshield") -> tuple[str, ...]:
        """Record that superseded or replaced revisions were admitted, and are in the store.

        Otherwise readers of the quarantine would treat them as held, and hide them.

        Parameters
        ----------
        batch
            Entries that were written; those neither superseded nor replaced are ignored.
        by
            The writer, for the log.

        Returns
        -------
        tuple[str, ...]
            The readmitted ids.
        """
        prints = dict(zip(batch.ids, batch.fingerprints(), strict=True))

        def work(session: Session, changes: Changes) -> tuple[str, ...]:
            rows = [
                row
                for entry_id, old in revisions(session, self, batch.ids).items()
                for row in old
                if row.fingerprint == prints[entry_id]
                and row.status in (Status.SUPERSEDED, Status.REPLACED)
            ]
            for row in rows:
                changes.set(row, _reviewed(Status.READMITTED, by), "readmit")
            return tuple(row.entry_id for row in rows)

        return self.log.change(work, by=by)

    def supersede(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[str, ...]:
        """Mark held revisions superseded: a later version of their document takes their place.

        They stay in quarantine, hidden, and no longer need a decision.

        Parameters
        ----------
        ids
            Ids of entries; those that are not held are ignored.
        by, note
            The writer of the later version, and the reason.

        Returns
        -------
        tuple[str, ...]
            The ids that were held.
        """
        if not ids or not self.exists():
            return ()

        def work(session: Session, changes: Changes) -> tuple[str, ...]:
            found = revisions(session, self, ids, Status.HELD)
            for rows in found.values():
                for row in rows:
                    changes.set(row, {"status": Status.SUPERSEDED}, "supersede")
            return tuple(found)

        return self.log.change(work, by=by, note=note)

    # Decisions

    def release(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        of: Status = Status.HELD,
    ) -> tuple[HeldEntry, ...]:
        """Judge entries good; the same revisions are admitted from then on, despite any findings.

        Guarded stores have a method of the same name, which also puts them back.

        Parameters
        ----------
        ids
            Ids of held entries.
        by, note
            The reviewer and the reason.
        of
            ``REPLACED`` restores entries that texts of another lineage have replaced.

        Raises
        ------
        QuarantineError
            If one of the ids does not have that status, or is of two stores; no entry is released
            then.
        """
        return self._judge(ids, Status.RELEASED, by, note, of)

    def confirm(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Judge held entries poisoned; they are kept as evidence and cannot be released.

        Raises
        ------
        QuarantineError
            If one of the ids is not held, or held for two stores; no entry is confirmed then.
        """
        return self._judge(ids, Status.CONFIRMED, by, note, Status.HELD)

    def reopen(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Undo decisions: hold released or confirmed entries again, with their findings.

        Entries that were released into a store are hidden from all guarded reads of it; the guarded
        store's ``recall`` takes them out.

        Parameters
        ----------
        ids
            Ids of entries whose latest decision is a release or a confirmation.
        by, note
            The reviewer and the reason.

        Raises
        ------
        QuarantineError
            If one of the ids was not decided, or has another revision that is held; no decision is
            undone then.
        """

        def work(session: Session, changes: Changes) -> tuple[HeldEntry, ...]:
            rows, named = [], list(dict.fromkeys(ids))
            found = revisions(session, self, named)
            for entry_id in named:
                row = self._last_of(found.get(entry_id, ()), entry_id)
                if row.status not in (Status.RELEASED, Status.CONFIRMED):
                    msg = (
                        f"entry {printable(entry_id, SHOWN_ID)!r} of {self!r} is {row.status}, "
                        "expected one that was released or confirmed; nothing was taken back."
                    )
                    raise QuarantineError(msg)
                check_one_store(self, [row])
                rows.append(row)
            verify_some(session, self.log.digests, rows)
            waiting: dict[str, Any] = {
                "status": Status.HELD,
                "reviewed_at": None,
                "reviewed_by": None,
            }
            for row in rows:
                changes.set(row, waiting, "reopen")
            return tuple(replace(to_held(row), **waiting) for row in rows)

        return self.log.change(work, by=by, note=note)

    def purge(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        evidence: bool = True,
        held_only: bool = False,
    ) -> int:
        """Delete every revision of entries for good; only the log still mentions them.

        Parameters
        ----------
        ids
            Any ids; missing ones are ignored, so that a deletion can be repeated.
        by, note
            The reviewer and the reason.
        evidence
            Whether to delete confirmed revisions, too, which are evidence.
        held_only
            Whether to delete only held revisions and those that a held one superseded.

        Returns
        -------
        int
            The number of deleted revisions.

        Raises
        ------
        QuarantineError
            If an id has entries of two stores; no entry is deleted then.
        """
        going = set(Status)
        if held_only:
            going = {Status.HELD, Status.SUPERSEDED}
        elif not evidence:
            going.remove(Status.CONFIRMED)

        def work(session: Session, changes: Changes) -> int:
            rows = []
            for found in revisions(session, self, ids).values():
                some = [row for row in found if row.status in going]
                check_one_store(self, some)
                rows += some
            for row in rows:
                changes.delete(row, "purge")
            self.indexes.drop(session, ids)
            return len(rows)

        return self.log.change(work, by=by, note=note)

    # Reading

    def list(
        self,
        status: Status | str | None = Status.HELD,
        *,
        ids: Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        narrowing: Narrowing | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> tuple[HeldEntry, ...]:
        """Return entries in order of arrival.

        An entry whose row is damaged is left out, and a warning in the log names it.

        Parameters
        ----------
        status
            Only entries of this status; ``None`` for all.
        ids
            Only entries with these ids.
        documents
            Only parts of these documents, according to metadata (see :func:`.document_of`).
        narrowing
            Only entries that match it; not together with ids or documents.
        limit, offset
            A page; ``None`` for everything.

        Raises
        ------
        ValueError
            If narrowing is combined with ids or documents.
        """
        wanted = None if status is None else Status(status)
        query = select(HeldRow).order_by(HeldRow.number)
        if ids is None and documents is None:
            query = query.where(*self._conditions(wanted, narrowing))
            pages = [query.limit(limit).offset(offset)]
        elif narrowing is None:
            # Find the rows first, then read only the texts requested.
            some = self.prints(ids=ids, documents=documents)
            numbers = [one.number for one in some if wanted in (None, one.status)][offset:]
            query = query.where(checked(HeldRow.namespace) == self.namespace)
            if wanted is not None:  # the status may have changed since
                query = query.where(checked(HeldRow.status) == wanted)
            pages = [query.where(HeldRow.number.in_(part)) for part in chunks(numbers[:limit])]
        else:
            msg = "narrowing came with ids or documents, expected one of them: narrow or name."
            raise ValueError(msg)
        with self.database.read() as session:
            rows = [row for page in pages for row in session.scalars(page)]
            found = []
            for row in rows:
                try:
                    found.append(to_held(row))
                except TamperedError as error:
                    logger.warning("an entry is left out: %s", error)
            return tuple(found)

    def count(
        self, status: Status | str | None = Status.HELD, *, narrowing: Narrowing | None = None
    ) -> int:
        """Return the number of entries of a status; ``None`` for all."""
        wanted = None if status is None else Status(status)
        query = select(func.count()).where(*self._conditions(wanted, narrowing))
        with self.database.read() as session:
            return int(session.scalar(query) or 0)

    def open_alerts(self) -> int:
        """Return the number of open alerts about contradictions in the namespace."""
        with self.database.read() as session:
            return n_open_alerts(session, self.namespace)

    def prints(
        self,
        *,
        ids: Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> tuple[Print, ...]:
        """Return revisions and their statuses, without texts and vectors, in order of arrival.

        Much faster than :meth:`list`.

        Parameters
        ----------
        ids
            Only entries with these ids.
        documents
            Only parts of these documents, according to metadata (see :func:`.document_of`).
        metadata
            Whether to read metadata as well.
        """
        # Called at every write and every screening: without a session, which costs more. Callers
        # compare statuses, as in revisions().
        by: str | None = None
        names: Iterable[Sequence[str]] = [()]  # one statement takes a limited number of ids
        if documents is not None:
            by, names = "document", chunks([document_key(name) for name in documents])
        elif ids is not None:
            by, names = "entry_id", chunks(ids)
        query = _prints(by, metadata=metadata, one_store=self.store is not None)
        with self.database.connection() as connection:
            rows: list[Any] = [
                row
                for some in names
                for row in connection.execute(query, self._seen | {"some": some})
            ]
        rows.sort(key=lambda row: row[0])
        return tuple(
            Print(number, i, revision, STATUSES[status], *text)
            for number, i, revision, status, *text in rows
        )

    def show(self, entry_id: str, status: Status | str | None = None) -> HeldEntry:
        """Return the revision held under an id, or else the latest of any status.

        Parameters
        ----------
        entry_id
            Id of an entry.
        status
            Only the latest revision of that status.

        Raises
        ------
        QuarantineError
            If there is none.
        """
        with self.database.read() as session:
            found = revisions(session, self, [entry_id]).get(entry_id, ())
            return to_held(self._last_of(found, entry_id, status))

    def vouched(
        self, ids: Sequence[str], status: Status | str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Return the entry that :meth:`show` returns for each id, once the log vouches for it.

        Raises
        ------
        QuarantineError
            If an id has no entry or entries of two stores, or a row contradicts the log: it was
            changed outside ragshield, for example by SQL.
        """
        with self.database.read() as session:
            named = list(dict.fromkeys(ids))
            found = revisions(session, self, named)
            rows = [self._last_of(found.get(name, ()), name, status) for name in named]
            for some in found.values():
                check_one_store(self, some)
            verify_some(session, self.log.digests, rows)
            return tuple(map(to_held, rows))

    def revisions_of(self, entry_id: str, fingerprints: Collection[str]) -> tuple[HeldEntry, ...]:
        """Return these revisions of an id; missing ones are ignored."""
        with self.database.read() as session:
            rows = revisions(session, self, [entry_id]).get(entry_id, ())
            return tuple(to_held(row) for row in rows if row.fingerprint in fingerprints)

    def held_ids(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that are held."""
        return {one.id for one in self.prints(ids=ids) if one.status is Status.HELD}

    def released_among(
        self, batch: Batch, decisions: Sequence[Decision] | None = None
    ) -> dict[str, str]:
        """Return the released entries of a batch, each with a remark that names the reviewer.

        Parameters
        ----------
        batch
            Entries.
        decisions
            New decisions, one per entry: a release in one context counts in another as well, unless
            detectors find evidence there. ``None``: only the same revisions count.
        """
        with self.database.read() as session:
            found = revisions(session, self, batch.ids, Status.RELEASED)
            vouched = self._vouched_for(session, found)
        because = {d.entry_id: d for d in decisions or ()}
        released = {}
        for entry in batch:
            claims = {
                "fingerprint": entry.fingerprint,
                "text": encoded(entry.text),
                "label": entry.label,
                "lineage": entry.lineage,
            }
            for row in found.get(entry.id, ()):
                exact = row.fingerprint == entry.fingerprint
                if row.number not in vouched:
                    # Any writer of the database could have forged the release.
                    logger.error("%s, and does not count as released", tampered(row))
                elif exact or _covers(row, claims, because.get(entry.id)):
                    released[entry.id] = _released(row)
        return released

    def confirmed_ids(self) -> Sequence[str]:
        """Return the ids of all entries that a reviewer confirmed as poisoned."""
        if not self.exists():
            return []
        query = select(HeldRow.entry_id).where(HeldRow.status == Status.CONFIRMED, *seen_by(self))
        with self.database.connection() as connection:
            return [*dict.fromkeys(connection.scalars(query))]

    def confirmed_among(self, batch: Batch) -> dict[str, str]:
        """Return the entries confirmed as poisoned, each with a remark that names the reviewer.

        The same text with the same label and lineage counts under any id and, if the text was
        confirmed by itself, in any context; but not under an id where it was stored before.
        """
        if not self.exists():
            return {}
        confirmed = (HeldRow.status == Status.CONFIRMED, *seen_by(self))
        # Called at every write, and nearly always empty: without a session, which costs more.
        with self.database.connection() as connection:
            if connection.scalar(_any_confirmed(self.store is not None), self._seen) is None:
                return {}
        prints = {entry.id: (entry.fingerprint, entry.text_fingerprint) for entry in batch}
        wanted = [*{revision for both in prints.values() for revision in both}]
        remarks: dict[str, str] = {}
        with self.database.read() as session:
            for some in chunks(wanted):
                query = select(HeldRow).where(*confirmed, HeldRow.fingerprint.in_(some))
                for row in session.scalars(query):
                    remarks[row.fingerprint] = (
                        f"confirmed as poisoned by {row.reviewed_by} on {row.reviewed_at}"
                    )
            condemned = {
                i: remarks[revision]
                for i, both in prints.items()
                for revision in both
                if revision in remarks
            }
            for entry_id, rows in revisions(session, self, [*condemned]).items():
                let_in = {r.fingerprint for r in rows if r.status in LET_IN}
                if not let_in.isdisjoint(prints[entry_id]):  # stored there before its copy
                    del condemned[entry_id]
        return condemned

    # Private

    @property
    def _seen(self) -> dict[str, Any]:
        """Values of the conditions in :func:`_seen_in`."""
        return {"of": self.namespace, "stores": (self.store, ANY_STORE)}

    def _judge(
        self, ids: Sequence[str], status: Status, by: str, note: str | None, of: Status
    ) -> tuple[HeldEntry, ...]:
        """Release or confirm entries of this status."""
        action = "release" if status is Status.RELEASED else "confirm"
        if of is Status.REPLACED:
            action = "restore"

        def work(session: Session, changes: Changes) -> tuple[HeldEntry, ...]:
            found = revisions(session, self, ids, of)
            missing = [entry_id for entry_id in ids if entry_id not in found]
            if missing:
                msg = (
                    f"entry {missing[0]!r} is not {of} in {self!r}, nothing was {status}; "
                    f"list({'' if of is Status.HELD else repr(str(of))}) names those that are."
                )
                raise QuarantineError(msg)
            for some in found.values():
                check_one_store(self, some)
            rows = [max(found[i], key=lambda r: (r.held_at, r.number)) for i in dict.fromkeys(ids)]
            if status is Status.RELEASED:  # the released text must be the held one
                verify_some(session, self.log.digests, rows)
            held = tuple(to_held(row) for row in rows)
            for row in rows:
                changes.set(row, _reviewed(status, by), action)
            return held

        return self.log.change(work, by=by, note=note)

    def _conditions(
        self, status: Status | None, narrowing: Narrowing | None
    ) -> Sequence[ColumnElement[bool]]:
        """Return conditions on visible rows with this status that match a filter."""
        conditions = [*seen_by(self), *(narrowing.where(self.namespace) if narrowing else ())]
        return conditions if status is None else [*conditions, HeldRow.status == status]

    def _last_of(
        self, rows: Sequence[HeldRow], entry_id: str, status: Status | str | None = None
    ) -> HeldRow:
        """Return the latest of an id's revisions, of one status or of any."""
        wanted = None if status is None else Status(status)
        rows = [row for row in rows if wanted in (None, row.status)]
        if not rows:
            what = "" if wanted is None else f"{wanted} "
            msg = f"entry {entry_id!r} is not {what}in {self!r}; list() names those that are."
            raise QuarantineError(msg)
        return max(rows, key=lambda r: (r.status == Status.HELD, r.held_at, r.number))

    def _vouched_for(
        self, session: Session, found: Mapping[str, Sequence[HeldRow]]
    ) -> Collection[int]:
        """Return the numbers of the released revisions that the log vouches for."""
        rows = [row for some in found.values() for row in some if row.status == Status.RELEASED]
        return last_lines_of(session, self.log.digests, rows).keys()


def _checked_name(name: object) -> str:
    """Return a store's name in a form valid in any database."""
    if not isinstance(name, str) or name == ANY_STORE:
        msg = (
            f"a store's name is {name if name == ANY_STORE else type(name).__name__!r}, expected a "
            f"str other than {ANY_STORE!r}, such as that of its collection."
        )
        raise QuarantineError(msg)
    return storable(name)


def _held_again(
    changes: Changes,
    row: dict[str, Any],
    before: Sequence[HeldRow],
    decision: Decision | None,
    vouched: Collection[int],
) -> HeldRow | None:
    """Hold a revision; return an earlier release that covers it instead, if any.

    Parameters
    ----------
    changes
        Collects the change.
    row
        Columns of the revision.
    before
        Revisions in quarantine under its id.
    decision
        The reason; ``None`` if a person holds it.
    vouched
        Numbers of the released revisions that the log vouches for.
    """
    of_id = {old.fingerprint: old for old in before}
    covering = [
        old for old in of_id.values() if _covers(old, row, decision) and old.number in vouched
    ]
    known = of_id.pop(row["fingerprint"], None)
    if covering and (known is None or known in covering):
        return covering[-1]
    for old in of_id.values():
        if old.status == Status.HELD:
            changes.set(old, {"status": Status.SUPERSEDED}, "supersede")
    if known is None:
        changes.add(row, "hold")
    elif known.status == Status.HELD or (known.status == Status.CONFIRMED and decision is not None):
        changes.set(known, {column: row[column] for column in JUDGED}, "judge")
    else:
        changes.set(known, row, "hold")
    return None


def _reviewed(status: Status, by: str) -> dict[str, Any]:
    return {"status": status, "reviewed_at": now(), "reviewed_by": by}


def _covers(row: HeldRow, claims: Mapping[str, Any], decision: Decision | None) -> bool:
    """Return whether a release holds for a new revision: the same one, or the same text.

    Parameters
    ----------
    row
        A revision in quarantine.
    claims
        Fingerprint, text, label and lineage of the new one.
    decision
        The detectors' decision on it; ``None`` if a person acts.
    """
    if row.status != Status.RELEASED or decision is None:
        return False
    if row.fingerprint == claims["fingerprint"]:
        return True
    if not decision.findings or any(finding.beside for finding in decision.findings):
        return False
    same = (row.text, row.label, row.lineage)
    return same == (claims["text"], claims["label"], claims["lineage"])


def _released(row: HeldRow) -> str:
    return f"released by {row.reviewed_by} on {row.reviewed_at}"
