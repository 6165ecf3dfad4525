"""New versions of documents: a version is stored whole, or waits whole in quarantine.

If a part of a new version is held, no part is stored, and the version before stays as it is. The
other parts are held with the suspicious ones, but are no suspects: detectors are not told of them,
and they are stored once the suspicious ones are released. The quarantine notes which entries are
parts of a version that waits, and which stored ones leave when it is stored.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Quarantine, Status

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Start of the remark on a part that is held with others of its version.
PART = "Part of a new version of "
# Names under which the quarantine notes the entries of a waiting version.
WAITING = "ragshield: parts of a new version of "
REPLACED = "ragshield: replaced by a new version of "
# Names of documents are hostile, and may have any length.
SHOWN = 80

# Revisions of these statuses are stored once no part of their version is undecided.
COMING = frozenset({Status.HELD, Status.RELEASED, Status.READMITTED})


class NewVersion(NamedTuple):
    """A new version of a document, and its known parts.

    Attributes
    ----------
    document
        Name of the document, the same for each version.
    ids
        Ids of the version's parts in this write.
    older
        Ids of stored parts that leave, or get another text, when the version is stored; empty if
        it only adds parts.
    kept
        Those of ``ids`` that the store has unchanged: they are parts of both versions.
    """

    document: str
    ids: frozenset[str]
    older: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()


def is_part(held: HeldEntry) -> bool:
    """Return whether an entry is held only because other parts of its version are."""
    return not held.findings and (held.note or "").startswith(PART)


def remark(document: str) -> str:
    """Return the remark on a part that is held with others of its version."""
    return (
        f"{PART}{printable(document, SHOWN)}; the version before stays in place until a person "
        "decides"
    )


def rejected(report: Report, versions: Sequence[NewVersion]) -> list[NewVersion]:
    """Return the versions that have a part which is not admitted."""
    held = {one.entry_id for one in report.quarantined}
    return [version for version in versions if not held.isdisjoint(version.ids)]


def older_than(versions: Iterable[NewVersion]) -> list[str]:
    """Return the ids of entries that leave when versions are stored."""
    return sorted(frozenset[str]().union(*(v.older - v.ids for v in versions)))


def held_whole(report: Report, versions: Sequence[NewVersion], quarantine: Quarantine) -> Report:
    """Hold the other parts of new versions that have a held part; return the report with them.

    The parts of an earlier version that waits are marked superseded.
    """
    waiting = rejected(report, versions)
    if not waiting:
        return report
    admitted = dict(zip(report.batch.ids, report.admitted.tolist(), strict=True))
    of = {i: version for version in waiting for i in version.ids - version.kept if admitted.get(i)}
    rows = {row: i for row, i in enumerate(report.batch.ids) if i in of and not of[i].older}
    for i in quarantine.released_among(report.batch.take(list(rows))) if rows else ():
        del of[i]  # a person may release single parts of a new document
    changed = {
        row: Decision(entry_id=i, verdict=Verdict.QUARANTINE, note=remark(of[i].document))
        for row, i in enumerate(report.batch.ids)
        if i in of
    }
    if changed:
        quarantine.hold(report.batch.take(list(changed)), list(changed.values()))
        logger.warning(
            "parts of the new versions of %d documents are held: the versions before stay, and %d "
            "further parts are held until a person decides",
            *(len({version.document for version in of.values()}), len(changed)),
        )
    for version in waiting:
        if version.older or not version.ids.isdisjoint(of):
            held = [i for i in version.ids if i in of or not admitted.get(i)]
            note_waiting(version, held, quarantine)
    return replace(report, remarkable={**report.remarkable, **changed})


def note_waiting(version: NewVersion, held: Sequence[str], quarantine: Quarantine) -> None:
    """Note which held entries form a waiting version, in place of its document's earlier one."""
    waiting, replaced = _names(version.document)
    before = set(quarantine.indexes.ids(waiting))
    if gone := sorted(before - version.ids):
        quarantine.supersede(gone, note="a later version of its document came")
    _note_only(quarantine, waiting, before.intersection(version.ids).union(held))
    _note_only(quarantine, replaced, version.older - version.ids)


def _note_only(quarantine: Quarantine, name: str, ids: Collection[str]) -> None:
    """Note exactly these ids under a name."""
    known = set(quarantine.indexes.ids(name))
    if gone := sorted(known.difference(ids)):
        quarantine.indexes.forget(gone, name)
    if new := sorted(set(ids) - known):
        quarantine.indexes.note(new, name)


def came_in(versions: Iterable[NewVersion], quarantine: Quarantine) -> tuple[str, ...]:
    """Mark waiting parts of earlier versions superseded, since these versions are stored.

    Returns the ids of those parts.
    """
    gone: list[str] = []
    for version in versions if quarantine.exists() else ():
        waiting, replaced = _names(version.document)
        if before := quarantine.indexes.ids(waiting):
            note = "a later version of its document is in the store"
            gone += quarantine.supersede(before, note=note)
        for name in (waiting, replaced):
            _note_only(quarantine, name, ())
    return tuple(gone)


def unfinished(versions: Iterable[NewVersion], quarantine: Quarantine) -> None:
    """Remove the notes on waiting versions, since their write has failed.

    They are screened again when the write is repeated.
    """
    for version in versions:
        waiting, _ = _names(version.document)
        quarantine.indexes.forget(sorted(version.ids), waiting)


def to_write(report: Report, waiting: Sequence[NewVersion]) -> Report:
    """Return a report that admits the entries to be written.

    Parts of waiting versions that the store has unchanged are not written again.
    """
    kept = frozenset[str]().union(*(version.kept for version in waiting))
    if not kept:
        return report
    changed = {
        row: Decision(entry_id=i, verdict=Verdict.QUARANTINE)
        for row, i in enumerate(report.batch.ids)
        if i in kept
    }
    return replace(report, remarkable={**report.remarkable, **changed})


def decided_before(
    batch: Batch, versions: Sequence[NewVersion], quarantine: Quarantine
) -> dict[int, Decision]:
    """Return decisions on entries that need no screening: unchanged parts of waiting versions.

    Detectors may judge an entry differently after a recalibration or once others have left. If it
    were stored then, it would be live and held at once. If no part of a version is a suspect, its
    parts are judged again: another version has come. Decisions are by row of the batch.
    """
    versions = [one for one in versions if one.ids]
    if not versions or not quarantine.exists():
        return {}
    rows = {entry_id: row for row, entry_id in enumerate(batch.ids)}
    known: dict[int, str] = {}  # number of the revision -> its id
    for one in quarantine.prints(ids=batch.ids):
        entry = batch[rows[one.id]]
        same = {Status.CONFIRMED: {entry.fingerprint}}
        same[Status.HELD] = {entry.fingerprint, entry.text_fingerprint}
        if one.fingerprint in same.get(one.status, ()):
            known[one.number] = one.id
    # Others are screened again, so that a recall is repeated.
    named = waits(quarantine, list(dict.fromkeys(known.values()))) if known else []
    some = quarantine.list(None, ids=named) if named else ()
    held = {one.id: one for one in some if one.number in known}
    suspects = {i for i, one in held.items() if not is_part(one)}
    stuck = {i for v in versions if not suspects.isdisjoint(v.ids) for i in v.ids}
    return {rows[i]: _again(one) for i, one in held.items() if i in stuck}


def waits(quarantine: Quarantine, ids: Sequence[str]) -> list[str]:
    """Return the ids of entries that are parts of waiting versions."""
    noted = quarantine.indexes.of(ids)
    return [i for i, names in noted.items() if any(n.startswith(WAITING) for n in names)]


def to_release(
    asked: Sequence[HeldEntry], quarantine: Quarantine
) -> tuple[list[HeldEntry], list[HeldEntry], list[NewVersion]]:
    """Sort entries that a person releases now, or has released elsewhere.

    Returns the entries to store; those that are only decided on, since another part of their
    version is undecided or poisoned; and the versions that are stored as a whole.
    """
    noted = quarantine.indexes.of([one.id for one in asked])
    wanted = {one.id: one for one in asked}
    entering, decided = dict(wanted), list[HeldEntry]()
    versions = []
    names = {n for some in noted.values() for n in some if n.startswith(WAITING)}
    for waiting in sorted(names):
        members = quarantine.indexes.ids(waiting)
        latest = _latest(quarantine.list(None, ids=members))
        undecided = [
            i
            for i, one in latest.items()
            if one.status is Status.HELD and i not in wanted and not is_part(one)
        ]
        poisoned = [i for i, one in latest.items() if one.status is Status.CONFIRMED]
        if undecided or poisoned:
            decided += [entering.pop(i) for i in members if i in entering]
            continue
        coming = [i for i, one in latest.items() if one.status in COMING]
        entering |= {one.id: one for one in quarantine.vouched(coming)}
        replaced = quarantine.indexes.ids(REPLACED + waiting.removeprefix(WAITING))
        versions.append(
            NewVersion(waiting.removeprefix(WAITING), frozenset(coming), frozenset(replaced))
        )
    return list(entering.values()), decided, versions


def forget(versions: Iterable[NewVersion], quarantine: Quarantine) -> None:
    """Remove the notes on versions that are stored now, named as by :func:`to_release`."""
    for version in versions:
        quarantine.indexes.forget(sorted(version.ids), WAITING + version.document)
        quarantine.indexes.forget(sorted(version.older), REPLACED + version.document)


def _latest(held: Iterable[HeldEntry]) -> Mapping[str, HeldEntry]:
    """Return the revision of each id that :meth:`Quarantine.show` returns."""
    order = sorted(held, key=lambda o: (o.status is Status.HELD, o.held_at, o.number))
    return {one.id: one for one in order}


def _again(held: HeldEntry) -> Decision:
    """Return the decision on a held revision that is written once more."""
    if held.status is Status.CONFIRMED:
        since = f"confirmed as poisoned by {held.reviewed_by}"
    else:
        when = held.held_at.isoformat()
        since = f"held by {held.held_by} since {when}, and no reviewer has released it"
    note = f"{held.note}; {since}" if is_part(held) else since
    return Decision(entry_id=held.id, verdict=Verdict.QUARANTINE, findings=held.findings, note=note)


def _names(document: str) -> tuple[str, str]:
    """Return the names under which a version of a document is noted."""
    short = len(document) <= SHOWN and document.isprintable()
    digest = hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()
    name = f"{document!r}" if short else f"sha256:{digest}"
    return WAITING + name, REPLACED + name
