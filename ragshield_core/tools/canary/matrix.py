"""Exact search in a batch by matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.tools.canary.embedder import Embedder, Vectors, unit_vectors
from ragshield_core.tools.canary.knowledge_base import KnowledgeBase
from ragshield_core.tools.canary.passages import Passage

# Queries whose similarities to all entries are held at a time: 26 MB for 100,000 entries.
BLOCK = 64
# float32 products differ by less than that with their shape: equals are told apart by their row
# instead, so that entries added elsewhere do not change a ranking.
DECIMALS = 5


class MatrixRetriever(KnowledgeBase):
    """Exact search in a batch by one matrix product: for audits, tests and the command line.

    Parameters
    ----------
    batch
        The knowledge base, with vectors.
    embedder
        For queries whose vectors are not given.
    """

    def __init__(self, batch: Batch, embedder: Any = None) -> None:
        self.batch = batch
        self._embedder = embedder

    @property
    def embedder(self) -> Any:
        """The model for queries, if it was given one."""
        return self._embedder

    def size(self) -> int:
        """Return how many entries there are."""
        return len(self.batch)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest entries of each query."""
        if vectors is None:
            vectors = Embedder.of(self._embedder).queries(queries)
        if len(self.batch) and vectors.shape[1] != self.batch.dim:
            msg = (
                f"the queries have vectors of dimension {vectors.shape[1]}, the knowledge base of "
                f"{self.batch.dim}; embed both with the same model."
            )
            raise CanaryError(msg)
        found = nearest(unit_vectors(vectors, len(queries)), self.batch.embeddings, k)
        # Many queries meet the same entries.
        made = {row: self._passage(row) for row in {row for rows in found for row in rows}}
        return [[made[row] for row in rows] for rows in found]

    def _passage(self, row: int) -> Passage:
        batch = self.batch
        return Passage(
            id=batch.ids[row],
            text=batch.texts[row],
            lineage=batch.lineages[row],
            metadata=batch.metadatas[row],
            vector=batch.embeddings[row],
        )


def nearest(queries: Vectors, entries: Vectors, k: int) -> list[list[int]]:
    """Return the rows of the k most similar entries of each query, best first.

    Parameters
    ----------
    queries, entries
        Shapes (n_queries, dim) and (n_entries, dim), float32.
    k
        At most n_entries count.
    """
    k = min(k, len(entries))
    found: list[list[int]] = []
    for start in range(0, len(queries) if k else 0, BLOCK):
        similarities = np.round(queries[start : start + BLOCK] @ entries.T, DECIMALS)
        thresholds = np.partition(similarities, -k, axis=1)[:, -k]
        for mine, threshold in zip(similarities, thresholds, strict=True):
            rows = np.flatnonzero(mine >= threshold)
            order = np.argsort(-mine[rows], kind="stable")[:k]  # of equals, the earlier row
            found.append(rows[order].tolist())
    return found or [[] for _ in queries]
