"""A knowledge base as parquet files: what audits and fits by partitions are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragshield_core.detectors.base.pieces import InPieces, Pieces, Progress
from ragshield_core.errors import SourceError
from ragshield_core.tools.audit.partitioned.engines import Engine, LocalEngine, engine_of
from ragshield_core.tools.audit.partitioned.files import Files, work_folder
from ragshield_core.tools.audit.partitioned.fitting import PartitionedPieces, find_groups
from ragshield_core.tools.audit.partitioned.plan import (
    PARTITION_ROWS,
    Plan,
    partitions_of,
    pieces_of,
    settle,
)
from ragshield_core.tools.audit.partitioned.steps import Steps
from ragshield_core.tools.audit.readers.source import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(InPieces):
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

    def files(self) -> list[Path]:
        """Return the parquet files.

        Raises
        ------
        SourceError
            If there are none.
        """
        path = self.path
        found = [path] if path.is_file() else sorted([*path.glob("*.parquet"), *path.glob("*.pq")])
        if not found or not all(str(one).endswith((".parquet", ".pq")) for one in found):
            msg = (
                f"{path} is no parquet file and no folder of them; work by partitions reads "
                "parquet only. Convert it, or hold it in memory, without an engine."
            )
            raise SourceError(msg)
        return [one.absolute() for one in found]

    @contextmanager
    def pieces(
        self,
        groups: Mapping[str, Any] | None,
        *,
        engine: str | Engine | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Iterator[Pieces]:
        """Find groups by partitions, and lend the pieces; see :class:`InPieces`.

        The files of the partitions are removed once all went well.

        Raises
        ------
        SourceError
            If the input or the engine cannot be used, or the folder holds work on other data.
        InvalidBatchError
            If an id repeats, or a vector is wrong.
        """
        pieces = tuple(pieces_of(self))
        tell = progress if progress is not None else lambda *_: None
        with work_folder(self.work_dir) as folder, engine_of(engine or LocalEngine.name) as runner:
            plan = Plan(
                files=Files(folder),
                pieces=pieces,
                columns=self.columns,
                n_partitions=partitions_of(sum(p.n_rows for p in pieces), self.partition_rows),
                partition_rows=self.partition_rows,
                by_text=(),
                groups=groups,
                seed=seed,
            )
            settle(plan)
            if groups is not None:
                find_groups(Steps(plan, runner, tell))
            yield PartitionedPieces(plan, tell)
