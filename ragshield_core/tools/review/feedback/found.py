"""Findings of all revisions in a quarantine, read without texts and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import select, union_all

from ragshield_core.findings import Finding
from ragshield_core.quarantine import Quarantine, Status
from ragshield_core.quarantine.rows import findings_of
from ragshield_core.quarantine.searching import checked
from ragshield_core.quarantine.tables import ANY_STORE, HeldRow

# Rows that are read at a time.
PAGE = 5_000


class Found(NamedTuple):
    """Findings about a revision, and its status."""

    number: int  # in the order in which they came
    id: str
    status: Status
    lineage: str | None
    findings: tuple[Finding, ...]


def each_found(quarantine: Quarantine) -> Iterator[Found]:
    """Yield the findings about each revision, in the order they came; nothing without a database.

    Reads a page at a time, since a flood has a million, and nothing of other tenants: each status
    has its numbers in an index. Rows are not compared with their digests, see
    :meth:`.AuditLog.verify` and :meth:`.Quarantine.vouched`.
    """
    if not quarantine.exists():
        return
    columns = (HeldRow.number, HeldRow.entry_id, HeldRow.status, HeldRow.lineage)
    query = select(*columns, HeldRow.findings).order_by(HeldRow.number)
    numbers = select(HeldRow.number).where(HeldRow.namespace == quarantine.namespace)
    if quarantine.store is not None:
        numbers = numbers.where(checked(HeldRow.store).in_((quarantine.store, ANY_STORE)))
    last = 0
    while True:
        later = numbers.where(HeldRow.number > last)
        each = union_all(*(later.where(HeldRow.status == status) for status in Status))
        some = each.order_by("number").limit(PAGE)
        with quarantine.database.connection() as connection:
            page = connection.execute(query.where(HeldRow.number.in_(some))).all()
        for last, i, status, lineage, findings in page:
            yield Found(last, i, Status(status), lineage, findings_of(findings))
        if len(page) < PAGE:
            return
