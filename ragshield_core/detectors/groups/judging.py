"""Judge the entries of an overlay by what is usual."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    Channel,
    GroupEvidence,
)
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.joining import within_sources
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.recalling import BORROWED
from ragshield_core.detectors.groups.usual import (
    NO_EDGES,
    Judgement,
    Tied,
    lineages_of,
)
from ragshield_core.text.copies import borrowed


def judge(
    known: Known,
    overlay: Overlay,
    rows: NDArray[np.intp] | None = None,
    suspected: tuple[NDArray[np.intp], Judgement] | None = None,
) -> Judgement:
    """Score entries of an overlay, all or some; given, maybe, which rows were suspicious."""
    if not known.by_groups:
        return judge_cliques(known, overlay)
    evidence: dict[Channel, GroupEvidence] = {}
    # Who is new to whom, and copies, which stand by themselves, are what they were before some
    # were suspected.
    if suspected is None:
        recent = known.books.recent(known.graph, len(overlay.batch))
        newcomers, lineages = known.newcomers(overlay, recent), lineages_of(overlay, recent)
    else:
        newcomers = suspected[1].evidence["cross"].newcomers
        lineages = suspected[1].lineages
    for channel in CHANNELS:
        held, before = known.held(overlay, channel), None
        if suspected is not None:
            before = suspected[1].evidence[channel]
            held = held.suspecting(suspected[0], before)
        evidence[channel] = known.evidence(overlay, channel, newcomers, held, before)
    judgement = scored(known, overlay, evidence, lineages, rows)
    return judgement if suspected is None else within_sources(known, overlay, judgement)


def scored(
    known: Known,
    overlay: Overlay,
    evidence: dict[Channel, GroupEvidence],
    lineages: dict[str, NDArray[np.int64]],
    rows: NDArray[np.intp] | None = None,
) -> Judgement:
    """Score entries of an overlay, all or some, by evidence about all of them."""
    assert known.usual is not None  # noqa: S101 - there is one as soon as it is ready
    n = len(overlay.numbers)
    wanted = np.arange(n) if rows is None else rows
    columns = Tied.of(evidence, wanted, lineages).columns(known.usual)
    why, scores = np.zeros(n, dtype=np.intp), np.full(n, -np.inf)
    why[wanted] = np.argmax(columns, axis=1)
    scores[wanted] = columns.max(axis=1)
    return Judgement(scores=scores, why=why, evidence=evidence, lineages=lineages, edges=NO_EDGES)


def judge_apart(
    known: Known, overlay: Overlay, rows: NDArray[np.intp], first: Judgement
) -> Judgement:
    """Judge again as if all that is suspicious were held, so that nothing borrows from it.

    What lies beside a group is not held for that; and the surroundings of a group that lean on
    it no longer make it look usual.
    """
    if not known.by_groups:
        return first
    suspects = rows[first.scores[rows] > known.suspicious]
    return judge(known, overlay, rows, (suspects, first)) if suspects.size else first


def as_updates(known: Known, overlay: Overlay, judgement: Judgement) -> Judgement:
    """Judge new versions that keep the text of known ones by what these were.

    A new footer makes all pages of a site more alike, and none of them an attack.
    """
    graph = known.graph
    slots = graph.index.slots_of(overlay.batch.ids)
    again = (slots >= 0) & (judgement.scores[: len(slots)] > known.suspicious)
    scores = judgement.scores.copy()
    for row in np.flatnonzero(again).tolist():
        before = graph.words.take(slots[row : row + 1])[0]
        if borrowed(overlay.words_of(overlay.numbers[row]), before) >= BORROWED:
            scores[row] = min(scores[row], float(known.books.scores[slots[row]]))
    return judgement._replace(scores=scores)


def judge_cliques(known: Known, overlay: Overlay) -> Judgement:
    """Score the entries of an overlay by the reference rule."""
    edges = _edges(known, overlay)
    names, compact = np.unique(edges, return_inverse=True)
    members = cleanbase.clique_members(len(names), compact.reshape(edges.shape))
    scores = np.isin(overlay.numbers, names[members]).astype(np.float64)
    none = np.zeros(len(scores), dtype=np.int64)
    return Judgement(scores=scores, why=none, evidence={}, lineages={}, edges=edges)


def _edges(known: Known, overlay: Overlay) -> NDArray[np.int64]:
    """Return the edges of the reference rule around the entries of an overlay."""
    numbers, lists = overlay.numbers, overlay.lists
    beyond = np.setdiff1d(lists.slots[lists.slots >= 0], numbers)
    edges = [cleanbase.undirected(numbers, lists)]
    if len(beyond):  # the lists of neighbours that the overlay does not change
        edges.append(cleanbase.undirected(beyond, known.graph.part(beyond).lists))
    threshold = known.edge_threshold[0]
    kept = [pairs[similarities > threshold] for pairs, similarities in edges]
    return np.unique(np.concatenate(kept), axis=0)
