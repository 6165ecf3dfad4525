"""Scores of an overlay's entries, by the usual evidence of the knowledge base and their source.

Documents of one product, under one template, resemble each other; in a knowledge base of
something else each of them looks like a member of a crafted group. Two questions distinguish them:

- Is the group among *stored* topics? Poisoned documents must answer questions that stored documents
  answer, or they are not retrieved instead of them. The nearness of an entry to the entries of
  other sources is a quantile of the nearness of these to each other, not a fixed cosine.
- Does it stand out within its own source? If the source is large enough, its own entries show their
  usual similarity.

A group among stored topics is judged by the knowledge base alone. A group off these topics, or in a
language that the knowledge base lacks, must stand out in its source as well: a model of other
languages puts all texts of this language near each other, and near anything. While its source is
small, a group in another language is reported as not judged; later arrivals never remove it.
Near-exact copies in several documents are always judged by the knowledge base.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    CROWD,
    SIZES,
    GroupEvidence,
    own_bond,
)
from ragshield_core.detectors.groups.graph import Lists, Overlay
from ragshield_core.detectors.groups.known import TURNS, Known
from ragshield_core.detectors.groups.usual import (
    CHANNEL_OF,
    CLONES_AT,
    COPIES,
    CROWD_AT,
    NO_ROWS,
    WHYS,
    Judgement,
    Tied,
    Usual,
    copies_in,
    lineages_of,
    taken,
    tied_to_groups,
)
from ragshield_core.text.copies import borrowed

# Fewest entries of a source that show its usual evidence: with fewer, one group of five would be
# more than a quarter of the entries to compare it with.
FEWEST_OF_SOURCE = 20
# Fewest entries for a language that the knowledge base lacks: with 20, .16 to .24 of passages in
# five languages were held if they came one by one, with 100, .00 to .04. Other texts get no such
# grace: a model that reads metadata puts a text without metadata far from all stored entries.
FEWEST_FOREIGN = 100
# Most entries of a source that are compared: enough for the largest in a hundred.
MOST_OF_SOURCE = 400
# The third nearest stored entry shows whether an entry is among stored topics: one or two may be
# near by chance, or be copies.
STANDING_RANK = 3
# A group is among stored topics if its members are nearer to them than a quarter of the stored
# entries are to each other. This holds for 95 % of the grouped texts that were crafted for
# questions of the knowledge base, and for one in four groups of clean sources that join another.
AMONG = 0.25
# Most stored entries that are compared: all up to this number, a sample of this size above.
MOST_STANDING = 20_000
# Fewest held neighbours that condemn a stored entry: a single one may be its imitator.
ACCOMPLICES = 2
# A text with this share of its words from an entry, in any order, is an imitation of it. Among
# texts that were crafted for one question, one in twenty has as many from another.
BORROWED = 0.75
# An entry is not the model of the others in its group if their similarity beyond it is at least
# this part of its value in a group without a model.
OWN_BOND = 0.5


def judge(
    known: Known,
    overlay: Overlay,
    rows: NDArray[np.intp] | None = None,
    suspected: tuple[NDArray[np.intp], Judgement] | None = None,
) -> Judgement:
    """Score all or some entries of an overlay; ``suspected``: suspicious rows of a judgement."""
    if not known.by_groups:
        return cleanbase.judge(known, overlay)
    if suspected is None:
        recent = known.recent()
        lineages = lineages_of(overlay, recent)
        evidence = known.evidence(overlay, known.newcomers(overlay, recent))
        return scored(known, overlay, evidence, lineages, rows)
    # Newcomers, and copies, which count by themselves, do not change with suspicion.
    suspects, first = suspected
    before = first.evidence
    held = known.held().suspecting(suspects, before)
    evidence = known.evidence(overlay, before.newcomers, held=held, before=before)
    again = evidence.changed(np.arange(len(overlay.numbers)) if rows is None else rows)
    scores, why = first.scores.copy(), first.why.copy()
    if again.size:
        new = scored(known, overlay, evidence, first.lineages, again)
        scores[again], why[again] = new.scores[again], new.why[again]
    return within_sources(known, overlay, Judgement(scores, why, evidence, first.lineages))


def scored(
    known: Known,
    overlay: Overlay,
    evidence: GroupEvidence,
    lineages: dict[str, NDArray[np.int64]],
    rows: NDArray[np.intp] | None = None,
) -> Judgement:
    """Score all or some entries of an overlay by evidence about all of them."""
    assert known.usual is not None  # noqa: S101 - it exists once the state is ready
    n = len(overlay.numbers)
    wanted = np.arange(n) if rows is None else rows
    columns = known.usual.columns(tied_to_groups(evidence, wanted, lineages))
    why, scores = np.zeros(n, dtype=np.intp), np.full(n, -np.inf)
    why[wanted] = np.argmax(columns, axis=1)
    scores[wanted] = columns.max(axis=1)
    return Judgement(scores, why, evidence, lineages)


def judge_batch(
    known: Known, overlay: Overlay, rows: NDArray[np.intp], first: Judgement
) -> Judgement:
    """Return the final judgement of a batch, given a first one.

    The batch is judged again as if all suspicious entries were held, so that other entries gain no
    evidence from them: entries beside a group are not held for that, and surroundings that owe
    their tightness to the group no longer make it look usual.

    New revisions that mostly consist of the old text score no higher than the old ones did: a new
    footer makes all pages of a site more similar, but none of them an attack.
    """
    judgement, graph = first, known.graph
    suspects = rows[first.scores[rows] > known.suspicious]
    if known.by_groups and suspects.size:
        judgement = judge(known, overlay, rows, (suspects, first))
    slots = graph.index.slots_of(overlay.batch.ids)
    again = np.flatnonzero((slots >= 0) & (judgement.scores[: len(slots)] > known.suspicious))
    if not again.size:
        return judgement
    scores = judgement.scores.copy()
    before = judge(known, graph.part(slots[again])).scores
    for row, score in zip(again.tolist(), before.tolist(), strict=True):
        words = graph.words.take(slots[row : row + 1])[0]
        if borrowed(overlay.words_of(overlay.numbers[row]), words) >= BORROWED:
            scores[row] = min(scores[row], score)
    return judgement._replace(scores=scores)


# Sources that join


def within_sources(known: Known, overlay: Overlay, judgement: Judgement) -> Judgement:
    """Judge groups of joining sources by their source as well, if they are off stored topics."""
    suspects = np.flatnonzero(judgement.scores > known.suspicious)
    suspects = suspects[judgement.why[suspects] != CLONES_AT]
    if not suspects.size:
        return judgement
    # Codes of sources by entry number.
    codes = np.concatenate([known.notes["source"], known.source_codes(overlay.batch.sources)])
    suspects = suspects[known.joining(codes[overlay.numbers[suspects]])]
    scores, apart = judgement.scores.copy(), [NO_ROWS]
    for code in np.unique(codes[overlay.numbers[suspects]]).tolist():
        rows = suspects[codes[overlay.numbers[suspects]] == code]
        foreign = known.vocabulary.foreign(overlay.all_words.take(overlay.numbers[rows]))
        # Later arrivals never remove stored entries in another language.
        stands = foreign & (overlay.numbers[rows] < known.graph.n_slots)
        scores[rows[stands]] = 0.0
        off = foreign | ~_among_standing(known, overlay, judgement, rows, codes)
        rows, foreign = rows[off & ~stands], foreign[off & ~stands]
        if not rows.size:
            continue
        reference, numbers = _of_source(known, overlay, judgement, codes, code)
        if len(numbers) < FEWEST_FOREIGN:
            scores[rows[foreign]] = 0.0
            apart.append(rows[foreign])
            rows = rows[~foreign]
        if not rows.size or len(numbers) < FEWEST_OF_SOURCE:
            continue
        tied = tied_to_groups(judgement.evidence, rows, judgement.lineages)
        # An entry must not be judged by a tail that it has extended itself: leave it out of the
        # reference, with a fifth of the others.
        fold = np.random.default_rng(0).permutation(len(numbers)) % N_FOLDS
        fold_of = dict(zip(numbers.tolist(), fold.tolist(), strict=True)) | {-1: N_FOLDS}
        left_out = np.array([fold_of.get(n, N_FOLDS) for n in overlay.numbers[rows].tolist()])
        for number in np.unique(left_out).tolist():
            usual, mine = Usual.of(taken(reference, fold != number)), left_out == number
            within = usual.columns(taken(tied, mine)).max(axis=1)
            scores[rows[mine]] = np.minimum(scores[rows[mine]], within)
    return judgement._replace(scores=scores, apart=np.concatenate(apart))


def _of_source(
    known: Known, overlay: Overlay, judgement: Judgement, codes: NDArray[np.int64], code: int
) -> tuple[Tied, NDArray[np.int64]]:
    """Return evidence about entries of a source, held ones included, and their numbers.

    Without held ones, a source whose entries come one by one would never be large enough. Numbers
    are given for entries of the batch, -1 for stored ones.
    """
    graph, rng = known.graph, np.random.default_rng(0)
    new = np.flatnonzero(codes[graph.n_slots :] == code)  # rows of the overlay, too
    standing = graph.present[codes[graph.present] == code]
    if len(new) > MOST_OF_SOURCE:
        new = np.sort(rng.choice(new, MOST_OF_SOURCE, replace=False))
    if len(standing) > MOST_OF_SOURCE:
        standing = np.sort(rng.choice(standing, MOST_OF_SOURCE, replace=False))
    tied = tied_to_groups(judgement.evidence, new, judgement.lineages)
    numbers = overlay.numbers[new]
    if standing.size:
        part = graph.part(standing)
        evidence = known.evidence(part, known.newcomers_by_turn(part))
        theirs = tied_to_groups(evidence, np.s_[:], known.lineages_by_turn(part, TURNS))
        tied = {name: np.concatenate([column, theirs[name]]) for name, column in tied.items()}
        numbers = np.concatenate([numbers, np.full(len(standing), -1)])
    return tied, numbers


def _among_standing(
    known: Known,
    overlay: Overlay,
    judgement: Judgement,
    rows: NDArray[np.intp],
    codes: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which rows, with their groups, are among stored entries of other sources."""
    graph = known.graph
    if known.compared is None or known.compared[0] != graph.version:
        slots = graph.present[~known.is_held(graph.present)]
        if len(slots) > MOST_STANDING:
            slots = np.random.default_rng(0).choice(slots, MOST_STANDING, replace=False)
        known.compared = (graph.version, slots, graph.index.vectors(slots))
    _, slots, vectors = known.compared
    code, usual = codes[overlay.numbers[rows[0]]], known.usual_nearness
    others = vectors[codes[slots] != code]
    groups = [judgement.evidence[c].members[rows, : SIZES[-1] - 1] for c in CHANNELS]
    group = np.concatenate([overlay.numbers[rows][:, None], *groups], axis=1)
    group[(group >= 0) & (codes[group] != code)] = -1  # members of other sources do not count
    members, place = np.unique(group, return_inverse=True)
    near = np.zeros(len(members))  # quantiles of the nearness of stored entries to each other
    if len(others) >= STANDING_RANK and len(usual):
        similar = overlay.vectors(members) @ others.T
        nearest = np.partition(similar, -STANDING_RANK, axis=1)[:, -STANDING_RANK]
        near = np.searchsorted(usual, nearest) / len(usual)
    there = group >= 0
    mean = np.where(there, near[place.reshape(group.shape)], 0.0).sum(axis=1) / there.sum(axis=1)
    return np.asarray(mean >= AMONG)


def nearness_of_standing(lists: Lists) -> NDArray[np.float32]:
    """Return the similarities of entries to their third nearest, ascending."""
    nearest = lists.similarities[:, STANDING_RANK - 1]
    return np.sort(nearest[np.isfinite(nearest)])


# Stored entries, by the evidence of held ones that came later


def accused(
    overlay: Overlay,
    judgement: Judgement,
    rows: NDArray[np.intp],
    guilty: NDArray[np.int64],
    unusual: Collection[str],
) -> NDArray[np.intp]:
    """Return the stored rows with more evidence against them than imitators could create.

    ``guilty`` are the numbers of held entries. For ``unusual`` entries, which were so before these
    came, membership in one group is enough.
    """
    why = judgement.why[rows]
    accused = np.zeros(len(rows), dtype=np.bool_)
    for channel in CHANNELS:
        widths = np.where(why == CROWD_AT, CROWD, SIZES[-1] - 1)
        mine = np.flatnonzero(CHANNEL_OF[why] == channel)
        group = judgement.evidence[channel].members[rows[mine], :CROWD]
        with_them = np.isin(group, guilty)
        with_them &= np.arange(CROWD) < widths[mine, None]
        for place in np.flatnonzero(with_them.sum(axis=1) >= ACCOMPLICES).tolist():
            own = overlay.numbers[rows[mine[place]]]
            if overlay.graph.index.ids_of(np.array([own]))[0] in unusual:
                accused[mine[place]] = True
                continue
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
        # The oldest of several copies is the original.
        lists = overlay.lists.take(rows[place : place + 1])
        copies = lists.slots[copies_in(overlay, lists, COPIES[WHYS[why[place]][0]])]
        accused[place] = (copies < overlay.numbers[rows[place]]).any()
    return rows[accused]
