"""``ragshield guard``: commands that act on a guard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.tools.audit.command import (
    ColumnOptions,
    console,
    no_crash_looks_like_a_finding,
    progress_bar,
)
from ragshield_core.tools.defaults import BATCH_ROWS
from ragshield_core.tools.options import takes

guard_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Write into a guarded store, or ask a guard."
)


@guard_app.command("ingest")
@takes(ColumnOptions)
def ingest_command(
    columns: ColumnOptions,
    data: Annotated[Path, typer.Argument(help="A parquet file, or a folder of them.")],
    *,
    into: Annotated[
        str, typer.Option(help="module:object of your guarded store, or a function that opens it.")
    ],
    engine: Annotated[
        str, typer.Option(help="local: one process; ray: all cores, or a cluster.")
    ] = "local",
    batch_rows: Annotated[int, typer.Option(min=1, help="Entries of one write.")] = BATCH_ROWS,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keeps how far the work got; with ray, all machines must see it. Default: "
            "NAME.ragshield here."
        ),
    ] = None,
) -> None:
    """Write files into a guarded store; the same command goes on after an interruption.

    Exit code 0: done; 2: an error.
    """
    from ragshield_core.tools.audit.partitioned.plan import Parts
    from ragshield_core.tools.guard.ingest import ingest

    with no_crash_looks_like_a_finding():
        parts = Parts(path=data, columns=columns.columns, work_dir=work_dir)
        with progress_bar() as tell:
            done = ingest(parts, into, engine=engine, batch_rows=batch_rows, progress=tell)
        before = done.n_rows - done.n_written
        line = f"{done.n_written:,} of {done.n_rows:,} rows were written, {done.n_held:,} are held"
        console.print(Text(line + (f"; {before:,} were there before." if before else ".")))
