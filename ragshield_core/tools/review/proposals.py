"""Proposals: decisions that reviewers would make, noted in the log for a second one to agree."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import LogRecord, Quarantine, Status
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.evidence import last_lines_of
from ragshield_core.quarantine.log import record_of
from ragshield_core.quarantine.revisions import check_one_store, revisions

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
    """Return the open proposal for each entry that has one, by id: nothing was noted since."""
    lines = last_lines(quarantine, ids)
    return {name: line for name, line in lines.items() if line.action == WOULD_RELEASE}


def last_lines(quarantine: Quarantine, ids: Sequence[str]) -> dict[str, LogRecord]:
    """Return the last line of the log about the revisions under each id.

    Only if the log vouches for it. By the index of revisions: quick, however long the log is.
    """
    with quarantine.database.read() as session:
        rows = [row for some in revisions(session, quarantine, ids).values() for row in some]
        lines = last_lines_of(session, quarantine.log.digests, rows).values()
        return {one.entry_id: record_of(one) for one in sorted(lines, key=lambda one: one.seq)}
