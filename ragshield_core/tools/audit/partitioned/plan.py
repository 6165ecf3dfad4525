"""A knowledge base as parquet files, and what an audit by partitions is of."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ragshield_core.detectors.base import Detector
from ragshield_core.model.errors import SourceError
from ragshield_core.state import replace_file
from ragshield_core.tools.audit.partitioned.files import Files
from ragshield_core.tools.audit.readers.records import Parquet
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
FORMAT = "ragshield partitions 3"


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
        Where intermediate files go, four times the size of the vectors; interrupted
        work goes on from there. On storage that all machines share. ``None`` for a temporary
        folder, from which nothing goes on.
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
            sizes = Parquet(file).group_sizes()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a task needs to know beside its own number.

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
    """

    files: Files
    pieces: tuple[Piece, ...]
    columns: Columns
    partition_rows: int
    by_text: tuple[tuple[type[Detector], Mapping[str, Any]], ...]
    groups: Mapping[str, Any] | None
    seed: int

    @property
    def n_rows(self) -> int:
        """Number of entries."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def n_partitions(self) -> int:
        """How many partitions there are at first; large ones are divided further."""
        return math.ceil(self.n_rows / self.partition_rows)

    def begin_or_check(self) -> None:
        """Write down the data and settings of the work, or check them if it was begun before.

        Raises
        ------
        SourceError
            If the folder holds work on other data, with other settings, or in another format.
        """
        files = {piece.path for piece in self.pieces}
        settings = {
            "format": FORMAT,
            "files": sorted((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files),
            "columns": [
                self.columns.names(role) for role in ("id", "text", "lineage", "embedding")
            ],
            "partition_rows": self.partition_rows,
            "detectors": [[cls.name, dict(config)] for cls, config in self.by_text],
            "groups": None if self.groups is None else dict(self.groups),
            "seed": self.seed,
        }
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=20).hexdigest()
        path = self.files.folder / "manifest.json"
        if not path.is_file():
            self.files.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps({"work": digest, "settings": settings}).encode())
            return
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["work"]
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if known != digest:
            msg = (
                f"{self.files.folder} holds work on other data, or with other settings, or of "
                "another version of RAGShield; go on with those, name another --work-dir, or "
                "remove the folder."
            )
            raise SourceError(msg)
