"""Which entries have another one in their list of neighbours, found without a look at all lists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.slots import Columns

# Marks the end of a chain.
END = -1
# Lists that are noted at once: some MB of working memory.
AT_ONCE = 65_536


class Listers:
    """The slots whose lists have had an entry, as a chain of notes for each entry.

    Notes are never removed, so that a slot found may have dropped the entry from its list since
    then: callers look into the lists. An entry brings at most two notes for each place of a list.

    Parameters
    ----------
    lists
        Slots in each list, padded with -1, shape (n, k).

    Examples
    --------
    >>> listers = Listers(np.array([[1, 2], [2, -1], [1, 0]]))
    >>> listers.of(np.array([2])).tolist()
    [0, 1]
    """

    def __init__(self, lists: NDArray[np.integer]) -> None:
        self._latest = Columns(note=np.int32(END))  # by listed slot
        self._notes = Columns(lister=np.int32(END), before=np.int32(END))
        for start in range(0, len(lists), AT_ONCE):
            part = lists[start : start + AT_ONCE]
            rows, places = np.nonzero(part >= 0)
            self.note(start + rows, part[rows, places], len(lists))

    def note(self, listers: NDArray[np.integer], listed: NDArray[np.integer], n_slots: int) -> None:
        """Note that some slots list others, shape (m,) each; all are below ``n_slots``."""
        order = np.argsort(listed)
        listers, listed = listers[order], listed[order]
        first = np.concatenate([[True], listed[1:] != listed[:-1]])[: len(listed)]
        start = len(self._notes)
        numbers = np.arange(start, start + len(listed))
        self._latest.grow(n_slots)
        self._notes.grow(start + len(listed))
        self._notes["lister"][start:] = listers
        # The notes of an entry follow each other; its first one follows its earlier notes.
        latest = self._latest["note"]
        self._notes["before"][start:] = np.where(first, latest[listed], numbers - 1)
        last = np.roll(first, -1)
        latest[listed[last]] = numbers[last]

    def of(self, slots: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the slots that list, or have listed, one of these; ascending."""
        found = [np.empty(0, dtype=np.int64)]
        at = self._latest["note"][slots]
        while (at := at[at != END]).size:
            found.append(self._notes["lister"][at])
            at = self._notes["before"][at]
        return np.unique(np.concatenate(found))
