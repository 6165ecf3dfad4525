"""The reviewers' queue: held entries in cases, with one decision per case."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from ragshield_core.quarantine.entries import HeldEntry
from ragshield_core.quarantine.rows import document_key, findings_of, seen_by, to_held
from ragshield_core.quarantine.status import Status
from ragshield_core.tools.review.choices import CaseOrder

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

# Rows of a page.
LIMIT = 50
# Bytes of a text that a page of the queue searches for the convicting words.
QUOTABLE = 4_000
# First cases of the queue, among which a case has neighbours.
FAR = 1_000


ORDERS: dict[CaseOrder, tuple[Any, ...]] = {
    # The size of the clean sample limits how rare a finding can be, so ties in rarity are common.
    CaseOrder.SEVERITY: (CaseRow.rank.desc(), CaseRow.rarity.desc(), CaseRow.n_waiting.desc()),
    CaseOrder.AGE: (CaseRow.opened_at,),
    CaseOrder.SIZE: (CaseRow.n_waiting.desc(),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Entries that are judged together."""

    number: int  # of its first entry
    store: str | None  # of its entries; None for any store
    n_waiting: int
    n_released: int
    n_confirmed: int
    n_members: int
    severity: Severity  # by the effect on answers; unknown if no calibrated detector found it
    # Rarity of the strongest finding in orders of magnitude: 3.0 if one clean entry in a thousand
    # scores as high; 0 if unknown. It breaks ties within a severity.
    rarity: float
    opened_at: dt.datetime  # when its first entry was held
    latest_at: dt.datetime
    detectors: tuple[str, ...]  # with a finding in any entry
    source: str | None  # claimed by its first entry, as stored: a long one by its digest


class CaseMember(NamedTuple):
    """An entry of a case, without its text."""

    number: int
    id: str
    store: str | None  # None for any store
    status: Status


PLACES = select(HeldRow.number, HeldRow.entry_id, HeldRow.store, HeldRow.status).order_by(
    HeldRow.number
)


def _place(row: Sequence[Any]) -> CaseMember:
    number, entry_id, store, status = row
    return CaseMember(number, entry_id, None if store == ANY_STORE else store, Status(status))


class Page(NamedTuple):
    """A page of the queue."""

    cases: tuple[Case, ...]
    n_cases: int  # on all pages
    offset: int  # of its first case


class Around(NamedTuple):
    """The place of a case in the queue, from 1, and its neighbours there."""

    place: int  # 0 for a case outside the queue
    n_cases: int
    previous: int | None
    following: int | None


class Cases:
    """Review cases of a quarantine: those of its store, or of its whole namespace.

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
        order: CaseOrder | str = CaseOrder.SEVERITY,
        limit: int = LIMIT,
        offset: int = 0,
    ) -> Page:
        """Return a page of cases, and the number of cases on all pages.

        Filters keep cases with ``waiting`` entries, or without; found by a ``detector``; of a
        ``source``; or with an entry that has ``search`` in its id or in the first 4,000 characters
        of its text, in any case. A search reads all texts: once for the first page, twice for
        others. An offset past the end returns the last page.
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
        order: CaseOrder | str = CaseOrder.SEVERITY,
    ) -> Around:
        """Return the place of a case in the queue, and its neighbours there.

        Filters are those of :meth:`page`. A case outside the first thousand is followed by the
        first case of the queue.
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
        """Return the names of all detectors with findings in cases that wait."""
        query = select(CaseRow.detectors).where(*self._waiting()).distinct()
        with self._quarantine.database.read() as session:
            names = {name for names in session.scalars(query) for name in names.split()}
        return tuple(sorted(names))

    def show(self, number: int) -> Case:
        """Return a case, or the larger case that it has become a part of.

        Raises
        ------
        QuarantineError
            If no case has that number.
        """
        with self._quarantine.database.read() as session:
            return self._show(session, number)

    def members(self, number: int, *, limit: int = LIMIT, offset: int = 0) -> tuple[HeldEntry, ...]:
        """Return a page of the entries of a case: waiting ones first, then by order of arrival.

        The number of waiting entries is the case's own count, since counting a million rows is
        slow. If that is outdated, because somebody is deciding on them or another program changed
        the database, a page may lack entries or repeat some of the next page.

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
        # Texts are read last, for this page only.
        return tuple(self.entries(numbers).values())

    def places(
        self, number: int, *, after: int = 0, until: int, limit: int = LIMIT
    ) -> tuple[CaseMember, ...]:
        """Return entries of a case in order of arrival, whatever their status.

        Their numbers are above ``after``, up to ``until``; late pages are as quick as early ones.
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
    ) -> tuple[CaseMember, ...]:
        """Return entries that still have the status ``by`` gave them, by id and fingerprint."""
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
        """Return the number of the latest entry of a case; 0 if there is none.

        Without a case, of the whole database: later entries have higher numbers.
        """
        query = select(func.max(MemberRow.number))
        if number is not None:
            query = query.where(*self._of(number))
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def n_later(self, number: int, last: int) -> int:
        """Return the number of entries of a case after entry ``last``."""
        query = select(func.count()).where(*self._of(number), MemberRow.number > last)
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def of(self, ids: Sequence[str]) -> tuple[Case, ...]:
        """Return the cases of waiting entries with these ids."""
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
        """Return entries by their numbers; missing ones are left out."""
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
        """Return the case number of each entry, by the entry's number.

        Replaced and readmitted revisions that were never held have no case.
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
        """Return the findings and the beginning of the text of the first entry of each case."""
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
        """Return the number of waiting entries from the cases' counts, in a quick query."""
        query = select(func.sum(CaseRow.n_waiting)).where(*self._waiting())
        with self._quarantine.database.read() as session:
            return int(session.scalar(query) or 0)

    def whole(self) -> bool:
        """Return whether the cases' counts match the waiting entries; if not, :meth:`regroup`."""
        return self.n_waiting() == self._quarantine.count()

    def regroup(self) -> int:
        """Rebuild the cases of all namespaces from the entries; return their number."""
        regroup = partial(grouping.regroup, digests=self._quarantine.log.digests)
        return self._quarantine.database.write(regroup)

    # Inside

    def _of(self, number: int) -> tuple[ColumnElement[bool], ...]:
        """Return conditions on the members of a case."""
        tenant = MemberRow.namespace == self._quarantine.namespace
        return MemberRow.case_number == number, tenant

    def _show(self, session: Session, number: int) -> Case:
        """Return a case, or the larger case that it has become a part of."""
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
        """Return conditions on cases with waiting entries."""
        return [*seen_by(self._quarantine, CaseRow), CaseRow.is_open == 1]

    def _queue(
        self,
        waiting: bool | None,  # noqa: FBT001
        detector: str | None,
        source: str | None,
        search: str | None,
        order: CaseOrder | str,
    ) -> Select[tuple[CaseRow]]:
        """Return a query for cases in an order, with ties broken by number."""
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
            # Materialised: PostgreSQL estimates that any text matches a third of all entries, and
            # would search the members of each case instead.
            holds = MemberRow.searched.contains(grouping.searched(search), autoescape=True)
            found = select(MemberRow.case_number).where(mine, holds).distinct().cte("found")
            found = found.prefix_with("MATERIALIZED", dialect="postgresql")
            where.append(CaseRow.number.in_(select(found.c.case_number)))
        return select(CaseRow).where(*where).order_by(*ORDERS[CaseOrder(order)], CaseRow.number)


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
