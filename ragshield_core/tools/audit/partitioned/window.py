"""The part of the graph that is seen from some entries: them, and whom their lists name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import Lists, Overlay, SimilarityGraph
from ragshield_core.neighbors.index import FixedVectors
from ragshield_core.tools.audit.partitioned.rows import Partitions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Entries with their neighbours, renumbered from 0: the entries first.

    Attributes
    ----------
    graph, overlay
        The entries are those of the overlay; the graph knows their neighbours as well.
    others
        Numbers, in the whole knowledge base, of the neighbours that are no such entries
        themselves; ascending.
    """

    graph: SimilarityGraph
    overlay: Overlay
    others: NDArray[np.int64]

    @classmethod
    def around(
        cls,
        partitions: Partitions,
        own: NDArray[np.int64],
        lists: Lists,
        *,
        vectors: bool,
        ids: bool = False,
    ) -> Window:
        """Return what is seen from some entries.

        Parameters
        ----------
        partitions
            All entries.
        own
            Numbers of the entries, ascending.
        lists
            Their lists, which name entries by their number.
        vectors, ids
            Whether vectors and ids are needed.
        """
        named = lists.slots[lists.slots >= 0]
        others = np.setdiff1d(named, own)
        everybody = np.concatenate([own, others])
        order = np.argsort(everybody, kind="stable")
        place = order[np.searchsorted(everybody, lists.slots, sorter=order) % len(everybody)]
        slots = np.where(lists.slots < 0, -1, place)
        matrix = np.zeros((len(everybody), 1), dtype=np.float32)  # a graph has some vectors
        if vectors:
            matrix = np.concatenate([partitions.vectors(part) for part in (own, others)])
        names = partitions.ids(everybody) if ids else []
        graph = SimilarityGraph.assembled(
            FixedVectors(names, matrix),
            [*partitions.words(own), *partitions.words(others)],
            np.concatenate([partitions.gather(part, "lineage") for part in (own, others)]),
            Lists(slots, lists.similarities, lists.copied),
            partitions.unrelated,
        )
        return cls(graph=graph, overlay=graph.part(np.arange(len(own))), others=others)
