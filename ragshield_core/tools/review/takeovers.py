"""Canary queries that would retrieve a held entry, if it were let in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.quarantine import HeldEntry, Quarantine
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.canary.storage import CanaryStore

# Takeovers that are shown of a page.
SHOWN = 20


class Takeover(NamedTuple):
    """A place that a held entry would take in what a canary retrieves."""

    entry_id: str
    suite: str
    canary: str
    query: str
    place: int  # from 1
    k: int


def takeovers(quarantine: Quarantine, store: Guarded, held: Sequence[HeldEntry]) -> list[Takeover]:
    """Return the places that entries would take, the first ones first.

    By the vectors that the latest baseline of each suite has of its queries, held against the
    entries that the guard knows; nothing where a baseline was recorded without an embedder.
    """
    rows = [one for one in held if one.vector.size == (store.guard.dim or -1)]
    if not rows:
        return []
    vectors = np.stack([one.entry.embedding for one in rows])
    kept, found = CanaryStore(quarantine), []
    for suite in kept.suites():
        baseline = kept.baseline(suite)
        queries = baseline.queries
        if queries is None or queries.shape[1] != vectors.shape[1]:
            continue
        known = _known(store, queries.astype(np.float32), baseline.k)
        for (name, query), own, others in zip(
            baseline.asked.items(), queries.astype(np.float32) @ vectors.T, known, strict=True
        ):
            places = 1 + (others[None, :] > own[:, None]).sum(axis=1)
            found += [
                Takeover(rows[row].id, suite, name, query, int(places[row]), baseline.k)
                for row in np.flatnonzero(places <= baseline.k).tolist()
            ]
    return sorted(found, key=lambda one: (one.place, one.canary, one.entry_id))[:SHOWN]


def _known(store: Guarded, queries: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return how near the k nearest known entries are to each query."""
    names = [f"query {row}" for row in range(len(queries))]
    batch = Batch.of(ids=names, texts=[""] * len(names), embeddings=queries)
    return store.guard.nearest(batch, k).similarities
