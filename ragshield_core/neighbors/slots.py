"""Numbers of entries, counted up as they come: which id has which, and which are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import InvalidBatchError
from ragshield_core.neighbors.chunks import Column
from ragshield_core.neighbors.ids import Ids, Numbers

# Share of slots whose entries were removed at which the others are renumbered: callers' arrays are
# a third longer than need be, at the most, and renumbering costs little for each removal.
SPARSE_AT = 0.25


class IdTable(Protocol):
    """Ids by slot; :class:`Ids` is one."""

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        ...

    def __len__(self) -> int: ...

    def append(self, ids: Sequence[str | None]) -> None:
        """Add ids, which have the next slots; ``None`` for a slot without an entry."""
        ...

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of slots, each of which has an entry."""
        ...

    def leave(self) -> None:
        """Keep nothing any more."""
        ...


class NumberTable(Protocol):
    """Slots by id; :class:`Numbers` is one."""

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        ...

    def of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it has none."""
        ...

    def put(self, ids: Sequence[str], numbers: NDArray[np.int64]) -> None:
        """Give slots to ids that have none."""
        ...

    def drop(self, ids: Sequence[str]) -> None:
        """Take their slots from ids that have one."""
        ...


def tables() -> tuple[IdTable, NumberTable]:
    """Return empty tables of one's own."""
    ids = Ids()
    return ids, Numbers(ids)


class Slots:
    """The slots of an index.

    Slots tell who came first. Those of entries that were removed are not handed out again; once
    there are many, :meth:`compact` renumbers the entries.
    """

    def __init__(self) -> None:
        self._new_tables = tables
        # By slot, and back. What the tables say of slots of removed entries is nobody's to ask:
        # some still have an id there.
        self._ids, self._slots = self._new_tables()
        self._present = Column(np.bool_)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __contains__(self, entry_id: object) -> bool:
        return bool(self._slots.of([entry_id])[0] >= 0)

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        return self._ids.nbytes + self._slots.nbytes + self._present.nbytes

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
        slots = np.arange(self.capacity, self.capacity + len(ids), dtype=np.int64)
        self._ids.append(ids)
        self._slots.put(ids, slots)
        self._present.append(np.ones(len(ids), dtype=np.bool_))
        self._n += len(ids)
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
        slots = self.of(ids)
        if (unknown := np.flatnonzero(slots < 0)).size:
            msg = f"id {ids[unknown[0]]!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        self._slots.drop(ids)
        self._present.values[slots] = False
        self._n -= len(ids)
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps and in their order; return the slots they had."""
        before = self.present
        self.put(self.ids(before), np.arange(len(before)), len(before))
        return before

    def put(self, ids: Sequence[str], slots: NDArray[np.int64], capacity: int) -> None:
        """Be the slots of these entries and no others."""
        by_slot = np.full(capacity, -1, dtype=np.int64)
        by_slot[slots] = np.arange(len(ids))
        names, numbers = self._new_tables()
        names.append([None if row < 0 else ids[row] for row in by_slot.tolist()])
        numbers.put(ids, slots)
        present = Column(np.bool_)
        present.append(by_slot >= 0)
        before, self._ids, self._slots = self._ids, names, numbers
        self._present, self._n = present, len(ids)
        before.leave()  # last, so that no id is dropped in between

    def keep_in(self, new_tables: Callable[[], tuple[IdTable, NumberTable]]) -> None:
        """Keep ids elsewhere from now on: in the tables that this returns, empty each time."""
        slots, capacity = self.present, self.capacity
        ids = self.ids(slots)
        self._new_tables = new_tables
        self.put(ids, slots, capacity)

    def leave(self) -> None:
        """Keep nothing any more, where others keep something in the same tables."""
        self._ids.leave()

    def of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        return self._slots.of(ids)

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids have a slot, each once."""
        names = list(dict.fromkeys(ids))
        return [names[row] for row in np.flatnonzero(self.of(names) >= 0).tolist()]

    def ids(self, slots: NDArray[np.int64]) -> list[str]:
        """Return the id of each slot; every one of them has an entry."""
        return self._ids.take(slots)

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
