"""Entries by their number, out of the files of their partitions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.scan.partitioned.files import as_text, divided
from ragshield_core.scan.partitioned.plan import Plan

# Files that are mapped at a time: a process may have 65,530 mappings.
OPEN = 1_000


class Partitions:
    """What is known of the entries of all partitions; files are opened when they are needed.

    Parameters
    ----------
    plan
        Of the audit.
    """

    def __init__(self, plan: Plan) -> None:
        self._files = plan.files
        self._layout = plan.files.read("layout")
        self.starts: NDArray[np.int64] = np.array(self._layout["starts"])
        self._opened: dict[str, dict[str, NDArray[Any]]] = {}

    @property
    def n(self) -> int:
        """How many partitions there are."""
        return len(self.starts) - 1

    @cached_property
    def filled(self) -> list[int]:
        """Those that have entries, by whom others could be found."""
        return list(map(int, np.flatnonzero(np.diff(self.starts))))

    @cached_property
    def n_searched(self) -> NDArray[np.int64]:
        """For how many entries neighbours are looked for in each partition; shape (n,)."""
        return np.asarray(np.diff(self.starts) + self._layout["n_guests"])

    def own(self, partition: int) -> NDArray[np.int64]:
        """Return the numbers of the entries of a partition."""
        return np.arange(self.starts[partition], self.starts[partition + 1])

    def rows(self, partition: int, kind: str = "rows") -> dict[str, NDArray[Any]]:
        """Return what was written of a kind about the entries of a partition, in their order."""
        name = f"{kind}/{partition}"
        if name not in self._opened:
            if len(self._opened) == OPEN:
                self._opened.pop(next(iter(self._opened)))
            self._opened[name] = self._files.read(name)
        return self._opened[name]

    def gather(self, numbers: NDArray[np.int64], column: str, kind: str = "rows") -> NDArray[Any]:
        """Return a column for entries of any partition, in ascending order of their numbers."""
        found = [
            self.rows(partition, kind)[column][mine - self.starts[partition]]
            for partition, mine in self._by_partition(numbers)
        ]
        return np.concatenate(found) if found else self._nothing(column, kind)

    def words(self, numbers: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries, in ascending order of their numbers."""
        return self._divided(numbers, "words", "word_ends")

    def ids(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of entries, in the given order."""
        named, places = np.unique(numbers, return_inverse=True)
        ids = [as_text(data) for data in self._divided(named, "ids", "id_ends")]
        return [ids[place] for place in places.tolist()]

    def _divided(self, numbers: NDArray[np.int64], flat: str, ends: str) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = []
        for partition, mine in self._by_partition(numbers):
            arrays = self.rows(partition)
            rows = mine - self.starts[partition]
            found += divided(arrays[flat], arrays[ends], rows)
        return found

    def _by_partition(self, numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return ascending numbers by partition."""
        home = np.searchsorted(self.starts, numbers, side="right") - 1
        names, first = np.unique(home, return_index=True)
        parts = np.split(numbers, first[1:]) if len(names) else []
        return list(zip(names.tolist(), parts, strict=True))

    def _nothing(self, column: str, kind: str) -> NDArray[Any]:
        return np.array(self.rows(self.filled[0], kind)[column][:0])
