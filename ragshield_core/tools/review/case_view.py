"""The page of a case: entries, evidence, neighbours, and the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import Decision, Finding, Verdict, by_strength, printable
from ragshield_core.quarantine import HeldEntry, LogRecord, Quarantine, Status
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.review.cases import Case, Cases
from ragshield_core.tools.review.marking import (
    SHOWN,
    Change,
    Piece,
    changes,
    pieces,
    rendered,
    visible,
)
from ragshield_core.tools.review.picture import is_page
from ragshield_core.tools.review.proposals import proposed
from ragshield_core.tools.review.takeovers import Takeover, takeovers

# Entries of a case that are on one page.
PAGE = 20
# Neighbours that are shown beside an entry.
NEAREST = 3
# Characters of a neighbour's text, and of one of another revision.
EXCERPT = 600
# Entries of a group that are drawn.
DRAWN = 24
# Sources that are told of, and entries of each that are counted: a flood's are at least so many.
SOURCES, COUNTED = 5, 10_000
# Lines of the log that are shown, the latest.
HISTORY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbor:
    """An entry of the knowledge base near to one that is held."""

    id: str
    similarity: float
    source: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An entry as it is shown.

    Attributes
    ----------
    pieces
        How its text begins; ``rest`` characters come after.
    rendered
        What a reader of the page would see, where that is something else.
    drawable
        Whether a browser would draw it as a page.
    findings
        The most convincing one first.
    diff
        Against the older revision, of which ``older`` says what it is; empty for none.
    proposed
        What somebody would do with it.
    """

    held: HeldEntry
    pieces: Sequence[Piece]
    rest: int
    rendered: str | None
    drawable: bool
    findings: Sequence[Finding]
    diff: Sequence[Change] = ()
    older: str = ""
    neighbors: Sequence[Neighbor] = ()
    proposed: LogRecord | None = None
    metadata: Sequence[tuple[str, str]] = ()

    @property
    def waits(self) -> bool:
        """Whether it waits for a decision."""
        return self.held.status is Status.HELD


class Square(NamedTuple):
    """Similarity of two entries of a group, in a drawing."""

    row: int
    column: int
    similarity: float
    tone: int  # from 0, strangers, to 9, copies: a tenth of the similarity above one half each


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """A page of a case.

    Attributes
    ----------
    last
        Number of the entry that came last into the case: what comes later was not looked at.
    """

    case: Case
    last: int
    entries: Sequence[Shown]
    squares: Sequence[Square]
    n_drawn: int
    history: Sequence[LogRecord]
    sources: Sequence[tuple[str, dict[str, int]]]
    takeovers: Sequence[Takeover] = ()
    remarks: Sequence[str] = field(default_factory=tuple)


def case_view(
    quarantine: Quarantine, store: Guarded | None, case: Case, offset: int = 0
) -> CaseView:
    """Return the contents of the page of a case.

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
    vectors = [one.vector for one in held if one.vector.size][:DRAWN]
    sources = dict.fromkeys(one.entry.lineage for one in held if one.entry.lineage is not None)
    return CaseView(
        case=case,
        last=Cases(quarantine).newest(case.number),
        entries=entries,
        squares=_squares(vectors),
        n_drawn=len(vectors),
        history=quarantine.log.lines(ids)[-HISTORY:],
        sources=[
            (name, Cases(quarantine).by_source(name, limit=COUNTED))
            for name in list(sources)[:SOURCES]
        ],
        takeovers=taken,
        remarks=remarks,
    )


def _shown(
    held: HeldEntry,
    older: tuple[str, str] | None,
    neighbors: Sequence[Neighbor],
    proposed: LogRecord | None,
) -> Shown:
    text = held.entry.text
    found = Decision(entry_id=held.id, verdict=Verdict.QUARANTINE, findings=held.findings)
    diff: Sequence[Change] = ()
    if older is not None and older[1] != text:
        diff = changes(older[1], text)
    return Shown(
        held=held,
        pieces=pieces(text, held.findings),
        rest=max(0, len(text) - SHOWN),
        rendered=rendered(text),
        drawable=is_page(text),
        findings=by_strength(found),
        diff=diff,
        older="" if older is None else older[0],
        neighbors=neighbors,
        proposed=proposed,
        metadata=[
            (printable(str(key), 80), printable(repr(value), 300))
            for key, value in list(held.entry.metadata.items())[:20]
        ],
    )


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


def _squares(vectors: Sequence[NDArray[np.float32]]) -> list[Square]:
    """Return how alike each two entries are; nothing where vectors are of several dimensions."""
    if len(vectors) < 2 or len({vector.size for vector in vectors}) > 1:  # noqa: PLR2004
        return []
    rows = np.stack(vectors).astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    alike = rows @ rows.T
    tones = np.clip((alike - 0.5) * 20, 0, 9).astype(int)
    return [
        Square(row=i, column=j, similarity=float(alike[i, j]), tone=int(tones[i, j]))
        for i in range(len(rows))
        for j in range(len(rows))
    ]
