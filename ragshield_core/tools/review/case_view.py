"""The page of a case: entries, evidence, neighbours, and the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import Decision, Verdict, by_strength, printable
from ragshield_core.quarantine import HeldEntry, LogRecord, Quarantine, Status
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.review.cases import Case, Cases
from ragshield_core.tools.review.marking import (
    SHOWN,
    changes,
    pieces,
    rendered,
    visible,
)
from ragshield_core.tools.review.proposals import proposed
from ragshield_core.tools.review.takeovers import Takeover, takeovers

# Entries of a case that are on one page.
PAGE = 20
# Neighbours that are shown beside an entry.
NEAREST = 3
# Characters of a neighbour's text, and of one of another revision.
EXCERPT = 600
# Sources that are told of, and entries of each that are counted: a flood's are at least so many.
SOURCES, COUNTED = 5, 10_000
# Lines of the log that are shown, the latest.
HISTORY = 200


class Neighbor(NamedTuple):
    """An entry of the knowledge base near to one that is held."""

    id: str
    similarity: float
    source: str | None
    text: str


def case_view(
    quarantine: Quarantine, store: Guarded | None, case: Case, offset: int = 0
) -> dict[str, Any]:
    """Return the contents of the page of a case; ``last`` is the number of its latest entry.

    Parameters
    ----------
    quarantine
        Where it is.
    store
        Whose texts its entries are held against; ``None`` where none is at hand.
    case
        Which.
    offset
        Of the first entry.
    """
    held = Cases(quarantine).members(case.number, limit=PAGE, offset=offset)
    ids = [one.id for one in held]
    remarks: list[str] = []
    older = _older(quarantine, held)
    neighbors: list[Sequence[Neighbor]] = [()] * len(held)
    taken: list[Takeover] = []
    if store is None:
        remarks.append("no store is at hand: what its entries resemble in it is not shown")
    else:
        try:
            older |= {entry.id: ("in the store", entry.text) for entry in store.standing(ids)}
            neighbors = _neighbors(store, held)
            taken = takeovers(quarantine, store, held)
        except RAGShieldError as error:
            remarks.append(f"the store could not be asked: {error}")
    open_proposals = proposed(quarantine, ids)
    entries = [
        _shown(one, older.get(one.id), near, open_proposals.get(one.id))
        for one, near in zip(held, neighbors, strict=True)
    ]
    sources = dict.fromkeys(one.entry.lineage for one in held if one.entry.lineage is not None)
    return {
        "case": case,
        "last": Cases(quarantine).newest(case.number),
        "entries": entries,
        "history": quarantine.log.lines(ids)[-HISTORY:],
        "sources": [
            (name, Cases(quarantine).by_source(name, limit=COUNTED))
            for name in list(sources)[:SOURCES]
        ],
        "takeovers": taken,
        "remarks": remarks,
    }


def _shown(
    held: HeldEntry,
    older: tuple[str, str] | None,
    neighbors: Sequence[Neighbor],
    proposed: LogRecord | None,
) -> dict[str, Any]:
    """Return an entry as it is shown.

    ``rest`` characters come after its ``pieces``; ``rendered`` is what a reader of the page would
    see, where that is something else. Findings begin with the most convincing one. ``older`` says
    which revision the ``diff`` is against.
    """
    text = held.entry.text
    found = Decision(entry_id=held.id, verdict=Verdict.QUARANTINE, findings=held.findings)
    name, before = older or ("", text)
    return {
        "held": held,
        "waits": held.status is Status.HELD,
        "pieces": pieces(text, held.findings),
        "rest": max(0, len(text) - SHOWN),
        "rendered": rendered(text),
        "findings": by_strength(found),
        "older": name,
        "diff": changes(before, text) if before != text else (),
        "neighbors": neighbors,
        "proposed": proposed,
        "metadata": [
            (printable(str(key), 80), printable(repr(value), 300))
            for key, value in list(held.entry.metadata.items())[:20]
        ],
    }


def _older(quarantine: Quarantine, held: Sequence[HeldEntry]) -> dict[str, tuple[str, str]]:
    """Return the latest revision that was let in under each id, as far as the quarantine has it."""
    found: dict[str, tuple[str, str]] = {}
    mine = {one.id: one.entry.fingerprint for one in held}
    if not mine:
        return found
    for other in quarantine.list(None, ids=list(mine)):
        let_in = other.status in (Status.RELEASED, Status.READMITTED, Status.REPLACED)
        if let_in and other.entry.fingerprint != mine[other.id]:
            found[other.id] = (f"{other.status} on {other.held_at:%Y-%m-%d}", other.entry.text)
    return found


def _neighbors(store: Guarded, held: Sequence[HeldEntry]) -> list[Sequence[Neighbor]]:
    """Return the entries of the store that are nearest to each held one."""
    found: list[Sequence[Neighbor]] = [()] * len(held)
    rows = [row for row, one in enumerate(held) if one.vector.size == (store.guard.dim or -1)]
    if not rows:
        return found
    batch = Batch.of(
        ids=[f"{uuid4().hex}-{row}" for row in rows],  # nobody's, so that nobody is left out
        texts=["" for _ in rows],
        embeddings=[held[row].vector for row in rows],
    )
    near = store.guard.nearest(batch, NEAREST)
    wanted = list(dict.fromkeys(name for name in near.ids.ravel().tolist() if name is not None))
    there = {entry.id: entry for entry in store.standing(wanted)}
    for place, row in enumerate(rows):
        found[row] = [
            Neighbor(
                id=name,
                similarity=float(similarity),
                source=there[name].lineage,
                text=visible(there[name].text[:EXCERPT]),
            )
            for name, similarity in zip(
                near.ids[place].tolist(), near.similarities[place].tolist(), strict=True
            )
            if name in there
        ]
    return found
