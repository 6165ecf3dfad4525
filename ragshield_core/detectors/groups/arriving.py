"""Find entries of a graph that came together, and copies among those that came lately."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.agreement import NEW_TO_ALL, STANDS, Newcomers
from ragshield_core.detectors.groups.books import ARRIVING, TURNS
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.usual import (
    COPIES,
    new_copies,
)


def lineages_by_turn(known: Known, overlay: Overlay, turns: int) -> dict[str, NDArray[np.int64]]:
    """Return :func:`lineages_of` entries as if each part of the graph had come last in turn."""
    turn = known.books.turns(known.graph, turns)
    lineages = {kind: np.zeros(len(overlay.numbers), dtype=np.int64) for kind in COPIES}
    for number in range(turns):
        mine = turn[overlay.numbers] == number
        for kind, found_in in lineages_of(overlay, turn == number).items():
            lineages[kind][mine] = found_in[mine]
    return lineages


def newcomers_of(known: Known, overlay: Overlay, recent: NDArray[np.bool_]) -> Newcomers | None:
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


def lineages_of(overlay: Overlay, recent: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
    """Return, by kind, how many other lineages there are among recent copies of each entry."""
    return {kind: new_copies(overlay, recent, copy) for kind, copy in COPIES.items()}
