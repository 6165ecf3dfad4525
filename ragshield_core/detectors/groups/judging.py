"""Judge the entries of an overlay by what is usual."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.agreement import NEW_TO_ALL, STANDS, Newcomers
from ragshield_core.detectors.groups.books import ARRIVING, TURNS
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    CROWD,
    OWN_BOND,
    SIZES,
    Channel,
    GroupEvidence,
    Held,
    own_bond,
)
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.sources import (
    AMONG,
    FEWEST_OF_SOURCE,
    MOST_OF_SOURCE,
    MOST_STANDING,
    among_standing,
    surprisals_within,
)
from ragshield_core.detectors.groups.usual import (
    CHANNEL_OF,
    CLONES_AT,
    COPIES,
    CROWD_AT,
    NO_EDGES,
    WHYS,
    Judgement,
    Tied,
    copies_in,
    new_copies,
)
from ragshield_core.text.copies import borrowed

# Held neighbours on which a standing entry is condemned, at least: one is its imitator, for all
# that anybody can tell.
ACCOMPLICES = 2
# What has so many of its words from an entry is an imitation of it, in whatever order they stand.
# Of texts that were crafted for one question, one in twenty has as many from another.
BORROWED = 0.75


def judge(
    known: Known,
    overlay: Overlay,
    rows: NDArray[np.intp] | None = None,
    suspected: tuple[NDArray[np.intp], Judgement] | None = None,
) -> Judgement:
    """Score entries of an overlay, all or some; given, maybe, which rows were suspicious."""
    if not known.by_groups:
        return judge_cliques(known, overlay)
    assert known.usual is not None  # noqa: S101 - there is one as soon as it is ready
    weights = known.books.held_weights(known.graph)
    evidence: dict[Channel, GroupEvidence] = {}
    # Who is new to whom, and copies, which stand by themselves, are what they were before some
    # were suspected.
    if suspected is None:
        recent = known.books.recent(known.graph, len(overlay.batch))
        newcomers, lineages = _newcomers(known, overlay, recent), _lineages(overlay, recent)
    else:
        newcomers = suspected[1].evidence["cross"].newcomers
        lineages = suspected[1].lineages
    for channel in CHANNELS:
        held, before = Held.of(overlay, weights, known.standing[channel]), None
        if suspected is not None:
            before = suspected[1].evidence[channel]
            held = held.suspecting(suspected[0], before)
        evidence[channel] = known.evidence(overlay, channel, newcomers, held, before)
    n = len(overlay.numbers)
    wanted = np.arange(n) if rows is None else rows
    columns = Tied.of(evidence, wanted, lineages).columns(known.usual)
    why, scores = np.zeros(n, dtype=np.intp), np.full(n, -np.inf)
    why[wanted] = np.argmax(columns, axis=1)
    scores[wanted] = columns.max(axis=1)
    judgement = Judgement(
        scores=scores, why=why, evidence=evidence, lineages=lineages, edges=NO_EDGES
    )
    return judgement if suspected is None else _within_sources(known, overlay, judgement)


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


def accused(
    overlay: Overlay,
    judgement: Judgement,
    rows: NDArray[np.intp],
    guilty: NDArray[np.bool_],
) -> NDArray[np.intp]:
    """Return the standing rows against which more speaks than imitators of them could.

    Parameters
    ----------
    rows
        Of standing entries.
    guilty
        By entry number, what is held.
    """
    why = judgement.why[rows]
    accused = np.zeros(len(rows), dtype=np.bool_)
    for channel in CHANNELS:
        widths = np.where(why == CROWD_AT, CROWD, SIZES[-1] - 1)
        mine = np.flatnonzero(CHANNEL_OF[why] == channel)
        group = judgement.evidence[channel].members[rows[mine], :CROWD]
        with_them = (group >= 0) & guilty[group]
        with_them &= np.arange(CROWD) < widths[mine, None]
        for place in np.flatnonzero(with_them.sum(axis=1) >= ACCOMPLICES).tolist():
            own = overlay.numbers[rows[mine[place]]]
            model = overlay.words_of(own)
            others = [
                other
                for other in group[place, with_them[place]].tolist()
                if borrowed(overlay.words_of(other), model) < BORROWED
            ]
            if len(others) >= ACCOMPLICES:
                bond = own_bond(overlay.vectors(np.array([own, *others])))
                accused[mine[place]] = bond > OWN_BOND
    for place in np.flatnonzero(why > CROWD_AT).tolist():
        # Somebody's words came first: of copies, the oldest is the one that was copied.
        lists = overlay.lists.take(rows[place : place + 1])
        copies = lists.slots[copies_in(overlay, lists, COPIES[WHYS[why[place]][0]])]
        accused[place] = (copies < overlay.numbers[rows[place]]).any()
    return rows[accused]


def lineages_by_turn(known: Known, overlay: Overlay, turns: int) -> dict[str, NDArray[np.int64]]:
    """Return the same if each part of the graph had come last in turn, in its own order."""
    turn = known.books.turns(known.graph, turns)
    lineages = {kind: np.zeros(len(overlay.numbers), dtype=np.int64) for kind in COPIES}
    for number in range(turns):
        mine = turn[overlay.numbers] == number
        for kind, found_in in _lineages(overlay, turn == number).items():
            lineages[kind][mine] = found_in[mine]
    return lineages


def _newcomers(known: Known, overlay: Overlay, recent: NDArray[np.bool_]) -> Newcomers | None:
    """Return who came together; ``None`` where words were not counted.

    No more at once than was taken as new when the usual was measured: else a large batch would
    be suspicious for being one.
    """
    if known.shares is None:  # there were too few entries
        return None
    graph, n_new = known.graph, len(overlay.batch)
    if not n_new:  # as they were measured
        return Newcomers(overlay, known.shares, known.books.turns(known.graph, TURNS))
    there = np.concatenate([~graph.gone, np.ones(n_new, dtype=np.bool_)])
    later = np.cumsum(there[::-1])[::-1] - 1
    together = later // max(1, round(ARRIVING * len(graph)))
    arrived = np.where(recent, together, STANDS)
    arrived[: graph.n_slots][known.books.is_held(np.s_[: graph.n_slots])] = NEW_TO_ALL
    return Newcomers(overlay, known.shares, arrived)


def _lineages(overlay: Overlay, recent: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
    """Return, by kind, how many other lineages there are among recent copies of each entry."""
    return {kind: new_copies(overlay, recent, copy) for kind, copy in COPIES.items()}


def _within_sources(known: Known, overlay: Overlay, judgement: Judgement) -> Judgement:
    """Judge groups off the standing topics, of sources that join, by their source as well.

    See :mod:`ragshield_core.detectors.groups.sources`.
    """
    suspects = np.flatnonzero(judgement.scores > known.suspicious)
    suspects = suspects[judgement.why[suspects] != CLONES_AT]
    codes = _sources_of(known, overlay)
    mine = codes[overlay.numbers[suspects]]
    suspects = suspects[known.sources.joining(mine)]
    scores = judgement.scores.copy()
    for code in np.unique(codes[overlay.numbers[suspects]]).tolist():
        reference, numbers = _of_source(known, overlay, judgement, codes, code)
        if len(numbers) < FEWEST_OF_SOURCE:
            continue
        rows = suspects[codes[overlay.numbers[suspects]] == code]
        foreign = known.vocabulary.foreign(overlay.all_words.take(overlay.numbers[rows]))
        rows = rows[foreign | ~_among_standing(known, overlay, judgement, rows, codes)]
        if not rows.size:
            continue
        place = {number: row for row, number in enumerate(numbers.tolist())}
        own = np.array([place.get(n, -1) for n in overlay.numbers[rows].tolist()], dtype=np.intp)
        tied = Tied.of(judgement.evidence, rows, judgement.lineages)
        within = surprisals_within(tied, reference, own)
        scores[rows] = np.minimum(scores[rows], within)
    return judgement._replace(scores=scores)


def _sources_of(known: Known, overlay: Overlay) -> NDArray[np.int32]:
    """Return codes of sources by entry number."""
    new = known.sources.codes_of(overlay.batch.sources)
    return np.concatenate([known.sources.by_slot[: known.graph.n_slots], new])


def _of_source(
    known: Known, overlay: Overlay, judgement: Judgement, codes: NDArray[np.int32], code: int
) -> tuple[Tied, NDArray[np.int64]]:
    """Return evidence about entries of a source, held ones included, and their numbers.

    Were held ones left out, a source that comes one by one would never be large enough. The
    numbers are those of the batch: -1 stands for a standing entry.
    """
    graph, rng = known.graph, np.random.default_rng(0)
    new = np.flatnonzero(codes[graph.n_slots :] == code)  # rows of the overlay, too
    standing = np.flatnonzero(codes[: graph.n_slots] == code)
    standing = standing[~graph.gone[standing]]
    if len(new) > MOST_OF_SOURCE:
        new = np.sort(rng.choice(new, MOST_OF_SOURCE, replace=False))
    parts = [Tied.of(judgement.evidence, new, judgement.lineages)]
    numbers = [overlay.numbers[new]]
    if standing.size:
        if len(standing) > MOST_OF_SOURCE:
            standing = np.sort(rng.choice(standing, MOST_OF_SOURCE, replace=False))
        part, turns = graph.part(standing), None
        if known.shares is not None:
            turns = Newcomers(part, known.shares, known.books.turns(known.graph, TURNS))
        evidence = {channel: known.evidence(part, channel, turns) for channel in CHANNELS}
        parts.append(Tied.of(evidence, np.s_[:], lineages_by_turn(known, part, TURNS)))
        numbers.append(np.full(len(standing), -1, dtype=np.int64))
    return Tied.joined(parts), np.concatenate(numbers)


def _among_standing(
    known: Known,
    overlay: Overlay,
    judgement: Judgement,
    rows: NDArray[np.intp],
    codes: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Return which rows, with their groups, sit among standing entries of other sources."""
    graph = known.graph
    if known.compared is None or known.compared[0] != graph.version:
        slots = graph.present[~known.books.is_held(graph.present)]
        if len(slots) > MOST_STANDING:
            slots = np.random.default_rng(0).choice(slots, MOST_STANDING, replace=False)
        known.compared = (graph.version, slots, graph.index.vectors(slots))
    _, slots, vectors = known.compared
    code = codes[overlay.numbers[rows[0]]]
    others = vectors[codes[slots] != code]
    group = np.concatenate(
        [
            overlay.numbers[rows][:, None],
            *(judgement.evidence[c].members[rows, : SIZES[-1] - 1] for c in CHANNELS),
        ],
        axis=1,
    )
    group[(group >= 0) & (codes[group] != code)] = -1  # standing members stand among others
    members, place = np.unique(group, return_inverse=True)
    near = among_standing(overlay.vectors(members), others, known.usual_nearness)
    there = group >= 0
    mean = np.where(there, near[place.reshape(group.shape)], 0.0).sum(axis=1) / there.sum(axis=1)
    return np.asarray(mean >= AMONG)


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
