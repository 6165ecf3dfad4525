"""A knowledge base as parquet files, and what an audit by partitions is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.groups.evidence import Kin
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.partitioned.files import Files
from ragshield_core.tools.audit.readers.records import group_sizes
from ragshield_core.tools.audit.readers.source import Columns

# Entries of a partition: 15 MB of 384 dimensions.
PARTITION_ROWS = 10_000
# Partitions in which an entry's neighbours are looked for: those with the nearest centres. Of
# 46,081 real passages in 50 partitions .966 of the two nearest and .946 of the 16 nearest are found
# so. If every entry lay in two partitions, and were compared with all that lie there, it would take
# a quarter more comparisons to find .942 and .919 (20 partitions).
LOOKED_INTO = 8
# Rows of a piece of the input, which one task reads: 100 MB of 384 dimensions.
PIECE_ROWS = 65_536


class Piece(NamedTuple):
    """What one task reads: some row groups of a file."""

    path: Path
    groups: range
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A knowledge base as parquet files, of which no more than parts are held in memory.

    Parameters
    ----------
    path
        A parquet file, or a folder of them, which are read in the order of their names. Every entry
        has a vector.
    columns
        What the columns are called.
    work_dir
        Where intermediate files go, four times the size of the vectors: on storage that all
        machines share. ``None`` for the system's folder of temporary files.
    partition_rows
        Entries of a partition, about. An entry is compared with those of the
        :data:`LOOKED_INTO` partitions that it is nearest to: larger ones miss fewer neighbours and
        take longer.
    """

    path: Path
    columns: Columns = field(default_factory=Columns)
    work_dir: Path | None = None
    partition_rows: int = PARTITION_ROWS

    def __post_init__(self) -> None:
        if self.partition_rows < 2:  # noqa: PLR2004
            msg = f"partition_rows is {self.partition_rows}, expected at least 2."
            raise SourceError(msg)

    def pieces(self) -> tuple[Piece, ...]:
        """Return the pieces of the input: row groups of a file, as many as make a piece.

        Raises
        ------
        SourceError
            If there are no parquet files, or no entries in them.
        """
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
                if n_rows >= PIECE_ROWS or group == len(sizes) - 1:
                    if n_rows:
                        pieces.append(Piece(file.absolute(), range(first, group + 1), n_rows))
                    first, n_rows = group + 1, 0
        if not pieces:
            msg = f"{path} has no entries, expected at least one."
            raise SourceError(msg)
        return tuple(pieces)


class Layout(NamedTuple):
    """Where entries are, once they were placed."""

    slices: list[tuple[int, int]]  # pieces, and parts of them
    counts: NDArray[np.int64]  # (n_slices, n_partitions): entries of each partition in each slice
    starts: NDArray[np.int64]  # (n_partitions + 1,): number of the first entry of each partition
    mean: NDArray[np.float64]  # (dim,): of all vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a task needs to know beside its own number, and what the driver has found so far.

    Attributes
    ----------
    files
        What tasks write, and others read.
    pieces, columns
        Of the input.
    partition_rows
        How many entries a partition has, about.
    by_text
        Classes and arguments of detectors that judge every entry by itself.
    groups
        Arguments of the :class:`~ragshield_core.detectors.CliqueDetector`, if it takes part.
    seed
        Of random choices.
    centres
        Of the partitions, shape (n_partitions, dim).
    layout
        Where entries are.
    families
        Whether lineages of more than one entry are usual.
    kin
        What resemblance within a lineage is worth; ``None`` without families.
    usual
        What is usual in the whole.
    """

    files: Files
    pieces: tuple[Piece, ...]
    columns: Columns
    partition_rows: int
    by_text: tuple[tuple[type[Detector], Mapping[str, Any]], ...]
    groups: Mapping[str, Any] | None
    seed: int
    centres: Any = None
    layout: Any = None
    families: bool = False
    kin: Kin | None = None
    usual: Any = None

    @property
    def n_rows(self) -> int:
        """Number of entries."""
        return sum(piece.n_rows for piece in self.pieces)
