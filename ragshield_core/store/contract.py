"""What every access to a store has to do: a check for people who write one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragshield_core.model.entries import Batch
from ragshield_core.store.inner import InnerStore

# UUIDs: some stores take no other ids.
IDS = tuple(f"00000000-0000-4000-8000-00000000000{n}" for n in range(4))
TEXTS = ("The ferry leaves at nine.", "Lunch is at noon.", "Visitors sign in.", "The yard closes.")
DIM = 8


def check_inner_store(
    access: InnerStore[Any],
    write: Callable[[Batch], None],
    read: Callable[[Sequence[str]], dict[str, tuple[str, dict[str, Any], Sequence[float]]]],
    dim: int = DIM,
) -> None:
    """Check access to an empty store, which is empty again afterwards.

    Parameters
    ----------
    access
        To the store.
    write, read
        Write entries and read them back as text, metadata and vector by id, in the framework's way.
    dim
        Of vectors.

    Raises
    ------
    AssertionError
        Says what the store does otherwise.
    """
    vectors = np.random.default_rng(0).normal(size=(len(IDS), dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def batch(rows: Sequence[int], *metadatas: dict[str, Any]) -> Batch:
        texts = [TEXTS[row] for row in rows]
        ids = [IDS[row] for row in rows]
        return Batch.of(ids=ids, texts=texts, embeddings=vectors[list(rows)], metadatas=metadatas)

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            msg = f"{type(access).__name__}: {what} is {found!r}, expected {expected!r}."
            raise AssertionError(msg)

    expect("ids() of an empty store", list(access.ids()), [])
    access.delete([IDS[0]])  # what is missing is ignored
    write(batch([0, 1, 2], {"page": 1, "old": True}, {}, {"flag": False}))
    expect("count() of three entries", access.count(), 3)
    expect("ids()", sorted(access.ids()), sorted(IDS[:3]))
    found = read([IDS[0], IDS[2], IDS[3]])
    expect("what read() finds", sorted(found), sorted([IDS[0], IDS[2]]))
    expect("a text", found[IDS[2]][0], TEXTS[2])
    expect("metadata", found[IDS[0]][1], {"page": 1, "old": True})
    vector = np.asarray(found[IDS[0]][2], dtype=np.float64)
    cosine = round(float(vector @ vectors[0] / np.linalg.norm(vector)), 4)
    expect("the cosine of a vector with the one that was written", cosine, 1.0)
    near = access.near(vectors[1].tolist(), 1)
    expect("the number of entries that near() finds", len(near), 1)
    access.delete([IDS[1], IDS[3]])
    expect("ids() after delete()", sorted(access.ids()), [IDS[0], IDS[2]])
    access.delete([*IDS])
    expect("count() after delete()", access.count(), 0)
