"""``ragshield guard``: commands that act on a guard."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.tools.audit.command import (
    ColumnOptions,
    ReadingOptions,
    console,
    exit_code,
    no_crash_looks_like_a_finding,
    progress_bar,
    show_report,
)
from ragshield_core.tools.defaults import BATCH_ROWS
from ragshield_core.tools.options import Guards, Reports, takes

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


@guard_app.command("check")
@takes(ReadingOptions, Reports, Guards)
def check_command(
    reading: ReadingOptions,
    reports: Reports,
    guards: Guards,
    data: Annotated[Path, typer.Argument(help="As of scan.")],
    *,
    limit: Annotated[int, typer.Option(min=0, help="Cases to show, worst first.")] = 20,
) -> None:
    """Ask a guard which entries it would hold; it learns nothing, and nothing is written.

    The gate of a pipeline. Exit code 0: nothing, and enough was judged; 1: entries would be held;
    2: an error; 3: nothing would be held, but not enough was judged.
    """
    from ragshield_core.tools.audit.output import case_report
    from ragshield_core.tools.audit.sarif import to_sarif
    from ragshield_core.tools.case_report import CaseReport, html_page, markdown
    from ragshield_core.tools.guard.check import NEXT_STEPS, check

    with no_crash_looks_like_a_finding():
        reports.check()
        with guards.opened() as guard, progress_bar(quiet=reports.quiet) as tell:
            knowledge = reading.knowledge_base(data, tell, metadata=True)
            report = check(guard, knowledge).covering(knowledge.coverage)

        def told() -> CaseReport:
            whole = case_report(report, data.as_posix(), dt.datetime.now(dt.UTC))
            question, parts = "What would the guard hold?", whole.parts[1:]  # without power
            return replace(whole, question=question, steps=NEXT_STEPS, parts=parts)

        reports.give(
            {
                "json": report.to_json,
                "sarif": partial(to_sarif, report, data.as_posix()),
                "html": lambda: html_page(told()),
                "markdown": lambda: markdown(told()),
            },
            report.verdict,
            partial(show_report, report, limit),
            console,
        )
    raise typer.Exit(exit_code(report))
