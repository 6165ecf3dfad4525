"""Slots of entries, counted up as they come: which id has which slot; columns by slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError

# Share of slots whose entries were removed at which the others are renumbered: callers' arrays are
# a third longer than need be, at the most, and renumbering costs little for each removal.
SPARSE_AT = 0.25


class Column:
    """A growing one-dimensional array.

    Parameters
    ----------
    values
        What it begins with; taken over.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._array, self._n = values, len(values)

    def __len__(self) -> int:
        return self._n

    @property
    def values(self) -> NDArray[Any]:
        """A view on what is filled; writing through it is meant."""
        return self._array[: self._n]

    def append(self, values: NDArray[Any]) -> None:
        """Add values behind the last one."""
        n = self._n + len(values)
        if n > len(self._array):
            grown = np.empty(max(n, len(self._array) * 3 // 2), dtype=self._array.dtype)
            grown[: self._n] = self.values
            self._array = grown
        self._array[self._n : n] = values
        self._n = n


class Slots:
    """Which entry has which slot.

    Slots are counted up, so that they tell who came first, and callers may keep arrays of their own
    by slot (``capacity`` long). Those of entries that were removed are not handed out again; once
    there are many, :meth:`renumber` closes the gaps.
    """

    def __init__(self) -> None:
        self._ids: list[str | None] = []  # by slot; None where the entry was removed
        self._slot_of: dict[str, int] = {}  # in the order of slots

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slot_of

    @property
    def ids(self) -> list[str]:
        """The ids of all entries, in the order in which they came."""
        return list(self._slot_of)

    @property
    def present(self) -> NDArray[np.int64]:
        """The slots of entries that are there, shape (n,), ascending."""
        return np.fromiter(self._slot_of.values(), np.int64, len(self))

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return len(self._ids)

    @property
    def sparse(self) -> bool:
        """Whether so many slots are of entries that were removed that renumbering pays."""
        return self.capacity - len(self) > SPARSE_AT * self.capacity

    def slots_of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        return np.fromiter(map(self._slot_of.get, ids, repeat(-1)), np.int64)

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids have a slot, each once."""
        return [entry_id for entry_id in dict.fromkeys(ids) if entry_id in self._slot_of]

    def ids_of(self, slots: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the id of each slot.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError`, if a slot was never handed out or its entry was removed.
        """
        found = []
        for slot in np.asarray(slots).tolist():
            name = self._ids[slot] if 0 <= slot < self.capacity else None
            if name is None:
                msg = f"slot {slot} holds no entry, expected slots of entries that are present."
                raise InvalidBatchError(msg)
            found.append(name)
        return found

    def check_new(self, ids: Sequence[str]) -> None:
        """Refuse ids that are present or repeated."""
        check_distinct(ids)
        if present := self.among(ids):
            msg = (
                f"id {present[0]!r} is in this index already; remove it first to replace its "
                "vector."
            )
            raise InvalidBatchError(msg)

    def hand_out(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return slots for ids that are new, shape (n,), ascending.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names the id that is present or repeated; nothing was added
            then.
        """
        self.check_new(ids)
        slots = range(self.capacity, self.capacity + len(ids))
        self._ids.extend(ids)
        self._slot_of.update(zip(ids, slots, strict=True))
        return np.array(slots, dtype=np.int64)

    def take_back(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Take entries out, and return the slots that were theirs.

        Raises
        ------
        InvalidBatchError
            A :class:`ValueError` that names the id that is unknown or repeated; nothing was
            removed then.
        """
        check_distinct(ids)
        slots = self.slots_of(ids)
        if (unknown := np.flatnonzero(slots < 0)).size:
            msg = f"id {ids[unknown[0]]!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        for entry_id in ids:
            self._ids[self._slot_of.pop(entry_id)] = None
        return slots

    def renumber(self) -> NDArray[np.int64]:
        """Close the gaps, keeping the order; return the slots that the entries had."""
        before = self.present
        self._ids = list(self._slot_of)
        self._slot_of = {entry_id: slot for slot, entry_id in enumerate(self._slot_of)}
        return before

    def take_over(self, ids: Sequence[str], slots: NDArray[np.int64], capacity: int) -> None:
        """Have these entries and no others."""
        self._ids, self._slot_of = [None] * capacity, {}
        for row in np.argsort(slots).tolist():
            self._ids[slots[row]] = ids[row]
            self._slot_of[ids[row]] = int(slots[row])


def check_distinct(ids: Sequence[str]) -> None:
    """Raise unless ids differ."""
    if len(set(ids)) != len(ids):
        twice = next(entry_id for entry_id, number in Counter(ids).items() if number > 1)
        msg = f"id {twice!r} is duplicated in ids, expected unique ids."
        raise InvalidBatchError(msg)
