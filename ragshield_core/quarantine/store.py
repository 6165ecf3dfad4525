"""Where entries are held until a reviewer decides: durable, complete, with a log of decisions."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import (
    URL,
    ColumnElement,
    func,
    make_url,
    select,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from ragshield_core.database import DEFAULT_URL, Database
from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.entries import Batch, Entry
from ragshield_core.errors import QuarantineError, TamperedError
from ragshield_core.findings import (
    Decision,
    finding_to_dict,
    printable,
)
from ragshield_core.quarantine import metadata_json
from ragshield_core.quarantine.changes import Changes, now, rekey, seal
from ragshield_core.quarantine.digests import KEY_VARIABLE, Digests, given_key
from ragshield_core.quarantine.documents import document_key, document_of
from ragshield_core.quarantine.entries import (
    LET_IN,
    SHOWN_ID,
    Found,
    HeldEntry,
    LogRecord,
    Print,
    Status,
    Unverified,
    Verified,
)
from ragshield_core.quarantine.evidence import (
    head_of,
    is_line,
    last_lines_of,
    parts_of_anchor,
    tampered,
    verify_lines,
    verify_rows,
    verify_some,
)
from ragshield_core.quarantine.indexes import Indexes
from ragshield_core.quarantine.narrowing import Narrowing
from ragshield_core.quarantine.rows import encoded, findings_of, to_held
from ragshield_core.quarantine.searching import checked
from ragshield_core.quarantine.tables import (
    ANY_STORE,
    JUDGED,
    HeldRow,
    LogRow,
)

T = TypeVar("T")

logger = logging.getLogger("ragshield")


# Bound parameters of one statement; SQLite's own limit is 32,766, older builds allow 999.
CHUNK = 500


# Rows that are read at a time.
PAGE = 5_000

# Ids that errors name, and characters of each.
SHOWN_IDS = 5


# What is in the log of what a person would decide.
PROPOSALS = {"release": "would release", "confirm": "would confirm"}
# What a line of the log says of a verification.
VERIFY, WHOLE, BROKEN = "verify", "whole", "broken"
VERIFIED = re.compile(
    rf"(?P<outcome>{WHOLE}|{BROKEN}) up to line (?P<line>\d{{1,19}})(?:: (?P<said>.*))?", re.DOTALL
)
# Quicker than the enum's own.
STATUSES = {str(status): status for status in Status}

Revisions = list[HeldRow]  # `list` is a method's name inside the class


class Quarantine:
    """Hold entries out of a knowledge base, in any database SQLAlchemy knows.

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
        A secret with which log and entries get digests that nobody else can make; ``None`` for
        that of the environment variable ``RAGSHIELD_AUDIT_KEY``, if there is one. All that use the
        database need the same.
    anchor
        Called with :meth:`head` after each write that adds to the log, to sign it or send it where
        the database's writers cannot write. If it fails, that is logged: what was written stays.
        What is a part of a larger write (``session``) is anchored once that is durable.

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
        self._digests = Digests(given_key(audit_key))
        self._database = Database(url)
        self._anchor = anchor
        self.url = url
        self.namespace = checked_namespace(namespace)
        self.store = None if store is None else _checked_name(store)

    def __repr__(self) -> str:
        # A password in the URL stays out of logs.
        url = make_url(self.url).render_as_string(hide_password=True)
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
        seen = Quarantine(self.url, namespace=self.namespace, store=_checked_name(name))
        seen._database, seen._digests, seen._anchor = self._database, self._digests, self._anchor
        return seen

    def same_place(self, other: Quarantine) -> bool:
        """Return whether another one sees the same entries."""
        mine, theirs = ((q.url, q.namespace, q.store) for q in (self, other))
        return mine == theirs and (
            self._database is other._database or not self._database.in_memory
        )

    def hold(
        self,
        batch: Batch,
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        session: Session | None = None,
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
        session
            Of a write to :attr:`database` that this is to be a part of; it is durable with that.
            All methods that write take it.

        Returns
        -------
        dict[str, str]
            The entries that stay released, each with a remark by whom.

        Raises
        ------
        QuarantineError
            If the metadata of an entry is of a type that cannot be stored, see :meth:`unkeepable`,
            or the database cannot be written; names the entry.
        """
        _check_batch(batch)
        reasons = [None] * len(batch) if decisions is None else list(decisions)
        because = {d.entry_id: d for d in decisions or ()}
        rows = [
            self._row(entry, vector, decision, by)
            for entry, vector, decision in zip(batch, batch.vectors, reasons, strict=True)
        ]

        def work(session: Session) -> dict[str, str]:
            present = self._find(session, batch.ids)
            vouched = self._vouched_for(session, present)
            released, changes = {}, Changes(session, self._digests)
            for row in rows:
                entry_id = row["entry_id"]
                older, decision = present.get(entry_id, ()), because.get(entry_id)
                covering = _held_again(changes, row, older, decision, vouched)
                if covering is not None:
                    released[entry_id] = _released(covering)
            changes.write(by)
            return released

        with _naming(batch.ids):
            return self.written(work, session)

    @staticmethod
    def unkeepable(batch: Batch) -> dict[int, str]:
        """Return the rows that :meth:`hold` would refuse, each with the reason.

        Ask before entries are written: one that is admitted and cannot be held later, when others
        show it in another light, could not be recalled.

        Parameters
        ----------
        batch
            Any entries, with or without vectors.

        Returns
        -------
        dict[int, str]
            One sentence per row; names the key of the metadata and the type, never a value. No
            database is opened for it.

        Examples
        --------
        >>> batch = Batch.of(ids=["a", "b"], texts=["x", "y"], embeddings=None,
        ...                  metadatas=[{"page": 1}, {"page": 1j}])
        >>> list(Quarantine.unkeepable(batch))
        [1]
        """
        reasons = {}
        for row, metadata in enumerate(batch.metadatas):
            if not metadata_json.is_plain(metadata):
                try:
                    _metadata_text(metadata)
                except QuarantineError as error:
                    reasons[row] = str(error)
        return reasons

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

        Parameters
        ----------
        status
            Only those; ``None`` for all.
        ids
            Only of these entries.
        documents
            Only parts of these, as metadata says which (see :mod:`.documents`).
        narrowing
            Only those of which it is true; not together with ids or documents.
        limit, offset
            A page; ``None`` for everything.

        Raises
        ------
        ValueError
            If entries are both narrowed and named.
        """
        named = ids is not None or documents is not None
        query = select(HeldRow).order_by(HeldRow.number)
        if narrowing is not None:
            if named:
                msg = "narrowing came with ids or documents, expected one of them: narrow or name."
                raise ValueError(msg)
            query = query.where(*narrowing.where(self.namespace))
        if named:
            some = self.prints(ids=ids, documents=documents)
            numbers = [one.number for one in some if status in (None, one.status)][offset:]
            numbers = numbers[:limit]
            query = query.where(checked(HeldRow.namespace) == self.namespace)
            if status is not None:  # by now, as it was a moment ago
                query = query.where(checked(HeldRow.status) == Status(status))
            pages = [
                query.where(HeldRow.number.in_(numbers[start : start + CHUNK]))
                for start in range(0, len(numbers), CHUNK)
            ]
        else:
            query = query.where(*self._mine)
            if status is not None:
                query = query.where(HeldRow.status == Status(status))
            pages = [query.limit(limit).offset(offset)]
        with self._database.read() as session:
            return tuple(to_held(row) for page in pages for row in session.scalars(page))

    def prints(
        self,
        *,
        ids: Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> tuple[Print, ...]:
        """Return which revisions are here and where they stand, in the order in which they came.

        Much quicker than :meth:`list`, which reads texts and vectors.

        Parameters
        ----------
        ids
            Only of these entries.
        documents
            Only parts of these, as metadata says which (see :mod:`.documents`).
        metadata
            Whether to read that as well.
        """
        columns = [HeldRow.number, HeldRow.entry_id, HeldRow.fingerprint, HeldRow.status]
        query = select(*columns, *([HeldRow.entry_metadata] if metadata else [])).where(*self._mine)
        column: InstrumentedAttribute[Any] = HeldRow.entry_id
        wanted = ids
        if documents is not None:
            column, wanted = HeldRow.document, [document_key(name) for name in documents]
        rows: list[Any] = []
        with self._database.connection() as connection:
            if wanted is None:
                rows += connection.execute(query).all()
            else:
                for start in range(0, len(wanted), CHUNK):
                    some = query.where(column.in_(wanted[start : start + CHUNK]))
                    rows += connection.execute(some).all()
        rows.sort(key=lambda row: row[0])
        return tuple(
            Print(number, i, revision, STATUSES[status], *text)
            for number, i, revision, status, *text in rows
        )

    def found(self) -> tuple[Found, ...]:
        """Return what was found of each revision and where it stands, in the order they came.

        Much quicker than :meth:`list`, which reads texts and vectors; those are not compared with
        their digests here, see :meth:`verify` and :meth:`vouched`.
        """
        return tuple(self.each_found())

    def each_found(self) -> Iterator[Found]:
        """Yield what :meth:`found` returns, some thousand at a time: a flood has a million.

        Reads nothing of other tenants, however many entries they have: those of each status are
        numbered in its index.
        """
        columns = (HeldRow.number, HeldRow.entry_id, HeldRow.status, HeldRow.lineage)
        query = select(*columns, HeldRow.findings).order_by(HeldRow.number)
        numbers = select(HeldRow.number).where(HeldRow.namespace == self.namespace)
        if self.store is not None:
            numbers = numbers.where(checked(HeldRow.store).in_((self.store, ANY_STORE)))
        last = 0
        while True:
            later = numbers.where(HeldRow.number > last)
            each = union_all(*(later.where(HeldRow.status == status) for status in Status))
            some = each.order_by("number").limit(PAGE)
            with self._database.connection() as connection:
                page = connection.execute(query.where(HeldRow.number.in_(some))).all()
            for last, i, status, lineage, findings in page:
                yield Found(last, i, STATUSES[status], lineage, findings_of(findings))
            if len(page) < PAGE:
                return

    def position(self) -> int:
        """Return where the log ends now, for :meth:`changed_since`."""
        with self._database.connection() as connection:
            return int(connection.scalar(select(func.max(LogRow.seq))) or 0)

    def changed_since(self, position: int) -> tuple[int, frozenset[str]]:
        """Return the position now, and the ids of what was changed after an earlier one.

        Parameters
        ----------
        position
            As :meth:`position` or this returned it. Who is going to read everything asks for it
            *before*, so as to miss nothing.
        """
        latest = self.position()
        if latest <= position:
            return latest, frozenset()
        query = (
            select(LogRow.entry_id)
            .where(LogRow.seq > position, LogRow.seq <= latest)
            .where(checked(LogRow.namespace) == self.namespace)
        )
        with self._database.connection() as connection:
            return latest, frozenset(connection.scalars(query).all())

    def count(
        self, status: Status | str | None = Status.HELD, *, narrowing: Narrowing | None = None
    ) -> int:
        """Return how many entries are held, or stand at another status."""
        query = select(func.count()).where(*self._mine)
        if narrowing is not None:
            query = query.where(*narrowing.where(self.namespace))
        if status is not None:
            query = query.where(HeldRow.status == Status(status))
        with self._database.read() as session:
            return int(session.scalar(query) or 0)

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
        with self._database.read() as session:
            found = self._find(session, [entry_id]).get(entry_id, ())
            return to_held(self._last_of(found, entry_id, status))

    def vouched(
        self, ids: Sequence[str], status: Status | str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Return what :meth:`show` does of each id, for whoever puts it back into a store.

        Parameters
        ----------
        ids, status
            As of :meth:`show`.

        Raises
        ------
        QuarantineError
            If there is none of an id, it is of two stores, or its row is not as the log says that
            it was written: it was changed past ragshield, by SQL say.
        """
        with self._database.read() as session:
            named = list(dict.fromkeys(ids))
            found = self._find(session, named)
            rows = [self._last_of(found.get(name, ()), name, status) for name in named]
            for some in found.values():
                self._check_one_store(some)
            verify_some(session, self._digests, rows)
            return tuple(map(to_held, rows))

    def _last_of(
        self, rows: Sequence[HeldRow], entry_id: str, status: Status | str | None = None
    ) -> HeldRow:
        """Return the latest of the revisions that are kept under an id, of a status or of any."""
        wanted = None if status is None else Status(status)
        rows = [row for row in rows if wanted in (None, row.status)]
        if not rows:
            what = "" if wanted is None else f"{wanted} "
            msg = f"entry {entry_id!r} is not {what}in {self!r}; list() names what is."
            raise QuarantineError(msg)
        return max(rows, key=lambda r: (r.status == Status.HELD, r.held_at, r.number))

    def namespaces(self) -> tuple[str, ...]:
        """Return the names of all tenants of the database of whom anything is or was held."""
        query = select(HeldRow.namespace).distinct().order_by(HeldRow.namespace)
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def held_ids(self, ids: Sequence[str]) -> set[str]:
        """Return which of the ids are held."""
        held: set[str] = set()
        # Asked at every write and every screening: without a session, which costs more.
        with self._database.connection() as connection:
            for start in range(0, len(ids), CHUNK):
                # The status is looked at here, as in _find.
                query = (
                    select(HeldRow.entry_id, HeldRow.status)
                    .where(*self._mine)
                    .where(HeldRow.entry_id.in_(ids[start : start + CHUNK]))
                )
                rows = connection.execute(query)
                held |= {name for name, status in rows if status == Status.HELD}
        return held

    def release(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        session: Session | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Judge held entries good; who has a store puts them back.

        The same revision is admitted from then on, whatever detectors say.

        Parameters
        ----------
        ids
            Held entries.
        by, note
            Who decided, and why.

        Raises
        ------
        QuarantineError
            If one of the ids is not held, or for two stores; nothing is released then.
        """
        return self._review(ids, Status.RELEASED, by, note, session)

    def confirm(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        session: Session | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Judge held entries poisoned; they are kept as evidence and cannot be released.

        Raises
        ------
        QuarantineError
            If one of the ids is not held, or for two stores; nothing is confirmed then.
        """
        return self._review(ids, Status.CONFIRMED, by, note, session)

    def stand(self, batch: Batch, *, by: str = "ragshield", session: Session | None = None) -> None:
        """Note revisions that are in the store, and of which copies are held under other ids.

        Who confirms a copy as poisoned condemns its text under any id, but not under these.

        Parameters
        ----------
        batch
            Entries of the store; what a reviewer has judged under the same id stands.
        by
            Who found them.
        """
        over = (Status.REPLACED,)
        self._keep(batch, Status.READMITTED, "stand", None, by, over=over, session=session)

    def replace(
        self,
        batch: Batch,
        notes: Sequence[str],
        *,
        by: str = "ragshield",
        session: Session | None = None,
    ) -> None:
        """Keep revisions that texts of another lineage take the place of; see :meth:`restore`.

        Parameters
        ----------
        batch
            As the store has them.
        notes
            By what, one per entry.
        by
            Who replaces them.

        Raises
        ------
        QuarantineError
            If the metadata of an entry is of a type that cannot be stored; names the entry.
        """
        over = (Status.RELEASED, Status.READMITTED, Status.REPLACED)
        self._keep(batch, Status.REPLACED, "replace", notes, by, over=over, session=session)

    def restore(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        session: Session | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Judge good what was replaced by texts of another lineage, as :meth:`release` does.

        Raises
        ------
        QuarantineError
            If nothing was replaced under one of the ids; nothing is restored then.
        """
        return self._review(ids, Status.RELEASED, by, note, session, of=Status.REPLACED)

    def reopen(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        session: Session | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Take a decision back: what was released or confirmed waits again, with its findings.

        What was released into a store is hidden from all who read it through a guard, and is taken
        out of it by :meth:`recall` of a guarded store.

        Parameters
        ----------
        ids
            Of entries whose latest decision is one of the two.
        by, note
            Who decided, and why.

        Raises
        ------
        QuarantineError
            If nothing was decided of one of the ids, or another revision waits under it; nothing
            is taken back then.
        """

        def work(session: Session) -> tuple[HeldEntry, ...]:
            rows, named = [], list(dict.fromkeys(ids))
            found = self._find(session, named)
            for entry_id in named:
                row = self._last_of(found.get(entry_id, ()), entry_id)
                if row.status not in (Status.RELEASED, Status.CONFIRMED):
                    msg = (
                        f"entry {printable(entry_id, SHOWN_ID)!r} of {self!r} is {row.status}, "
                        "expected one that was released or confirmed; nothing was taken back."
                    )
                    raise QuarantineError(msg)
                self._check_one_store([row])
                rows.append(row)
            verify_some(session, self._digests, rows)
            changes = Changes(session, self._digests)
            waiting = {"status": Status.HELD, "reviewed_at": None, "reviewed_by": None}
            for row in rows:
                changes.set(row, waiting, "reopen")
            changes.write(by, note)
            return tuple(to_held(row) for row in rows)

        return self.written(work, session)

    def propose(
        self,
        ids: Sequence[str],
        what: str,
        *,
        by: str,
        note: str | None = None,
        session: Session | None = None,
    ) -> None:
        """Note in the log what a person would decide, for a second one to agree.

        Parameters
        ----------
        ids
            Held entries.
        what
            ``"release"`` or ``"confirm"``.
        by, note
            Who would, and why.

        Raises
        ------
        QuarantineError
            If one of the ids is not held; nothing is noted then.
        """
        self._tell(ids, PROPOSALS[what], by, note, session)

    def keep(
        self,
        ids: Sequence[str],
        *,
        by: str,
        note: str | None = None,
        session: Session | None = None,
    ) -> None:
        """Note in the log that a person has looked at held entries, which stay held.

        Raises
        ------
        QuarantineError
            If one of the ids is not held; nothing is noted then.
        """
        self._tell(ids, "keep", by, note, session)

    def proposed(self, ids: Sequence[str]) -> dict[str, LogRecord]:
        """Return what was proposed last of entries that are held, by id.

        Only what the log says, and nothing that was decided of them since.
        """
        with self._database.read() as session:
            held = [rows[-1] for rows in self._find(session, ids, Status.HELD).values()]
            told = last_lines_of(session, self._digests, held)
            return {
                row.entry_id: _record(told[row.number])
                for row in held
                if row.number in told and told[row.number].action in PROPOSALS.values()
            }

    def purge(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        evidence: bool = True,
        held_only: bool = False,
        session: Session | None = None,
    ) -> int:
        """Delete every revision of entries for good; only the log remembers that they were here.

        Parameters
        ----------
        ids
            Any; those that are not here are ignored, so that a deletion can be repeated.
        by, note
            Who decided, and why.
        evidence
            Whether confirmed revisions, which are evidence, go as well.
        held_only
            Whether only those go that are held, or were until a later one was.

        Returns
        -------
        int
            How many revisions were deleted.

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

        def work(session: Session) -> int:
            rows = []
            for found in self._find(session, ids).values():
                some = [row for row in found if row.status in going]
                self._check_one_store(some)
                rows += some
            changes = Changes(session, self._digests)
            for row in rows:
                changes.delete(row, "purge")
            changes.write(by, note)
            self.indexes.drop(session, ids)
            return len(rows)

        return self.written(work, session)

    def released_among(
        self, batch: Batch, decisions: Sequence[Decision] | None = None
    ) -> dict[str, str]:
        """Return those entries whose very revision was released, with a remark by whom.

        Parameters
        ----------
        batch
            Entries.
        decisions
            What is said of them now, one per entry: what was released in one context counts in
            another as well, unless something was found there. ``None`` for the very revisions.
        """
        with self._database.read() as session:
            found = self._find(session, batch.ids, Status.RELEASED)
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
        query = select(HeldRow.entry_id).where(HeldRow.status == Status.CONFIRMED, *self._mine)
        with self._database.connection() as connection:
            return list(dict.fromkeys(connection.scalars(query)))

    def confirmed_among(self, batch: Batch) -> dict[str, str]:
        """Return those entries that a reviewer confirmed as poisoned, with a remark by whom.

        The same text with the same label and lineage counts under any id, and where the text was
        confirmed by itself, in any context; but not where it stood in the store before.
        """
        if not self.exists():
            return {}
        any_confirmed = (
            select(HeldRow.number).where(HeldRow.status == Status.CONFIRMED, *self._mine).limit(1)
        )
        # Asked at every write, and nearly always in vain: without a session, which costs more.
        with self._database.connection() as connection:
            if connection.scalar(any_confirmed) is None:
                return {}
        prints = {entry.id: (entry.fingerprint, entry.text_fingerprint) for entry in batch}
        wanted = list({revision for both in prints.values() for revision in both})
        remarks: dict[str, str] = {}
        with self._database.read() as session:
            for start in range(0, len(wanted), CHUNK):
                query = (
                    select(HeldRow)
                    .where(*self._mine)
                    .where(HeldRow.status == Status.CONFIRMED)
                    .where(HeldRow.fingerprint.in_(wanted[start : start + CHUNK]))
                )
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
            for entry_id, rows in self._find(session, list(condemned)).items():
                let_in = {r.fingerprint for r in rows if r.status in LET_IN}
                if not let_in.isdisjoint(prints[entry_id]):  # it stood there before its copy
                    del condemned[entry_id]
        return condemned

    def readmit(
        self, batch: Batch, *, by: str = "ragshield", session: Session | None = None
    ) -> tuple[str, ...]:
        """Note that superseded or replaced revisions were admitted, and are in the store.

        Otherwise whoever reads the quarantine next would take them for held, and hide them.

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

        def work(session: Session) -> tuple[str, ...]:
            found = self._find(session, batch.ids)
            rows = [
                row
                for entry_id, old in found.items()
                for row in old
                if row.fingerprint == prints[entry_id]
                and row.status in (Status.SUPERSEDED, Status.REPLACED)
            ]
            changes = Changes(session, self._digests)
            for row in rows:
                changes.set(row, _reviewed(Status.READMITTED, by), "readmit")
            changes.write(by)
            return tuple(row.entry_id for row in rows)

        return self.written(work, session)

    def supersede(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        session: Session | None = None,
    ) -> tuple[str, ...]:
        """Mark held revisions superseded: a later version of their document takes their place.

        They stay here, hidden, and wait for nobody any more.

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

        def work(session: Session) -> tuple[str, ...]:
            found = self._find(session, ids, Status.HELD)
            changes = Changes(session, self._digests)
            for rows in found.values():
                for row in rows:
                    changes.set(row, {"status": Status.SUPERSEDED}, "supersede")
            changes.write(by, note)
            return tuple(found)

        return self.written(work, session)

    @property
    def indexes(self) -> Indexes:
        """Notes of which index brought a held entry."""
        return Indexes(self)

    def log(
        self,
        ids: Sequence[str] | None = None,
        *,
        since: int = 0,
        until: int | None = None,
        limit: int | None = None,
    ) -> tuple[LogRecord, ...]:
        """Return who did what, in order.

        Parameters
        ----------
        ids
            Only lines that tell of these entries, at most some hundreds.
        since, until
            Only lines after the one, up to the other; ``None`` for the last there is.
        limit
            How many at the most, the earliest; ``None`` for all.
        """
        query = select(LogRow).where(LogRow.seq > since).order_by(LogRow.seq).limit(limit)
        if until is not None:
            query = query.where(LogRow.seq <= until)
        if ids is None:
            query = query.where(checked(LogRow.namespace) == self.namespace)
        else:
            query = query.where(LogRow.namespace == self.namespace, LogRow.entry_id.in_(ids))
        with self._database.read() as session:
            return tuple(_record(row) for row in session.scalars(query))

    def last_lines(self, ids: Sequence[str], actions: Collection[str]) -> dict[str, LogRecord]:
        """Return the last line of the log about each entry that tells of one of some actions.

        Whichever of its revisions it is about; by the index of revisions, however long the log is.
        """
        numbers: list[int] = []
        latest: dict[str, LogRecord] = {}
        with self._database.read() as session:
            for start in range(0, len(ids), CHUNK):
                some = HeldRow.entry_id.in_(ids[start : start + CHUNK])
                numbers += session.scalars(select(HeldRow.number).where(*self._mine, some))
            for start in range(0, len(numbers), CHUNK):
                some = LogRow.held_number.in_(numbers[start : start + CHUNK])
                last = select(func.max(LogRow.seq)).where(some, LogRow.action.in_(actions))
                lines = select(LogRow).where(
                    LogRow.seq.in_(last.group_by(LogRow.held_number).scalar_subquery())
                )
                for line in map(_record, session.scalars(lines)):
                    before = latest.get(line.entry_id)
                    if before is None or before.seq < line.seq:
                        latest[line.entry_id] = line
        return latest

    def verify_log(self) -> None:
        """Check that no line of the log was changed, removed from the middle or slipped in.

        The held entries are not looked at, and lines that were cut off at the end are not missed:
        see :meth:`verify`. The chain spans all namespaces of the database.

        Raises
        ------
        QuarantineError
            If the chain of digests is broken; names the line.
        """
        with self._database.read() as session:
            verify_lines(session, self._digests)

    def verify(self, anchor: str | None = None, *, by: str | None = None) -> None:
        """Check that log, entries and rules, of all namespaces, are as they were written.

        The log is replayed against the tables. Without a key, somebody who may write to the
        database can forge both; with one, they can only be set back to an earlier state, which an
        anchor shows.

        Parameters
        ----------
        anchor
            What :meth:`head` said at some time, kept where the database's writers cannot write.
        by
            Who verifies: the log gets a line with the outcome, for :meth:`verified`, where it can
            be written. ``None`` writes nothing. Nor is anything written where the log ends before
            the anchor: the line would take the number of one that was cut off.

        Raises
        ------
        TamperedError
            Names the first line or row that is broken, and what was expected; the entry only if it
            is of this namespace.
        QuarantineError
            If the anchor is none, or the database cannot be read.
        """
        up_to = self.position()
        reached = parts_of_anchor(anchor)[0] <= up_to
        try:
            with self._database.read() as session:
                told = verify_lines(session, self._digests, anchor)
                verify_rows(session, self._digests, told, self.namespace)
        except TamperedError as error:
            self._note_verified(by if reached else None, f"{BROKEN} up to line {up_to}: {error}")
            raise
        self._note_verified(by, f"{WHOLE} up to line {up_to}")

    def _note_verified(self, by: str | None, note: str) -> None:
        if by is None:
            return
        try:
            self.record(VERIFY, by=by, note=note)
        except QuarantineError as error:  # of another key, or it may only be read
            logger.error("the log could not be told that it was verified: %s", error)  # noqa: TRY400

    def verified(self) -> Verified | None:
        """Return when log and entries were last verified by somebody, and what came out.

        As the log of this namespace has it, with :meth:`verify`'s ``by``; ``None`` if it has
        nothing of it that can be believed here, of which :meth:`verification` says why.
        """
        found = self.verification()
        return found if isinstance(found, Verified) else None

    def verification(self) -> Verified | Unverified:
        """Return what :meth:`verified` does, or why nothing can be said."""
        query = select(LogRow).where(LogRow.namespace == self.namespace, LogRow.entry_id == "")
        query = query.where(checked(LogRow.action) == VERIFY).order_by(LogRow.seq.desc())
        with self._database.read() as session:
            line = session.scalars(query.limit(1)).first()
            if line is None:
                return Unverified.NEVER
            if line.key_name != self._digests.key_name:
                return Unverified.KEYLESS if line.key_name is None else Unverified.OTHER_KEY
            if not is_line(session, self._digests, line):
                logger.error("line %d of the log, of a verification, was changed", line.seq)
                return Unverified.CHANGED
            said = VERIFIED.fullmatch(line.note or "")
            if said is None:  # somebody's own record of that name
                return Unverified.NEVER
            return Verified(
                at=dt.datetime.fromisoformat(line.at),
                by=line.actor,
                whole=said["outcome"] == WHOLE,
                up_to=int(said["line"]),
                said=said["said"] or "",
            )

    def head(self) -> str:
        """Return the number and the digest of the log's last line: it vouches for all before it.

        Examples
        --------
        >>> quarantine = Quarantine("sqlite://")
        >>> quarantine.head()
        '0:'
        """
        with self._database.read() as session:
            return head_of(session)

    def seal(self, *, by: str = "ragshield") -> None:
        """Go on with a key that is new, after checking what was written without one.

        Raises
        ------
        QuarantineError
            If something was changed; there is no key, or the log has one already.
        """
        if self._digests.key_name is None:
            msg = f"there is no key to seal with; set {KEY_VARIABLE}, or pass audit_key=."
            raise QuarantineError(msg)
        self.written(lambda session: seal(session, self._digests, by, self.namespace), None)

    def rekey(self, key: str | bytes, *, by: str = "ragshield") -> None:
        """Go on with another key, after checking what was written with the old one, or without.

        All digests are made anew, in one transaction; anchors of before hold no longer, and a line
        of the log says what the head was. Processes that have the old key can neither write nor
        verify from then on, and let nothing in that was released: restart them with the new one.

        Parameters
        ----------
        key
            The new secret.
        by
            Who exchanges it, for the record.

        Raises
        ------
        QuarantineError
            If something was changed, or the key is too short, or the one that is used already.
        """
        new = Digests(key)
        if new.key_name == self._digests.key_name:
            msg = "the new audit key is the one that is used already; draw another one at random."
            raise QuarantineError(msg)
        old, tenant = self._digests, self.namespace
        self.written(lambda session: rekey(session, old, new, by, tenant), None)
        self._digests = new

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        self._database.close()

    def _row(self, entry: Entry, vector: Any, decision: Decision | None, by: str) -> dict[str, Any]:
        """Return the columns of a newly held entry."""
        try:
            metadata = _metadata_text(entry.metadata)
        except QuarantineError as error:
            msg = f"entry {entry.id!r} cannot be held, and nothing was: {error}"
            raise QuarantineError(msg) from None
        document = document_of(entry.metadata)
        findings = () if decision is None else decision.findings
        notes = []
        if decision is not None:
            notes = [f"{item.detector}: {item.reason}" for item in decision.unjudged]
            notes += [decision.note] if decision.note else []
        return {
            "namespace": self.namespace,
            "store": ANY_STORE if self.store is None else self.store,
            "entry_id": entry.id,
            "fingerprint": entry.fingerprint,
            "status": Status.HELD,
            "text": encoded(entry.text),
            "vector": np.asarray(vector, dtype="<f4").tobytes(),
            "label": entry.label,
            "lineage": entry.lineage,
            "entry_metadata": metadata,
            "document": None if document is None else document_key(document),
            "context": None if entry.context is None else encoded(entry.context),
            "findings": json.dumps([finding_to_dict(finding) for finding in findings]),
            "note": _storable("; ".join(notes)) or None,
            "held_at": now(),
            "held_by": by,
            "reviewed_at": None,
            "reviewed_by": None,
        }

    def _keep(
        self,
        batch: Batch,
        status: Status,
        action: str,
        notes: Sequence[str] | None,
        by: str,
        *,
        over: Collection[Status],
        session: Session | None,
    ) -> None:
        """Note revisions of the store; ``over`` which earlier statuses, but for those."""
        if not len(batch):
            return
        rows = [self._row(e, v, None, by) for e, v in zip(batch, batch.vectors, strict=True)]
        for number, row in enumerate(rows):
            row["status"] = status
            row["note"] = None if notes is None else notes[number]

        def work(session: Session) -> None:
            present = self._find(session, batch.ids)
            changes = Changes(session, self._digests)
            for row in rows:
                revisions = {old.fingerprint: old for old in present.get(row["entry_id"], ())}
                known = revisions.get(row["fingerprint"])
                if known is None:
                    changes.add(row, action)
                elif known.status in over:
                    changes.set(known, row, action)
            changes.write(by)

        self.written(work, session)

    def _review(
        self,
        ids: Sequence[str],
        status: Status,
        by: str,
        note: str | None,
        session: Session | None,
        of: Status = Status.HELD,
    ) -> tuple[HeldEntry, ...]:
        """Mark held entries as judged."""

        def work(session: Session) -> tuple[HeldEntry, ...]:
            found = self._find(session, ids, of)
            missing = [entry_id for entry_id in ids if entry_id not in found]
            if missing:
                msg = (
                    f"entry {missing[0]!r} is not {of} in {self!r}, nothing was {status}; "
                    f"list({'' if of is Status.HELD else repr(str(of))}) names what is."
                )
                raise QuarantineError(msg)
            for some in found.values():
                self._check_one_store(some)
            rows = [max(found[i], key=lambda r: (r.held_at, r.number)) for i in dict.fromkeys(ids)]
            if status is Status.RELEASED:  # what is put back must be what was held
                verify_some(session, self._digests, rows)
            held = tuple(to_held(row) for row in rows)
            action = "release" if status is Status.RELEASED else "confirm"
            changes = Changes(session, self._digests)
            for row in rows:
                changes.set(
                    row, _reviewed(status, by), "restore" if of is Status.REPLACED else action
                )
            changes.write(by, note)
            return held

        return self.written(work, session)

    def _tell(
        self, ids: Sequence[str], action: str, by: str, note: str | None, session: Session | None
    ) -> None:
        """Write into the log what changes nothing of held entries."""

        def work(session: Session) -> None:
            found = self._find(session, ids, Status.HELD)
            missing = [entry_id for entry_id in ids if entry_id not in found]
            if missing:
                shown = printable(missing[0], SHOWN_ID)
                msg = f"entry {shown!r} is not held in {self!r}, and nothing was noted."
                raise QuarantineError(msg)
            changes = Changes(session, self._digests)
            for entry_id in dict.fromkeys(ids):
                self._check_one_store(found[entry_id])
                changes.remark(found[entry_id][-1], action)
            changes.write(by, note)

        self.written(work, session)

    @property
    def _mine(self) -> tuple[ColumnElement[bool], ...]:
        """Conditions on what is seen from here."""
        tenant = HeldRow.namespace == self.namespace
        if self.store is None:
            return (tenant,)
        return tenant, HeldRow.store.in_((self.store, ANY_STORE))

    def _check_one_store(self, rows: Revisions) -> None:
        """Refuse to decide about one id for two stores: the texts need not be the same."""
        names = sorted({row.store for row in rows} - {ANY_STORE})
        if len(names) > 1:
            msg = (
                f"entry {printable(rows[0].entry_id, SHOWN_ID)!r} of {self!r} is of several stores "
                f"({', '.join(repr(printable(name, SHOWN_ID)) for name in names)}), nothing was "
                "done; name one: Quarantine.for_store(name), or --store."
            )
            raise QuarantineError(msg)

    def _find(
        self, session: Session, ids: Sequence[str], status: Status | None = None
    ) -> dict[str, Revisions]:
        """Return the revisions kept under each id, oldest first."""
        if isinstance(ids, str):
            msg = f"ids is one str, expected a list: [{printable(ids, SHOWN_ID)!r}]."
            raise TypeError(msg)
        found: dict[str, Revisions] = {}
        for start in range(0, len(ids), CHUNK):
            query = (
                select(HeldRow)
                .where(*self._mine)
                .where(HeldRow.entry_id.in_(ids[start : start + CHUNK]))
                .order_by(HeldRow.number)
            )
            for row in session.scalars(query):
                # Looked at here: SQLite would rather go through all that are of a status than
                # through these ids (9 ms against .3 ms with 20,000 held).
                if status is None or row.status == status:
                    found.setdefault(row.entry_id, []).append(row)
        return found

    @property
    def database(self) -> Database:
        """Its database, for tables that lie beside its own and are written together with them."""
        return self._database

    def _vouched_for(self, session: Session, found: Mapping[str, Revisions]) -> Collection[int]:
        """Return the numbers of those released revisions that are as the log says."""
        rows = [row for some in found.values() for row in some if row.status == Status.RELEASED]
        return last_lines_of(session, self._digests, rows).keys()

    @property
    def digests(self) -> Digests:
        """What makes the digests of its rows, for rules and others that the log vouches for."""
        return self._digests

    def change(
        self,
        work: Callable[[Session, Changes], T],
        *,
        by: str,
        note: Callable[[T], str] | str | None = None,
    ) -> T:
        """Change what lies beside held entries, with a line in the log, durably.

        Parameters
        ----------
        work
            Makes the changes of one transaction; called again where others were in the way.
        by, note
            Who decided, and why; the note may be made of what ``work`` returns.
        """

        def once(session: Session) -> T:
            changes = Changes(session, self._digests)
            answer = work(session, changes)
            changes.write(by, note(answer) if callable(note) else note)
            return answer

        return self.written(once, None)

    def record(self, action: str, *, by: str, note: str) -> None:
        """Write a line of the log that is about no entry: what a person decided of the guard.

        Parameters
        ----------
        action
            At most 16 characters.
        by, note
            Who decided, and what.
        """
        namespace = self.namespace
        self.change(lambda _, changes: changes.tell(action, namespace), by=by, note=note)

    def written(self, work: Callable[[Session], T], session: Session | None = None) -> T:
        """Do ``work`` as a part of a write of this thread, or in one of its own."""
        session = session if session is not None else self._database.writing
        if session is None:
            return self._database.write(self._anchored(work))
        return self._anchored(work)(session)

    def _anchored(self, work: Callable[[Session], T]) -> Callable[[Session], T]:
        """Return work after which, once it is durable, the log's head is anchored, if it moved."""
        anchor = self._anchor
        if anchor is None:
            return work

        def send(head: str) -> None:
            try:
                anchor(head)
            except Exception:
                logger.exception("the head of the audit log, %s, could not be anchored", head)

        def done(session: Session) -> T:
            before, answer, after = head_of(session), work(session), head_of(session)
            if after != before:
                self._database.afterwards(partial(send, after))
            return answer

        return done

    def exists(self) -> bool:
        """Whether there is a database yet; asking must not make one."""
        return self._database.exists()


def _check_batch(batch: object) -> None:
    if not isinstance(batch, Batch):
        msg = f"batch is a {type(batch).__name__}, expected a Batch: Batch.of(ids=[...], ...)."
        raise TypeError(msg)


@contextmanager
def _naming(ids: Sequence[str]) -> Iterator[None]:
    """Say of an error of the database which entries were to be held."""
    try:
        yield
    except QuarantineError as error:
        shown = ", ".join(repr(printable(entry_id, SHOWN_ID)) for entry_id in ids[:SHOWN_IDS])
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        msg = f"entries cannot be held, and none was ({shown}{more}): {error}"
        raise QuarantineError(msg) from error.__cause__


def _metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return metadata as it is kept.

    Raises
    ------
    QuarantineError
        If it cannot be.
    """
    try:
        return metadata_json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise QuarantineError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
        # What they say may quote them.
        msg = f"metadata cannot be read ({type(error).__name__}); use strings, numbers or dates."
        raise QuarantineError(msg) from None


def _storable(text: str) -> str:
    """Return text that any database keeps: a plug-in's remark may hold what comes from an entry."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _checked_name(name: object) -> str:
    """Return the name of a store as it is kept."""
    if not isinstance(name, str) or name == ANY_STORE:
        msg = (
            f"a store's name is {name if name == ANY_STORE else type(name).__name__!r}, expected a "
            f"str other than {ANY_STORE!r}, such as that of its collection."
        )
        raise QuarantineError(msg)
    return _storable(name)


def _held_again(
    changes: Changes,
    row: dict[str, Any],
    before: Sequence[HeldRow],
    decision: Decision | None,
    vouched: Collection[int],
) -> HeldRow | None:
    """Hold a revision, before which others were here; return what makes that it stays released.

    ``vouched`` has the numbers of the released ones that the log knows as they are.
    """
    revisions = {old.fingerprint: old for old in before}
    covering = [
        old for old in revisions.values() if _covers(old, row, decision) and old.number in vouched
    ]
    known = revisions.pop(row["fingerprint"], None)
    if covering and (known is None or known in covering):
        return covering[-1]
    for old in revisions.values():
        if old.status == Status.HELD:
            changes.set(old, {"status": Status.SUPERSEDED}, "supersede")
    if known is None:
        changes.add(row, "hold")
    elif known.status == Status.HELD or (known.status == Status.CONFIRMED and decision is not None):
        changes.set(known, {column: row[column] for column in JUDGED}, "judge")
    else:
        changes.set(known, row, "hold")
    return None


def _record(line: LogRow) -> LogRecord:
    return LogRecord(
        seq=line.seq,
        at=dt.datetime.fromisoformat(line.at),
        action=line.action,
        entry_id=line.entry_id,
        fingerprint=line.fingerprint,
        actor=line.actor,
        note=line.note,
    )


def _reviewed(status: Status, by: str) -> dict[str, Any]:
    return {"status": status, "reviewed_at": now(), "reviewed_by": by}


def _covers(row: HeldRow, claims: Mapping[str, Any], decision: Decision | None) -> bool:
    """Return whether a release holds for what comes now: the revision, or the text it is about.

    Parameters
    ----------
    row
        A revision that is kept.
    claims
        Fingerprint, text, label and lineage of what comes.
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
