"""``ragshield explain``: a detector in words, or what became of an entry and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import QuarantineError, StateError
from ragshield_core.model.printing import printable
from ragshield_core.quarantine.status import Status
from ragshield_core.tools.detectors_command import explained
from ragshield_core.tools.options import AsListing, Listing, StoreOptions, takes
from ragshield_core.tools.review.quarantine_command import print_json, summary_of

if TYPE_CHECKING:
    from ragshield_core.detectors.registry import AnyDetector
    from ragshield_core.learning.status import GuardStatus
    from ragshield_core.quarantine import Quarantine

console = Console()

# Characters of a line, and of an id in it.
SHOWN, SHOWN_ID = 2000, 100
# The fate of an entry, by the status of its latest revision in quarantine.
FATES = {
    Status.HELD: "is held: it waits for a decision",
    Status.RELEASED: "was held and released: the guard admits it",
    Status.CONFIRMED: "is kept out: it was confirmed as poisoned",
    Status.SUPERSEDED: "was held, until a later revision or version took its place",
    Status.READMITTED: "was admitted, after or before a copy of it was held",
    Status.REPLACED: "was replaced in the store by a text of another lineage",
}
ADMITTED = "was admitted: the guard knows it, and nothing of it was ever held"


@takes(StoreOptions)
def explain_command(
    place: StoreOptions,
    what: Annotated[
        str, typer.Argument(metavar="NAME|ENTRY", help="A detector's name, or an entry's id.")
    ],
    *,
    form: AsListing = Listing.TABLE,
) -> None:
    """Explain a detector, or what became of an entry, and why.

    A detector: how it judges, its limits, its threshold. An entry: whether it is held, with the
    reasons, decisions and the detectors of the guard in --database.
    """
    if (detector := _detector(what)) is not None:
        paragraphs = explained(detector)
        if form is Listing.JSON:
            print_json({"detector": what, "explained": paragraphs})
        for paragraph in paragraphs if form is Listing.TABLE else ():
            console.print(paragraph, "", sep="\n", markup=False, highlight=False)
        return
    told = _fate(place.opened(), what)
    if form is Listing.JSON:
        print_json(told)
    else:
        for line in _lines(told):
            console.print(Text(printable(line, SHOWN)), soft_wrap=True)


def _detector(name: str) -> type[AnyDetector] | None:
    from ragshield_core.detectors.registry import FOR_RETRIEVAL, detector_class

    try:
        found: type[AnyDetector] = FOR_RETRIEVAL.get(name) or detector_class(name)
    except StateError:
        return None
    return found


def _fate(quarantine: Quarantine, entry_id: str) -> dict[str, Any]:
    """Return what quarantine, log and guard know about an entry, JSON-ready."""
    from ragshield_core.tools.review.cases import Cases

    revisions = quarantine.list(None, ids=[entry_id])
    status, known = _guard(quarantine, entry_id)
    if not revisions and not known:
        guard = "and no guard is kept there" if status is None else "and the guard does not know it"
        msg = (
            f"{printable(entry_id, SHOWN_ID)!r} is no detector (ragshield detectors list), was "
            f"never held in {quarantine!r}, {guard}; check the name, or --database, --namespace "
            "and --store."
        )
        raise QuarantineError(msg)
    cases = Cases(quarantine).numbers_of(revisions)
    return {
        "entry_id": entry_id,
        "fate": FATES[revisions[-1].status] if revisions else ADMITTED,
        "revisions": [summary_of(one) | {"case": cases.get(one.number)} for one in revisions],
        "log": [
            {"at": one.at.isoformat(), "action": one.action, "by": one.actor, "note": one.note}
            for one in quarantine.log.lines([entry_id])
        ],
        "known": known,
        "guard": None
        if status is None
        else {
            "calibrated": status.calibrated,
            "rate": status.rate,
            "detectors": {one.name: one.why_not for one in status.detectors},
        },
    }


def _guard(quarantine: Quarantine, entry_id: str) -> tuple[GuardStatus | None, bool]:
    """Return the status of the guard beside a quarantine, if any, and whether it knows an entry."""
    from ragshield_core.database.read_only import read_only
    from ragshield_core.sharing.standing import namespaces, status_and_known

    url, namespace = quarantine.database.url, quarantine.namespace
    with read_only(url) as session:
        if namespace not in namespaces(session):
            return None, False
        status, known = status_and_known(session, url, namespace)
    return status, entry_id in known


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that tell people what became of an entry."""
    yield f"{printable(told['entry_id'], SHOWN_ID)} {told['fate']}."
    for one in told["revisions"]:
        case = "" if one["case"] is None else f", case {one['case']}"
        yield f"Revision {one['revision']}, {one['status']}{case}:"
        for found in one["findings"]:
            limit = f"score {found['score']:.4g}, threshold {found['threshold']:.4g}"
            yield f"  {found['detector']} ({limit}): {found['evidence']}"
        if not one["findings"]:
            yield f"  no finding: {one['note'] or 'a person or a rule decided'}"
    for line in told["log"]:
        note = f": {line['note']}" if line["note"] else ""
        yield f"{line['at'][:19]} UTC, {line['action']} by {line['by']}{note}"
    guard = told["guard"]
    if guard is None:
        yield "No guard is kept in this database and namespace."
        return
    knows = "knows it" if told["known"] else "does not know it"
    rate = f"hold about {guard['rate']:.2%} of clean entries"
    limits = rate if guard["calibrated"] else "are the default ones: it is not calibrated"
    names = ", ".join(name for name, why in guard["detectors"].items() if why is None)
    yield f"The guard {knows}. It judges by {names or 'no detector'}. Its thresholds {limits}."
    for name, why in guard["detectors"].items():
        if why is not None:
            yield f"  without {name}: {why}"
