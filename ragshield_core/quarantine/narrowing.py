"""Filters for lists of held entries."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select

from ragshield_core.database.tables import HeldRow, MemberRow
from ragshield_core.quarantine import grouping
from ragshield_core.quarantine.rows import document_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """A filter for held entries; fields that are ``None`` do not matter.

    Attributes
    ----------
    detector
        That has found them.
    source
        That they claim to be of: their lineage, or the digest by which a case tells a long one.
    since
        When they were held at the earliest; without a time zone, in UTC.
    case
        To which they belong, by its number.
    search
        What is in their ids or the first 4,000 characters of their texts, in upper or lower case.
        Reads all of them.
    """

    detector: str | None = None
    source: str | None = None
    since: dt.datetime | None = None
    case: int | None = None
    search: str | None = None

    def where(self, namespace: str) -> list[ColumnElement[bool]]:
        """Return conditions on rows of a tenant."""
        conditions: list[ColumnElement[bool]] = []
        if self.since is not None:
            since = self.since if self.since.tzinfo else self.since.replace(tzinfo=dt.UTC)
            at = since.astimezone(dt.UTC).isoformat(timespec="microseconds")
            conditions.append(HeldRow.held_at >= at)
        members: list[ColumnElement[bool]] = []
        if self.detector is not None:
            named = grouping.alone(self.detector)
            members.append(MemberRow.detectors.contains(named, autoescape=True))
        if self.case is not None:
            members.append(MemberRow.case_number == self.case)
        if self.search:
            sought = grouping.searched(self.search)
            members.append(MemberRow.searched.contains(sought, autoescape=True))
        if members:
            conditions.append(_of(namespace, *members))
        if self.source is not None:
            by_key = _of(namespace, MemberRow.source == document_key(self.source))
            # What was never held, but replaced, is in no case.
            conditions.append(or_(by_key, HeldRow.lineage == self.source))
        return conditions


def _of(namespace: str, *members: ColumnElement[bool]) -> ColumnElement[bool]:
    numbers = select(MemberRow.number).where(MemberRow.namespace == namespace, *members)
    # Materialised as in Cases: else a planner may go through members one by one.
    once = numbers.cte().prefix_with("MATERIALIZED", dialect="postgresql")
    return HeldRow.number.in_(select(once.c.number))
