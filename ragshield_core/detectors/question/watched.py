"""Base of detectors that watch the first results of known queries."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Audits, Evidence, Overlooks
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError
from ragshield_core.model.findings import printable

# Entries kept per query below the top k, so that entries can leave.
RESERVE = 64
# Difference of float32 products between batch shapes.
TIE = 1e-6
# Entries that are compared with all queries at a time.
BLOCK = 4_096


class WatchedQueries(Audits, Overlooks):
    """The first results of queries, kept up to date while entries come and go.

    Parameters
    ----------
    queries
        Texts of the queries.
    vectors
        Shape (n_queries, dim), of any length; or the string from :meth:`config`.
    k
        Number of top entries from which a query is answered.
    """

    def __init__(self, queries: Sequence[str], vectors: ArrayLike | str, *, k: int) -> None:
        self.queries = tuple(queries)
        if not self.queries:
            msg = "queries is empty, expected canary queries or logged ones."
            raise ValueError(msg)
        if k < 1:
            msg = f"k is {k}, expected at least 1."
            raise ValueError(msg)
        if isinstance(vectors, str):
            given = np.frombuffer(base64.b64decode(vectors), "<f4").reshape(len(queries), -1)
        else:
            given = np.asarray(vectors, dtype=np.float32)
        if given.ndim != 2 or len(given) != len(self.queries):  # noqa: PLR2004 - a matrix
            msg = f"vectors has shape {given.shape}, expected ({len(self.queries)}, dim)."
            raise ValueError(msg)
        norms = np.linalg.norm(given.astype(np.float64), axis=1, keepdims=True)
        if not np.isfinite(norms).all() or not norms.all():
            msg = "vectors has a row that is zero or not finite; check the embedder of the queries."
            raise ValueError(msg)
        unit = np.abs(norms - 1.0) < TIE  # kept as they are, so that a copy is equal
        self.vectors = np.where(unit, given, given / norms).astype(np.float32)
        self.k = k
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again; vectors as base64."""
        data = base64.b64encode(self.vectors.astype("<f4").tobytes()).decode("ascii")
        return {"queries": list(self.queries), "vectors": data, "k": self.k}

    def reset(self) -> None:
        """Forget every entry."""
        self._heads: list[dict[str, float]] | None = None
        # Per query, the similarity below which its head may lack entries.
        self._floors = np.full(len(self.queries), -np.inf)
        # Similarities of each top k, computed on demand.
        self._thresholds: NDArray[np.float64] | None = None
        self._overlooked: frozenset[str] = frozenset()

    def overlook(self, ids: Collection[str]) -> None:
        """Give the places of entries that the batch replaces to their new revisions."""
        self._overlooked = frozenset(ids)

    def learn(self, entries: Batch) -> None:
        """Note the entries that are among the nearest to a query."""
        if self._heads is None:
            self._heads = [{} for _ in self.queries]
        self._thresholds = None
        depth = self.k + RESERVE
        for start in range(0, len(entries), BLOCK):
            similarity = self.vectors @ entries.embeddings[start : start + BLOCK].T
            thresholds = np.array([_last(head, depth) for head in self._heads])
            if similarity.shape[1] > depth:  # a block can add no more than these
                thresholds = np.maximum(
                    thresholds, np.partition(similarity, -depth, axis=1)[:, -depth]
                )
            # Entries left out stay unknown, so a head is incomplete below this similarity.
            self._floors = np.maximum(self._floors, thresholds)
            hits = np.nonzero(similarity >= self._floors[:, None].astype(np.float32))
            for query, row in zip(*(axis.tolist() for axis in hits), strict=True):
                self._heads[query][entries.ids[start + row]] = float(similarity[query, row])
            for query in np.unique(hits[0]).tolist():
                if len(self._heads[query]) > depth:
                    best = sorted(self._heads[query].items(), key=lambda item: -item[1])[:depth]
                    self._heads[query] = dict(best)
                    self._floors[query] = max(self._floors[query], best[-1][1])

    def forget(self, entries: Batch) -> None:
        """Remove entries from the heads; the entries that move up are normally in the reserve."""
        self._thresholds = None
        gone = set(entries.ids)
        for head in self._heads or ():
            for entry_id in head.keys() & gone:
                del head[entry_id]

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while the knowledge base is empty, since nothing can be displaced."""
        if self._heads is None or not any(self._heads):
            return dict.fromkeys(range(len(batch)), "the knowledge base is empty")
        return {}

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and score the share of the heads that each entry holds."""
        self.fit(entries)
        return self.held_out_scores(entries, seed)

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the number of queries for which each entry is retrieved."""
        tops = [set(top) for top in self._tops()]
        sentences = []
        for row in rows:
            names = [
                q for q, top in zip(self.queries, tops, strict=True) if entries.ids[row] in top
            ]
            shown = printable(names[0], 60) if names else ""
            sentences.append(
                Evidence(
                    sentence=f"it is among the first {self.k} results of {len(names)} watched "
                    f"queries, such as {shown!r}"
                )
            )
        return sentences

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the heads: ids as JSON, similarities as an array."""
        heads = self._heads
        if heads is None:
            return {"ids": None}, {}
        values = [value for head in heads for value in head.values()]
        return (
            {"ids": [list(head) for head in heads]},
            {"similarities": np.array(values, dtype=np.float64), "floors": self._floors.copy()},
        )

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        if values["ids"] is None:
            return
        similarities = iter(arrays["similarities"].tolist())
        self._heads = [
            {str(entry_id): float(next(similarities)) for entry_id in ids} for ids in values["ids"]
        ]
        self._floors = np.array(arrays["floors"], dtype=np.float64)

    def _known(self) -> list[dict[str, float]]:
        if self._heads is None:
            msg = f"{self.name} has learned no knowledge base; call fit first."
            raise NotFittedError(msg)
        return self._heads

    def _tops(self) -> list[list[str]]:
        """Return the ids of each query's top k, best first."""
        return [ranked(head)[: self.k] for head in self._known()]

    def _best(self) -> NDArray[np.float64]:
        """Return the similarities of each query's top k, shape (n_queries, k)."""
        heads = self._known()
        if self._thresholds is None:
            # If so many have left that the head is incomplete, the best unknown similarity counts.
            self._thresholds = np.repeat(self._floors[:, None], self.k, axis=1)
            for thresholds, head in zip(self._thresholds, heads, strict=True):
                values = sorted(head.values(), reverse=True)[: self.k]
                np.maximum(thresholds[: len(values)], values, out=thresholds[: len(values)])
        return self._thresholds


def ranked(head: Mapping[str, float]) -> list[str]:
    """Return the ids of a head, best first."""
    return sorted(head, key=lambda entry_id: -head[entry_id])


def _last(head: Mapping[str, float], depth: int) -> float:
    """Return the similarity that an entry needs to be among the first ``depth``."""
    return min(head.values()) if len(head) >= depth else -np.inf
