"""What is held already, and comes again; what others take the place of."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import PoisonedEntryError, QuarantineError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.store.updates import is_part

logger = logging.getLogger("ragshield")  # ids and counts, never text


def stays_held(report: Report, guard: Guard, updated: Collection[str] = ()) -> Report:
    """Keep what is held in quarantine until a reviewer decides, even if it looks admissible now.

    Detectors may think better of a document, after a new calibration or because others have left.
    If it went into the store then, it would be live and held at once, and the next to review the
    quarantine would judge something that is being served already. Of another revision under an id
    that is held, the decision stands with a remark: releasing the held one would replace it.

    Parameters
    ----------
    report
        From :meth:`Guard.hold`.
    guard
        Of that report.
    updated
        Ids of entries that come as parts of new versions, which supersede held ones.

    Returns
    -------
    Report
        With the decisions changed.

    Raises
    ------
    PoisonedEntryError
        If something stays held and the policy says ``on_detect="raise"``.
    """
    rows = [row for row, kept in enumerate(report.admitted) if kept]
    quarantine = guard.quarantine
    if not rows or not quarantine.exists():
        return report
    held = quarantine.held_ids([report.batch.ids[row] for row in rows])
    if not held:
        return report
    changed: dict[int, Decision] = {}
    stay = 0
    for row in rows:
        entry, decision = report.batch[row], report.decisions[row]
        item = _waiting(quarantine, entry.id) if entry.id in held else None
        if item is None or _comes_in(item, entry, updated):
            continue
        since = f"held by {item.held_by} since {item.held_at.isoformat()}"
        if item.entry.fingerprint in (entry.fingerprint, entry.text_fingerprint):
            stay += 1
            note = f"{since}, and no reviewer has released it"
            changed[row] = replace(decision, verdict=Verdict.QUARANTINE, note=note)
        else:
            note = f"another revision is {since}; releasing that one would replace this one"
            changed[row] = replace(decision, note="; ".join(filter(None, (decision.note, note))))
    report = replace(report, remarkable={**report.remarkable, **changed})
    if stay and guard.policy.on_detect == "raise":
        raise PoisonedEntryError(report)
    if stay:
        logger.warning("%d entries stay in quarantine until a reviewer decides", stay)
    if len(changed) > stay:
        logger.warning("of %d admitted entries, other revisions are held", len(changed) - stay)
    return report


def _comes_in(held: HeldEntry, entry: Entry, updated: Collection[str]) -> bool:
    """Return whether an entry comes in with a version that takes the place of the held one's."""
    if held.entry.fingerprint in (entry.fingerprint, entry.text_fingerprint):
        return is_part(held)
    return entry.id in updated


def replacement(newer: str | None, older: str | None) -> str:
    """Return the remark on a text that takes the place of one of another lineage."""
    return f"{_claimed(newer)}, it replaces a text {_claimed(older)}; restore puts that back"


def keep_replaced(quarantine: Quarantine, older: Batch, notes: Mapping[str, str]) -> None:
    """Keep live texts that others of another lineage take the place of: they may be intruders.

    Parameters
    ----------
    quarantine
        From which they can be put back.
    older
        As the store has them.
    notes
        By what each is replaced, by its id: see :func:`replacement`.
    """
    if len(older):
        quarantine.keep_stored(older, Status.REPLACED, [notes[entry_id] for entry_id in older.ids])
        logger.warning(
            "%d entries are replaced by others of another lineage, such as %r",
            *(len(older), printable(older.ids[0])),
        )


def _claimed(lineage: str | None) -> str:
    return "of no lineage" if lineage is None else f"of lineage {printable(lineage, 80)!r}"


def _waiting(quarantine: Quarantine, entry_id: str) -> HeldEntry | None:
    """Return the revision that waits for a decision; None if it was judged meanwhile."""
    try:
        item = quarantine.show(entry_id)  # a revision that is held is the latest
    except QuarantineError:
        return None
    return item if item.status is Status.HELD else None
