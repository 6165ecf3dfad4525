"""What it costs that workers share a guard: looks of reads and screenings, and writes.

    python benchmarks/shared_guard.py            # writes benchmarks/results/shared_guard.md
    python benchmarks/shared_guard.py --quick    # small, SQLite only, writes nothing

A `GuardedVectorStore` in memory with all detectors, around a guard that was built and around one
that was opened on the same kind of database. PostgreSQL is a server of its own (pgserver) on the
same machine, reached through a socket.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from ragshield_core import Guard, Quarantine
from ragshield_langchain import GuardedVectorStore

DIM = 64
KNOWN = 200
BATCH = 10
RESULTS = Path(__file__).parent / "results"


def milliseconds(work: Callable[[int], object], n: int) -> float:
    """Return the median time of work."""
    times = []
    for number in range(n):
        start = time.perf_counter()
        work(number)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


@contextmanager
def databases(folder: Path, *, server: bool) -> Iterator[dict[str, str]]:
    """Yield the URLs of databases."""
    urls = {"SQLite": f"sqlite:///{folder}/guard.db"}
    running = None
    if server:
        import pgserver  # noqa: PLC0415 - an extra of its own

        running = pgserver.get_server(folder / "pg", cleanup_mode="stop")
        uri = running.get_uri()
        urls["PostgreSQL"] = uri.replace("postgresql://", "postgresql+psycopg://", 1)
    try:
        yield urls
    finally:
        if running is not None:
            running.cleanup()


def measure(name: str, url: str, n: int) -> list[str]:
    """Return the rows of one database."""
    guards = {
        "built": Guard.default(quarantine=Quarantine(url, namespace="built")),
        "opened": Guard.open(url, "opened"),
    }
    rows = []
    for kind, guard in guards.items():
        inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=DIM))
        store = GuardedVectorStore(inner, guard=guard, name=kind)
        store.add_texts([f"text {row} of what is known" for row in range(KNOWN)])
        read = milliseconds(lambda _, store=store: store.get_by_ids(["missing"]), 20 * n)
        look = milliseconds(lambda _, guard=guard: guard.catch_up(), 20 * n)

        def write(number: int, store: GuardedVectorStore = store) -> None:
            store.add_texts([f"text {number} {row} that is new" for row in range(BATCH)])

        rows.append(f"| {name}, {kind} | {read:.4f} | {look:.4f} | {milliseconds(write, n):.1f} |")
        guard.close()
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, SQLite only, writes nothing")
    arguments = parser.parse_args()
    with (
        TemporaryDirectory(prefix="ragshield", ignore_cleanup_errors=True) as folder,
        databases(Path(folder), server=not arguments.quick) as urls,
    ):
        n = 3 if arguments.quick else 100
        rows = [row for name, url in urls.items() for row in measure(name, url, n)]
    table = f"""# What a shared guard costs

Written by `benchmarks/shared_guard.py`. Medians in milliseconds, nobody else writing: a read by ids
of nothing, which is the look at what is held elsewhere; the look of a screening at what was learned
elsewhere; and a write of {BATCH} documents, durable in the database. Python
{platform.python_version()}.

| guard | read | look | write |
|---|---|---|---|
{chr(10).join(rows)}
"""
    print(table)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "shared_guard.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
