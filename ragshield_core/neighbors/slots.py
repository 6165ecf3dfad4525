"""Numbers of entries, counted up as they come: which id has which, and which are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError
from ragshield_core.neighbors.chunks import Column

# Share of slots whose entries were removed at which the others are renumbered: callers' arrays are
# a third longer than need be, at the most, and renumbering costs little for each removal.
SPARSE_AT = 0.25


class Slots:
    """The slots of an index.

    Slots tell who came first. Those of entries that were removed are not handed out again; once
    there are many, :meth:`compact` renumbers the entries.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []  # by slot; those of entries that were removed stay
        self._present = Column(np.bool_)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slots

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return len(self._ids)

    @property
    def sparse(self) -> bool:
        """Whether so many slots are of entries that were removed that :meth:`compact` pays."""
        return self.capacity - len(self) > SPARSE_AT * self.capacity

    @property
    def present(self) -> NDArray[np.int64]:
        """The slots of entries that are there, shape (n,), ascending."""
        return np.flatnonzero(self._present.values)

    def check_new(self, ids: Sequence[str]) -> None:
        """Refuse ids that are present or repeated."""
        present = next((entry_id for entry_id in ids if entry_id in self._slots), None)
        if present is not None:
            msg = f"id {present!r} is in this index already; remove it first to replace its vector."
            raise InvalidBatchError(msg)
        if len(set(ids)) != len(ids):
            msg = f"id {repeated(ids)!r} is duplicated in ids, expected unique ids."
            raise InvalidBatchError(msg)

    def add(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Hand out slots to ids that are new, shape (n,), ascending."""
        slots = np.arange(self.capacity, self.capacity + len(ids), dtype=np.int64)
        self._ids.extend(ids)
        self._slots.update(zip(ids, slots.tolist(), strict=True))
        self._present.append(np.ones(len(ids), dtype=np.bool_))
        return slots

    def remove(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Take entries out, and return the slots that were theirs.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names the id that is unknown or repeated; nothing was
            removed then.
        """
        if len(set(ids)) != len(ids):
            msg = f"id {repeated(ids)!r} is duplicated in ids, expected unique ids."
            raise InvalidBatchError(msg)
        unknown = next((entry_id for entry_id in ids if entry_id not in self._slots), None)
        if unknown is not None:
            msg = f"id {unknown!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        slots = self.of(ids)
        for entry_id in ids:
            del self._slots[entry_id]
        self._present.values[slots] = False
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in their order; return the slots they had."""
        before = self.present
        self.put([self._ids[slot] for slot in before.tolist()], np.arange(len(before)), len(before))
        return before

    def put(self, ids: Sequence[str], slots: NDArray[np.int64], capacity: int) -> None:
        """Be the slots of these entries and no others."""
        self._slots = dict(zip(ids, slots.tolist(), strict=True))
        self._ids = [""] * capacity
        for entry_id, slot in self._slots.items():
            self._ids[slot] = entry_id
        present = np.zeros(capacity, dtype=np.bool_)
        present[slots] = True
        self._present = Column(np.bool_)
        self._present.append(present)

    def of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        get = self._slots.get
        return np.array([get(entry_id, -1) for entry_id in ids], dtype=np.int64)

    def ids(self, slots: NDArray[np.int64]) -> list[str]:
        """Return the id of each slot; every one of them is handed out."""
        ids = self._ids
        return [ids[slot] for slot in slots.tolist()]

    def known(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return slots as an array.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        chosen = np.asarray(slots, dtype=np.int64)
        known = (chosen >= 0) & (chosen < self.capacity)
        known[known] = self._present.values[chosen[known]]
        if not known.all():
            slot = int(chosen[~known][0])
            msg = f"slot {slot} holds no entry, expected slots of entries that are present."
            raise InvalidBatchError(msg)
        return chosen


def repeated(ids: Sequence[str]) -> str:
    """Return the first id that stands among others twice."""
    seen: set[str] = set()
    for entry_id in ids:
        if entry_id in seen:
            return entry_id
        seen.add(entry_id)
    raise AssertionError  # pragma: no cover
