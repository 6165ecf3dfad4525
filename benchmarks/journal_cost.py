"""What the journal costs: bytes of an entry, times of writing, reading and asking for its position.

    python benchmarks/journal_cost.py            # writes benchmarks/results/journal_cost.md
    python benchmarks/journal_cost.py --quick    # small, SQLite only, writes nothing

SQLite is a file; PostgreSQL is a server of its own (pgserver) on the same machine, reached through
a socket. Events say that 100 entries were learned, with synthetic vectors.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from databases import KINDS, databases
from rich.progress import track
from sqlalchemy import Engine
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from ragshield_core.database import Database
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.entries import Batch
from ragshield_core.quarantine.digests import Digests
from ragshield_core.sharing import Journal, Snapshots

T = TypeVar("T")

DIM = 384
BATCH = 100
PAGE = 100
DIGESTS = Digests("a key of the benchmark")
RESULTS = Path(__file__).parent / "results"
GOALS = {"SQLite": 0.3, "PostgreSQL": 1.0}  # ms, of the median of asking for the position


class Shared:
    """Transactions on a database."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.write = self.database.write

    @property
    def engine(self) -> Engine:
        """The engine, for its name and its end."""
        with self.database.engine() as engine:
            return engine

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work in a transaction that reads."""
        with self.database.read() as session:
            return work(session)

    def size(self) -> int:
        """Return the bytes of the journal with its indices."""
        if self.engine.dialect.name == "sqlite":
            query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        else:
            query = "SELECT pg_total_relation_size('ragshield_journal')"
        return int(self.read(lambda session: session.execute(sql(query)).scalar_one()))


def learned(number: int, rng: np.random.Generator, words: int) -> Event:
    """Return an event: entries with ids, labels, lineages and vectors, and texts if wanted."""
    vectors = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"document-{number}-{row}" for row in range(BATCH)]
    texts = [""] * BATCH
    if words:
        drawn = rng.integers(0, 5000, size=(BATCH, words))
        texts = [" ".join(f"w{code}" for code in row) for row in drawn]
    entries = Batch.of(
        ids=names,
        texts=texts,
        embeddings=vectors,
        labels=[f"label {row % 3}" for row in range(BATCH)],
        lineages=[f"folder/file-{number}.pdf" for _ in names],
    )
    return Event(change=Change.LEARNED, entries=entries)


def milliseconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def spread(values: list[float]) -> str:
    """Return the median and the 95th percentile."""
    return f"{statistics.median(values):.2f} ({np.quantile(values, 0.95):.2f})"


def measure(name: str, shared: Shared, n_events: int, n_asked: int) -> Iterator[str]:
    """Yield lines of the table."""
    rng = np.random.default_rng(1)
    for words in (0, 100):
        journal = Journal(f"{words} words", digests=DIGESTS)
        before = shared.size()
        appends, finishes = [], []
        for number in track(range(n_events), description=f"{name}, {words} words"):
            event = learned(number, rng, words)
            write = lambda s: journal.append(  # noqa: E731
                s, [event], writer="w", expected=number, pending=[True]
            )
            appends.append(milliseconds(lambda: shared.write(write)))
            finish = lambda s: journal.close_pending(s, [number + 1], writer="w")  # noqa: E731
            finishes.append(milliseconds(lambda: shared.write(finish)))
        size = (shared.size() - before) / n_events / BATCH

        def catch_up() -> None:
            position = 0
            while found := shared.read(lambda s: journal.since(s, position, PAGE)):
                position = found[-1].position

        read = statistics.median(milliseconds(catch_up) for _ in range(3)) * 1000 / n_events
        asked = [milliseconds(lambda: shared.read(journal.head)) for _ in range(n_asked + 10)][10:]
        what = f"texts of {words} words" if words else "no texts"
        yield (
            f"| {name}, {what} | {size:,.0f} | {spread(appends)} | {spread(finishes)} | "
            f"{read:,.0f} | {spread(asked)} |"
        )


def measure_snapshot(name: str, shared: Shared, n_entries: int) -> str:
    """Return a line of the table of snapshots."""
    vectors = np.random.default_rng(2).normal(size=(n_entries, DIM)).astype(np.float32)
    kept = Snapshots(digests=DIGESTS)
    longest = 0.0

    def write(work: Callable[[Session], T]) -> T:
        nonlocal longest
        start = time.perf_counter()
        done = shared.write(work)
        longest = max(longest, 1e3 * (time.perf_counter() - start))
        return done

    ids = [f"document-{row}" for row in range(n_entries)]
    wrote = milliseconds(lambda: kept.write(write, 1, {"ids": ids}, {"vectors": vectors}))
    made = shared.read(kept.latest)
    assert made is not None  # noqa: S101
    read = milliseconds(lambda: shared.read(lambda s: kept.read(s, made)))
    return f"| {name} | {wrote / 1e3:.2f} | {longest:.0f} | {read / 1e3:.2f} |"


def kept_bytes() -> str:
    """Say what other ways to keep vectors would save."""
    event = learned(0, np.random.default_rng(3), 0)
    assert event.entries is not None  # noqa: S101
    vectors = event.entries.vectors
    data = vectors.tobytes()
    took = milliseconds(lambda: zlib.compress(data, 1))
    packed = len(zlib.compress(data, 1)) / len(data)
    rounded = vectors.astype(np.float16).astype(np.float32)
    lost = float(np.abs(vectors - rounded).max())
    return (
        f"Vectors are kept as float32, {4 * DIM:,} bytes an entry. Compressed (zlib, level 1) "
        f"they would be\n{packed:.0%} of that, for {took:.1f} ms an event; as float16 half of it, "
        f"and off by up to {lost:.0e} a\ncoordinate: not what was learned."
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, SQLite only, writes nothing")
    arguments = parser.parse_args()
    n_events, n_asked, n_entries = (20, 50, 2_000) if arguments.quick else (1000, 2000, 100_000)
    lines, snapshots = [], []
    with databases(("SQLite",) if arguments.quick else KINDS) as kinds:
        for name, made in kinds.items():
            shared = Shared(made.new())
            lines += measure(name, shared, n_events, n_asked)
            snapshots.append(measure_snapshot(name, shared, n_entries))
            shared.engine.dispose()
    goals = ", ".join(f"{name} {goal:g} ms" for name, goal in GOALS.items())
    table = f"""# What the journal costs

Written by `benchmarks/journal_cost.py`. {n_events:,} events, each of {BATCH} learned entries with
ids, labels, lineages and vectors of {DIM} dimensions. Milliseconds: median (95th percentile).
Appended is one pending event a transaction, finished the transaction that closes it; read is a
catch-up over 1,000 events in pages of {PAGE}. Digests with a key are included. Goal for the median
of asking for the position: {goals}. Python {platform.python_version()}.

| database | bytes an entry | append | finish | read 1,000 events | ask for the position |
|---|---|---|---|---|---|
{chr(10).join(lines)}

{kept_bytes()}

A snapshot of {n_entries:,} such entries, vectors and ids:

| database | write, s | longest transaction, ms | read, s |
|---|---|---|---|
{chr(10).join(snapshots)}
"""
    print(table)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "journal_cost.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
