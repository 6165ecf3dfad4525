"""Detect entries that would be retrieved for many different queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Evidence, Need, Traits
from ragshield_core.detectors.question.watched import TIE, WatchedQueries
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS

# An entry that answers at most this share of the queries, or this number of them, is no hub.
SHARE, QUERIES = 0.005, 3


class HubDetector(WatchedQueries):
    """Find hubs: entries that would be among the first results of many different queries.

    The score is the share of the queries whose top k the entry would enter. Queries about one thing
    have the same results, so they count together: a query weighs one over the median number of
    queries that its results answer. Otherwise the right answer to a popular question would be a
    hub.

    Parameters
    ----------
    queries
        Texts of the queries, as people ask them: some hundred from a log, or canary queries.
    vectors
        Shape (n_queries, dim), of any length; or the string from :meth:`config`.
    k
        Number of top entries from which a query is answered. By default 10, so that several
        queries reach most topics.

    Notes
    -----
    The usual number of queries per entry depends on the knowledge base: calibrate. No cosine
    decides, only the order of the entries. The policy never acts on one query in two hundred, or on
    three queries. Queries that nobody asks find no hubs: entries of the knowledge base and
    questions made from their words miss most hubs that real questions find.

    One matrix product per batch. Not part of the default guard: it needs queries.
    :class:`CanaryDisplacementDetector` finds groups that take over a single query.

    References
    ----------
    Zhong et al., "Poisoning Retrieval Corpora by Injecting Adversarial Passages", EMNLP 2023 (the
    attack). The detector is our own.

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> detector = HubDetector(["opening hours?", "prices?"], [[1.0, 0.3], [1.0, -0.3]], k=1)
    >>> known = Batch.of(ids=["a", "b"], texts=["", ""], embeddings=[[0.7, 0.7], [0.7, -0.7]])
    >>> new = Batch.of(ids=["c", "d"], texts=["", ""], embeddings=[[1, 0], [0, 1]])
    >>> detector.fit(known).score(new)
    array([1., 0.])
    """

    name: str = "hub"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING})
    # In a small knowledge base, a clean entry may answer a tenth of the queries.
    default_threshold: float = 0.2
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        floor=SHARE,
        on_request=True,  # it needs queries
    )

    def __init__(self, queries: Sequence[str], vectors: ArrayLike | str, *, k: int = 10) -> None:
        super().__init__(queries, vectors, k=k)
        self.traits = replace(self.traits, floor=max(SHARE, QUERIES / len(self.queries)))

    def reset(self) -> None:
        """Forget every entry."""
        super().reset()
        # The thresholds to which the weights belong, the weights, and the most queries of an entry.
        self._weighed: tuple[NDArray[np.float64], NDArray[np.float64], int] | None = None

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the share of different queries that each entry would answer, (n_entries,)."""
        if not len(batch):
            return np.zeros(0)
        weights, _ = self._weights()
        scores: NDArray[np.float64] = weights @ self._entered(batch) / weights.sum()
        return scores

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries, each as if it had come after all others."""
        del seed
        weights, _ = self._weights()
        rows = {entry_id: row for row, entry_id in enumerate(fitted.ids)}
        scores = np.zeros(len(fitted))
        for top, counts in self._counted():
            for place, entry_id in enumerate(top):
                if (row := rows.get(entry_id)) is not None:
                    scores[row] += 1 / median([*counts[:place], 1, *counts[place + 1 :]])
        return np.asarray(scores / weights.sum())

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the number of queries that each entry would answer."""
        if not rows:
            return []
        entered = self._entered(batch)
        _, most = self._weights()
        sentences = []
        for row in rows:
            mine = np.flatnonzero(entered[:, row]).tolist()
            shown = f", such as {printable(self.queries[mine[0]], 60)!r}" if mine else ""
            sentences.append(
                f"it would be among the first {self.k} results of {len(mine):,} of "
                f"{len(self.queries):,} watched queries{shown}; no entry here is among those of "
                f"more than {most:,}"
            )
        return [Evidence(sentence=sentence) for sentence in sentences]

    def _entered(self, batch: Batch) -> NDArray[np.bool_]:
        """Return which queries' top k each entry would enter, shape (n_queries, n_entries)."""
        lowest = self._best()[:, -1:]
        similarity = self.vectors @ batch.embeddings.T
        entered = np.asarray(similarity > lowest.astype(np.float32) + TIE)
        if self._overlooked:  # a new revision may keep the places of the old one
            kept = [not self._overlooked.isdisjoint(top) for top in self._tops()]
            entered[kept] = False
        return entered

    def _counted(self) -> Iterator[tuple[list[str], list[int]]]:
        """Yield each query's top k, and the number of queries that each of them answers."""
        tops = self._tops()
        counts = Counter(entry_id for top in tops for entry_id in top)
        for top in tops:
            yield top, [counts[entry_id] for entry_id in top]

    def _weights(self) -> tuple[NDArray[np.float64], int]:
        """Return the weight of each query, and the most queries that one entry answers."""
        thresholds = self._best()
        if self._weighed is None or self._weighed[0] is not thresholds:
            found = [counts or [1] for _, counts in self._counted()]
            weights = np.array([1 / median(counts) for counts in found], dtype=np.float64)
            self._weighed = thresholds, weights, max(map(max, found))
        _, weights, most = self._weighed
        return weights, most
