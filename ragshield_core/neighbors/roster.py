"""One table of ids for all who keep something of the same entries, and the labels of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Column
from ragshield_core.neighbors.slots import Slots, repeated

# Of an entry that has no label, and of one that is not there.
NO_LABEL, ABSENT = -1, -2


class RosterUser(Protocol):
    """Who keeps something of entries, by their rows."""

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of each row whether it keeps something of its entry."""
        ...

    def renumber(self, before: NDArray[np.int64]) -> None:
        """Take over new rows, given those that they had."""
        ...


class Roster:
    """The ids of entries, in rows that several users have in common.

    An id has its row as long as any of them keeps something under it. Rows tell which of the
    entries that are there came first.
    """

    def __init__(self) -> None:
        self._slots = Slots()
        self._users: list[RosterUser] = []

    @property
    def n_rows(self) -> int:
        """How many rows there are, those of entries included that nobody keeps any more."""
        return self._slots.capacity

    def join(self, user: RosterUser) -> None:
        """Be used by one more, who keeps nothing yet."""
        self._users.append(user)

    def leave(self, user: RosterUser) -> None:
        """Be no longer used by one who keeps nothing any more."""
        self._users = [other for other in self._users if other is not user]

    def of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each id, shape (n,); -1 where it has none."""
        return self._slots.of(ids)

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the id of each row."""
        return self._slots.ids(rows)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id, which differ, shape (n,): new ones for those that are new."""
        rows = self._slots.of(ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self._slots.add([ids[place] for place in new.tolist()])
        return rows

    def release(self, rows: NDArray[np.int64]) -> None:
        """Take back rows that one user needs no longer, as far as no other does."""
        kept = np.zeros(len(rows), dtype=np.bool_)
        for user in self._users:
            kept |= user.holds(rows)
        self._slots.remove(self._slots.ids(rows[~kept]))
        if self._slots.sparse:
            before = self._slots.compact()
            for user in self._users:
                user.renumber(before)


class SlotRows:
    """The slots of an index and the rows of its entries: ids that others keep, in eight bytes each.

    It takes the place of both tables of :class:`~ragshield_core.neighbors.slots.Slots`.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._row_of = Column(np.int32)  # by slot; ABSENT without an entry
        self._slot_of = Column(np.int32)  # by row; ABSENT without one
        roster.join(self)

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def nbytes(self) -> int:
        """The memory that both columns take."""
        return self._row_of.nbytes + self._slot_of.nbytes

    def append(self, ids: Sequence[str | None]) -> None:
        """Add ids, which have the next slots; ``None`` for a slot without an entry."""
        rows = np.full(len(ids), ABSENT, dtype=np.int32)
        there = np.array([entry_id is not None for entry_id in ids], dtype=np.bool_)
        rows[there] = self._roster.rows([entry_id for entry_id in ids if entry_id is not None])
        self._row_of.append(rows)

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of slots, each of which has an entry."""
        return self._roster.ids(self._row_of.values[numbers].astype(np.int64))

    def of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it has none."""
        rows = self._roster.of(ids)
        held = self.holds(rows)
        slots = np.full(len(rows), -1, dtype=np.int64)
        slots[held] = self._slot_of.values[rows[held]]
        return slots

    def put(self, ids: Sequence[str], numbers: NDArray[np.int64]) -> None:
        """Give slots to ids that were added."""
        _reach(self._slot_of, self._roster.n_rows)
        self._slot_of.values[self._roster.of(ids)] = numbers

    def drop(self, ids: Sequence[str]) -> None:
        """Take their slots from ids that have one."""
        rows = self._roster.of(ids)
        self._row_of.values[self._slot_of.values[rows]] = ABSENT
        self._slot_of.values[rows] = ABSENT
        self._roster.release(rows)

    def leave(self) -> None:
        """Keep nothing any more; others may."""
        rows = np.flatnonzero(self._slot_of.values != ABSENT)
        self._roster.leave(self)
        self._roster.release(rows)

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of each row whether its entry has a slot, shape (n,)."""
        return _there(self._slot_of, rows)

    def renumber(self, before: NDArray[np.int64]) -> None:
        """Take over new rows, given those that they had."""
        _reach(self._slot_of, int(before.max(initial=-1)) + 1)
        self._slot_of = Column.of(self._slot_of.values[before])
        rows = np.flatnonzero(self._slot_of.values != ABSENT)
        self._row_of.values[self._slot_of.values[rows]] = rows


def slot_tables(roster: Roster) -> tuple[SlotRows, SlotRows]:
    """Return both tables of :class:`~ragshield_core.neighbors.slots.Slots`, empty, in a roster."""
    rows = SlotRows(roster)
    return rows, rows


class Labels:
    """Which entries are there, and the label of each, in a byte or a few beside the roster.

    Labels get codes in the order in which they are met; a code stays with its label.

    Parameters
    ----------
    roster
        Of the ids; ``None`` for one of its own.
    beside
        Types of what else is kept of each entry.

    Attributes
    ----------
    beside
        Columns of that, by row, to be filled by who keeps it; zeros first.
    names
        The labels, by code.
    counts
        Shape (n_labels,), int64: how many entries have each.

    Examples
    --------
    >>> labels = Labels()
    >>> _ = labels.put(["a", "b"], ["spam", None])
    >>> _ = labels.put(["a"], ["ham"])
    >>> labels.ids, labels.codes.tolist(), labels.names, labels.counts.tolist()
    (['a', 'b'], [1, -1], ['spam', 'ham'], [0, 1])
    """

    def __init__(self, roster: Roster | None = None, beside: Sequence[np.dtype[Any]] = ()) -> None:
        self._types = tuple(beside)
        self._roster = Roster() if roster is None else roster
        self._roster.join(self)
        self.names: list[str] = []
        self.counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.beside: list[Column] = []
        self._codes: dict[str, int] = {}
        self._code_of = Column(np.int8)  # by row; of a larger type once there are many labels
        self._n = 0
        self._forget_all()

    def __len__(self) -> int:
        return self._n

    @property
    def present(self) -> NDArray[np.int64]:
        """The rows of the entries, shape (n,), ascending."""
        return np.flatnonzero(self._code_of.values != ABSENT)

    @property
    def ids(self) -> list[str]:
        """The ids of all entries, by row."""
        return self._roster.ids(self.present)

    @property
    def codes(self) -> NDArray[np.int32]:
        """The label code of every entry, in the order of :attr:`ids`; -1 where it has none."""
        return self._code_of.values[self.present].astype(np.int32)

    def ids_at(self, places: NDArray[np.int64]) -> list[str]:
        """Return some of :attr:`ids`."""
        return self._roster.ids(self.present[places])

    def move(self, roster: Roster) -> None:
        """Use another roster from now on."""
        ids, codes = self.ids, self.codes
        names, self.names = self.names, []
        self.reset()
        self._roster.leave(self)
        self._roster = roster
        roster.join(self)
        self.take(ids, codes, names)

    def reset(self) -> None:
        """Forget everything."""
        rows = self.present
        self._forget_all()
        self._roster.release(rows)

    def take(self, ids: Sequence[str], codes: NDArray[np.int32], names: Sequence[str]) -> None:
        """Be these entries and no others.

        Raises
        ------
        ValueError
            If an id is repeated, or there is not one code of a label for each.
        """
        if len(set(ids)) != len(ids):
            msg = f"id {repeated(ids)!r} stands in it more than once"
            raise ValueError(msg)
        if codes.shape != (len(ids),):
            msg = f"there are not as many labels as ids ({len(ids)})"
            raise ValueError(msg)
        if len(ids) and not NO_LABEL <= codes.min() <= codes.max() < len(names):
            msg = f"numbers of labels are out of range, expected up to {len(names) - 1}"
            raise ValueError(msg)
        self.reset()
        self.names, self._codes = list(names), {name: code for code, name in enumerate(names)}
        self._put(ids, codes)

    def put(self, ids: Sequence[str], labels: Sequence[str | None]) -> NDArray[np.int64]:
        """Know entries, which differ, or other labels of these; return their rows, shape (n,)."""
        for label in labels:
            if label is not None and label not in self._codes:
                self._codes[label] = len(self.names)
                self.names.append(label)
        return self._put(ids, self.codes_of_labels(labels).astype(np.int32))

    def drop(self, ids: Sequence[str]) -> None:
        """Know entries no longer; those that are not there are ignored."""
        rows = self.rows(dict.fromkeys(ids))
        rows = rows[rows >= 0]
        self._count(self._code_of.values[rows], -1)
        self._code_of.values[rows] = ABSENT
        self._n -= len(rows)
        self._roster.release(rows)

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each entry, shape (n,); -1 where it is not there."""
        rows = self._roster.of(ids)
        return np.where(self.holds(rows), rows, -1)

    def codes_of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the label code of each entry, shape (n,); -1 where there is none."""
        rows = self.rows(ids)
        codes = np.full(len(rows), NO_LABEL, dtype=np.int64)
        codes[rows >= 0] = self._code_of.values[rows[rows >= 0]]
        return codes

    def codes_of_labels(self, labels: Sequence[str | None]) -> NDArray[np.int64]:
        """Return the code of each label, shape (n,); -1 where it is unknown or None."""
        get = self._codes.get
        codes = [NO_LABEL if label is None else get(label, NO_LABEL) for label in labels]
        return np.array(codes, dtype=np.int64)

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of each row whether its entry is there, shape (n,); -1 is none."""
        return _there(self._code_of, rows)

    def renumber(self, before: NDArray[np.int64]) -> None:
        """Take over new rows, given those that they had."""
        self._reach(int(before.max(initial=-1)) + 1)
        self._code_of = Column.of(self._code_of.values[before])
        self.beside = [Column.of(column.values[before]) for column in self.beside]

    def _forget_all(self) -> None:
        self.names, self._codes = [], {}
        self.counts = np.empty(0, dtype=np.int64)
        self._code_of = Column(np.int8)
        self.beside = [Column(dtype) for dtype in self._types]
        self._n = 0

    def _put(self, ids: Sequence[str], codes: NDArray[np.int32]) -> NDArray[np.int64]:
        rows = self._roster.rows(ids)
        self._reach(self._roster.n_rows)
        old = self._code_of.values[rows]
        self._n += int(np.count_nonzero(old == ABSENT))
        self._count(old, -1)
        self._count(codes, 1)
        smallest = np.min_scalar_type(-len(self.names))
        if smallest.itemsize > old.itemsize:  # another label than its type can tell
            self._code_of = Column.of(self._code_of.values.astype(smallest))
        self._code_of.values[rows] = codes
        return rows

    def _reach(self, n_rows: int) -> None:
        """Have room for so many rows."""
        more = n_rows - len(self._code_of)
        if more > 0:
            _reach(self._code_of, n_rows)
            for column, dtype in zip(self.beside, self._types, strict=True):
                column.append(np.zeros(more, dtype=dtype))

    def _count(self, codes: NDArray[np.signedinteger[Any]], sign: int) -> None:
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[: len(self.counts)] = self.counts
        self.counts = counts + sign * np.bincount(codes[codes >= 0], minlength=len(counts))


def _there(column: Column, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return of each row whether there is something in a column, shape (n,); -1 is no row."""
    there = (rows >= 0) & (rows < len(column))
    there[there] = column.values[rows[there]] != ABSENT
    return there


def _reach(column: Column, n_rows: int) -> None:
    """Have so many rows in a column."""
    more = n_rows - len(column)
    if more > 0:
        column.append(np.full(more, ABSENT, dtype=column.values.dtype))
