"""Entries by their number, out of the files of their partitions."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import Lists, Overlay, SimilarityGraph, distance_of
from ragshield_core.neighbors.index import FixedVectors
from ragshield_core.tools.audit.partitioned.files import Arrays, divided
from ragshield_core.tools.audit.partitioned.plan import Plan

# What an entry was read with, the default; and its neighbours.
ROWS, LISTS = "rows", "lists"
# Columns of which each entry has a part of its own length, and those that say where it ends.
RAGGED = {"words": "word_ends", "ids": "id_ends"}


class Partitions:
    """What is known of the entries of all partitions; files are opened when they are needed.

    Parameters
    ----------
    plan
        Of the audit.
    """

    def __init__(self, plan: Plan) -> None:
        self._files = plan.files
        self.starts: NDArray[np.int64] = plan.layout.starts
        self._mean = plan.layout.mean

    @property
    def n(self) -> int:
        """How many partitions there are."""
        return len(self.starts) - 1

    @cached_property
    def unrelated(self) -> float:
        """The cosine distance of entries that have nothing to do with each other."""
        return distance_of(self._mean)

    @cached_property
    def filled(self) -> list[int]:
        """Those that have entries, by whom others could be found."""
        return list(map(int, np.flatnonzero(np.diff(self.starts))))

    def own(self, partition: int) -> NDArray[np.int64]:
        """Return the numbers of the entries of a partition."""
        return np.arange(self.starts[partition], self.starts[partition + 1])

    def rows(self, partition: int, kind: str = ROWS) -> Arrays:
        """Return what was written of a kind about the entries of a partition, in their order."""
        return self._files.read(f"{kind}/{partition}")

    def column(self, column: str, kind: str = ROWS) -> NDArray[Any]:
        """Return a column of all entries."""
        return np.concatenate([self.rows(p, kind)[column] for p in self.filled])

    def gather(self, numbers: NDArray[np.int64], column: str, kind: str = ROWS) -> NDArray[Any]:
        """Return a column for entries of any partition, in ascending order of their numbers.

        One file is mapped at a time: with each row, the system maps those around it as well, so
        that a few rows of every file would take the memory of the whole knowledge base.
        """
        found = [self.rows(home, kind)[column][mine] for home, mine in self.by_home(numbers)]
        return np.concatenate(found or [self.rows(self.filled[0], kind)[column][:0]])

    def words(self, numbers: NDArray[np.int64], flat: str = "words") -> list[NDArray[Any]]:
        """Return the words of entries, in ascending order of their numbers."""
        found: list[NDArray[Any]] = []
        for home, mine in self.by_home(numbers):
            arrays = self.rows(home)
            found += divided(arrays[flat], arrays[RAGGED[flat]], mine)
        return found

    def ids(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of entries, in the given order."""
        named, places = np.unique(numbers, return_inverse=True)
        ids = [data.tobytes().decode() for data in self.words(named, "ids")]
        return [ids[place] for place in places.tolist()]

    def by_home(self, numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return partitions, and the rows in them in which ascending numbers are."""
        home = np.searchsorted(self.starts, numbers, side="right") - 1
        return grouped(home, numbers - self.starts[home])


def grouped(
    places: NDArray[np.int64], values: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the values of each place; equal places have to follow each other, ascending."""
    names, first = np.unique(places, return_index=True)
    parts = np.split(values, first[1:]) if len(names) else []
    return list(zip(names.tolist(), parts, strict=True))


class Window(NamedTuple):
    """The part of the graph that is seen from some entries, renumbered from 0: they are first."""

    graph: SimilarityGraph  # knows the entries and their neighbours
    overlay: Overlay  # of the entries
    own: NDArray[np.int64]  # numbers of the entries; ascending
    others: NDArray[np.int64]  # neighbours that are no such entries, by their number; ascending


def window(
    partitions: Partitions,
    own: NDArray[np.int64],
    lists: Lists | None = None,
    *,
    vectors: bool = False,
    ids: bool = False,
) -> Window:
    """Return what is seen from some entries.

    Parameters
    ----------
    partitions
        All entries.
    own
        Numbers of the entries, ascending.
    lists
        Their lists, which name entries by their number; those that were found by default.
    vectors, ids
        Whether vectors and ids are needed.
    """
    if lists is None:
        columns = ("slots", "similarities", "copied")
        lists = Lists(*(partitions.gather(own, name, LISTS) for name in columns))
    others = np.setdiff1d(lists.slots[lists.slots >= 0], own)
    everybody = np.concatenate([own, others])
    order = np.argsort(everybody, kind="stable")
    place = order[np.searchsorted(everybody, lists.slots, sorter=order) % len(everybody)]
    matrix = np.zeros((len(everybody), 1), dtype=np.float32)  # a graph has some vectors
    if vectors:
        matrix = np.concatenate([partitions.gather(part, "vectors") for part in (own, others)])
    graph = SimilarityGraph.assembled(
        FixedVectors(partitions.ids(everybody) if ids else [], matrix),
        [*partitions.words(own), *partitions.words(others)],
        np.concatenate([partitions.gather(part, "lineage") for part in (own, others)]),
        Lists(np.where(lists.slots < 0, -1, place), lists.similarities, lists.copied),
        partitions.unrelated,
    )
    return Window(graph, graph.part(np.arange(len(own))), own, others)
