"""Id table: the slot of each entry, columns by slot, labels, and ids in a saved state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError

# Share of removed entries at which the slots are renumbered: columns are at most a third longer
# than necessary, and renumbering costs little for each removal.
SPARSE_AT = 0.25
# The code of an entry without a label.
NO_LABEL = -1
# Ids may hold halves of surrogate pairs.
ENCODING = ("utf-8", "surrogatepass")


def packed(ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return ids as arrays, for a saved state."""
    parts = [entry_id.encode(*ENCODING) for entry_id in ids]
    return {
        "ids": np.frombuffer(bytearray().join(parts), dtype=np.uint8),
        "id_lengths": np.fromiter(map(len, parts), np.int64, len(parts)),
    }


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids that were :func:`packed`; :class:`ValueError` if they do not fit together."""
    text, lengths = arrays["ids"], arrays["id_lengths"]
    if text.dtype != np.uint8 or lengths.dtype != np.int64 or lengths.ndim != 1:
        msg = "its ids are not bytes and their lengths"
        raise ValueError(msg)
    if (lengths < 0).any() or lengths.sum() != len(text):
        msg = f"{len(text)} bytes of ids, expected {lengths.sum()}"
        raise ValueError(msg)
    whole, ends = np.ascontiguousarray(text).data, np.cumsum(lengths)
    borders = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return [str(whole[start:end], *ENCODING) for start, end in borders]


class Columns:
    """Growing arrays of one length, by name, with a row for each entry.

    ``fills`` are the values of a new row of each column, in the type and shape of a row.
    """

    def __init__(self, **fills: Any) -> None:
        self._fills = {name: np.asarray(fill) for name, fill in fills.items()}
        self._n = 0
        self._lent: set[str] = set()
        self._arrays = {n: np.empty((0, *f.shape), f.dtype) for n, f in self._fills.items()}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a view of the filled rows; callers may write through it."""
        return self._arrays[name][: self._n]

    def lent(self, name: str) -> NDArray[Any]:
        """Return the present rows for good, without a copy, to be read only.

        New rows do not change them; before it changes old ones, a caller calls :meth:`own`.
        """
        rows = self[name]
        rows.flags.writeable = False
        self._lent.add(name)
        return rows

    def own(self, name: str) -> None:
        """Leave the rows that were lent to whom has them, and go on with a copy of them."""
        if name in self._lent:
            self._lent.remove(name)
            self._arrays[name] = self._arrays[name].copy()

    def grow(self, n: int) -> None:
        """Grow to ``n`` rows, not fewer than now, with spare room for an eighth more."""
        for name, array in self._arrays.items():
            if n > len(array):
                # A new array: a search abandoned at its time limit may still read the old one.
                grown = np.empty((max(n, len(array) * 9 // 8), *array.shape[1:]), array.dtype)
                grown[: self._n] = array[: self._n]
                self._arrays[name] = grown
            self._arrays[name][self._n : n] = self._fills[name]
        self._n = n

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows, in this order."""
        first = self._n - len(rows)
        few = first <= self._n // 8
        if few and np.array_equal(rows, np.arange(first, self._n)):  # the oldest: needs no copy
            self._arrays = {name: array[first:] for name, array in self._arrays.items()}
        else:
            self._arrays = {name: self[name][rows] for name in self._arrays}
        self._n = len(rows)

    def copy(self) -> Columns:
        """Return a copy that changes by itself; objects in the columns are the same."""
        again = Columns(**self._fills)
        again._n, again._arrays = self._n, {name: self[name].copy() for name in self._arrays}
        return again

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all columns."""
        return {name: self[name] for name in self._arrays}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy all columns from a saved state."""
        given = {name: arrays[name] for name in self._arrays}
        self.grow(len(next(iter(given.values()))))
        for name, array in given.items():
            self[name][:] = array


class Slots:
    """An id table: the slot of each entry.

    Slots count up in the order of arrival, and callers may keep arrays of their own by slot, of
    length ``capacity``, beside :attr:`columns`. Slots of removed entries are not handed out again;
    once there are many, :meth:`renumber` closes the gaps.
    """

    def __init__(self, **fills: Any) -> None:
        self._ids: list[str | None] = []  # by slot; None where the entry was removed
        self._slot_of: dict[str, int] = {}  # in the order of slots
        self.columns = Columns(**fills)

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slot_of

    @property
    def ids(self) -> list[str]:
        """The ids of all entries, in the order of their arrival."""
        return list(self._slot_of)

    @property
    def present(self) -> NDArray[np.int64]:
        """The slots of all present entries, shape (n,), ascending."""
        return np.fromiter(self._slot_of.values(), np.int64, len(self))

    @property
    def capacity(self) -> int:
        """Number of slots handed out so far: every slot is below it."""
        return len(self._ids)

    @property
    def sparse(self) -> bool:
        """Whether enough slots belong to removed entries to make renumbering worthwhile."""
        return self.capacity - len(self) > SPARSE_AT * self.capacity

    def slots_of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the slot of each id, shape (n,); -1 where it is unknown."""
        return np.fromiter(map(self._slot_of.get, ids, repeat(-1)), np.int64)

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return those of the ids that have a slot, each once."""
        return [entry_id for entry_id in dict.fromkeys(ids) if entry_id in self._slot_of]

    def ids_of(self, slots: Sequence[int] | NDArray[Any]) -> list[str]:
        """Return the id of each slot; :class:`InvalidBatchError` if one holds no entry."""
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
        """Return slots for new ids, ascending; refuse all if one is not new."""
        self.check_new(ids)
        slots = range(self.capacity, self.capacity + len(ids))
        self._ids.extend(ids)
        self._slot_of.update(zip(ids, slots, strict=True))
        self.columns.grow(self.capacity)
        return np.array(slots, dtype=np.int64)

    def take_back(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries and return their slots; refuse all if an id is unknown or repeated."""
        check_distinct(ids)
        slots = self.slots_of(ids)
        if (unknown := np.flatnonzero(slots < 0)).size:
            msg = f"id {ids[unknown[0]]!r} is not in this index, expected ids that were added."
            raise InvalidBatchError(msg)
        for entry_id in ids:
            self._ids[self._slot_of.pop(entry_id)] = None
        return slots

    def renumber(self) -> NDArray[np.int64]:
        """Close the gaps, keeping the order; return the old slots of the entries."""
        before = self.present
        self._ids = list(self._slot_of)
        self._slot_of = {entry_id: slot for slot, entry_id in enumerate(self._slot_of)}
        self.columns.keep(before)
        return before

    def take_over(self, ids: Sequence[str], slots: NDArray[np.int64], capacity: int) -> None:
        """Replace all entries by these; :class:`ValueError` if they do not fit together."""
        check_distinct(ids)
        if slots.dtype != np.int64 or slots.shape != (len(ids),):
            msg = "ids and slots do not have the same length"
            raise ValueError(msg)
        outside = len(ids) and not 0 <= slots.min() <= slots.max() < capacity
        if outside or len(np.unique(slots)) != len(ids):
            msg = "slots are repeated or out of range"
            raise ValueError(msg)
        self._ids, self._slot_of = [None] * capacity, {}
        for row in np.argsort(slots).tolist():
            self._ids[slots[row]] = ids[row]
            self._slot_of[ids[row]] = int(slots[row])
        self.columns.grow(capacity)


class Labels(Slots):
    """An id table with the label of each entry.

    Labels get codes in the order of their first use; a code stays with its label.

    Examples
    --------
    >>> labels = Labels()
    >>> _ = labels.put(["a", "b"], ["spam", None])
    >>> _ = labels.put(["a"], ["ham"])
    >>> labels.ids, labels.codes.tolist(), labels.names, labels.counts.tolist()
    (['a', 'b'], [1, -1], ['spam', 'ham'], [0, 1])
    """

    def __init__(self, **fills: Any) -> None:
        super().__init__(code=np.int32(NO_LABEL), **fills)
        self.names: list[str] = []  # by code
        self.counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # entries that have each
        self._codes: dict[str, int] = {}

    @property
    def codes(self) -> NDArray[np.int32]:
        """The label code of every entry, in the order of :attr:`ids`; -1 where it has none."""
        return self.columns["code"][self.present]

    def take(self, ids: Sequence[str], codes: NDArray[np.int32], names: Sequence[str]) -> None:
        """Fill an empty table with these entries; :class:`ValueError` if they do not fit."""
        if codes.shape != (len(ids),):
            msg = f"there are not as many labels as ids ({len(ids)})"
            raise ValueError(msg)
        if len(ids) and not NO_LABEL <= codes.min() <= codes.max() < len(names):
            msg = f"numbers of labels are out of range, expected up to {len(names) - 1}"
            raise ValueError(msg)
        self.names, self._codes = list(names), {name: code for code, name in enumerate(names)}
        self._put(self.hand_out(ids), codes)

    def put(self, ids: Sequence[str], labels: Sequence[str | None]) -> NDArray[np.int64]:
        """Add distinct entries, or change their labels; return their slots, shape (n,)."""
        for label in labels:
            if label is not None and label not in self._codes:
                self._codes[label] = len(self.names)
                self.names.append(label)
        slots = self.slots_of(ids)
        new = np.flatnonzero(slots < 0)
        slots[new] = self.hand_out([ids[place] for place in new.tolist()])
        self._put(slots, self.codes_of_labels(labels))
        return slots

    def drop(self, ids: Sequence[str]) -> None:
        """Remove entries; unknown ids are ignored."""
        self._put(self.take_back(self.among(ids)), np.int32(NO_LABEL))
        if self.sparse:
            self.renumber()

    def codes_of(self, ids: Sequence[str] | NDArray[np.object_]) -> NDArray[np.int64]:
        """Return the label code of each entry, in the shape of ``ids``; -1 without a label."""
        names = np.asarray(ids, dtype=np.object_)
        slots = self.slots_of(names.ravel().tolist()).reshape(names.shape)
        codes = np.full(slots.shape, NO_LABEL, dtype=np.int64)
        codes[slots >= 0] = self.columns["code"][slots[slots >= 0]]
        return codes

    def codes_of_labels(self, labels: Sequence[str | None]) -> NDArray[np.int64]:
        """Return the code of each label, shape (n,); -1 where it is unknown or None."""
        get = self._codes.get
        codes = [NO_LABEL if label is None else get(label, NO_LABEL) for label in labels]
        return np.array(codes, dtype=np.int64)

    def _put(self, slots: NDArray[np.int64], codes: Any) -> None:
        """Set the codes of slots, and update the counts."""
        code, n = self.columns["code"], len(self.names)
        gone = code[slots]
        code[slots] = codes
        now = code[slots]
        self.counts = np.pad(self.counts, (0, n - len(self.counts)))
        self.counts += np.bincount(now[now >= 0], minlength=n)
        self.counts -= np.bincount(gone[gone >= 0], minlength=n)


def check_distinct(ids: Sequence[str]) -> None:
    """Raise unless ids differ."""
    if len(set(ids)) != len(ids):
        twice = next(entry_id for entry_id, number in Counter(ids).items() if number > 1)
        msg = f"id {twice!r} is duplicated in ids, expected unique ids."
        raise InvalidBatchError(msg)
