"""The queue of the reviewers: held entries in cases, each of which takes one decision."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import ANY_STORE, CaseRow, HeldRow, MemberRow, checked
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Finding
from ragshield_core.model.severity import Severity
from ragshield_core.quarantine import grouping
from ragshield_core.quarantine.entries import HeldEntry, Status
from ragshield_core.quarantine.rows import document_key, findings_of, seen_by, to_held

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

# Rows of a page.
LIMIT = 50
# Bytes of a text in which the words that convict are looked for, on a page of the queue.
QUOTABLE = 4_000
# Cases among which the neighbours of one are looked for.
FAR = 1_000


class Order(StrEnum):
    """Order of cases."""

    SEVERITY = "severity"  # the worst effect, then the rarest finding, then the most that wait
    AGE = "age"  # the oldest
    SIZE = "size"  # with the most entries that wait


ORDERS: dict[Order, tuple[Any, ...]] = {
    # A calibration knows no finding to be rarer than one in its clean sample: many are as rare.
    Order.SEVERITY: (CaseRow.rank.desc(), CaseRow.rarity.desc(), CaseRow.n_waiting.desc()),
    Order.AGE: (CaseRow.opened_at,),
    Order.SIZE: (CaseRow.n_waiting.desc(),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Entries that are judged together."""

    number: int  # of its first entry
    store: str | None  # of its entries; None for whichever asks
    n_waiting: int
    n_released: int
    n_confirmed: int
    n_members: int
    severity: Severity  # by the effect on answers; unknown of what no calibrated detector found
    # Orders of magnitude by which the strongest finding is rare: 3.0 if one clean entry in a
    # thousand scores as high; 0 where that is unknown. The tie-breaker within a severity.
    rarity: float
    opened_at: dt.datetime  # when its first entry was held
    latest_at: dt.datetime
    detectors: tuple[str, ...]  # that have found any of them
    source: str | None  # that its first entry claims to be of, as it is kept: long ones by a digest


class Place(NamedTuple):
    """An entry of a case, without what it says."""

    number: int
    id: str
    store: str | None  # None for whichever asks
    status: Status


PLACES = select(HeldRow.number, HeldRow.entry_id, HeldRow.store, HeldRow.status).order_by(
    HeldRow.number
)


def _place(row: Sequence[Any]) -> Place:
    number, entry_id, store, status = row
    return Place(number, entry_id, None if store == ANY_STORE else store, Status(status))


class Page(NamedTuple):
    """A page of the queue."""

    cases: tuple[Case, ...]
    n_cases: int  # on all pages
    offset: int  # of its first case


class Around(NamedTuple):
    """The place of a case in the queue, from 1, and its neighbours there."""

    place: int  # 0 for a case that is not there
    n_cases: int
    previous: int | None
    following: int | None


class Cases:
    """Review cases of a quarantine, as one store or all of its namespace see them.

    Examples
    --------
    >>> from ragshield_core import Batch, Quarantine
    >>> quarantine = Quarantine("sqlite://")
    >>> batch = Batch.of(ids=["a", "b"], texts=["Call 1 now.", "Call 2 now."], embeddings=None)
    >>> _ = quarantine.hold(batch, by="anna")
    >>> [(case.number, case.n_waiting) for case in Cases(quarantine).page().cases]
    [(1, 2)]
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine

    def page(
        self,
        *,
        waiting: bool | None = True,
        detector: str | None = None,
        source: str | None = None,
        search: str | None = None,
        order: Order | str = Order.SEVERITY,
        limit: int = LIMIT,
        offset: int = 0,
    ) -> Page:
        """Return a page of cases, and how many there are on all pages.

        Only those with entries that are ``waiting``, or without; found by a ``detector``; of a
        ``source``; or with an entry in whose id, or the first 4,000 characters of whose text, a
        ``search`` is found, in upper or lower case. That reads all texts: once on the first page,
        else twice. Past the end, the last page is returned.
        """
        query = self._queue(waiting, detector, source, search, order)
        with self._quarantine.database.read() as session:
            if search and offset == 0:
                found = session.execute(query.add_columns(func.count().over()).limit(limit)).all()
                return Page(tuple(_case(row) for row, _ in found), found[0][1] if found else 0, 0)
            count = session.scalar(_count(query)) or 0
            if offset >= count:
                offset = max(0, count - 1) // max(1, limit) * limit
            rows = session.scalars(query.limit(limit).offset(offset))
            return Page(tuple(_case(row) for row in rows), count, offset)

    def around(
        self,
        number: int,
        *,
        waiting: bool | None = True,
        detector: str | None = None,
        source: str | None = None,
        order: Order | str = Order.SEVERITY,
    ) -> Around:
        """Return where a case is in the queue, and which come before and after it.

        The queue is narrowed as of :meth:`page`. Of a case that is not among its first
        thousand, the first one follows.
        """
        query = self._queue(waiting, detector, source, None, order)
        with self._quarantine.database.read() as session:
            count = session.scalar(_count(query)) or 0
            queue = list(session.scalars(query.with_only_columns(CaseRow.number).limit(FAR)))
        at = queue.index(number) if number in queue else -1
        return Around(
            place=at + 1,
            n_cases=count,
            previous=queue[at - 1] if at > 0 else None,
            following=next(iter(queue[at + 1 :]), None),
        )

    def detectors(self) -> tuple[str, ...]:
        """Return the names of all detectors that have found something that waits."""
        query = select(CaseRow.detectors).where(*self._waiting()).distinct()
        with self._quarantine.database.read() as session:
            names = {name for names in session.scalars(query) for name in names.split()}
        return tuple(sorted(names))

    def show(self, number: int) -> Case:
        """Return one case.

        Raises
        ------
        QuarantineError
            If there is none of that number; it may be a part of another one by now.
        """
        with self._quarantine.database.read() as session:
            return self._show(session, number)

    def members(self, number: int, *, limit: int = LIMIT, offset: int = 0) -> tuple[HeldEntry, ...]:
        """Return a page of the entries of a case, those that wait first, then as they came.

        How many wait is taken from the case: of a million nobody counts them. Where that is no
        longer so, because somebody decides of them at the moment or the database was changed past
        ragshield, a page may lack entries or have some of the next.

        Raises as :meth:`show`.
        """
        with self._quarantine.database.read() as session:
            case = self._show(session, number)
            number = case.number
            waits = exists().where(
                HeldRow.number == MemberRow.number, checked(HeldRow.status) == Status.HELD
            )
            members = select(MemberRow.number).where(*self._of(number)).order_by(MemberRow.number)
            all_wait = case.n_waiting == case.n_members
            numbers: list[int] = []
            if offset < case.n_waiting:
                waiting = (members if all_wait else members.where(waits)).offset(offset)
                numbers += session.scalars(waiting.limit(min(limit, case.n_waiting - offset)))
            if len(numbers) < limit:
                others = (members.where(~waits) if case.n_waiting else members).limit(
                    limit - len(numbers)
                )
                numbers += session.scalars(others.offset(max(0, offset - case.n_waiting)))
        # Only now what is long.
        return tuple(self.entries(numbers).values())

    def places(
        self, number: int, *, after: int = 0, until: int, limit: int = LIMIT
    ) -> tuple[Place, ...]:
        """Return entries of a case as they came, however they stand: as quick at any place of it.

        Those that came after an entry of one number, up to one of another.
        """
        query = select(MemberRow.number).where(
            *self._of(number), MemberRow.number > after, MemberRow.number <= until
        )
        with self._quarantine.database.read() as session:
            numbers = session.scalars(query.order_by(MemberRow.number).limit(limit)).all()
            parts = [PLACES.where(HeldRow.number.in_(some)) for some in chunks(numbers)]
            return tuple(_place(row) for part in parts for row in session.execute(part))

    def as_decided(
        self, decisions: Mapping[tuple[str, str], Status], *, by: str
    ) -> tuple[Place, ...]:
        """Return entries that still stand as somebody decided, by id and fingerprint."""
        query = PLACES.add_columns(HeldRow.fingerprint, HeldRow.reviewed_by)
        query = query.where(*seen_by(self._quarantine))
        ids = list(dict.fromkeys(entry_id for entry_id, _ in decisions))
        with self._quarantine.database.read() as session:
            parts = [query.where(HeldRow.entry_id.in_(some)) for some in chunks(ids)]
            return tuple(
                _place(row)
                for part in parts
                for *row, fingerprint, reviewer in session.execute(part)
                if reviewer == by and decisions.get((row[1], fingerprint)) == row[3]
            )

    def newest(self, number: int | None = None) -> int:
        """Return the number of the entry that came last into a case; 0 if there is none.

        Without a case, of any in the database: what comes later has a higher one.
        """
        query = select(func.max(MemberRow.number))
        if number is not None:
            query = query.where(*self._of(number))
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def n_later(self, number: int, last: int) -> int:
        """Return how many entries of a case came later than one of them."""
        query = select(func.count()).where(*self._of(number), MemberRow.number > last)
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def of(self, ids: Sequence[str]) -> tuple[Case, ...]:
        """Return the cases of entries that wait, by their ids."""
        numbers: set[int] = set()
        query = (
            select(MemberRow.case_number, HeldRow.status)
            .join(HeldRow, HeldRow.number == MemberRow.number)
            .where(HeldRow.namespace == self._quarantine.namespace)
        )
        with self._quarantine.database.read() as session:
            for some in chunks(list(dict.fromkeys(ids))):
                rows = session.execute(query.where(HeldRow.entry_id.in_(some)))
                numbers |= {number for number, status in rows if status == Status.HELD}
            found: list[CaseRow] = []
            for some in chunks(sorted(numbers)):
                query_cases = select(CaseRow).where(CaseRow.number.in_(some))
                tenant = checked(CaseRow.namespace) == self._quarantine.namespace
                found += session.scalars(query_cases.where(tenant))
            return tuple(_case(row) for row in found if self._sees(row))

    def entries(self, numbers: Sequence[int]) -> dict[int, HeldEntry]:
        """Return entries by their numbers; those that are not here are left out."""
        quarantine = self._quarantine
        query = select(HeldRow).where(checked(HeldRow.namespace) == quarantine.namespace)
        if quarantine.store is not None:
            query = query.where(HeldRow.store.in_((quarantine.store, ANY_STORE)))
        found: dict[int, HeldEntry] = {}
        with quarantine.database.read() as session:
            for some in chunks(list(dict.fromkeys(numbers))):
                for row in session.scalars(query.where(HeldRow.number.in_(some))):
                    found[row.number] = to_held(row)
        return {number: found[number] for number in numbers if number in found}

    def numbers_of(self, held: Sequence[HeldEntry]) -> dict[int, int]:
        """Return the numbers of the cases that entries are in, by those of the entries.

        What was replaced or readmitted, and never held, is in none.
        """
        query = select(MemberRow.number, MemberRow.case_number)
        query = query.where(checked(MemberRow.namespace) == self._quarantine.namespace)
        found: dict[int, int] = {}
        with self._quarantine.database.read() as session:
            for some in chunks([one.number for one in held]):
                rows = session.execute(query.where(MemberRow.number.in_(some)))
                found.update((number, case) for number, case in rows)
        return found

    def firsts(self, cases: Sequence[Case]) -> dict[int, tuple[tuple[Finding, ...], str]]:
        """Return what was found in the first entry of each case, and how its text begins."""
        begins = func.substr(HeldRow.text, 1, QUOTABLE)
        query = select(HeldRow.number, HeldRow.findings, begins)
        query = query.where(HeldRow.number.in_([case.number for case in cases]))
        query = query.where(checked(HeldRow.namespace) == self._quarantine.namespace)
        with self._quarantine.database.read() as session:
            return {
                number: (findings_of(written), bytes(text).decode("utf-8", "replace"))
                for number, written, text in session.execute(query)
            }

    def n_waiting(self) -> int:
        """Return how many entries wait, as cases count them: quick, however many there are."""
        query = select(func.sum(CaseRow.n_waiting)).where(*self._waiting())
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def whole(self) -> bool:
        """Whether cases count as many waiting entries as there are; else :meth:`regroup`."""
        return self.n_waiting() == self._quarantine.count()

    def regroup(self) -> int:
        """Tell the cases of all namespaces anew, from the entries; return how many there are."""
        regroup = partial(grouping.regroup, digests=self._quarantine.log.digests)
        return self._quarantine.database.write(regroup)

    # Inside

    def _of(self, number: int) -> tuple[ColumnElement[bool], ...]:
        """Return conditions on the members of a case."""
        tenant = MemberRow.namespace == self._quarantine.namespace
        return MemberRow.case_number == number, tenant

    def _show(self, session: Session, number: int) -> Case:
        """Return a case, or that which it is a part of by now."""
        mine = MemberRow.namespace == self._quarantine.namespace
        now = session.scalar(select(MemberRow.case_number).where(MemberRow.number == number, mine))
        query = select(CaseRow).where(CaseRow.namespace == self._quarantine.namespace)
        row = session.scalars(query.where(CaseRow.number == (now or number))).first()
        if row is None or not self._sees(row):
            msg = f"there is no case {number} in {self._quarantine!r}; page() has what there is."
            raise QuarantineError(msg)
        return _case(row)

    def _sees(self, row: CaseRow) -> bool:
        return self._quarantine.store is None or row.store in (self._quarantine.store, ANY_STORE)

    def _waiting(self) -> list[ColumnElement[bool]]:
        """Return conditions on cases with entries that wait."""
        return [*seen_by(self._quarantine, CaseRow), CaseRow.is_open == 1]

    def _queue(
        self,
        waiting: bool | None,  # noqa: FBT001
        detector: str | None,
        source: str | None,
        search: str | None,
        order: Order | str,
    ) -> Select[tuple[CaseRow]]:
        """Return a query for cases in an order; ties by number."""
        where = seen_by(self._quarantine, CaseRow)
        mine = MemberRow.namespace == self._quarantine.namespace
        if waiting is not None:
            where.append(CaseRow.is_open == int(waiting))
        if detector is not None:
            name = "_".join(detector.split())
            where.append(CaseRow.detectors.contains(f" {name} ", autoescape=True))
        if source is not None:
            of_source = MemberRow.source == document_key(source)
            where.append(CaseRow.number.in_(select(MemberRow.case_number).where(mine, of_source)))
        if search:
            # Materialised: PostgreSQL takes a third of all entries to hold any text, and would
            # rather look for the members of each case.
            holds = MemberRow.searched.contains(grouping.searched(search), autoescape=True)
            found = select(MemberRow.case_number).where(mine, holds).distinct().cte("found")
            found = found.prefix_with("MATERIALIZED", dialect="postgresql")
            where.append(CaseRow.number.in_(select(found.c.case_number)))
        return select(CaseRow).where(*where).order_by(*ORDERS[Order(order)], CaseRow.number)


def _count(query: Select[tuple[CaseRow]]) -> Select[tuple[int]]:
    return query.with_only_columns(func.count()).order_by(None)


def _case(row: CaseRow) -> Case:
    return Case(
        number=row.number,
        store=None if row.store == ANY_STORE else row.store,
        n_waiting=row.n_waiting,
        n_released=row.n_released,
        n_confirmed=row.n_confirmed,
        n_members=row.n_members,
        severity=grouping.RANKS[row.rank],
        rarity=row.rarity,
        opened_at=dt.datetime.fromisoformat(row.opened_at),
        latest_at=dt.datetime.fromisoformat(row.latest_at),
        detectors=tuple(row.detectors.split()),
        source=row.source or None,
    )
