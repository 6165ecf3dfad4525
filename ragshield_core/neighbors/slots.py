"""Slots of entries, counted up as they come: which id has which slot, and which are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError
from ragshield_core.neighbors.chunks import Column

# Share of slots whose entries were removed at which the others are renumbered: callers' arrays are
# a third longer than need be, at the most, and renumbering costs little for each removal.
SPARSE_AT = 0.25
# About the memory of an entry: its place in a list and a dict, a number, and a short string.
BYTES = 200


class Slots:
    """The slots of an index.

    Slots tell who came first. Those of entries that were removed are not handed out again; once
    there are many, :meth:`compact` renumbers the entries.
    """

    def __init__(self) -> None:
        self._ids: list[str | None] = []  # by slot; None where the entry was removed
        self._slot_of: dict[str, int] = {}  # in the order of slots
        self._present = Column(np.bool_)  # by slot

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slot_of

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        return BYTES * len(self)

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
        if (present := np.flatnonzero(self.of(ids) >= 0)).size:
            msg = (
                f"id {ids[present[0]]!r} is in this index already; remove it first to replace its "
                "vector."
            )
            raise InvalidBatchError(msg)
        if len(set(ids)) != len(ids):
            msg = f"id {repeated(ids)!r} is duplicated in ids, expected unique ids."
            raise InvalidBatchError(msg)

    def add(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Hand out slots to ids that are new, shape (n,), ascending."""
        slots = range(self.capacity, self.capacity + len(ids))
        self._ids.extend(ids)
        self._slot_of.update(zip(ids, slots, strict=True))
        self._present.append(np.ones(len(ids), dtype=np.bool_))
        return np.array(slots, dtype=np.int64)

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
        slots = self.of(ids)
        if (unknown := np.flatnonzero(slots < 0)).size:
            msg = f"id {ids[unknown[0]]!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        for entry_id, slot in zip(ids, slots.tolist(), strict=True):
            del self._slot_of[entry_id]
            self._ids[slot] = None
        self._present.values[slots] = False
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in their order; return the slots they had."""
        before = self.present
        self._ids = list(self._slot_of)
        self._present = Column.of(np.ones(len(before), dtype=np.bool_))
        self._slot_of = {entry_id: slot for slot, entry_id in enumerate(self._slot_of)}
        return before

    @classmethod
    def of_saved(cls, ids: Sequence[str], slots: NDArray[np.int64], capacity: int) -> Slots:
        """Return the slots of these entries and no others."""
        saved = cls()
        saved._ids = [None] * capacity
        for row in np.argsort(slots).tolist():
            saved._ids[slots[row]] = ids[row]
            saved._slot_of[ids[row]] = int(slots[row])
        present = np.zeros(capacity, dtype=np.bool_)
        present[slots] = True
        saved._present = Column.of(present)
        return saved

    def of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        return np.fromiter(map(self._slot_of.get, ids, repeat(-1)), np.int64)

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids have a slot, each once."""
        return [entry_id for entry_id in dict.fromkeys(ids) if entry_id in self._slot_of]

    def ids(self, slots: NDArray[np.int64]) -> list[str]:
        """Return the id of each slot; every one of them has an entry."""
        return [cast("str", self._ids[slot]) for slot in slots.tolist()]

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
