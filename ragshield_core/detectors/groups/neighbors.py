"""Lend the neighbours that a similarity graph knows to other detectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import SimilarityGraph
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.index import EntryIndex
from ragshield_core.neighbors.known import KnownNeighbors, NeighborSource

# Held entries that are looked past at most: they lie close together, and there may be many.
PAST_HELD = 32


class GraphNeighbors(NeighborSource):
    """A :class:`~ragshield_core.neighbors.known.NeighborSource` that looks into a graph.

    One search serves the owner of the graph and whoever asks for the neighbours of the same batch.
    Where more than :data:`PAST_HELD` held entries lie around an entry, fewer neighbours than asked
    for may be found.

    Parameters
    ----------
    graph
        Returns the graph as it is now; its owner learns and forgets.
    held
        Returns the keys in the graph of entries that are held in quarantine: they are not live.
    """

    def __init__(
        self, graph: Callable[[], SimilarityGraph], held: Callable[[], Sequence[str]]
    ) -> None:
        self._graph, self._held = graph, held
        super().__init__()

    def standing_neighbors(self, ids: Sequence[str], k: int) -> KnownNeighbors:
        """Return the k nearest other known entries of known ones, as the graph has listed them."""
        graph = self._graph()
        if k > graph.k or not len(ids):
            return super().standing_neighbors(ids, k)
        slots = graph.part(graph.index.slots_of(ids)).lists.slots
        return self._ranked(ids, self.vectors(ids), self._live(slots), k)

    def _fitted(self) -> EntryIndex:
        return self._graph().index

    def _nearest(self, batch: Batch, k: int) -> NDArray[np.int64]:
        past = min(len(self._held()), PAST_HELD)
        return self._live(self._graph().nearest(batch, k + past).slots[:, : k + past])

    def _live(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return slots without those of held entries."""
        held = self._held()
        if not held:
            return slots
        return np.where(np.isin(slots, self._graph().index.slots_of(held)), -1, slots)
