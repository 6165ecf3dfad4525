"""Held entries that are judged together: groups, floods, copies of one text are one case each.

What belongs together is told when it is held, from the evidence: an entry joins the case of another
that its evidence names, if the same detector has found both, or what is named is a group of one
meaning; that of another whose evidence names the same entry first, such as the one that all of them
contradict; and that of a copy. What a group ties is not tied again by a phrase, which others may
share. A case is told by entries that wait or are confirmed: what was released was no part of an
attack.

The tables of cases hold nothing that entries and their findings do not: see :func:`regroup`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, delete, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from ragshield_core.database import table_of
from ragshield_core.quarantine.documents import document_key
from ragshield_core.quarantine.entries import Status
from ragshield_core.quarantine.rows import decoded, encoded
from ragshield_core.quarantine.tables import CaseRow, HeldRow, MemberRow

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Bound parameters of one statement.
CHUNK = 500
# Rows that are read at a time.
PAGE = 1_000
# Entries with one of these are a reason for others to join their case.
TELLING = (Status.HELD, Status.CONFIRMED)
COUNTED = {
    Status.HELD: "n_waiting",
    Status.RELEASED: "n_released",
    Status.CONFIRMED: "n_confirmed",
}
# Of a finding without a p-value: its detector was not calibrated, or by a rule that has none.
UNKNOWN_P = 0.05
# Characters of a text that are searched.
SEARCHED = 4_000
# What it names are members of one group, whoever has found them: the first of a group that comes
# text by text are none yet when they are held, for another reason.
GROUP = "clique"
# A phrase is shared by texts that have nothing else in common, clean ones among them: an entry that
# is in a group as well belongs there.
PHRASE = "trigger_phrase"
# What differs between copies that were filled in one by one.
NUMBERS = re.compile(r"[\d\s]+")

Values = Mapping[str, Any]


class Moved(NamedTuple):
    """A held revision that was changed."""

    row: HeldRow  # as it is now
    before: str  # its status


class Gone(NamedTuple):
    """A held revision that was deleted."""

    number: int
    status: str


def severity_of(findings: Sequence[Values]) -> float:
    """Return how convincing the strongest finding is: orders of magnitude by which it is rare.

    3.0 if one clean entry in a thousand scores as high; 0 of what a person holds by hand.
    """
    p_values = [UNKNOWN_P if one["p_value"] is None else one["p_value"] for one in findings]
    return -math.log10(max(min(p_values, default=1.0), 1e-300))


def searched(text: str) -> str:
    """Return a text as it is searched, or searched for: without cases, and fit for any database."""
    return text.casefold().encode("utf-8", "replace").decode().replace("\0", " ")


def wording_of(text: bytes) -> str:
    """Return what copies of a text have in common: a digest of it without numbers and spaces."""
    plain = NUMBERS.sub(" ", decoded(text).casefold()).strip()
    return hashlib.sha256(encoded(plain) or text).hexdigest()[:32]


def follow(
    session: Session,
    new: Sequence[Values],
    moved: Sequence[Moved] = (),
    gone: Sequence[Gone] = (),
) -> None:
    """Bring cases up to date with what was written of entries, in the same transaction.

    Parameters
    ----------
    session
        Of the transaction; the rows of entries are written already.
    new
        Columns of revisions that are here for the first time.
    moved
        Those that were changed.
    gone
        Numbers of those that were deleted.
    """
    try:
        _follow(session, new, moved, gone)
    except _TornError:  # changed past ragshield; that must not stop anybody from holding an entry
        logger.warning("cases of the quarantine did not fit its entries, and are told anew")
        regroup(session)


def _follow(
    session: Session, new: Sequence[Values], moved: Sequence[Moved], gone: Sequence[Gone]
) -> None:
    numbers = [*(one.row.number for one in moved), *(one.number for one in gone)]
    known = _members(session, numbers)
    tally = _Tally(session)
    for one in gone:
        if (member := known.get(one.number)) is not None:
            tally.leave(member, one.status)
    _delete(session, [one.number for one in gone if one.number in known])
    coming: list[Values] = [row for row in new if row["status"] == Status.HELD]
    again: list[Values] = []
    for row, before in moved:
        member = known.get(row.number)
        if member is not None:
            tally.move(member, before, row.status)
        if row.status == Status.HELD:
            (coming if member is None else again).append(_values(row))
    tally.join(_added(session, coming))
    tally.judge(_changed(session, again))
    tally.merge(_links(session, [*coming, *again]))
    tally.write()


def regroup(session: Session) -> int:
    """Tell all cases anew, from the entries; return how many there are.

    Cases that people know by their numbers keep them, unless findings have changed since.
    """
    for table in (table_of(CaseRow), table_of(MemberRow)):
        session.execute(delete(table))
    tally = _Tally(session)
    for page in _all_held(session):
        tally.join(_added(session, page))
    for page in _all_held(session):
        tally.merge(_links(session, [row for row in page if row["status"] in TELLING]))
    return tally.write()


class _TornError(Exception):
    """The tables of cases lack what those of entries have."""


class _Tally:
    """What changes of cases."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cases: dict[int, dict[str, Any]] = {}  # as they will be
        self._were: set[int] = set()  # in the table
        self._gone: set[int] = set()

    def _need(self, numbers: Iterable[int]) -> None:
        table = table_of(CaseRow)
        for some in chunks([n for n in dict.fromkeys(numbers) if n not in self._cases]):
            query = select(table).where(table.c.number.in_(some))
            for row in self._session.execute(query).mappings():
                self._cases[row["number"]] = dict(row)
                self._were.add(row["number"])
            if any(number not in self._cases for number in some):
                raise _TornError

    def leave(self, member: Values, status: str) -> None:
        """Count an entry no longer."""
        self._need([member["case_number"]])
        case = self._cases[member["case_number"]]
        case["n_members"] -= 1
        if (column := COUNTED.get(Status(status))) is not None:
            case[column] -= 1

    def move(self, member: Values, before: str, after: str) -> None:
        """Count an entry under another status."""
        self._need([member["case_number"]])
        case = self._cases[member["case_number"]]
        for status, step in ((before, -1), (after, 1)):
            if (column := COUNTED.get(Status(status))) is not None:
                case[column] += step

    def join(self, rows: Iterable[Values]) -> None:
        """Make a case of each entry, for now."""
        for row in rows:
            counts = dict.fromkeys(COUNTED.values(), 0)
            if (column := COUNTED.get(row["status"])) is not None:
                counts[column] = 1
            self._cases[row["number"]] = {
                "number": row["number"],
                "namespace": row["namespace"],
                "store": row["store"],
                "n_members": 1,
                "severity": row["severity"],
                "opened_at": row["held_at"],
                "latest_at": row["held_at"],
                "detectors": row["detectors"],
                "source": row["source"] or "",
                **counts,
            }

    def judge(self, rows: Iterable[Values]) -> None:
        """Take over what was found later."""
        for row in rows:
            self._need([row["case_number"]])
            _take(self._cases[row["case_number"]], row)

    def merge(self, links: Iterable[tuple[int, int]]) -> None:
        """Make one case of each two that are tied."""
        parents: dict[int, int] = {}

        def root(number: int) -> int:
            while (above := parents.get(number, number)) != number:
                parents[number] = parents.get(above, above)
                number = above
            return number

        for first, second in links:
            low, high = sorted((root(first), root(second)))
            parents[high] = low
        into = {n: root(n) for n in parents if root(n) != n}
        self._need([*into, *into.values()])
        table = table_of(MemberRow)
        for target, numbers in _by_value(into).items():
            for some in chunks(numbers):
                where = table.c.case_number.in_(some)
                self._session.execute(update(table).where(where).values(case_number=target))
            for number in numbers:
                other = self._cases.pop(number)
                case = self._cases[target]
                for column in ("n_members", *COUNTED.values()):
                    case[column] += other[column]
                _take(case, other)
                case["opened_at"] = min(case["opened_at"], other["opened_at"])
                case["latest_at"] = max(case["latest_at"], other["latest_at"])
                self._gone.add(number)

    def write(self) -> int:
        """Write them; return how many there are."""
        empty = {number for number, case in self._cases.items() if case["n_members"] < 1}
        table = table_of(CaseRow)
        for some in chunks(sorted((self._gone | empty) & self._were)):
            self._session.execute(delete(table).where(table.c.number.in_(some)))
        new = []
        for number, case in self._cases.items():
            case["is_open"] = int(case["n_waiting"] > 0)
            if number in empty:
                continue
            if number in self._were:
                where = table.c.number == number
                self._session.execute(update(table).where(where).values(**case))
            else:
                new.append(case)
        if new:
            self._session.execute(insert(table), new)
        return len(self._cases) - len(empty)


def _values(row: HeldRow) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in table_of(HeldRow).columns}


def _all_held(session: Session) -> Iterator[list[Values]]:
    """Yield pages of all that is or was held."""
    last, table = -1, table_of(HeldRow)
    columns = [column for column in table.columns if column.name != "vector"]
    query = select(*columns).order_by(table.c.number).limit(PAGE)
    while page := session.execute(query.where(table.c.number > last)).mappings().all():
        last = page[-1]["number"]
        yield [dict(row) for row in page if row["status"] in (*COUNTED, Status.SUPERSEDED)]


def _take(case: dict[str, Any], other: Values) -> None:
    """Let a case be as severe as what comes into it, and found by as many."""
    case["severity"] = max(case["severity"], other["severity"])
    case["detectors"] = _spaced({*case["detectors"].split(), *other["detectors"].split()})
    case["source"] = case["source"] or other["source"] or ""


def _spaced(names: Iterable[str]) -> str:
    return f" {' '.join(sorted(names))} "


def anchor_of(findings: Sequence[Values]) -> str | None:
    """Return what entries have in common that resemble one entry more than any other.

    By the strongest finding that names entries: its detector, and whom it names first.
    """
    detectors = _spaced({_one_word(one["detector"]) for one in findings})
    naming = [one for one in findings if one["related_ids"] and _ties(one["detector"], detectors)]
    if not naming:
        return None
    strongest = min(naming, key=lambda one: 1.0 if one["p_value"] is None else one["p_value"])
    named = json.dumps([strongest["detector"], strongest["related_ids"][0]])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def _ties(detector: str, found_by: str) -> bool:
    """Return whether what a detector names belongs together with an entry that some have found."""
    if detector == GROUP:
        return True
    return alone(detector) in found_by and (detector != PHRASE or alone(GROUP) not in found_by)


def alone(detector: str) -> str:
    """Return a detector's name as it is found among others."""
    return _spaced([_one_word(detector)])


def _one_word(name: str) -> str:
    """Return a detector's name fit to stand between spaces."""
    return "_".join(name.split())


def _described(row: Values) -> dict[str, Any]:
    """Return what a row of members says of an entry."""
    findings = json.loads(row["findings"])
    return {
        "number": row["number"],
        "namespace": row["namespace"],
        "source": None if row["lineage"] is None else document_key(row["lineage"]),
        "wording": wording_of(row["text"]),
        "anchor": anchor_of(findings),
        "severity": severity_of(findings),
        "detectors": _spaced({_one_word(one["detector"]) for one in findings}),
        "searched": searched(f"{row['entry_id']}\n{decoded(row['text'])[:SEARCHED]}"),
    }


def _added(session: Session, rows: Sequence[Values]) -> list[Values]:
    members: list[dict[str, Any]] = [_described(row) for row in rows]
    if members:
        own = [member | {"case_number": member["number"]} for member in members]
        session.execute(insert(table_of(MemberRow)), own)
    return [{**row, **member} for row, member in zip(rows, members, strict=True)]


def _changed(session: Session, rows: Sequence[Values]) -> list[dict[str, Any]]:
    """Describe entries anew that were held again; return in which case they are."""
    table, members = table_of(MemberRow), []
    for row in rows:
        described = _described(row)
        where = table.c.number == row["number"]
        session.execute(update(table).where(where).values(**described))
        case = session.scalar(select(table.c.case_number).where(where))
        members.append(described | {"case_number": case})
    return members


def _links(session: Session, rows: Sequence[Values]) -> Iterator[tuple[int, int]]:
    """Yield pairs of cases that belong together because of some entries."""
    mine = _members(session, [row["number"] for row in rows])
    for namespace, some in _by_namespace(rows).items():
        named: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        worded: dict[tuple[str, str], list[int]] = defaultdict(list)
        anchored: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row in some:
            own = mine[row["number"]]
            worded[own["wording"], row["store"]].append(own["case_number"])
            if own["anchor"] is not None:
                anchored[own["anchor"], row["store"]].append(own["case_number"])
            for finding in json.loads(row["findings"]):
                if _ties(finding["detector"], own["detectors"]):
                    for related in finding["related_ids"]:
                        name = (own["case_number"], finding["detector"])
                        named[related, row["store"]].append(name)
        yield from _by_name(session, namespace, named)
        yield from _by_mark(session, namespace, MemberRow.wording, worded)
        yield from _by_mark(session, namespace, MemberRow.anchor, anchored)


def _by_name(
    session: Session, namespace: str, named: Mapping[tuple[str, str], Sequence[tuple[int, str]]]
) -> Iterator[tuple[int, int]]:
    """Yield the cases of who is named, where the same detector has found them as well."""
    query = _telling(namespace, HeldRow.entry_id, MemberRow.detectors)
    for ids in chunks(sorted({entry_id for entry_id, _ in named})):
        found = session.execute(query.where(HeldRow.entry_id.in_(ids)))
        for store, case, entry_id, detectors in found:
            for other, name in named.get((entry_id, store), ()):
                if case != other and _ties(name, detectors):
                    yield other, case


def _by_mark(
    session: Session,
    namespace: str,
    mark: InstrumentedAttribute[Any],
    marked: Mapping[tuple[str, str], Sequence[int]],
) -> Iterator[tuple[int, int]]:
    """Yield the cases of entries that have a mark in common."""
    query = _telling(namespace, mark).distinct()
    for marks in chunks(sorted({one for one, _ in marked})):
        for store, case, one in session.execute(query.where(mark.in_(marks))):
            for other in marked.get((one, store), ()):
                if case != other:
                    yield other, case


def _telling(namespace: str, *columns: Any) -> Select[Any]:
    """Return a query for the stores and cases of entries that are a reason to join their case."""
    query = select(HeldRow.store, MemberRow.case_number, *columns)
    query = query.join(MemberRow, MemberRow.number == HeldRow.number)
    return query.where(
        HeldRow.namespace == namespace,
        MemberRow.namespace == namespace,
        HeldRow.status.in_(TELLING),
    )


def _members(session: Session, numbers: Sequence[int]) -> dict[int, Values]:
    """Return in which cases entries are, by their numbers."""
    member = table_of(MemberRow)
    columns = ("number", "case_number", "wording", "anchor", "detectors")
    query = select(*(member.c[column] for column in columns))
    found: dict[int, Values] = {}
    for some in chunks(numbers):
        for row in session.execute(query.where(member.c.number.in_(some))).mappings():
            found[row["number"]] = dict(row)
    return found


def _delete(session: Session, numbers: Sequence[int]) -> None:
    member = table_of(MemberRow)
    for some in chunks(numbers):
        session.execute(delete(member).where(member.c.number.in_(some)))


def _by_namespace(rows: Sequence[Values]) -> dict[str, list[Values]]:
    parts: dict[str, list[Values]] = defaultdict(list)
    for row in rows:
        parts[row["namespace"]].append(row)
    return parts


def _by_value(mapping: Mapping[int, int]) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = defaultdict(list)
    for key, value in mapping.items():
        parts[value].append(key)
    return parts


def chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield as many at a time as one statement takes."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
