"""Review cases of held entries: a group, a flood or the copies of one text are one case.

An entry gets its case from its evidence when it is held. It joins the case of an entry named there,
if the same detector found both, or if the evidence is of a group of one meaning; and the case of a
copy. Resemblance to a third entry ties nothing: innocent pages have it too. An entry in a group is
not tied by a phrase as well, which clean texts may share. Others join held and confirmed entries
only: a released entry was no part of an attack.

The tables of cases are derived from entries and their findings: see :func:`regroup`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from ragshield_core.database import chunks, table_of
from ragshield_core.database.tables import CaseRow, HeldRow, MemberRow, checked
from ragshield_core.model.severity import GROUP, HIDDEN, ORDER, Severity, severity_by
from ragshield_core.quarantine.digests import Digests, check_key
from ragshield_core.quarantine.evidence import last_line
from ragshield_core.quarantine.rows import decoded, document_key, encoded
from ragshield_core.quarantine.status import Status

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Rows to read at a time.
PAGE = 1_000
# Statuses of entries whose case others join.
TELLING = (Status.HELD, Status.CONFIRMED)
COUNTED = {
    Status.HELD: "n_waiting",
    Status.RELEASED: "n_released",
    Status.CONFIRMED: "n_confirmed",
}
# Severities in queue order, last first; orders or hidden text raise UNKNOWN to its second place.
RANKS = (
    Severity.UNKNOWN,
    Severity.LOW,
    Severity.MEDIUM,
    Severity.UNKNOWN,
    Severity.HIGH,
    Severity.CRITICAL,
)
UNKNOWN_ORDER = RANKS.index(Severity.UNKNOWN, 1)
# Number of characters of a text to search.
SEARCHED = 4_000
# Texts that share a phrase may have nothing else in common, and some are clean: an entry that is
# also in a group belongs to the group.
PHRASE = "trigger_phrase"
# Parts that differ between copies of one template.
NUMBERS = re.compile(r"[\d\s]+")

Values = Mapping[str, Any]
# The values of an entry that determine its case, see :func:`_entry`.
Entry = dict[str, Any]


def rarity_of(findings: Sequence[Values]) -> float:
    """Return the rarity of the strongest finding in orders of magnitude.

    3.0 if one clean entry in a thousand scores as high; 0 if the rarity is unknown, since no
    detector was calibrated or a person holds the entry.
    """
    p_values = [one["p_value"] for one in findings if one["p_value"] is not None]
    return abs(math.log10(max(min(p_values, default=1.0), 1e-300)))


def rank_of(case: Values) -> int:
    """Return a case's rank in the queue, as an index of :data:`RANKS`."""
    detectors, n = case["detectors"].split(), case["n_waiting"] + case["n_confirmed"]
    if case["rarity"] <= 0.0:
        return UNKNOWN_ORDER if {ORDER, HIDDEN} & {*detectors} else 0
    return RANKS.index(severity_by(detectors, n))


def searched(text: str) -> str:
    """Return a text or search term in searchable form: casefolded, and valid in any database."""
    return text.casefold().encode("utf-8", "replace").decode().replace("\0", " ")


def wording_of(text: bytes) -> str:
    """Return a digest shared by copies of a text: that of the text without numbers and spaces."""
    plain = NUMBERS.sub(" ", decoded(text).casefold()).strip()
    return hashlib.sha256(encoded(plain) or text).hexdigest()[:32]


class Grouping:
    """Changes of the cases of a namespace, in one transaction.

    Parameters
    ----------
    session
        The session of the transaction.
    digests
        Computes the digests of cases and members.
    namespace
        The tenant's namespace.
    """

    def __init__(self, session: Session, digests: Digests, namespace: str) -> None:
        self._session, self._digests, self._namespace = session, digests, namespace
        # Cases after the change; ranks are set at the end.
        self._cases: dict[int, dict[str, Any]] = {}
        self._were: set[int] = set()  # in the table
        self._gone: set[int] = set()

    def follow(
        self,
        new: Sequence[Values],
        moved: Sequence[tuple[HeldRow, str]],
        gone: Mapping[int, str],
    ) -> None:
        """Update the cases after a change of entries, in the same transaction.

        ``new`` has the columns of new revisions, ``moved`` the changed revisions with their
        previous statuses, and ``gone`` the statuses of deleted ones, by number.
        """
        try:
            self._follow(new, moved, gone)
        except _TornError:  # changed outside ragshield; entries must be held nevertheless
            logger.warning("cases of the quarantine did not fit its entries, and are told anew")
            Grouping(self._session, self._digests, self._namespace).regroup()

    def _follow(
        self,
        new: Sequence[Values],
        moved: Sequence[tuple[HeldRow, str]],
        gone: Mapping[int, str],
    ) -> None:
        known = self._members([*(row.number for row, _ in moved), *gone])
        for number, status in gone.items():
            if number in known:
                self._move(known[number], status, None)
        member = table_of(MemberRow)
        self._each(delete(member), member.c.number, [n for n in gone if n in known])
        coming: list[Values] = [row for row in new if row["status"] == Status.HELD]
        again: list[Entry] = []
        silent = []
        for row, before in moved:
            case = known.get(row.number)
            if case is not None:
                self._move(case, before, row.status)
            if row.status == Status.HELD and case is not None:
                again.append(_entry(vars(row)) | {"case_number": case})
            elif row.status == Status.HELD:
                coming.append(vars(row))
            elif row.status not in TELLING and before in TELLING:
                silent.append(row.number)
        self._change_members(member.c.number, silent, {"tells": 0})
        for entry in again:  # add later findings
            _take(self._case(entry["case_number"]), entry)
        into = self._take_in([_entry(row) for row in coming])
        for entry in again:  # new entries may have merged cases
            entry["case_number"] = into.get(entry["case_number"], entry["case_number"])
        self._merge([*_among(again), *self._stored_ties(again)])
        anew = {entry["number"]: {name: entry[name] for name in MEMBER} for entry in again}
        self._change_members(member.c.number, list(anew), {}, anew)
        self._write()

    def regroup(self) -> int:
        """Rebuild all cases of the namespace from the entries; return their number."""
        for table in (table_of(CaseRow), table_of(MemberRow)):
            self._session.execute(delete(table).where(table.c.namespace == self._namespace))
        for page in self._all_held():
            self._take_in([_entry(row) for row in page])
        for page in self._all_held():  # entries may name later ones
            entries = [_entry(row) for row in page]
            known = self._members([entry["number"] for entry in entries])
            for entry in entries:
                entry["case_number"] = known[entry["number"]]
            self._merge(self._stored_ties(entries))
        return self._write()

    def _take_in(self, entries: Sequence[Entry]) -> dict[int, int]:
        """Find cases for entries without one; return the new numbers of merged cases."""
        if self._members([entry["number"] for entry in entries]):
            raise _TornError  # members of entries that were deleted outside ragshield
        for row in entries:  # one case each, for now
            counts = {column: int(row["status"] == status) for status, column in COUNTED.items()}
            same = ("number", "namespace", "store", "rarity", "detectors")
            self._cases[row["number"]] = {
                **{name: row[name] for name in same},
                "n_members": 1,
                "opened_at": row["held_at"],
                "latest_at": row["held_at"],
                "source": row["source"] or "",
                **counts,
            }
        ties = [*_among(entries), *self._stored_ties(entries)]
        into = self._merge(ties, fresh={entry["number"] for entry in entries})
        members = [
            {column: entry[column] for column in MEMBER}
            | {"case_number": into.get(entry["number"], entry["number"])}
            for entry in entries
        ]
        for member in members:
            member["digest"] = self._digests.of(MemberRow, member)
        if members:
            self._session.execute(insert(table_of(MemberRow)), members)
        return into

    # Cases

    def _case(self, number: int) -> dict[str, Any]:
        self._need([number])
        return self._cases[number]

    def _need(self, numbers: Iterable[int]) -> None:
        table = table_of(CaseRow)
        for some in chunks([n for n in dict.fromkeys(numbers) if n not in self._cases]):
            query = select(table).where(table.c.number.in_(some))
            query = query.where(checked(table.c.namespace) == self._namespace)
            for row in self._session.execute(query).mappings():
                if not self._digests.match(CaseRow, row):
                    raise _TornError
                self._cases[row["number"]] = dict(row)
                self._were.add(row["number"])
            if any(number not in self._cases for number in some):
                raise _TornError

    def _move(self, number: int, before: str, after: str | None) -> None:
        """Move an entry of a case from one status count to another, or to none if it is gone."""
        case = self._case(number)
        case["n_members"] -= after is None
        for status, step in ((before, -1), (after, 1)):
            if status is not None and (column := COUNTED.get(Status(status))) is not None:
                case[column] += step

    def _merge(
        self, ties: Iterable[tuple[int, int]], fresh: Collection[int] = ()
    ) -> dict[int, int]:
        """Merge tied cases; return the new number of each merged case.

        ``fresh`` are numbers of entries that are not in the table yet.
        """
        parents: dict[int, int] = {}

        def root(number: int) -> int:
            while (above := parents.get(number, number)) != number:
                parents[number] = parents.get(above, above)
                number = above
            return number

        for first, second in ties:
            low, high = sorted((root(first), root(second)))
            parents[high] = low
        into = {n: root(n) for n in parents if root(n) != n}
        self._need([*into, *into.values()])
        of: dict[int, list[int]] = defaultdict(list)
        for number, target in into.items():
            of[target].append(number)
        for target, numbers in of.items():
            stored = [number for number in numbers if number not in fresh]
            column = table_of(MemberRow).c.case_number
            self._change_members(column, stored, {"case_number": target})
            for number in numbers:
                other, case = self._cases.pop(number), self._cases[target]
                for name in ("n_members", *COUNTED.values()):
                    case[name] += other[name]
                _take(case, other)
                case["opened_at"] = min(case["opened_at"], other["opened_at"])
                case["latest_at"] = max(case["latest_at"], other["latest_at"])
                self._gone.add(number)
        return into

    def _write(self) -> int:
        """Write the cases; return their number."""
        empty = {number for number, case in self._cases.items() if case["n_members"] < 1}
        table = table_of(CaseRow)
        self._each(delete(table), table.c.number, sorted((self._gone | empty) & self._were))
        new = []
        for number, case in self._cases.items():
            case["is_open"] = int(case["n_waiting"] > 0)
            if number in empty:
                continue
            case["rank"] = rank_of(case)
            case["digest"] = self._digests.of(CaseRow, case)
            if number in self._were:
                self._each(update(table).values(**case), table.c.number, [number])
            else:
                new.append(case)
        if new:
            self._session.execute(insert(table), new)
        return len(self._cases) - len(empty)

    # Members

    def _members(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the case numbers of entries, by the entries' numbers."""
        query = select(MemberRow.number, MemberRow.case_number)
        query = query.where(checked(MemberRow.namespace) == self._namespace)
        found: dict[int, int] = {}
        for some in chunks(numbers):
            rows = self._session.execute(query.where(MemberRow.number.in_(some)))
            found |= dict(rows.tuples().all())
        return found

    def _each(self, change: Any, column: Any, numbers: Sequence[int]) -> None:
        """Update or delete the rows of the namespace with these numbers."""
        change = change.where(checked(column.table.c.namespace) == self._namespace)
        for some in chunks(numbers):
            self._session.execute(change.where(column.in_(some)))

    def _change_members(
        self,
        column: Any,
        numbers: Sequence[int],
        values: Values,
        of_each: Mapping[int, Values] = MappingProxyType({}),
    ) -> None:
        """Change the members with these numbers, together or individually, and their digests."""
        table = table_of(MemberRow)
        query = select(table).where(checked(table.c.namespace) == self._namespace)
        change = update(table).where(table.c.number == bindparam("of"))
        for some in chunks(numbers):
            rows = []
            for row in self._session.execute(query.where(column.in_(some))).mappings().all():
                if not self._digests.match(MemberRow, row):
                    raise _TornError
                anew = {**row, **values, **of_each.get(row["number"], {})}
                if anew == row:  # unchanged, as for a confirmed entry that is held again
                    continue
                made = self._digests.of(MemberRow, anew)
                rows.append(anew | {"of": row["number"], "digest": made})
            if rows:
                self._session.execute(change, rows)

    def _all_held(self) -> Iterator[list[Values]]:
        """Yield pages of all entries that are or were held."""
        last, table = -1, table_of(HeldRow)
        columns = [column for column in table.columns if column.name != "vector"]
        query = select(*columns).where(table.c.namespace == self._namespace)
        query = query.order_by(table.c.number).limit(PAGE)
        while page := self._session.execute(query.where(table.c.number > last)).mappings().all():
            last = page[-1]["number"]
            yield [dict(row) for row in page if row["status"] in (*COUNTED, Status.SUPERSEDED)]

    def _stored_ties(self, entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
        """Yield the ties between these entries and those already in cases."""
        named: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        copied: dict[tuple[str, str], list[int]] = defaultdict(list)
        for entry in [entry for entry in entries if entry["tells"]]:
            for related, detector in entry["names"]:
                named[related, entry["store"]].append((entry["case_number"], detector))
            copied[entry["wording"], entry["store"]].append(entry["case_number"])
        columns = (HeldRow.status, HeldRow.store, HeldRow.entry_id)
        query = select(*columns, MemberRow.case_number, MemberRow.detectors)
        query = query.join(MemberRow, MemberRow.number == HeldRow.number)
        of_tenant = MemberRow.namespace == self._namespace
        query = query.where(HeldRow.namespace == self._namespace, of_tenant)
        for ids in chunks(sorted({entry_id for entry_id, _ in named})):
            rows = self._session.execute(query.where(HeldRow.entry_id.in_(ids)))
            for status, store, entry_id, case, detectors in rows:
                # In SQL, a planner would use the status index and read all held entries.
                for other, detector in named[entry_id, store] if status in TELLING else ():
                    if _ties(detector, detectors):
                        yield other, case
        # Held and confirmed copies are in one case: any of them has its number.
        any_case = select(MemberRow.case_number).where(of_tenant).limit(1)
        for (wording, store), cases in copied.items():
            copies = (MemberRow.wording == wording, MemberRow.store == store, MemberRow.tells == 1)
            if (there := self._session.scalar(any_case.where(*copies))) is not None:
                yield from ((case, there) for case in cases)


def regroup(session: Session, digests: Digests) -> int:
    """Rebuild all cases from the entries; return their number.

    Cases keep their numbers, unless findings have changed since.

    Raises
    ------
    QuarantineError
        If the log was written with another key.
    """
    last = last_line(session)
    if last is not None:
        check_key("the audit log", last.key_name, digests)
    namespaces: set[str] = set()
    for table in (table_of(CaseRow), table_of(MemberRow), table_of(HeldRow)):
        namespaces |= set(session.scalars(select(table.c.namespace).distinct()))
    return sum(Grouping(session, digests, name).regroup() for name in sorted(namespaces))


class _TornError(Exception):
    """The tables of cases contradict those of entries."""


def _take(case: dict[str, Any], other: Values) -> None:
    """Raise a case's rarity to that of a joining entry or case, and add its detectors."""
    case["rarity"] = max(case["rarity"], other["rarity"])
    case["detectors"] = _spaced({*case["detectors"].split(), *other["detectors"].split()})
    case["source"] = case["source"] or other["source"] or ""


def _spaced(names: Iterable[str]) -> str:
    return f" {' '.join(sorted(names))} "


def _ties(detector: str, found_by: str) -> bool:
    """Return whether a detector's finding ties an entry to another found by these detectors."""
    if detector == GROUP:
        return True
    return alone(detector) in found_by and (detector != PHRASE or alone(GROUP) not in found_by)


def alone(detector: str) -> str:
    """Return a detector's name with the spaces that separate it from others."""
    return _spaced([_one_word(detector)])


def _one_word(name: str) -> str:
    """Return a detector's name without spaces."""
    return "_".join(name.split())


# Columns of a member, except its case and digest.
MEMBER = (
    *("number", "namespace", "store", "tells", "source", "wording"),
    *("rarity", "detectors", "searched"),
)


def _entry(row: Values) -> Entry:
    """Return the columns of a case member, and the ids that its findings name."""
    findings = json.loads(row["findings"])
    detectors = _spaced({_one_word(one["detector"]) for one in findings})
    return {
        **{name: row[name] for name in ("number", "namespace", "store", "status", "held_at")},
        "entry_id": row["entry_id"],
        "tells": int(row["status"] in TELLING),
        "case_number": row["number"],
        "source": None if row["lineage"] is None else document_key(row["lineage"]),
        "wording": wording_of(row["text"]),
        "rarity": rarity_of(findings),
        "detectors": detectors,
        "searched": searched(f"{row['entry_id']}\n{decoded(row['text'])[:SEARCHED]}"),
        "names": [
            (related, one["detector"])
            for one in findings
            if _ties(one["detector"], detectors)
            for related in one["related_ids"]
        ],
    }


def _among(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Yield the ties among entries that are held together."""
    telling = [entry for entry in entries if entry["tells"]]
    there = {(entry["namespace"], entry["store"], entry["entry_id"]): entry for entry in telling}
    first: dict[tuple[str, ...], int] = {}
    for entry in telling:
        own, place = entry["case_number"], (entry["namespace"], entry["store"])
        for related, detector in entry["names"]:
            other = there.get((*place, related))
            if other is not None and _ties(detector, other["detectors"]):
                yield own, other["case_number"]
        yield own, first.setdefault((*place, entry["wording"]), own)


# Lists of held entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """A filter for held entries; fields that are ``None`` are ignored.

    Attributes
    ----------
    detector
        Name of a detector that found them.
    source
        The source that they claim: their lineage, or the digest that a case shows for a long one.
    since
        Earliest time at which they were held; in UTC if it has no time zone.
    case
        Number of their case.
    search
        A part of their ids or of the first 4,000 characters of their texts, in any letter case.
        Reads all entries.
    """

    detector: str | None = None
    source: str | None = None
    since: dt.datetime | None = None
    case: int | None = None
    search: str | None = None

    def where(self, namespace: str) -> list[ColumnElement[bool]]:
        """Return conditions on a tenant's rows."""
        conditions: list[ColumnElement[bool]] = []
        if self.since is not None:
            since = self.since if self.since.tzinfo else self.since.replace(tzinfo=dt.UTC)
            at = since.astimezone(dt.UTC).isoformat(timespec="microseconds")
            conditions.append(HeldRow.held_at >= at)
        members: list[ColumnElement[bool]] = []
        if self.detector is not None:
            named = alone(self.detector)
            members.append(MemberRow.detectors.contains(named, autoescape=True))
        if self.case is not None:
            members.append(MemberRow.case_number == self.case)
        if self.search:
            sought = searched(self.search)
            members.append(MemberRow.searched.contains(sought, autoescape=True))
        if members:
            conditions.append(_of_members(namespace, *members))
        if self.source is not None:
            by_key = _of_members(namespace, MemberRow.source == document_key(self.source))
            # Entries that were replaced, but never held, are in no case.
            conditions.append(or_(by_key, HeldRow.lineage == self.source))
        return conditions


def _of_members(namespace: str, *members: ColumnElement[bool]) -> ColumnElement[bool]:
    numbers = select(MemberRow.number).where(MemberRow.namespace == namespace, *members)
    # Materialised as in Cases: otherwise a planner may look members up one by one.
    once = numbers.cte().prefix_with("MATERIALIZED", dialect="postgresql")
    return HeldRow.number.in_(select(once.c.number))
