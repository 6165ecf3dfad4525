"""Rows under numbers of their own, kept in inverted lists that fill, empty and are made anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Chunks, Column
from ragshield_core.neighbors.lists import MEASURED_ROWS, Block, InvertedLists
from ragshield_core.neighbors.rows import Neighbors

# Lists are made anew once an eighth of the rows stand in lists that have more than doubled (the
# knowledge base has grown, or a new topic has come), or three quarters of the rows were removed.
# Copies that all go into one list count once each time they double, not with every batch.
OUTGROWN, SHRUNK = 0.125, 0.25


class ListedRows:
    """Rows under slots, in one list until they are sorted into many.

    Parameters
    ----------
    dim
        Length of a row.
    seed
        Of the sample by which lists are trained.
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.seed = dim, seed
        self.lists: InvertedLists | None = None
        self.share = 1.0  # of all rows that one is compared with, when the lists were made
        # By list. The last row of a list moves into the gap of one that is removed.
        self._rows = [Chunks(dim)]
        self._slots = [Column(np.int64)]
        self.sizes = np.zeros(1, dtype=np.int64)
        self._sizes_then = self.sizes.copy()  # when the lists were made
        # By slot.
        self._list = Column(np.int64)  # -1 where removed
        self._place = Column(np.int64)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far."""
        return len(self._list)

    @property
    def present(self) -> NDArray[np.bool_]:
        """By slot: whether there is a row."""
        return np.asarray(self._list.values >= 0)

    @property
    def order(self) -> NDArray[np.int64]:
        """All slots, shape (n,), those of one list together."""
        return np.concatenate([members.values for members in self._slots])

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        columns = [self._list, self._place, *self._slots]
        return (
            sum(column.nbytes for column in columns)
            + sum(rows.nbytes for rows in self._rows)
            + (0 if self.lists is None else self.lists.centroids.nbytes)
        )

    @property
    def outgrown(self) -> bool:
        """Whether the lists do not fit the rows any more."""
        n, usual = len(self), self._sizes_then.mean()
        long = self.sizes > 2 * np.maximum(self._sizes_then, usual)
        return bool(self.sizes[long].sum() > OUTGROWN * n or n < SHRUNK * self._sizes_then.sum())

    def append(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Add rows, and return the slots that they get, shape (n,), ascending."""
        slots = np.arange(self.capacity, self.capacity + len(rows), dtype=np.int64)
        nothing = np.full(len(rows), -1, dtype=np.int64)
        self._list.append(nothing)
        self._place.append(nothing)
        self._put(slots, rows, None if self.lists is None else self.lists.nearest(rows))
        return slots

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Take rows out."""
        for slot in slots.tolist():
            number, place = int(self._list.values[slot]), int(self._place.values[slot])
            rows, members = self._rows[number], self._slots[number]
            last = len(members) - 1
            if place != last:
                moved = int(members.values[last])
                members.values[place] = moved
                self._place.values[moved] = place
                rows.move(last, place)
            members.pop()
            rows.pop()
            self.sizes[number] -= 1
            self._list.values[slot] = -1

    def renumber(self, before: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Take over new slots: the old ones by new number, and the new ones by old number."""
        self._list, self._place = (
            _column(column.values[before]) for column in (self._list, self._place)
        )
        for members in self._slots:
            members.values[:] = numbers[members.values]

    def take(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies of rows, shape (n, dim)."""
        taken = np.empty((len(slots), self.dim), dtype=np.float32)
        lists, places = self._list.values[slots], self._place.values[slots]
        for number, where in _grouped(lists):
            taken[where] = self._rows[number].take(places[where])
        return taken

    def filled(self) -> Iterator[Block]:
        """Yield slots and rows in the order in which they are kept."""
        for number in range(len(self._rows)):
            yield from self.blocks(number)

    def blocks(self, number: int) -> list[Block]:
        """Return slots and rows of a list, in pieces."""
        members = self._slots[number].values
        return [
            (members[start : start + len(rows)], rows)
            for start, rows in self._rows[number].filled()
        ]

    def list_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lists of rows."""
        return self._list.values[slots]

    def search(self, queries: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest of each query, by the lists into which they are sorted."""
        lists = cast("InvertedLists", self.lists)
        return lists.search(queries, k, self)

    def sort(self) -> None:
        """Put the rows into lists, made for them as they are now."""
        slots = np.flatnonzero(self.present)
        lists = InvertedLists.trained(len(slots), lambda some: self.take(slots[some]), self.seed)
        self._move(lists, [lists.nearest(rows) for _, rows in self.filled()])
        rng = np.random.default_rng(self.seed)
        sample = rng.choice(slots, min(len(slots), MEASURED_ROWS), replace=False)
        self.share = lists.measure(self.take(sample), self)

    def unsort(self) -> None:
        """Put all rows into one list again."""
        self._move(None, [np.zeros(len(rows), dtype=np.int64) for _, rows in self.filled()])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays, by ascending slot: slots, rows, their places, and lists if there are any.

        Places are saved so that equally near rows are found in the same order afterwards.
        """
        slots = np.flatnonzero(self.present)
        arrays: dict[str, NDArray[Any]] = {
            "slots": slots,
            "vectors": self.take(slots),
            "places": self._place.values[slots],
        }
        if self.lists is not None:
            arrays["lists"] = self._list.values[slots].astype(np.int32)
            arrays["centroids"] = self.lists.centroids.copy()
        return arrays

    @classmethod
    def restored(
        cls,
        seed: int,
        capacity: int,
        arrays: Mapping[str, NDArray[Any]],
        lists: InvertedLists | None,
    ) -> Self:
        """Return rows that were saved, under their slots, in their places and in these lists."""
        slots, rows = arrays["slots"], arrays["vectors"]
        restored = cls(rows.shape[1], seed)
        restored._list = _column(np.full(capacity, -1, dtype=np.int64))
        restored._place = _column(np.full(capacity, -1, dtype=np.int64))
        numbers = None
        if lists is not None:
            numbers = arrays["lists"].astype(np.int64)
            restored._open(lists, np.bincount(numbers, minlength=len(lists)))
        places = arrays.get("places")
        order = slice(None) if places is None else np.argsort(places, kind="stable")
        restored._put(slots[order], rows[order], None if numbers is None else numbers[order])
        restored._sizes_then = restored.sizes.copy()
        return restored

    def _put(
        self, slots: NDArray[np.int64], rows: NDArray[np.float32], lists: NDArray[np.int64] | None
    ) -> None:
        if lists is None:
            lists = np.zeros(len(slots), dtype=np.int64)
        self._list.values[slots] = lists
        for number, where in _grouped(lists):
            own = slots[where]
            n = int(self.sizes[number])
            self._rows[number].append(rows[where])
            self._slots[number].append(own)
            self._place.values[own] = np.arange(n, n + len(own))
            self.sizes[number] = n + len(own)

    def _open(self, lists: InvertedLists | None, sizes: NDArray[np.int64]) -> None:
        """Begin with empty lists that will soon hold so many rows."""
        self.lists = lists
        self._rows = [Chunks(self.dim, reserve=size) for size in sizes.tolist()]
        self._slots = [Column(np.int64) for _ in sizes]
        self.sizes = np.zeros(len(sizes), dtype=np.int64)

    def _move(self, lists: InvertedLists | None, numbers: list[NDArray[np.int64]]) -> None:
        """Move every row to another list, freeing the old ones on the way."""
        sizes = np.bincount(
            np.concatenate([np.empty(0, dtype=np.int64), *numbers]),
            minlength=1 if lists is None else len(lists),
        )
        old = list(zip(self._slots, self._rows, strict=True))
        self._open(lists, sizes)
        waiting = iter(numbers)
        while old:
            slots, rows = old.pop(0)
            start = 0
            for part in rows.drained():
                self._put(slots.values[start : start + len(part)], part, next(waiting))
                start += len(part)
        self._sizes_then = self.sizes.copy()


def _grouped(lists: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Yield each number and where it stands; everywhere, as a slice, if it is the only one."""
    if not len(lists):
        return
    if (lists == lists[0]).all():
        yield int(lists[0]), slice(None)
        return
    order = np.argsort(lists, kind="stable")
    starts = np.flatnonzero(np.diff(lists[order], prepend=-1))
    for where in np.split(order, starts[1:]):
        yield int(lists[where[0]]), where


def _column(values: NDArray[np.int64]) -> Column:
    column = Column(np.int64)
    column.append(values)
    return column
