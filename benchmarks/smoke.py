"""Run small versions of the benchmarks, several at a time, and check figures that they print.

    python benchmarks/smoke.py               # all
    python benchmarks/smoke.py growth scan   # these

Each is a command and the figures that it must show. Bounds are wide: small versions have few texts.
They tell a detector that went blind, or holds everything, from one that works.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

FOLDER = Path(__file__).parent
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
QUICK = ("--quick",)
# Seconds after which a benchmark counts as failed.
PATIENCE = 1_200


class Figure(NamedTuple):
    """A number in a printed table, and where it must lie."""

    row: str  # how the row begins
    column: str
    low: float = 0.0
    high: float = 1.0


class Smoke(NamedTuple):
    """A small version of a benchmark: its figures, or words that it must print."""

    figures: Sequence[Figure] = ()
    words: str = ""
    arguments: Sequence[str] = QUICK


ALL = {
    "adversary": Smoke(
        [
            Figure("one batch of nothing else", "web natural, 5", low=0.8),
            Figure("fifties, shuffled", "web raw, 5", low=0.4),
        ],
        "Goals that are not met:\n\n- none",
    ),
    "sources": Smoke(
        [Figure("AWS docs | the same pages, a footer", "at once", high=0.02)], "13 of 13"
    ),
    "singles": Smoke(
        [
            Figure("clean: the same source", "held", high=0.08),
            Figure("PoisonedRAG, question in front", "held", low=0.7),
            Figure("CorruptRAG-AS |", "held", low=0.7),
        ]
    ),
    "stream": Smoke([Figure("wikipedia | PoisonedRAG (NQ), black-box", "recall", low=0.9)]),
    "retrieval": Smoke(
        [
            Figure("nq | black-box | 5", "recall", low=0.9),
            Figure("nq | black-box | 5", "clean", high=0.05),
        ]
    ),
}


def figure(printed: str, wanted: Figure) -> float | None:
    r"""Return the first number of a cell; ``None`` if there is no such row or column.

    Examples
    --------
    >>> table = "| text | held |\\n|---|---|\\n| clean | 0.010 [0.007, 0.014] |"
    >>> figure(table, Figure("clean", "held"))
    0.01
    """
    columns: list[str] = []
    lines = printed.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if following.startswith("|--"):
            columns = cells
        elif line.startswith(f"| {wanted.row}") and wanted.column in columns:
            found = NUMBER.search(cells[columns.index(wanted.column)])
            return float(found.group().replace(",", "")) if found else None
    return None


def faults(smoke: Smoke, done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what is wrong with a run, a line each."""
    if done.returncode:
        return [f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"]
    found = [] if smoke.words in done.stdout else [f"{smoke.words!r} was not printed"]
    for wanted in smoke.figures:
        value = figure(done.stdout, wanted)
        if value is None or not wanted.low <= value <= wanted.high:
            bounds = f"{wanted.low:g} to {wanted.high:g}"
            found.append(f"{wanted.row}, {wanted.column}: {value}, expected {bounds}")
    return found


def run(name: str) -> tuple[str, float, list[str]]:
    """Run one benchmark; return its name, seconds and faults."""
    begin = time.monotonic()
    command = [sys.executable, "-W", "ignore", str(FOLDER / f"{name}.py"), *ALL[name].arguments]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return name, time.monotonic() - begin, faults(ALL[name], done)


def main() -> None:
    """Run small versions, and end with an error if a figure is missing or out of its bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    names = parser.parse_args().names or list(ALL)
    table = Table("benchmark", "seconds", "faults")
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name, seconds, wrong in track(threads.map(run, names), total=len(names)):
            table.add_row(name, f"{seconds:.0f}", "\n".join(wrong) or "none")
            failed |= bool(wrong)
    Console(width=120).print(table)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
