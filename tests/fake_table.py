"""Rows of an index, and a store of vectors in memory that is searched exactly."""

import numpy as np

from ragshield_core.neighbors.stored import FoundEntries, VectorTable

DIM = 16


def names(n, prefix="e"):
    return [f"{prefix}{i}" for i in range(n)]


def rows_of(n, seed=0, dim=DIM):
    """Return unit vectors in random directions."""
    return unit(np.random.default_rng(seed).normal(size=(n, dim)))


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class FakeTable(VectorTable):
    """A store in memory, searched exactly."""

    def __init__(self, rows=None):
        self.rows = dict(rows or {})
        self.down = False
        self.asked = []

    @property
    def name(self):
        return "Fake docs"

    def put(self, batch):
        self.rows |= dict(zip(batch.ids, batch.vectors, strict=True))

    def search(self, embeddings, k):
        self._answer("search")
        ids = list(self.rows)
        rows = np.full((len(embeddings), k), -1, dtype=np.int64)
        if not ids:
            return FoundEntries([], np.empty((0, embeddings.shape[1]), np.float32), rows)
        vectors = np.array([self.rows[i] for i in ids], dtype=np.float32)
        order = np.argsort(-(embeddings @ unit(vectors).T), axis=1, kind="stable")[:, :k]
        near, places = np.unique(order, return_inverse=True)
        rows[:, : order.shape[1]] = places.reshape(order.shape)
        return FoundEntries([ids[row] for row in near], vectors[near], rows)

    def vectors(self, ids):
        self._answer("vectors")
        assert not any("\0" in i for i in ids)  # PostgreSQL would refuse them
        there = [i for i in ids if i in self.rows]
        return there, np.array([self.rows[i] for i in there], dtype=np.float32)

    def _answer(self, what):
        self.asked.append(what)
        if self.down:
            msg = "could not connect: (parameters: 'a text of an entry')"
            raise OSError(msg)
