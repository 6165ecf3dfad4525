"""Judge groups of sources that join by what is usual within their source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.books import TURNS
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    SIZES,
)
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.sources import (
    AMONG,
    FEWEST_FOREIGN,
    FEWEST_OF_SOURCE,
    MOST_OF_SOURCE,
    MOST_STANDING,
    among_standing,
    surprisals_within,
)
from ragshield_core.detectors.groups.usual import (
    CLONES_AT,
    NO_ROWS,
    Judgement,
    Tied,
)


def within_sources(known: Known, overlay: Overlay, judgement: Judgement) -> Judgement:
    """Judge groups off the standing topics, of sources that join, by their source as well.

    See :mod:`ragshield_core.detectors.groups.sources`.
    """
    suspects = np.flatnonzero(judgement.scores > known.suspicious)
    suspects = suspects[judgement.why[suspects] != CLONES_AT]
    codes = _sources_of(known, overlay)
    mine = codes[overlay.numbers[suspects]]
    suspects = suspects[known.sources.joining(mine)]
    scores, apart = judgement.scores.copy(), [NO_ROWS]
    for code in np.unique(codes[overlay.numbers[suspects]]).tolist():
        rows = suspects[codes[overlay.numbers[suspects]] == code]
        foreign = known.vocabulary.foreign(overlay.all_words.take(overlay.numbers[rows]))
        # No later arrival takes out what is in another language.
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
        place = {number: row for row, number in enumerate(numbers.tolist())}
        own = np.array([place.get(n, -1) for n in overlay.numbers[rows].tolist()], dtype=np.intp)
        tied = Tied.of(judgement.evidence, rows, judgement.lineages)
        within = surprisals_within(tied, reference, own)
        scores[rows] = np.minimum(scores[rows], within)
    return judgement._replace(scores=scores, apart=np.concatenate(apart))


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
        part = graph.part(standing)
        turns = known.newcomers_by_turn(part)
        evidence = {channel: known.evidence(part, channel, turns) for channel in CHANNELS}
        parts.append(Tied.of(evidence, np.s_[:], known.lineages_by_turn(part, TURNS)))
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
