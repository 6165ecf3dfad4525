"""Smoke test of the benchmarks: runs small versions in parallel, and checks printed figures.

    python benchmarks/smoke.py               # all
    python benchmarks/smoke.py growth scan   # these

Each benchmark has a command and the figures that it must print. Bounds are wide, because small
versions have few texts: they find a detector that holds nothing or everything.
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
# Seconds after which a benchmark counts as failed.
PATIENCE = 1_200


class Figure(NamedTuple):
    """The first number of a cell in a printed table, and its bounds."""

    row: str  # start of the row
    column: str | int  # its head, or its position in a table without heads
    low: float = 0.0
    high: float = 1.0


class Smoke(NamedTuple):
    """A small version of a benchmark, and the figures that it must print."""

    figures: Sequence[Figure]
    arguments: Sequence[str] = ("--quick",)


# The longest run comes first.
ALL = {
    "growth": Smoke(
        [
            Figure("Wikipedia, random, own lineages |", "held", high=0.02),
            Figure("from nothing: Wikipedia", "held", high=0.02),
            Figure("near-duplicate docs", "recalled", high=0.01),
        ]
    ),
    "writes": Smoke([Figure("opened, SQLite | 500 | 100", "processor, ms", high=100)]),
    "held_floods": Smoke(
        [
            Figure("300", "clean, held or recalled", high=0.05),
            Figure("300", "raw fives, held or recalled", low=0.8),
        ]
    ),
    "sources": Smoke(
        [
            Figure("AWS docs | the same pages, a footer", "at once", high=0.03),
            Figure("Wikipedia | AWS docs", "at once", high=0.05),
            Figure("Wikipedia | mails", "twenties", high=0.2),
        ]
    ),
    "canaries": Smoke(
        [
            Figure("ragshield", "recall", low=1),
            Figure("ragshield", "precision", low=0.9),
            Figure("everywhere | black-box, 3", 4, low=0.8),
        ],
        ("--parts", "scenario", "web", "--seeds", "1"),
    ),
    "stored_neighbors": Smoke(
        [
            Figure("clean entries", 1, high=0.03),
            Figure("black-box, groups of 5", 1, low=0.95),
            Figure("PGVector, ef_search 200", 1, low=0.99),
        ]
    ),
    "poisoned_samples": Smoke([]),  # checks its figures itself
    "hotflip": Smoke(
        [
            Figure("clean, held out", "default guard: held", high=0.03),
            Figure("gibberish, answer text", "default guard: held", low=0.5),
        ]
    ),
    "ingestion": Smoke(
        [
            Figure("promptinjection_nq |", "instruction", low=0.98),
            Figure("Wikipedia |", "instruction", high=0.002),
        ]
    ),
    "singles": Smoke(
        [
            Figure("clean: the same source", "held", high=0.08),
            Figure("PoisonedRAG, question in front", "held", low=0.7),
            Figure("CorruptRAG-AS |", "held", low=0.7),
        ]
    ),
    "models": Smoke(
        [
            Figure("MiniLM | Wikipedia", "fives", low=0.9),
            Figure("WordLlama | Wikipedia", "fives", low=0.4),
            Figure("WordLlama | Wikipedia", "clean", high=0.05),
        ]
    ),
    "power": Smoke([Figure("wiki_passages", "five, said / seen", low=0.7)]),
    "one_by_one": Smoke([Figure("the README's attack", 1, low=9, high=10)]),
    "review_queue": Smoke([Figure("wikipedia, 1,500 known | black-box, each", 2, low=50, high=50)]),
    "workers": Smoke([Figure("Wikipedia | raw | 5 | SQLite | 2", 5, low=0.9)]),
    "throughput": Smoke([Figure("SQLite | 2", "errors", high=0)]),
    "fit_instruction_model": Smoke([Figure("1.0", "orders to models found", low=0.2)]),
    "ray_audit": Smoke([Figure("5,000", "partitions", low=10, high=10)]),
    "scan": Smoke(
        [
            Figure("security and Python", "clean named of those not trusted", high=0.012),
            Figure("security and Python", "order", low=3, high=3),
        ]
    ),
    "memory": Smoke(
        [
            Figure("MiniLM | other users", "clean held", high=0.03),
            Figure("poisoned notes", "no keys", low=0.5),
            Figure("poisoned notes", "keys", high=0.0),
            Figure("notes of an agent on poisoned pages", "keys", high=0.05),
        ]
    ),
    "joint_fpr": Smoke([Figure("SMS, ham", 3, high=0.015)]),
    "label_flipping": Smoke(
        [
            Figure("model, calibrated at 1 % | 40%", "recall", low=0.9),
            Figure("model, calibrated at 1 % | 40%", "FPR", high=0.02),
        ]
    ),
    "adversary": Smoke(
        [
            Figure("one batch of nothing else", "web natural, 5", low=0.85),
            Figure("fifties, shuffled", "web raw, 5", low=0.45),
        ]
    ),
    "stream": Smoke(
        [
            Figure("wikipedia | PoisonedRAG (NQ), black-box", 3, low=0.9),
            Figure("wikipedia | PoisonedRAG (NQ), black-box", 4, high=0.05),
        ]
    ),
    "retrieval": Smoke(
        [
            Figure("nq | black-box | 5", "recall", low=0.95),
            Figure("nq | black-box | 5", "clean", high=0.05),
        ]
    ),
}


def figure(printed: str, wanted: Figure) -> float | None:
    r"""Return the first number of a cell; ``None`` if there is no such row or column.

    Examples
    --------
    >>> table = "| text | held |\n|---|---|\n| clean | 0.010 [0.007, 0.014] |"
    >>> figure(table, Figure("clean", "held"))
    0.01
    """
    columns: list[str] = []
    lines = printed.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if following.startswith("|--"):
            columns = cells
        elif line.startswith(f"| {wanted.row}"):
            place = wanted.column
            if isinstance(place, str):
                if place not in columns:
                    continue
                place = columns.index(place)
            found = NUMBER.search(cells[place])
            return float(found.group().replace(",", "")) if found else None
    return None


def faults(smoke: Smoke, done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the faults of a run, one line each."""
    if done.returncode:
        return [f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"]
    found = []
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
    """Run small versions, and exit with an error if a figure is missing or out of bounds."""
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
