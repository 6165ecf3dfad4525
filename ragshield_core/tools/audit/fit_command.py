"""``ragshield fit``: fit a guard on a knowledge base on disk, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.guard import Guard
from ragshield_core.logs import told
from ragshield_core.model.errors import CalibrationError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.audit.command import (
    ERROR,
    Bar,
    ReadingOptions,
    check_fpr,
    check_parent,
    console,
    errors,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.options import takes


@takes(ReadingOptions)
def fit_command(
    reading: ReadingOptions,
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
) -> None:
    """Fit a guard with every built-in detector, calibrate it, and save it.

    Exit code 0: done; 2: an error. A guard that could not be calibrated is saved all the same.
    """
    with no_crash_looks_like_a_finding():
        check_parent(save)
        check_fpr(fpr)
        runner = reading.runner()
        guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=reading.seed)
        with told(errors), Bar() as bar:
            if runner is None:
                guard.fit(reading.knowledge_base(data, bar).batch)
            else:
                guard.fit(reading.parts(data), engine=runner, progress=bar.tell)
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
