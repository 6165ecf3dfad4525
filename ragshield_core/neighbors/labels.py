"""The labels of known entries, and what else is kept of each, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.slots import Column, Slots, check_distinct

# The code of an entry without a label.
NO_LABEL = -1


class Labels:
    """Which entries are there, in the order in which they came, and the label of each.

    Labels get codes in the order in which they are met; a code stays with its label.

    Parameters
    ----------
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

    def __init__(self, beside: Sequence[np.dtype[Any]] = ()) -> None:
        self._types = tuple(beside)
        self.reset()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def present(self) -> NDArray[np.int64]:
        """The rows of the entries, shape (n,), ascending."""
        return self._rows.present

    @property
    def ids(self) -> list[str]:
        """The ids of all entries, by row."""
        return self._rows.ids

    @property
    def codes(self) -> NDArray[np.int32]:
        """The label code of every entry, in the order of :attr:`ids`; -1 where it has none."""
        return self._code_of.values[self.present].astype(np.int32)

    def ids_at(self, places: NDArray[np.int64]) -> list[str]:
        """Return some of :attr:`ids`."""
        return self._rows.ids_of(self.present[places])

    def reset(self) -> None:
        """Forget everything."""
        self.names: list[str] = []
        self.counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.beside = [Column(np.empty(0, dtype)) for dtype in self._types]
        self._codes: dict[str, int] = {}
        self._rows = Slots()
        self._code_of = Column(np.empty(0, np.int32))  # by row

    def take(self, ids: Sequence[str], codes: NDArray[np.int32], names: Sequence[str]) -> None:
        """Be these entries and no others.

        Raises
        ------
        ValueError
            If an id is repeated, or there is not one code of a label for each.
        """
        check_distinct(ids)
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
        rows = self._rows.take_back(self._rows.among(ids))
        self._count(self._code_of.values[rows], -1)
        if self._rows.sparse:
            before = self._rows.renumber()
            self._code_of = Column(self._code_of.values[before])
            self.beside = [Column(column.values[before]) for column in self.beside]

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each entry, shape (n,); -1 where it is not there."""
        return self._rows.slots_of(ids)

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

    def _put(self, ids: Sequence[str], codes: NDArray[np.int32]) -> NDArray[np.int64]:
        rows = self.rows(ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self._rows.hand_out([ids[place] for place in new.tolist()])
        self._code_of.append(np.full(len(new), NO_LABEL, dtype=np.int32))
        for column, dtype in zip(self.beside, self._types, strict=True):
            column.append(np.zeros(len(new), dtype=dtype))
        self._count(self._code_of.values[rows], -1)
        self._count(codes, 1)
        self._code_of.values[rows] = codes
        return rows

    def _count(self, codes: NDArray[np.signedinteger[Any]], sign: int) -> None:
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[: len(self.counts)] = self.counts
        self.counts = counts + sign * np.bincount(codes[codes >= 0], minlength=len(counts))
