"""Proposals: decisions that reviewers would make, noted in the log for a second one to agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import HeldRow, LogRow
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import LogRecord, Quarantine, Status
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.evidence import last_lines_of
from ragshield_core.quarantine.log import record_of
from ragshield_core.quarantine.revisions import check_one_store, revisions, seen_by

# Actions in the log: a proposal to release, and that entries stay held.
WOULD_RELEASE, KEEP = "would release", "keep"


def note(
    quarantine: Quarantine, ids: Sequence[str], action: str, *, by: str, why: str | None = None
) -> None:
    """Note in the log what a reviewer says of held entries, which stay held.

    Parameters
    ----------
    quarantine
        Of the entries.
    ids
        Held entries.
    action
        :data:`WOULD_RELEASE` or :data:`KEEP`.
    by, why
        The reviewer, and the reason.

    Raises
    ------
    QuarantineError
        If one of the ids is not held; nothing is noted then.
    """

    def work(session: Session, changes: Changes) -> None:
        found = revisions(session, quarantine, ids, Status.HELD)
        for entry_id in dict.fromkeys(ids):
            if entry_id not in found:
                shown = printable(entry_id, SHOWN_ID)
                msg = f"entry {shown!r} is not held in {quarantine!r}, and nothing was noted."
                raise QuarantineError(msg)
            check_one_store(quarantine, found[entry_id])
            changes.remark(found[entry_id][-1], action)

    quarantine.log.change(work, by=by, note=why)


def proposed(quarantine: Quarantine, ids: Sequence[str]) -> dict[str, LogRecord]:
    """Return the open proposal for each held entry that has one, by id.

    Only if the log vouches for it, and nothing was decided or noted since.
    """
    with quarantine.database.read() as session:
        held = [rows[-1] for rows in revisions(session, quarantine, ids, Status.HELD).values()]
        told = last_lines_of(session, quarantine.log.digests, held)
        return {
            row.entry_id: record_of(told[row.number])
            for row in held
            if row.number in told and told[row.number].action == WOULD_RELEASE
        }


def last_decided(
    quarantine: Quarantine, ids: Sequence[str], actions: Collection[str]
) -> dict[str, LogRecord]:
    """Return the last line of the log with one of some actions about each entry.

    Of all its revisions, by the index of revisions: quick, however long the log is.
    """
    numbers: list[int] = []
    latest: dict[str, LogRecord] = {}
    with quarantine.database.read() as session:
        query = select(HeldRow.number).where(*seen_by(quarantine))
        for some in chunks(ids):
            numbers += session.scalars(query.where(HeldRow.entry_id.in_(some)))
        for part in chunks(numbers):
            last = select(func.max(LogRow.seq))
            last = last.where(LogRow.held_number.in_(part), LogRow.action.in_(actions))
            lines = select(LogRow).where(
                LogRow.seq.in_(last.group_by(LogRow.held_number).scalar_subquery())
            )
            for line in map(record_of, session.scalars(lines)):
                before = latest.get(line.entry_id)
                if before is None or before.seq < line.seq:
                    latest[line.entry_id] = line
    return latest
