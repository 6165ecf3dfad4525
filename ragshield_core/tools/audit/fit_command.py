"""``ragshield fit``: fit a guard on a knowledge base on disk, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.errors import CalibrationError, SourceError
from ragshield_core.findings import printable
from ragshield_core.guard import Guard
from ragshield_core.logs import told
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.audit.command import (
    ERROR,
    Bar,
    Column,
    cached_embedder,
    check_parent,
    console,
    errors,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.audit.knowledge_base import load
from ragshield_core.tools.audit.partitioned.engines import engine_of
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
    embedder: Annotated[
        str, typer.Option(help="Model for entries that have no vector.")
    ] = "minilm",
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keeps vectors, and with --engine all else, so that a fit can go on; all "
            "machines must see it. Default: NAME.ragshield here."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of random choices.")] = 0,
    engine: Annotated[
        str | None,
        typer.Option(
            help="ray, or local: fit on a parquet file, or a folder of them, by partitions, never "
            "all in one memory. Default: all in memory."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help='Of a Ray cluster, e.g. "auto"; default: one on this machine.'),
    ] = None,
    partition_rows: Annotated[
        int, typer.Option(min=2, help="With --engine: entries of a partition, about.")
    ] = PARTITION_ROWS,
    id_column: Column = None,
    text_column: Column = None,
    label_column: Column = None,
    lineage_column: Column = None,
    embedding_column: Column = None,
) -> None:
    """Fit a guard with every built-in detector, calibrate it, and save it.

    Exit code 0: done; 2: an error. A guard that could not be calibrated is saved all the same.
    """
    with no_crash_looks_like_a_finding():
        check_parent(save)
        if not 0.0 < fpr < 1.0:
            msg = f"--fpr is {fpr:g}, expected a share in (0, 1), such as 0.01."
            raise SourceError(msg)
        if engine is None and address is not None:
            msg = "--address is that of a Ray cluster; name --engine ray."
            raise SourceError(msg)
        columns = Columns(
            id=id_column,
            text=text_column,
            label=label_column,
            lineage=lineage_column,
            embedding=embedding_column,
        )
        folder = Path(f"{data.name}.ragshield") if work_dir is None else work_dir
        guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=seed)
        with told(errors), Bar() as bar:
            if engine is None:
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
                guard.fit(parts, engine=engine_of(engine, address), progress=bar.tell)
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
