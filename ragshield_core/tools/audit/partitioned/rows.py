"""Entries by their number, out of the files of their partitions."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import distance_of
from ragshield_core.tools.audit.partitioned.files import as_text, divided, stretch
from ragshield_core.tools.audit.partitioned.plan import PIECE_ROWS, Plan

# Files that are mapped at a time: a process may have 65,530 mappings.
OPEN = 1_000
# What an entry was read with, the default; and its neighbours.
ROWS, LISTS = "rows", "lists"
# Kinds that are written by shard, not by partition: what each partition has of every other one
# would be as many small reads as there are pairs of partitions.
BY_SHARD = (ROWS, LISTS)
# Columns of which each entry has a part of its own length, and those that say where it ends.
RAGGED = {"words": "word_ends", "ids": "id_ends"}


class Shard(NamedTuple):
    """Partitions in a row whose entries are in one file."""

    number: int
    partitions: range


def shards_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first partition of each shard.

    A shard has as many partitions as keep the number of files that every partition looks into in
    proportion to the square root of how many partitions there are, unless their entries would be
    more than make a piece. Each has at least one entry, if there is any.

    Parameters
    ----------
    sizes
        Entries of each partition, shape (n,).
    """
    most, first, rows = math.isqrt(len(sizes)) + 1, [0], 0
    for partition, size in enumerate(sizes.tolist()):
        full = partition - first[-1] >= most or rows + size > PIECE_ROWS
        if full and rows and size:
            first.append(partition)
            rows = 0
        rows += size
    return np.array(first)


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
        self._first: NDArray[np.int64] = np.array(self._layout["shards"])
        self._opened: dict[str, dict[str, NDArray[Any]]] = {}

    @property
    def n(self) -> int:
        """How many partitions there are."""
        return len(self.starts) - 1

    @cached_property
    def unrelated(self) -> float:
        """The cosine distance of entries that have nothing to do with each other."""
        return distance_of(self._layout["mean"])

    @cached_property
    def filled(self) -> list[int]:
        """Those that have entries, by whom others could be found."""
        return list(map(int, np.flatnonzero(np.diff(self.starts))))

    @cached_property
    def shards(self) -> list[Shard]:
        """All partitions, by the file that their entries are in."""
        bounds = [*self._first.tolist(), self.n]
        return [Shard(i, range(*bounds[i : i + 2])) for i in range(len(bounds) - 1)]

    @cached_property
    def n_searched(self) -> NDArray[np.int64]:
        """For how many entries neighbours are looked for in each partition; shape (n,)."""
        return np.asarray(np.diff(self.starts) + self._layout["n_guests"])

    def own(self, partition: int) -> NDArray[np.int64]:
        """Return the numbers of the entries of a partition."""
        return np.arange(self.starts[partition], self.starts[partition + 1])

    def guests(self, partition: int) -> NDArray[np.int64]:
        """Return the numbers of those that look into a partition, ascending."""
        shard = self._shard(partition)
        arrays, place = self._open(ROWS, shard.number), partition - shard.partitions[0]
        return arrays["guests"][stretch(arrays["guest_ends"], place, place + 1)]

    def rows(self, partition: int, kind: str = ROWS) -> dict[str, NDArray[Any]]:
        """Return what was written of a kind about the entries of a partition, in their order."""
        if kind not in BY_SHARD:
            return self._open(kind, partition)
        shard = self._shard(partition)
        arrays = self._open(kind, shard.number)
        bounds = self.starts[partition : partition + 2] - self.starts[shard.partitions[0]]
        first, last = bounds.tolist()
        columns = {
            name: array[first:last]
            for name, array in arrays.items()
            if name not in {*RAGGED, "guests", "guest_ends"}
        }
        for name, ends in RAGGED.items():
            if name in arrays:
                part = stretch(arrays[ends], first, last)
                columns |= {name: arrays[name][part], ends: columns[ends] - part.start}
        return columns

    def gather(self, numbers: NDArray[np.int64], column: str, kind: str = ROWS) -> NDArray[Any]:
        """Return a column for entries of any partition, in ascending order of their numbers."""
        found = [
            self._open(kind, file)[column][mine] for file, mine in self._by_file(numbers, kind)
        ]
        return np.concatenate(found) if found else self._nothing(column, kind)

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of entries, in ascending order of their numbers.

        One file is mapped at a time: with each row, the system maps those around it as well, so
        that a few rows of every file would take the memory of the whole knowledge base.
        """
        found = [
            self._files.read(f"{ROWS}/{shard}")["vectors"][mine]
            for shard, mine in self._by_file(numbers, ROWS)
        ]
        return np.concatenate(found) if found else self._nothing("vectors", ROWS)

    def words(self, numbers: NDArray[np.int64]) -> list[NDArray[np.uint32]]:
        """Return the words of entries, in ascending order of their numbers."""
        return self._divided(numbers, "words")

    def ids(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of entries, in the given order."""
        named, places = np.unique(numbers, return_inverse=True)
        ids = [as_text(data) for data in self._divided(named, "ids")]
        return [ids[place] for place in places.tolist()]

    def _divided(self, numbers: NDArray[np.int64], flat: str) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = []
        for shard, rows in self._by_file(numbers, ROWS):
            arrays = self._open(ROWS, shard)
            found += divided(arrays[flat], arrays[RAGGED[flat]], rows)
        return found

    def _by_file(
        self, numbers: NDArray[np.int64], kind: str
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Return rows of the files of a kind in which ascending numbers are."""
        starts = self.starts[self._first] if kind in BY_SHARD else self.starts[:-1]
        home = np.searchsorted(starts, numbers, side="right") - 1
        names, first = np.unique(home, return_index=True)
        parts = np.split(numbers - starts[home], first[1:]) if len(names) else []
        return list(zip(names.tolist(), parts, strict=True))

    def _shard(self, partition: int) -> Shard:
        return self.shards[int(np.searchsorted(self._first, partition, side="right")) - 1]

    def _open(self, kind: str, number: int) -> dict[str, NDArray[Any]]:
        name = f"{kind}/{number}"
        if name not in self._opened:
            if len(self._opened) == OPEN:
                self._opened.pop(next(iter(self._opened)))
            self._opened[name] = self._files.read(name)
        return self._opened[name]

    def _nothing(self, column: str, kind: str) -> NDArray[Any]:
        return np.array(self.rows(self.filled[0], kind)[column][:0])
