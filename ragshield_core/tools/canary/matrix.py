"""Exact search in a batch by matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.entries import Batch
from ragshield_core.errors import CanaryError
from ragshield_core.tools.canary.embedder import Embedder, Vectors, unit_vectors
from ragshield_core.tools.canary.knowledge_base import KnowledgeBase
from ragshield_core.tools.canary.passages import Passage

# Entries whose similarities to all queries are held at a time: 32 MB for 1,000 queries.
BLOCK = 8_192
# float32 products differ by so much with their shape: equals are told apart by their row instead,
# so that entries added elsewhere do not change a ranking.
TIE, DECIMALS = 1e-5, 5


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
        rows, _ = nearest(unit_vectors(vectors, len(queries)), self.batch.embeddings, k)
        # Many queries meet the same entries.
        made = {row: self._passage(row) for row in np.unique(rows).tolist()}
        return [[made[row] for row in found] for found in rows.tolist()]

    def _passage(self, row: int) -> Passage:
        batch = self.batch
        return Passage(
            id=batch.ids[row],
            text=batch.texts[row],
            lineage=batch.lineages[row],
            metadata=batch.metadatas[row],
            vector=batch.embeddings[row],
        )


def nearest(
    queries: Vectors, entries: Vectors, k: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the k most similar entries of each query, best first, and their similarities.

    Parameters
    ----------
    queries, entries
        Shapes (n_queries, dim) and (n_entries, dim), float32.
    k
        At most n_entries count.

    Returns
    -------
    tuple[NDArray[np.intp], NDArray[np.float32]]
        Both of shape (n_queries, min(k, n_entries)).
    """
    k = min(k, len(entries))
    n = len(queries)
    rows = np.empty((n, 0), dtype=np.intp)
    best = np.empty((n, 0), dtype=np.float32)
    for start in range(0, len(entries), BLOCK):
        similarity = queries @ entries[start : start + BLOCK].T
        if best.shape[1] < k:
            # Of a block, no more than k can stay, and those that are equal to the last of them.
            few = min(k, similarity.shape[1])
            thresholds = np.partition(similarity, -few, axis=1)[:, -few]
        else:
            thresholds = best[:, -1]  # few entries of later blocks are among the best
        hits = np.nonzero(similarity >= thresholds[:, None] - TIE)
        more_rows, more = _ragged(n, hits, np.round(similarity[hits], DECIMALS), start)
        rows, best = np.hstack([rows, more_rows]), np.hstack([best, more])
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]  # of equals, the earlier row
        rows, best = (
            np.take_along_axis(rows, order, axis=1),
            np.take_along_axis(best, order, axis=1),
        )
    return rows, best


def _ragged(
    n: int, hits: tuple[NDArray[np.intp], ...], values: Vectors, start: int
) -> tuple[NDArray[np.intp], Vectors]:
    """Return hits, which come sorted by query, as rows of equal length."""
    counts = np.bincount(hits[0], minlength=n)
    width = int(counts.max(initial=0))
    place = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.zeros((n, width), dtype=np.intp)
    best = np.full((n, width), -np.inf, dtype=np.float32)
    rows[hits[0], place] = hits[1] + start
    best[hits[0], place] = values
    return rows, best
