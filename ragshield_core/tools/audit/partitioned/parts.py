"""A knowledge base as parquet files: what audits and fits by partitions are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.base.pieces import InPieces, Pieces, Progress
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.partitioned.engines import Engine, engine_of
from ragshield_core.tools.audit.partitioned.files import Files, work_folder
from ragshield_core.tools.audit.partitioned.fitting import PartitionedPieces
from ragshield_core.tools.audit.partitioned.plan import PARTITION_ROWS, PIECE_ROWS, Piece, Plan
from ragshield_core.tools.audit.partitioned.steps import Steps
from ragshield_core.tools.audit.readers.parquet import Parquet
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

        Raises
        ------
        SourceError
            If the input or the engine cannot be used, or the folder holds work on other data.
        InvalidBatchError
            If an id repeats, or a vector is wrong.
        """
        with self.work(groups, engine=engine, seed=seed, progress=progress) as steps:
            if groups is not None:
                steps.place()
                steps.find_neighbors()
                steps.measure_tightness()
            yield PartitionedPieces(steps.plan, steps.tell)

    @contextmanager
    def work(
        self,
        groups: Mapping[str, Any] | None,
        by_text: Sequence[Detector] = (),
        *,
        engine: str | Engine | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Iterator[Steps]:
        """Lend the steps of the work, new or interrupted; its files go once all went well."""
        pieces = tuple(self._divided())
        with work_folder(self.work_dir) as folder, engine_of(engine or "local") as runner:
            plan = Plan(
                files=Files(folder),
                pieces=pieces,
                columns=self.columns,
                partition_rows=self.partition_rows,
                by_text=tuple((type(one), one.config()) for one in by_text),
                groups=groups,
                seed=seed,
            )
            plan.begin_or_check()
            yield Steps(plan, runner, progress or (lambda *_: None))

    def _divided(self) -> list[Piece]:
        """Return the pieces of the input: row groups of a file, as many as make a piece."""
        pieces = []
        for path in self._files():
            first = n_rows = 0
            sizes = Parquet(path).group_sizes()
            for group, size in enumerate(sizes):
                n_rows += size
                if n_rows >= PIECE_ROWS or group == len(sizes) - 1:
                    if n_rows:
                        pieces.append(Piece(path, range(first, group + 1), n_rows))
                    first, n_rows = group + 1, 0
        if not pieces:
            msg = f"{self.path} has no entries, expected at least one."
            raise SourceError(msg)
        return pieces

    def _files(self) -> list[Path]:
        path = self.path
        found = [path] if path.is_file() else sorted([*path.glob("*.parquet"), *path.glob("*.pq")])
        if not found or not all(str(one).endswith((".parquet", ".pq")) for one in found):
            msg = (
                f"{path} is no parquet file and no folder of them; work by partitions reads "
                "parquet only. Convert it, or hold it in memory, without an engine."
            )
            raise SourceError(msg)
        return [one.absolute() for one in found]
