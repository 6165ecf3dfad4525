"""Quarantine: holds entries, durably, until a reviewer decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from sqlalchemy import URL, ColumnElement, func, make_url, select
from sqlalchemy.orm import Session

from ragshield_core.database import DEFAULT_URL, Database, chunks
from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.database.tables import ANY_STORE, JUDGED, HeldRow, checked
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.model.findings import Decision, printable
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.digests import Digests, given_key
from ragshield_core.quarantine.entries import LET_IN, SHOWN_ID, HeldEntry, Print, Status
from ragshield_core.quarantine.evidence import last_lines_of, tampered, verify_some
from ragshield_core.quarantine.grouping import Narrowing
from ragshield_core.quarantine.indexes import Indexes
from ragshield_core.quarantine.log import AuditLog
from ragshield_core.quarantine.rows import (
    check_one_store,
    columns_of,
    decoded,
    document_key,
    encoded,
    now,
    revisions,
    seen_by,
    storable,
    to_held,
)

logger = logging.getLogger("ragshield")

# Ids that errors name.
SHOWN_IDS = 5
# Actions in the log, and earlier decisions that they overwrite, of revisions that are in the store.
STORED = {
    Status.READMITTED: ("stand", (Status.REPLACED,)),
    Status.REPLACED: ("replace", (Status.RELEASED, Status.READMITTED, Status.REPLACED)),
}
# Quicker than the enum's own.
STATUSES = {str(status): status for status in Status}


class Quarantine:
    """Hold entries out of a knowledge base, in any database SQLAlchemy knows.

    A method that writes, called within a write of :attr:`database` by the same thread, is part of
    that write, and as durable.

    Parameters
    ----------
    url
        SQLAlchemy database URL. The default is an SQLite file in the working directory, so
        that nothing held is lost with the process. The database is opened, and its tables made,
        at the first use.
    namespace
        Of a tenant: entries, statuses and logs of others in the same database are not seen. 1 to
        200 characters, compared to the bit.
    store
        Name of a store: entries of other stores in the namespace are not seen, and what is held is
        held for this one. Guarded stores see to it themselves. ``None`` sees all, and holds for
        whichever store asks.
    audit_key
        A secret with which all rows get digests that nobody else can make; ``None`` for that of the
        environment variable ``RAGSHIELD_AUDIT_KEY``, if there is one. All that use the database
        need the same.
    anchor
        Called with :meth:`.AuditLog.head` after each write that adds to the log, to sign it or send
        it where the database's writers cannot write. If it fails, that is logged: what was written
        stays. The anchor of a part of a larger write waits until that is durable.

    Attributes
    ----------
    database
        Its tables, for others that are written together with them.
    log
        The audit log.
    indexes
        Which index brought a held entry.

    Raises
    ------
    QuarantineError
        If the URL can never work: it is none, nothing is installed for such a database, or the
        folder of an SQLite file does not exist; or if the namespace cannot be kept. Later, of every
        method: if the database cannot be used; ``__cause__`` is the driver's own error. Neither
        quotes texts or metadata.

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
        # A password in the URL stays out of logs.
        url = make_url(self.database.url).render_as_string(hide_password=True)
        store = f", store={self.store!r}" if self.store else ""
        return f"Quarantine({url!r}, namespace={self.namespace!r}{store})"

    def for_store(self, name: str) -> Quarantine:
        """Return the same quarantine as one store sees it, on the same connections.

        Parameters
        ----------
        name
            The same in every process that uses the store. ``""`` is shared by all stores that
            have none.

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
        """Return whether there is a database yet; asking must not make one."""
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
        """Keep entries, durably when this returns; all of them or, with an exception, none.

        Holding the same revision again changes nothing but the findings, so a retry is safe. An
        older revision held under the same id is marked superseded. A revision that a reviewer has
        released or confirmed stays so, unless a person holds it. What was released in one context
        stays so in another, unless something was found there.

        Parameters
        ----------
        batch
            What to hold.
        decisions
            Why, one per entry; ``None`` where a person holds them by hand.
        by
            Who holds them.

        Returns
        -------
        dict[str, str]
            The entries that stay released, each with a remark by whom.

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
            As the store has them.
        status
            ``READMITTED``: they stay in the store, while copies are held under other ids. Who
            confirms a copy as poisoned condemns its text under any id, but not under these.
            ``REPLACED``: texts of another lineage take their place; :meth:`release` restores them.
        notes
            By what they are replaced, one per entry.
        by
            Who found or replaces them.

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

        Otherwise readers of the quarantine would take them for held, and hide them.

        Parameters
        ----------
        batch
            Entries that were written; those that are neither here are ignored.
        by
            Who wrote them.

        Returns
        -------
        tuple[str, ...]
            The ids that are readmitted now.
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

        They stay here, hidden, and no longer need a decision.

        Parameters
        ----------
        ids
            Of entries; those that are not held are ignored.
        by, note
            Who brought the later version, and why.

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
        """Judge entries good; the same revisions are admitted from then on, whatever is found.

        Guarded stores have a method of the same name, which also puts them back.

        Parameters
        ----------
        ids
            Held entries.
        by, note
            Who decided, and why.
        of
            ``REPLACED`` restores what texts of another lineage have replaced.

        Raises
        ------
        QuarantineError
            If one of the ids does not have that status, or is of two stores; nothing is released
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
            If one of the ids is not held, or for two stores; nothing is confirmed then.
        """
        return self._judge(ids, Status.CONFIRMED, by, note, Status.HELD)

    def reopen(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Take a decision back: what was released or confirmed is held again, with its findings.

        Entries that were released into a store are hidden from all who read it through a guard; the
        guarded store's ``recall`` takes them out.

        Parameters
        ----------
        ids
            Of entries whose latest decision is one of the two.
        by, note
            Who decided, and why.

        Raises
        ------
        QuarantineError
            If one of the ids was not decided, or has another revision that is held; nothing is
            taken back then.
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
        """Delete every revision of entries for good; only the log remembers that they were here.

        Parameters
        ----------
        ids
            Any; those that are not here are ignored, so that a deletion can be repeated.
        by, note
            Who decided, and why.
        evidence
            Whether to delete confirmed revisions, which are evidence, too.
        held_only
            Whether to delete only held revisions and those that a held one superseded.

        Returns
        -------
        int
            The number of deleted revisions.

        Raises
        ------
        QuarantineError
            If an id is of entries of two stores; nothing is deleted then.
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
        """Return entries in the order in which they came.

        An entry whose row is damaged is left out, and a warning in the log names it.

        Parameters
        ----------
        status
            Only those; ``None`` for all.
        ids
            Only of these entries.
        documents
            Only parts of these, as metadata says which (see :func:`.document_of`).
        narrowing
            Only entries that match it; not together with ids or documents.
        limit, offset
            A page; ``None`` for everything.

        Raises
        ------
        ValueError
            If entries are both narrowed and named.
        """
        wanted = None if status is None else Status(status)
        query = select(HeldRow).order_by(HeldRow.number)
        if ids is None and documents is None:
            query = query.where(*self._conditions(wanted, narrowing))
            pages = [query.limit(limit).offset(offset)]
        elif narrowing is None:
            # First which rows: texts are read of those that are asked for.
            some = self.prints(ids=ids, documents=documents)
            numbers = [one.number for one in some if wanted in (None, one.status)][offset:]
            query = query.where(checked(HeldRow.namespace) == self.namespace)
            if wanted is not None:  # by now, as it was a moment ago
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

    def prints(
        self,
        *,
        ids: Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> tuple[Print, ...]:
        """Return revisions and their statuses, without texts and vectors, in the order they came.

        Much quicker than :meth:`list`.

        Parameters
        ----------
        ids
            Only of these entries.
        documents
            Only parts of these, as metadata says which (see :func:`.document_of`).
        metadata
            Whether to read that as well.
        """
        # Asked at every write and every screening: without a session, which costs more. Statuses
        # are compared by the caller, as in revisions().
        columns = [HeldRow.number, HeldRow.entry_id, HeldRow.fingerprint, HeldRow.status]
        if metadata:
            columns.append(HeldRow.entry_metadata)
        query = select(*columns).where(*seen_by(self))
        parts = [query]  # for as many at a time as one statement takes
        if documents is not None:
            keys = [document_key(name) for name in documents]
            parts = [query.where(HeldRow.document.in_(some)) for some in chunks(keys)]
        elif ids is not None:
            parts = [query.where(HeldRow.entry_id.in_(some)) for some in chunks(ids)]
        with self.database.connection() as connection:
            rows: list[Any] = [row for part in parts for row in connection.execute(part)]
        rows.sort(key=lambda row: row[0])
        return tuple(
            Print(number, i, revision, STATUSES[status], *text)
            for number, i, revision, status, *text in rows
        )

    def show(self, entry_id: str, status: Status | str | None = None) -> HeldEntry:
        """Return the revision held under an id; without one the latest, whatever its status.

        Parameters
        ----------
        entry_id
            Of an entry.
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
            If there is none of an id, it is of two stores, or its row is not as the log says that
            it was written: it was changed past ragshield, by SQL say.
        """
        with self.database.read() as session:
            named = list(dict.fromkeys(ids))
            found = revisions(session, self, named)
            rows = [self._last_of(found.get(name, ()), name, status) for name in named]
            for some in found.values():
                check_one_store(self, some)
            verify_some(session, self.log.digests, rows)
            return tuple(map(to_held, rows))

    def texts_of(self, entry_id: str, fingerprints: Collection[str]) -> tuple[str, ...]:
        """Return the texts of some revisions under an id; missing ones are ignored."""
        with self.database.read() as session:
            rows = revisions(session, self, [entry_id]).get(entry_id, ())
            return tuple(decoded(row.text) for row in rows if row.fingerprint in fingerprints)

    def held_ids(self, ids: Sequence[str]) -> set[str]:
        """Return which of the ids are held."""
        return {one.id for one in self.prints(ids=ids) if one.status is Status.HELD}

    def released_among(
        self, batch: Batch, decisions: Sequence[Decision] | None = None
    ) -> dict[str, str]:
        """Return the entries whose very revision was released, each with a remark by whom.

        Parameters
        ----------
        batch
            Entries.
        decisions
            New ones, one per entry: what was released in one context counts in another as well,
            unless something was found there. ``None`` for the very revisions.
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
                    # Whoever may write to the database could let in anything.
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
        """Return the entries that a reviewer confirmed as poisoned, each with a remark by whom.

        The same text with the same label and lineage counts under any id, and where the text was
        confirmed by itself, in any context; but not where it stood in the store before.
        """
        if not self.exists():
            return {}
        confirmed = (HeldRow.status == Status.CONFIRMED, *seen_by(self))
        # Asked at every write, and nearly always in vain: without a session, which costs more.
        with self.database.connection() as connection:
            if connection.scalar(select(HeldRow.number).where(*confirmed).limit(1)) is None:
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
                if not let_in.isdisjoint(prints[entry_id]):  # it stood there before its copy
                    del condemned[entry_id]
        return condemned

    # Inside

    def _judge(
        self, ids: Sequence[str], status: Status, by: str, note: str | None, of: Status
    ) -> tuple[HeldEntry, ...]:
        """Release or confirm entries of a status."""
        action = "release" if status is Status.RELEASED else "confirm"
        if of is Status.REPLACED:
            action = "restore"

        def work(session: Session, changes: Changes) -> tuple[HeldEntry, ...]:
            found = revisions(session, self, ids, of)
            missing = [entry_id for entry_id in ids if entry_id not in found]
            if missing:
                msg = (
                    f"entry {missing[0]!r} is not {of} in {self!r}, nothing was {status}; "
                    f"list({'' if of is Status.HELD else repr(str(of))}) names what is."
                )
                raise QuarantineError(msg)
            for some in found.values():
                check_one_store(self, some)
            rows = [max(found[i], key=lambda r: (r.held_at, r.number)) for i in dict.fromkeys(ids)]
            if status is Status.RELEASED:  # what is put back must be what was held
                verify_some(session, self.log.digests, rows)
            held = tuple(to_held(row) for row in rows)
            for row in rows:
                changes.set(row, _reviewed(status, by), action)
            return held

        return self.log.change(work, by=by, note=note)

    def _conditions(
        self, status: Status | None, narrowing: Narrowing | None
    ) -> Sequence[ColumnElement[bool]]:
        """Return conditions on rows that are seen here, have a status, and match a filter."""
        conditions = [*seen_by(self), *(narrowing.where(self.namespace) if narrowing else ())]
        return conditions if status is None else [*conditions, HeldRow.status == status]

    def _last_of(
        self, rows: Sequence[HeldRow], entry_id: str, status: Status | str | None = None
    ) -> HeldRow:
        """Return the latest of the revisions under an id, of a status or of any."""
        wanted = None if status is None else Status(status)
        rows = [row for row in rows if wanted in (None, row.status)]
        if not rows:
            what = "" if wanted is None else f"{wanted} "
            msg = f"entry {entry_id!r} is not {what}in {self!r}; list() names what is."
            raise QuarantineError(msg)
        return max(rows, key=lambda r: (r.status == Status.HELD, r.held_at, r.number))

    def _vouched_for(
        self, session: Session, found: Mapping[str, Sequence[HeldRow]]
    ) -> Collection[int]:
        """Return the numbers of the released revisions that the log vouches for."""
        rows = [row for some in found.values() for row in some if row.status == Status.RELEASED]
        return last_lines_of(session, self.log.digests, rows).keys()


def _checked_name(name: object) -> str:
    """Return the name of a store, fit for any database."""
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
    """Hold a revision; return the released one before it that keeps it released, if any.

    Parameters
    ----------
    changes
        To which the change is added.
    row
        Columns of the revision.
    before
        Revisions that are kept under its id.
    decision
        Why; ``None`` where a person holds it.
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
        A revision that is kept.
    claims
        Fingerprint, text, label and lineage of the new one.
    decision
        What detectors say of it; ``None`` where a person acts.
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
