"""Time of writes: bare store, screening alone, guarded in memory and in databases.

    python benchmarks/writes.py            # writes benchmarks/results/writes.md
    python benchmarks/writes.py --quick    # small, SQLite only, writes nothing
    python benchmarks/writes.py --profile  # SQLite, batches of 100 and of 1: time by function
    python benchmarks/writes.py --scale    # up to a million known; writes writes_scale.md

All detectors; vectors are given. Processor time counts the writing process; the work of the
PostgreSQL server shows in wall time only.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from corpora import many
from databases import KINDS, Databases, databases
from decisions import opened
from row_store import RowKeeper

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.database import Database
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.judge import Judge
from ragshield_core.screening import screening
from ragshield_core.screening.knowledge import Knowledge
from ragshield_core.store.keeper import Keeper

# Size of batch -> number of measured writes, after two warm-up writes.
WRITES = {1: 40, 100: 6, 600: 1}
WARM_UP = 2
KNOWN = (1_000, 5_000, 20_000)
GROWN = 40_000
SCALE = (1_000, 100_000, 1_000_000)
# Eight tasks that write one document each at the same time make about one batch of eight.
SCALE_WRITES = {1: 40, 8: 15, 100: 10}
LONGEST = 12  # words of repeated entries: a million are adopted in an hour less
# Steps of a write: where each begins, and its name; a detector's judgement has the detector's name.
STEPS: tuple[tuple[Any, str, str], ...] = (
    (Keeper, "run", "everything else"),
    (Judge, "read_ahead", "texts are read"),
    (screening, "judged", ""),
    (Knowledge, "prepared", "learning, for all processes"),
    (GuardState, "apply", "learning"),
    (Database, "write_rows", "database"),
)
STEPPED, EMBEDDED = 5_000, 2_000  # known entries, texts that are embedded in a second
RESULTS = Path(__file__).parent / "results"

Write = Callable[[Sequence[int]], object]


def timed(write: Write, rows: Iterator[int], size: int, n: int) -> np.ndarray:
    """Return the milliseconds of processor and wall time of each write, shape (n, 2)."""
    times = []
    for _ in range(n):
        some = [next(rows) for _ in range(size)]
        cpu, wall = time.process_time(), time.perf_counter()
        write(some)
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return 1000 * np.array(times)


def kept(guard: Guard, rows: Batch, store: dict[str, int] | None = None) -> Write:
    """Return a function that writes rows through a guard into a store, by default an empty one."""
    return RowKeeper(guard, rows, {} if store is None else store).write


def lines(
    label: str, known: int, write: Write, rows: Iterator[int], writes: Mapping[int, int] = WRITES
) -> Iterator[str]:
    """Yield a line of the table for each size of batch; ``writes`` are the measured writes."""
    timed(write, rows, 10, WARM_UP)
    for size, n in writes.items():
        times = timed(write, rows, size, n) / size
        (cpu, wall), (usual, _) = times.mean(axis=0), np.median(times, axis=0)
        yield f"| {label} | {known:,} | {size} | {cpu:.2f} | {usual:.2f} | {wall:.2f} |"


def in_use(guard: Guard, rows: Batch, known: int) -> None:
    """Let a guard adopt half of the first rows and learn the others, as one in use has."""
    guard.adopt(rows.take(range(known // 2)))
    for start in range(known // 2, known, 100):
        guard.writes.learn(rows.take(range(start, min(known, start + 100))))
    guard.writes.settled()


def made_in(rows: Batch, known: int, url: str) -> None:
    """Make a guard in a database that knows the first rows."""
    with closing(Guard.open(url)) as guard:
        in_use(guard, rows, known)


def table(rows: Batch, known: int, kinds: dict[str, Databases]) -> Iterator[str]:
    """Yield the lines of each way to write, at one size of the knowledge base."""
    coming = range(known, len(rows))
    with TemporaryDirectory() as folder:
        guard = Guard.default(quarantine=Quarantine("sqlite://"))
        in_use(guard, rows, known)
        guard.save(folder)
        bare = RowKeeper(guard, rows, {}).write_entries
        ways: dict[str, Write] = {
            "bare store": lambda some: bare(rows.take(some), None, []),
            "screening alone": lambda some: guard.screen(rows.take(some)),
            "guarded, in memory": kept(opened(folder), rows),
        }
        for label, write in ways.items():
            yield from lines(label, known, write, iter(coming))
    for name, made in kinds.items():
        url = made.new()
        made_in(rows, known, url)
        with closing(Guard.open(url)) as guard:
            yield from lines(f"opened, {name}", known, kept(guard, rows), iter(coming))
        made.drop(url)


def scaled(made: Databases, sizes: Sequence[int]) -> Iterator[str]:
    """Yield the lines of opened guards at each size of the knowledge base, with their adoption."""
    needed = sum(size * n for size, n in SCALE_WRITES.items()) + 10 * WARM_UP
    for known in sizes:
        rows, url = many(known + needed, LONGEST), made.new()
        began = time.perf_counter()
        with closing(Guard.open(url)) as guard:
            guard.adopt(rows.take(range(needed, len(rows))))
        took = time.perf_counter() - began
        began = time.perf_counter()
        with closing(Guard.open(url)) as guard:
            opening = time.perf_counter() - began
            coming = iter(range(needed))
            for line in lines("opened, SQLite", known, kept(guard, rows), coming, SCALE_WRITES):
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                yield f"{line} {took:,.0f} | {opening:,.1f} | {peak:.1f} |"
        made.drop(url)


class Steps(ExitStack):
    """Time of each step of writes, without the steps inside it.

    The threads of a write wait for each other, so that one list of open steps is enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[float] = []  # time of the steps inside each open one
        for owner, name, label in STEPS:
            step = self._timed(getattr(owner, name), label)
            self.enter_context(mock.patch.object(owner, name, step))

    def _timed(self, call: Callable[..., Any], label: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._open.append(0.0)
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.perf_counter() - begin
                self.seconds[label or f"judged by {args[0].name}"] += took - self._open.pop()
                if self._open:
                    self._open[-1] += took

        return timed


def stepped(rows: Batch, made: Databases) -> Iterator[str]:
    """Yield a table of the steps of a guarded write."""
    url, found = made.new(), []
    made_in(rows, STEPPED, url)
    with closing(Guard.open(url)) as guard:
        write, coming = kept(guard, rows), iter(range(STEPPED, len(rows)))
        timed(write, coming, 10, WARM_UP)
        for size, n in ((1, 40), (100, 4)):
            with Steps() as steps:
                timed(write, coming, size, n)
            found.append({name: 1000 * s / size / n for name, s in steps.seconds.items()})
    made.drop(url)
    single, batches = found
    yield f"| step, {STEPPED:,} known | in a batch of 100, ms | of a single one, ms |"
    yield "|---|---|---|"
    for name in sorted(batches, key=lambda name: -batches[name]):
        if max(batches[name], single.get(name, 0.0)) >= 0.005:  # noqa: PLR2004 - shown as 0.01
            yield f"| {name} | {batches[name]:.2f} | {single.get(name, 0.0):.2f} |"
    yield f"| together | {sum(batches.values()):.2f} | {sum(single.values()):.2f} |"


def beside_embedding(lines_found: Sequence[str]) -> str:
    """Return a sentence about guarded writes beside a quick embedder, from the table's lines."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines_found]
    wall = {(c[0], c[1], c[2]): float(c[5]) for c in cells}
    known = cells[-1][1]
    each = 1000 / EMBEDDED
    said = ", ".join(
        f"{1000 / (each + wall[label, known, '100']):,.0f} ({label})"
        for label in dict.fromkeys(c[0] for c in cells if c[0].startswith("opened"))
    )
    return (
        f"Beside an embedder of {EMBEDDED:,} texts a second, one process that embeds a batch of "
        f"100 and then writes it makes so many documents a second, {known} known: {said}."
    )


def growth(rows: Batch, url: str) -> str:
    """Return a sentence about the write times of a guard that grows from nothing."""
    store: dict[str, int] = {}
    with closing(Guard.open(url)) as guard:
        write = kept(guard, rows, store)
        cpu, wall = timed(write, iter(range(len(rows))), 100, len(rows) // 100).T
        held = guard.quarantine.held_ids(rows.ids)
        if guard.writes.known_ids() != store.keys() or held | store.keys() != set(rows.ids):
            msg = "what the guard knows and holds is not what was stored and what was not."
            raise SystemExit(msg)
    said = [
        f"{name} median {np.median(x):.0f} ms, 95th percentile {np.quantile(x, 0.95):.0f}, 99th "
        f"{np.quantile(x, 0.99):.0f} ({np.quantile(x, 0.99) / np.median(x):.1f} medians)"
        for name, x in (("processor", cpu), ("wall", wall))
    ]
    return (
        f"From nothing to {len(rows):,} on SQLite in batches of 100, a write took: "
        f"{'; '.join(said)}. {len(rows) / wall.sum() * 1000:.0f} documents a second."
    )


def profile(rows: Batch, known: int, made: Databases) -> None:
    """Print the time of a guarded write by function."""
    url = made.new()
    made_in(rows, known, url)
    with closing(Guard.open(url)) as guard:
        write, coming = kept(guard, rows), iter(range(known, len(rows)))
        timed(write, coming, 10, WARM_UP)
        for size in (100, 1):
            profiler = cProfile.Profile(time.process_time)
            profiler.enable()
            timed(write, coming, size, WRITES[size])
            profiler.disable()
            print(f"{WRITES[size]} writes of {size}")
            for order in ("cumulative", "tottime"):
                pstats.Stats(profiler).sort_stats(order).print_stats(90)


def scale(sizes: Sequence[int]) -> None:
    """Measure opened guards at some sizes of the knowledge base, and write the result."""
    found = []
    with databases(("SQLite",)) as kinds:
        for line in scaled(kinds["SQLite"], sizes):
            print(line, flush=True)
            found.append(line)
    page = f"""# What a guarded write costs as the knowledge base grows

Written by `benchmarks/writes.py --scale`. Milliseconds a document, clean entries, all detectors,
vectors given, an opened guard on SQLite, {os.cpu_count()} cores. Written entries are whole
passages. Known entries beyond those of the corpora are the same ones with noisy vectors and
{LONGEST} of their words, shuffled. Eight tasks that write at once make batches of eight. The last
columns are the time to adopt the knowledge base and to open the guard, and the peak memory of the
process so far. Python {platform.python_version()}.

| write | known | batch | processor, ms | median, ms | wall, ms | adopted, s | opened, s | GiB |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(found)}
"""
    print(page)
    (RESULTS / "writes_scale.md").write_text(page, encoding="utf-8")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, SQLite only, writes nothing")
    parser.add_argument("--profile", action="store_true", help="prints time by function, no more")
    parser.add_argument("--scale", action="store_true", help="up to a million known, no more")
    parser.add_argument("--known", type=int, nargs="+", help="known entries")
    parser.add_argument("--grown", type=int, default=GROWN, help="entries of the growth")
    arguments = parser.parse_args()
    quick, names = arguments.quick, ("SQLite",) if arguments.quick else KINDS
    sizes, grown = ((500,), 1_000) if quick else (arguments.known or KNOWN, arguments.grown)
    needed = sum(size * n for size, n in WRITES.items()) + 10 * WARM_UP
    if arguments.profile:
        with databases(("SQLite",)) as kinds:
            profile(many(sizes[-1] + needed), sizes[-1], kinds["SQLite"])
        return
    if arguments.scale:
        scale(arguments.known or SCALE)
        return
    found = []
    with databases(names) as kinds:
        for known in sizes:
            for line in table(many(known + needed), known, kinds):
                print(line, flush=True)
                found.append(line)
        steps = () if quick else tuple(stepped(many(STEPPED + 500), kinds["SQLite"]))
        even = growth(many(grown), kinds["SQLite"].new())
    page = f"""# What a guarded write costs

Written by `benchmarks/writes.py`. Milliseconds a document, clean entries of several corpora, all
detectors, vectors given, on {os.cpu_count()} cores. Processor time is that of the writing process:
the mean, in which thresholds are that were taken anew, and the median of the writes. The store is a
dict of rows. The guard has adopted half of the known entries, and the others came later. Python
{platform.python_version()}.

| write | known | batch | processor, ms | median, ms | wall, ms |
|---|---|---|---|---|---|
{chr(10).join(found)}

{beside_embedding(found)}

Steps of a write on SQLite, wall time without the steps inside:

{chr(10).join(steps)}

{even}
"""
    print(page)
    if not quick:
        (RESULTS / "writes.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
