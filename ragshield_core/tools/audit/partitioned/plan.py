"""A knowledge base as parquet files, with the plan and files that the tasks of its audit share.

Entries are numbered consecutively, partition by partition. Their values are stored as arrays on
disk, a file for each partition and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.groups.evidence import Kin
from ragshield_core.detectors.groups.graph import Lists, Overlay, SimilarityGraph, distance_of
from ragshield_core.model.errors import SourceError
from ragshield_core.model.ragged import divided
from ragshield_core.neighbors.index import FixedVectors
from ragshield_core.tools.audit.readers.records import group_sizes
from ragshield_core.tools.audit.readers.source import ColumnNames
from ragshield_core.tools.defaults import PARTITION_ROWS

Numbers = NDArray[np.int64]

# Partitions that are searched for an entry's neighbours: those with the nearest centres. For 46,081
# real passages in 50 partitions, recall@2 is .966 and recall@16 is .946. If every entry were stored
# in two partitions and compared with all entries there, a quarter more comparisons would give .942
# and .919 (20 partitions).
LOOKED_INTO = 8
# Rows of a piece of the input, which one task reads: 100 MB of 384 dimensions.
PIECE_ROWS = 65_536
# Columns with a part of any length for each entry, and the columns with the ends of the parts.
RAGGED = {"words": "word_ends", "ids": "id_ends"}


class RowGroups(NamedTuple):
    """Input of one task: some row groups of a file."""

    path: Path
    groups: range
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A knowledge base as parquet files that are never in memory as a whole.

    Parameters
    ----------
    path
        A parquet file, or a folder of them, which are read in the order of their names. Every entry
        has a vector.
    columns
        Names of the columns.
    work_dir
        Folder of intermediate files, four times the size of the vectors, on storage that all
        machines share. ``None`` for the system's folder of temporary files.
    partition_rows
        Approximate number of entries of a partition. An entry is compared with those of the
        :data:`LOOKED_INTO` nearest partitions: larger ones miss fewer neighbours and take longer.
    """

    path: Path
    columns: ColumnNames = field(default_factory=ColumnNames)
    work_dir: Path | None = None
    partition_rows: int = PARTITION_ROWS

    def __post_init__(self) -> None:
        if self.partition_rows < 2:  # noqa: PLR2004
            msg = f"partition_rows is {self.partition_rows}, expected at least 2."
            raise SourceError(msg)

    def pieces(self, least_rows: int = PIECE_ROWS) -> tuple[RowGroups, ...]:
        """Return the pieces of the input: consecutive row groups of a file, with so many rows."""
        path, pieces = self.path, []
        files = [path] if path.is_file() else sorted([*path.glob("*.parquet"), *path.glob("*.pq")])
        if not files or not all(str(one).endswith((".parquet", ".pq")) for one in files):
            msg = (
                f"{path} is no parquet file and no folder of them; work by partitions reads "
                "parquet only. Convert it, or hold it in memory, without an engine."
            )
            raise SourceError(msg)
        for file in files:
            first = n_rows = 0
            sizes = group_sizes(file)
            for group, size in enumerate(sizes):
                n_rows += size
                if n_rows >= least_rows or group == len(sizes) - 1:
                    if n_rows:
                        pieces.append(RowGroups(file.absolute(), range(first, group + 1), n_rows))
                    first, n_rows = group + 1, 0
        if not pieces:
            msg = f"{path} has no entries, expected at least one."
            raise SourceError(msg)
        return tuple(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The input of all tasks beside their own numbers, and the driver's results so far."""

    folder: Path  # of the arrays that tasks exchange; the same for all machines
    # The input
    pieces: tuple[RowGroups, ...]
    columns: ColumnNames
    partition_rows: int  # approximate number of entries of a partition
    # Classes and arguments of detectors that judge every entry by itself
    by_text: tuple[tuple[type[Detector], Mapping[str, Any]], ...]
    groups: Mapping[str, Any] | None  # arguments of the CliqueDetector, if it takes part
    seed: int  # of random choices
    centres: Any = None  # of the partitions, shape (n_partitions, dim)
    slices: Sequence[tuple[int, int]] = ()  # pieces, and parts of them
    counts: Any = None  # entries of each partition in each slice, (n_slices, n_partitions)
    starts: Any = None  # number of the first entry of each partition, shape (n_partitions + 1,)
    mean: Any = None  # of all vectors, shape (dim,)
    families: bool = False  # whether lineages of more than one entry are usual
    kin: Kin | None = None  # weight of resemblance within a lineage; `None` without families
    usual: Any = None  # usual values of the whole knowledge base

    @property
    def n_rows(self) -> int:
        """Number of entries."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def filled(self) -> list[int]:
        """The partitions that have entries."""
        return list(map(int, np.flatnonzero(np.diff(self.starts))))

    def write(self, part: int | str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays about a partition, by name; a task that runs twice writes the same."""
        if not self.folder.is_dir():
            msg = (
                f"{self.folder} is not there on this machine; name a --work-dir on storage that "
                "all machines that take part share."
            )
            raise SourceError(msg)
        (self.folder / str(part)).mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(self.folder / str(part) / f"{name}.npy", array, allow_pickle=False)

    def read(self, part: int | str, name: str) -> NDArray[Any]:
        """Return an array, memory-mapped so that only the rows in use are read."""
        path = self.folder / str(part) / f"{name}.npy"
        try:
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            msg = (
                f"{path} cannot be read ({type(error).__name__}); all machines that take part need "
                "the --work-dir, and nobody else may write there."
            )
            raise SourceError(msg) from error

    def names(self, part: int | str) -> list[str]:
        """Return the names of the arrays that were written."""
        return sorted(path.stem for path in (self.folder / str(part)).glob("*.npy"))

    def own(self, partition: int) -> Numbers:
        """Return the numbers of the entries of a partition."""
        return np.arange(self.starts[partition], self.starts[partition + 1])

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of all entries."""
        return np.concatenate([self.read(partition, name) for partition in self.filled])

    def gather(self, numbers: Numbers, name: str) -> NDArray[Any]:
        """Return a column for entries of any partition, in ascending order of their numbers.

        One file is mapped at a time: the system also maps the rows around each row, so a few rows
        of every file would take the memory of the whole knowledge base.
        """
        found = [self.read(home, name)[mine] for home, mine in self._by_home(numbers)]
        return np.concatenate(found or [self.read(self.filled[0], name)[:0]])

    def gather_ragged(self, numbers: Numbers, name: str) -> list[NDArray[Any]]:
        """Return a column with parts of any length, for entries in ascending order."""
        return [
            part
            for home, mine in self._by_home(numbers)
            for part in divided(self.read(home, name), self.read(home, RAGGED[name]), mine)
        ]

    def ids(self, numbers: Numbers) -> list[str]:
        """Return the ids of entries, in the given order."""
        named, places = np.unique(numbers, return_inverse=True)
        ids = [data.tobytes().decode() for data in self.gather_ragged(named, "ids")]
        return [ids[place] for place in places.tolist()]

    def _by_home(self, numbers: Numbers) -> list[tuple[int, Numbers]]:
        """Return the partitions of ascending numbers, and their rows in each."""
        home = np.searchsorted(self.starts, numbers, side="right") - 1
        return grouped(home, numbers - self.starts[home])


def grouped(places: Numbers, values: Numbers) -> list[tuple[int, Numbers]]:
    """Return the values of each place; the places must be in ascending order."""
    names, first = np.unique(places, return_index=True)
    parts = np.split(values, first[1:]) if len(names) else []
    return list(zip(names.tolist(), parts, strict=True))


class Window(NamedTuple):
    """Some entries and their neighbours in the graph, renumbered from 0, the entries first."""

    overlay: Overlay  # of the entries
    own: Numbers  # numbers of the entries; ascending
    others: Numbers  # numbers of their other neighbours; ascending


def window(
    plan: Plan,
    own: Numbers,
    lists: Lists | None = None,
    *,
    vectors: bool = False,
    ids: bool = False,
) -> Window:
    """Return the window of entries with ascending numbers, with vectors and ids on request.

    Their lists name entries by number; the default is the lists that the search wrote.
    """
    if lists is None:
        lists = Lists(*map(partial(plan.gather, own), ("slots", "similarities", "copied")))
    others = np.setdiff1d(lists.slots[lists.slots >= 0], own)
    parts = (own, others)
    everybody = np.concatenate(parts)
    order = np.argsort(everybody, kind="stable")
    place = order[np.searchsorted(everybody, lists.slots, sorter=order) % len(everybody)]
    matrix = np.zeros((len(everybody), 1), dtype=np.float32)  # a graph needs some vectors
    if vectors:
        matrix = np.concatenate([plan.gather(part, "vectors") for part in parts])
    graph = SimilarityGraph.assembled(
        FixedVectors(plan.ids(everybody) if ids else [], matrix),
        [words for part in parts for words in plan.gather_ragged(part, "words")],
        np.concatenate([plan.gather(part, "lineage") for part in parts]),
        Lists(np.where(lists.slots < 0, -1, place), lists.similarities, lists.copied),
        distance_of(plan.mean),
    )
    return Window(graph.part(np.arange(len(own))), own, others)
