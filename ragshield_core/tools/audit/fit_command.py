"""``ragshield fit``: fit a guard on a knowledge base on disk, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.errors import CalibrationError
from ragshield_core.findings import printable
from ragshield_core.guard import Guard
from ragshield_core.logs import told
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.audit.command import (
    ERROR,
    Address,
    Bar,
    Column,
    Embedder,
    EngineName,
    LineageColumn,
    PartitionRows,
    Seed,
    WorkDir,
    cached_embedder,
    check_fpr,
    check_parent,
    console,
    errors,
    named_engine,
    no_crash_looks_like_a_finding,
    work_folder_of,
)
from ragshield_core.tools.audit.knowledge_base import load
from ragshield_core.tools.audit.partitioned.parts import Parts
from ragshield_core.tools.audit.partitioned.plan import PARTITION_ROWS
from ragshield_core.tools.audit.readers.kinds import open_source
from ragshield_core.tools.audit.readers.source import Columns


def fit_command(  # noqa: PLR0913 - options of a command line
    data: Annotated[
        Path,
        typer.Argument(
            help="As of scan: believed to be clean. With --engine also a folder of parquet files."
        ),
    ],
    *,
    save: Annotated[Path, typer.Option(help="Folder of the guard, see Guard.load.")],
    fpr: Annotated[
        float, typer.Option(help="Accepted share of clean entries that are held, in (0, 1).")
    ] = 0.01,
    embedder: Embedder = "minilm",
    work_dir: WorkDir = None,
    seed: Seed = 0,
    engine: EngineName = None,
    address: Address = None,
    partition_rows: PartitionRows = PARTITION_ROWS,
    id_column: Column = None,
    text_column: Column = None,
    label_column: Column = None,
    lineage_column: LineageColumn = None,
    embedding_column: Column = None,
) -> None:
    """Fit a guard with every built-in detector, calibrate it, and save it.

    Exit code 0: done; 2: an error. A guard that could not be calibrated is saved all the same.
    """
    with no_crash_looks_like_a_finding():
        check_parent(save)
        check_fpr(fpr)
        runner = named_engine(engine, address)
        columns = Columns(id_column, text_column, label_column, lineage_column, embedding_column)
        folder = work_dir or work_folder_of(data)
        guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=seed)
        with told(errors), Bar() as bar:
            if runner is None:
                knowledge = load(
                    open_source(data, columns),
                    embedder=lambda: cached_embedder(embedder, folder),
                    progress=bar.tell,
                )
                guard.fit(knowledge.batch)
            else:
                parts = Parts(
                    path=data, columns=columns, work_dir=folder, partition_rows=partition_rows
                )
                guard.fit(parts, engine=runner, progress=bar.tell)
        not_calibrated: CalibrationError | None = None
        try:
            guard.calibrate()
        except CalibrationError as error:
            not_calibrated = error
        guard.save(save)
        what = "fitted on" if not_calibrated is not None else "fitted and calibrated on"
        console.print(Text(printable(f"{what} {guard.n_known} entries; saved in {save}")))
    if not_calibrated is not None:
        why = printable(f"error: not calibrated: {not_calibrated}", limit=2000)
        errors.print(Text(why, style="red"))
        raise typer.Exit(ERROR)
