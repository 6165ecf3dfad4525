"""Throughput of two, four and eight processes that write into one database, against one process.

    python benchmarks/throughput.py                  # writes benchmarks/results/throughput.md
    python benchmarks/throughput.py --entries 1000   # per process of eight; else 2,000
    python benchmarks/throughput.py --embedding      # beside a model; throughput_embedding.md
    python benchmarks/throughput.py --quick          # two processes, SQLite only, writes nothing

Every process opens the same store and the same guard (``Guard.open``), which has all detectors and
no entries yet. At the end every entry must be either in the store or held, and the guard must know
exactly the stored entries.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import platform
import time
from collections.abc import MutableMapping, Sequence
from contextlib import closing
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from corpora import many
from databases import KINDS, databases
from row_store import RowKeeper

from ragshield_core import Batch, Guard

ENTRIES, PROCESSES, BATCH = 2_000, (1, 2, 4, 8), 100
# Seconds for which a model sleeps over a text, entries of each process beside it, and processes.
EMBEDDING, BESIDE, TOGETHER = 0.02, 1_500, (1, 4, 8)
KNOWN = (0, 20_000)  # entries known before
RESULTS = Path(__file__).parent / "results"


class Done(NamedTuple):
    """The report of a process at its end."""

    errors: list[str]
    milliseconds: list[float]  # time of each write


class Result(NamedTuple):
    """The result of all processes."""

    seconds: float
    held: int
    errors: list[str]
    milliseconds: list[float]


def work(
    url: str,
    rows: Batch,
    mine: Sequence[int],
    store: MutableMapping[str, int],
    pipe: Connection,
    embedding: float,
) -> None:
    """Write some of the rows in batches, after a signal from the parent; embed each before."""
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    errors, times = [], []
    with closing(Guard.open(url)) as guard:
        keeper = RowKeeper(guard, rows, store)
        pipe.send("ready")
        pipe.recv()
        for start in range(0, len(mine), BATCH):
            begin = time.perf_counter()
            time.sleep(embedding * len(mine[start : start + BATCH]))
            try:
                keeper.write(mine[start : start + BATCH])
            except Exception as error:  # noqa: BLE001 - counted: users must see no error
                errors.append(f"{type(error).__name__}: {error}")
            times.append(1000 * (time.perf_counter() - begin))
    pipe.send(Done(errors, times))


def measure(url: str, rows: Batch, n: int, embedding: float = 0.0) -> Result:
    """Return the result of n processes that write all rows."""
    context = multiprocessing.get_context("spawn")
    parts = np.array_split(np.arange(len(rows)), n)
    with context.Manager() as manager:
        store = manager.dict()
        Guard.open(url).close()
        pipes, children = [], []
        for part in parts:
            ours, theirs = context.Pipe()
            given = (url, rows, part.tolist(), store, theirs, embedding)
            child = context.Process(target=work, args=given)
            child.start()
            theirs.close()  # so that the failure of a child is noticed
            pipes.append(ours)
            children.append(child)
        for pipe in pipes:
            pipe.recv()
        start = time.perf_counter()
        for pipe in pipes:
            pipe.send("go")
        done: list[Done] = [pipe.recv() for pipe in pipes]
        seconds = time.perf_counter() - start
        for child in children:
            child.join()
        stored = set(store.keys())
    with closing(Guard.open(url)) as guard:
        guard.quarantine.log.verify()
        held = guard.quarantine.held_ids(rows.ids)
        known, pending = set(guard.writes.known(rows.ids)), guard.status().pending
    wrong = {
        "stored and held": len(stored & held),
        "neither stored nor held": len(set(rows.ids) - stored - held),
        "stored and not known": len(stored - known),
        "known and not stored": len(known - stored),
        "pending": pending,
    }
    errors = [error for one in done for error in one.errors]
    if any(wrong.values()):
        msg = f"counts are not exact with {n} processes: {wrong}; errors: {errors[:5]}"
        raise SystemExit(msg)
    return Result(
        seconds,
        len(held),
        errors,
        [times for one in done for times in one.milliseconds],
    )


def beside_a_model() -> None:
    """Write the results of processes that embed each batch before they write it."""
    lines = []
    with databases(KINDS) as kinds:
        for (name, made), known in product(kinds.items(), KNOWN):
            alone, rows, before = 0.0, many(known + max(TOGETHER) * BESIDE), made.new()
            with closing(Guard.open(before)) as guard:
                if known:
                    guard.adopt(rows.take(range(known)))
            for processes in TOGETHER:
                url, coming = made.new(before), range(known, known + processes * BESIDE)
                result = measure(url, rows.take(coming), processes, EMBEDDING)
                made.drop(url)
                rate = len(coming) / result.seconds
                alone = alone or rate
                share, errors = rate / alone / processes, len(result.errors)
                lines.append(
                    f"| {name} | {known:,} | {processes} | {rate:.0f} | {share:.2f} | {errors} |"
                )
                print(lines[-1], flush=True)
            made.drop(before)
    page = f"""# Several processes that embed and write

Written by `benchmarks/throughput.py --embedding`. Each process writes {BESIDE} clean entries in
batches of {BATCH}, and sleeps {1000 * EMBEDDING:.0f} ms a text before each, as if it waited for a
model; {os.cpu_count()} cores, all detectors. Known: entries before. Of linear: entries a second,
divided by those of one process and by the number of processes. From nothing, thresholds are taken
anew whenever the knowledge base has grown by a fifth. Python {platform.python_version()}.

| database | known | processes | entries a second | of linear | errors |
|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    (RESULTS / "throughput_embedding.md").write_text(page, encoding="utf-8")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two processes; writes nothing")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="of each of eight processes")
    parser.add_argument("--embedding", action="store_true", help="beside a model that sleeps")
    arguments = parser.parse_args()
    if arguments.embedding:
        beside_a_model()
        return
    quick = arguments.quick
    numbers, each = ((1, 2), 600) if quick else (PROCESSES, arguments.entries)
    rows = many(max(numbers) * each)
    lines = []
    with databases(("SQLite",) if quick else KINDS) as kinds:
        for name, made in kinds.items():
            alone = 0.0
            for processes in numbers:
                url = made.new()
                result = measure(url, rows, processes)
                made.drop(url)
                alone = alone or result.seconds
                times = result.milliseconds
                lines.append(
                    f"| {name} | {processes} | {result.seconds:.0f} "
                    f"| {len(rows) / result.seconds:.0f} | {alone / result.seconds:.2f} "
                    f"| {np.median(times):.0f} / {np.quantile(times, 0.95):.0f} "
                    f"| {len(result.errors)} | {result.held} |"
                )
                print(lines[-1], *result.errors[:5], sep="\n", flush=True)
    page = f"""# Several processes that write into one database

Written by `benchmarks/throughput.py`. {len(rows):,} clean entries of several corpora, in batches of
{BATCH}, divided among the processes, on {os.cpu_count()} cores; all detectors, nothing known at
first. Afterwards every entry was in the store or held, none in both,
nothing pending, and the guard knew exactly what the store had; the log was verified. Milliseconds
of a write: median / 95th percentile. Errors: exceptions that reached the writer. Python
{platform.python_version()}.

| database | processes | seconds | entries a second | against one | write, ms \
| errors | held |
|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    print(page)
    if not quick:
        (RESULTS / "throughput.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
