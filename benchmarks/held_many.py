"""Cost of a quarantine with 100,000 held entries: opening a store, and each operation.

python benchmarks/held_many.py            # writes benchmarks/results/held_many.md
python benchmarks/held_many.py --quick    # small, writes nothing
python benchmarks/held_many.py --database postgresql+psycopg://...  # an empty database
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ragshield_core import Batch, Quarantine
from ragshield_core.model.entries import Entry
from ragshield_core.store.mask import Claims, Mask

DIM = 384
PARTS = 10  # per document
PAGE = 1000
ROUNDS = 20
OPEN_GOAL, GOAL = 2.0, 50.0  # seconds, milliseconds
RESULTS = Path(__file__).parent / "results"


class Parts(Mask[tuple[str, str]]):
    """A mask like LangChain's: the hidden items are parts of a document."""

    def id_of(self, item: tuple[str, str]) -> str:
        """Return the id."""
        return item[0]

    def claims_of(self, item: tuple[str, str]) -> Claims:
        """Return the text."""
        return Claims(item[1], None, None)

    def wholes_of(self, entry: Entry) -> frozenset[str]:
        """Return the document."""
        return frozenset([entry.metadata["doc_id"]])


def entries(start: int, end: int) -> Batch:
    """Return entries with vectors and metadata of usual size."""
    rng = np.random.default_rng(start)
    numbers = range(start, end)
    return Batch.of(
        ids=[f"entry-{i:08}" for i in numbers],
        texts=[f"a passage of text, number {i}. " * 15 for i in numbers],
        embeddings=rng.normal(size=(len(numbers), DIM)).astype(np.float32),
        metadatas=[
            {"source": f"page-{i}", "doc_id": f"doc-{i // PARTS}", "page": i} for i in numbers
        ],
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def milliseconds(work: Callable[[int], object]) -> tuple[float, float]:
    """Return the median and the worst time of some rounds."""
    times = [1000 * seconds(lambda i=i: work(i)) for i in range(ROUNDS)]  # type: ignore[misc]
    return float(np.median(times)), max(times)


def operations(quarantine: Quarantine, n: int) -> dict[str, Callable[[int], object]]:
    """Return the measured operations, each on its own entries."""
    mask = Parts()
    mask.load(quarantine)

    def ids(i: int, place: int) -> list[str]:
        return [f"entry-{(n * place) // 12 + i:08}"]

    def refresh(i: int) -> None:
        quarantine.hold(entries(n + 1000 + i, n + 1001 + i))
        mask.refresh(quarantine)

    return {
        "hold of 1 new entry": lambda i: quarantine.hold(entries(n + i, n + i + 1)),
        "hold of 1 entry again": lambda i: quarantine.hold(entries(i, i + 1)),
        "release of 1": lambda i: quarantine.release(ids(i, 1)),
        "confirm of 1": lambda i: quarantine.confirm(ids(i, 2)),
        "purge of 1": lambda i: quarantine.purge(ids(i, 3)),
        "held_ids of 100": lambda i: quarantine.held_ids([f"entry-{i + k:08}" for k in range(100)]),
        "released_among 100": lambda i: quarantine.released_among(entries(i, i + 100)),
        "confirmed_among 100": lambda i: quarantine.confirmed_among(entries(i, i + 100)),
        "show of 1": lambda i: quarantine.show(ids(i, 4)[0]),
        "list of 50": lambda _: quarantine.list(limit=50),
        "list of the parts of a document": lambda i: quarantine.list(documents=[f"doc-{i + 99}"]),
        "list of the confirmed": lambda _: quarantine.list("confirmed"),
        "count": lambda _: quarantine.count(),
        "version, nothing changed": lambda _: quarantine.database.version(),
        "hold of 1 and refresh of a mask": refresh,
    }


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--database", help="SQLAlchemy URL of an empty database; else an SQLite file"
    )
    args = parser.parse_args()
    n = 3_000 if args.quick else 100_000
    lines = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        quarantine = Quarantine(args.database or f"sqlite:///{folder}/quarantine.db")
        start = time.perf_counter()
        for page in range(0, n, PAGE):
            quarantine.hold(entries(page, min(page + PAGE, n)))
        filled = time.perf_counter() - start
        opened = [
            ("`prints()`", seconds(quarantine.prints)),
            ("`prints(metadata=True)`", seconds(lambda: quarantine.prints(metadata=True))),
            ("`Mask.load`", seconds(lambda: Parts().load(quarantine))),
        ]
        opened += [
            ("`log.verify_lines()`", seconds(quarantine.log.verify_lines)),
            ("`log.verify()`", seconds(quarantine.log.verify)),
        ]
        for name, took in opened:
            lines.append(f"| {name} | {took:.2f} |")
            print(lines[-1])
        singles = []
        for name, work in operations(quarantine, n).items():
            middle, worst = milliseconds(work)
            singles.append(f"| {name} | {middle:.2f} | {worst:.2f} |")
            print(singles[-1])
        quarantine.close()
    if args.quick or args.database:
        return
    text = f"""# A quarantine with {n:,} held entries

Written by `benchmarks/held_many.py`. An SQLite file; entries of {DIM} dimensions, about
450 characters and three keys of metadata, held {PAGE:,} at a time ({filled:.0f} s for all).
Python {platform.python_version()}.

## Opening

Seconds, once. Goal: at most {OPEN_GOAL:g} for what a store reads when it is opened. `Mask.load` is
of a mask that looks into the metadata, as LangChain's does; verification reads everything.

| what | seconds |
|---|---|
{chr(10).join(lines)}

## Single operations

Milliseconds, of {ROUNDS} rounds. Goal: at most {GOAL:g}, where what is asked for is small.

| operation | median | worst |
|---|---|---|
{chr(10).join(singles)}
"""
    (RESULTS / "held_many.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
