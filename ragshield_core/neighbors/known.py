"""Nearest known entries of a batch: one search that all detectors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.slots import Labels, packed, unpacked
from ragshield_core.neighbors.stored import EntryIndex
from ragshield_core.state import part_of

# The index ranks by float32 products, which differ by 1e-7 with the shape of the batch; with a few
# extra neighbours, the ranking by float64 products decides the last of the k.
SPARE = 4
# Rows whose neighbours' vectors are in memory at once: 60 MB of 384 dimensions.
BLOCK_ROWS = 2_048

# Entries in the sample that measures the usual distance of neighbours.
SCALE_SAMPLE = 1_000
# Texts this near are copies of each other except a few words; a smaller distance means no more.
LEAST_DISTANCE = 0.05


class KnownNeighbors(NamedTuple):
    """The nearest known entries of some entries, nearest first; shape (n, k) each."""

    ids: NDArray[np.object_]  # of objects: None where there are fewer than k
    similarities: NDArray[np.float32]  # of cosines; -inf where there are fewer


class NeighborSource:
    """Knows the live entries of the knowledge base and finds the nearest of them.

    Held entries are not live. A source that a detector borrows learns every entry before that
    detector does.

    Examples
    --------
    >>> known = NeighborSource()
    >>> known.learn(Batch.of(ids=["a", "b"], texts=["", ""], embeddings=[[1, 0], [0, 1]]))
    >>> found = known.known_neighbors(Batch.of(ids=["c"], texts=[""], embeddings=[[3, 4]]), 3)
    >>> found.ids.tolist(), found.similarities.round(3).tolist()
    ([['b', 'a', None]], [[0.800000011920929, 0.6000000238418579, -inf]])
    """

    def __init__(self) -> None:
        self.reset()

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def reset(self) -> None:
        """Forget everything."""
        self._index: NeighborIndex | None = None
        self._overlooked: frozenset[str] = frozenset()

    def learn(self, entries: Batch) -> None:
        """Add entries; a known id gets the new vector."""
        if not len(entries):
            return
        if self._index is None:
            self._index = NeighborIndex(entries.dim)
        self.forget(entries.ids)
        self._index.add(entries.ids, entries.embeddings)

    def forget(self, ids: Sequence[str]) -> None:
        """Remove entries; unknown ids are ignored."""
        if self._index is not None:
            self._index.remove(self._index.among(ids))
            if self._index.sparse:
                self._index.compact()

    def known_neighbors(self, batch: Batch, k: int) -> KnownNeighbors:
        """Return the k nearest known entries of each entry of a batch; changes nothing.

        An older revision of an entry, known under the same id, is not its own neighbour. It remains
        a neighbour of the others: a batch of new revisions must not hide evidence against it.
        """
        if not len(batch):
            return KnownNeighbors(np.empty((0, k), np.object_), np.empty((0, k), np.float32))
        # Each entry is near to only a few overlooked entries.
        slots = self._nearest(batch, k + 1 + SPARE + min(len(self._overlooked), k))
        if self._overlooked:
            hidden = self._fitted().slots_of(list(self._overlooked))
            slots = np.where(np.isin(slots, hidden), -1, slots)
        return self._ranked(batch.ids, batch.embeddings, slots, k)

    def standing_neighbors(self, ids: Sequence[str], k: int) -> KnownNeighbors:
        """Return the k nearest other known entries of these known entries."""
        known = Batch.of(ids=ids, texts=[""] * len(ids), embeddings=self.vectors(ids))
        return self.known_neighbors(known, k)

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit vectors of known entries, shape (n, dim)."""
        index = self._fitted()
        slots = index.slots_of(ids)
        if (slots < 0).any():
            unknown = ids[int(np.argmin(slots))]
            msg = f"entry {unknown!r} is not known, expected ids that were learned."
            raise InvalidBatchError(msg)
        return index.vectors(slots)

    def overlook(self, ids: Collection[str]) -> None:
        """Leave these entries out of all neighbours, until the next call."""
        self._overlooked = frozenset(ids)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the whole state, as JSON-ready values and arrays."""
        if self._index is None:
            return {"index": None}, {}
        values, arrays = self._index.state()
        return {"index": values}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.reset()
        if values["index"] is not None:
            self._index = NeighborIndex.restored(values["index"], arrays)

    def _fitted(self) -> EntryIndex:
        if self._index is None:
            msg = "no entry is known yet; learn the knowledge base first."
            raise NotFittedError(msg)
        return self._index

    def _nearest(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """Return the slots of about k nearest entries of a batch; -1 where there are fewer."""
        index = self._fitted()
        return index.search(batch.embeddings, min(k, len(index))).slots

    def _ranked(
        self,
        ids: Sequence[str],
        embeddings: NDArray[np.float32],
        slots: NDArray[np.int64],
        k: int,
    ) -> KnownNeighbors:
        """Return the k nearest of the entries in some slots, except those with the same id."""
        index = self._fitted()
        names = np.full((len(ids), k), None, dtype=np.object_)
        similarities = np.full((len(ids), k), -np.inf, dtype=np.float32)
        itself = index.slots_of(ids)
        for start in range(0, len(ids), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            there = (slots[part] >= 0) & (slots[part] != itself[part, None])
            exact = cosines(embeddings[part], slots[part], there, index)
            # Copies rank by id, so that the result does not depend on the order of the search.
            found = np.full(there.shape, "", dtype=np.object_)
            found[there] = index.ids_of(slots[part][there])
            order = _best_first(found, exact)[:, :k]
            width = order.shape[1]
            similarities[part, :width] = np.take_along_axis(exact, order, 1)
            found[~there] = None
            names[part, :width] = np.take_along_axis(found, order, 1)
        return KnownNeighbors(names, similarities)


class Borrower(ABC):
    """Base class of a detector that can work without an index of its own."""

    @abstractmethod
    def borrow(self, source: NeighborSource | None) -> None:
        """Use the index of another detector from now on; None restores the own index."""


class LabelledEntries(Labels):
    """The known entries with their labels, beside an own or a borrowed index."""

    def __init__(self) -> None:
        super().__init__()
        self._own = NeighborSource()
        self._borrowed: NeighborSource | None = None

    @property
    def source(self) -> NeighborSource:
        """The source of neighbours and vectors."""
        return self._own if self._borrowed is None else self._borrowed

    def borrow(self, source: NeighborSource | None) -> None:
        """Use the index of another detector from now on; None restores the own index.

        Raises
        ------
        ValueError
            If some known entries have their vectors only in the present index.
        """
        if len(self._own) or (source is None and len(self) and self._borrowed is not None):
            msg = (
                f"{len(self)} entries were learned with another index; borrow one before fitting, "
                "or reset first."
            )
            raise ValueError(msg)
        self._borrowed = source

    def reset(self) -> None:
        """Forget all entries, but keep a borrowed index."""
        super().__init__()
        self._own.reset()

    def learn(self, entries: Batch) -> None:
        """Add entries; a known id gets the new label and vector."""
        self.drop(entries.ids)
        self.put(entries.ids, entries.labels)
        if self._borrowed is None:
            self._own.learn(entries)

    def forget(self, ids: Sequence[str]) -> None:
        """Remove entries; unknown ids are ignored."""
        self.drop(ids)
        if self._borrowed is None:
            self._own.forget(ids)

    def usual_distance(self, k: int) -> float:
        """Return the usual cosine distance of an entry's k-th neighbour: the scale of nearness.

        The median over a sample; not below :data:`LEAST_DISTANCE`.
        """
        if len(self) < 2:  # noqa: PLR2004
            return 1.0
        chosen = np.sort(np.random.default_rng(0).permutation(len(self))[:SCALE_SAMPLE])
        ids = np.array(self.ids, dtype=np.object_)[chosen].tolist()
        near = self.source.standing_neighbors(ids, k).similarities
        last = np.where(np.isfinite(near), near, np.inf).min(axis=1)
        return float(max(LEAST_DISTANCE, 1.0 - np.median(last)))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state without a borrowed index, as JSON-ready values and arrays."""
        values, arrays = self._own.state()
        own = {f"own.{key}": array for key, array in arrays.items()}
        return {"labels": self.names, "own": values}, own | {"codes": self.codes} | packed(self.ids)

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned."""
        ids = unpacked(arrays)
        self.reset()
        self.take(ids, np.asarray(arrays["codes"], dtype=np.int32), values["labels"])
        self._own.restore(values["own"], part_of(arrays, "own."))


def rows_within(part: Batch, whole: Batch) -> NDArray[np.intp] | None:
    """Return the rows of one batch's entries in another, None unless all of them are in it."""
    row_of = {entry_id: row for row, entry_id in enumerate(whole.ids)}
    rows = [row_of.get(entry_id, -1) for entry_id in part.ids]
    if -1 in rows or not np.array_equal(whole.embeddings[rows], part.embeddings):
        return None
    return np.array(rows, dtype=np.intp)


def cosines(
    embeddings: NDArray[np.float32],
    slots: NDArray[np.int64],
    there: NDArray[np.bool_],
    index: EntryIndex,
) -> NDArray[np.float32]:
    """Return cosines that depend on the two vectors only, and not on the shape of a product.

    They compare n unit rows with the vectors in slots of an index, shape (n, k), as float64 sums;
    -inf where ``there`` is False.
    """
    similarities = np.full(slots.shape, -np.inf, dtype=np.float32)
    rows, _ = np.nonzero(there)
    products = np.einsum(
        "ij,ij->i", embeddings[rows], index.vectors(slots[there]), dtype=np.float64
    )
    similarities[there] = products
    return similarities


def _best_first(names: NDArray[np.object_], similarities: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the order of each row by descending similarity, then by name, in the same shape."""
    order = np.argsort(-similarities, axis=1, kind="stable")
    ranked = np.take_along_axis(similarities, order, 1)
    tied = (ranked[:, 1:] == ranked[:, :-1]) & np.isfinite(ranked[:, 1:])
    for row in np.flatnonzero(tied.any(axis=1)).tolist():  # few: copies only
        order[row] = sorted(order[row], key=lambda c: (-similarities[row, c], names[row, c]))
    return order
