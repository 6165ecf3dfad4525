"""What it costs that workers share a guard: looks, writes beside embedding, and opening it.

    python benchmarks/shared_guard.py                   # writes benchmarks/results/shared_guard.md
    python benchmarks/shared_guard.py --parts opening   # one part, writes nothing
    python benchmarks/shared_guard.py --quick           # small, SQLite only, writes nothing

A `GuardedVectorStore` in memory with all detectors, around a guard that was built and around one
that was opened on the same kind of database. PostgreSQL is a server of its own (pgserver) on the
same machine, reached through a socket.
"""

from __future__ import annotations

import argparse
import logging
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

from corpora import load, many
from databases import KINDS, Databases, databases
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from looked_up import LookedUp
from rich.progress import track

from ragshield_core import Guard, Quarantine
from ragshield_core.sharing import shared_writes as sharing
from ragshield_langchain import GuardedVectorStore

DIM = 64
LOOKED_AT, SMALL = 200, 10  # known, and new at once, where looks are measured
ADOPTED, BATCH, BATCHES = 8_000, 100, 40  # where writes are compared with embedding
RATIO_GOAL = 1.05
KNOWN = 91_000  # and a tail of the journal, where opening is measured: rows, entries of each
TAILS = ((0, 0), (1_000, 1), (90, 100))
OPENING_GOALS = "15 s from a snapshot, 2 s for a tail of 1,000 rows"
PARTS = ("looks", "writes", "opening")
RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def milliseconds(work: Callable[[int], object], n: int) -> float:
    """Return the median time of work."""
    return 1000 * statistics.median(seconds(lambda i=i: work(i)) for i in range(n))  # type: ignore[misc]


def looks(kinds: dict[str, Databases], *, quick: bool) -> Iterator[str]:
    """Yield what a look at what others have done costs, and a small write."""
    n = 3 if quick else 100
    yield f"""## Looks

Medians in milliseconds, nobody else writing: a read by ids of nothing, which is the look at what is
held elsewhere; the look of a screening at what was learned elsewhere; and a write of {SMALL}
documents, durable in the database, {LOOKED_AT} being known.

| guard | read | look | write |
|---|---|---|---|"""
    for name, made in kinds.items():
        url = made.new()
        guards = {
            "built": Guard.default(quarantine=Quarantine(url, namespace="built")),
            "opened": Guard.open(url, "opened"),
        }
        for kind, guard in guards.items():
            inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=DIM))
            store = GuardedVectorStore(inner, guard=guard, name=kind)
            store.add_texts([f"text {row} of what is known" for row in range(LOOKED_AT)])
            read = milliseconds(lambda _, store=store: store.get_by_ids(["missing"]), 20 * n)  # type: ignore[misc]
            look = milliseconds(lambda _, guard=guard: guard.writes.catch_up(), 20 * n)  # type: ignore[misc]

            def write(number: int, store: GuardedVectorStore = store) -> None:
                store.add_texts([f"text {number} {row} that is new" for row in range(SMALL)])

            wrote = milliseconds(write, n)
            yield f"| {name}, {kind} | {read:.4f} | {look:.4f} | {wrote:.1f} |"
            guard.close()


def writes(kinds: dict[str, Databases], *, quick: bool) -> Iterator[str]:
    """Yield what a guarded write costs beside embedding what is written."""
    from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - slow to import

    n_known, n_batches = (1_000, 3) if quick else (ADOPTED, BATCHES)
    passages = load("wiki_passages").take(range(n_known + n_batches * BATCH))
    known = passages.take(range(n_known))
    embeddings = LookedUp(passages)
    model = MiniLMEmbeddings()
    model.embed_documents(["to warm up"])
    stores: dict[str, InMemoryVectorStore | GuardedVectorStore] = {}
    guards = {}
    for name, made in kinds.items():
        url = made.new()
        guards[f"{name}, built"] = Guard.default(quarantine=Quarantine(url, namespace="built"))
        guards[f"{name}, opened"] = Guard.open(url, "opened")
    for name in ("no guard", *guards):
        inner = InMemoryVectorStore(embeddings)
        inner.add_texts(known.texts, ids=list(known.ids))
        stores[name] = inner
        if name in guards:
            stores[name] = GuardedVectorStore.adopt(
                inner, guard=guards[name], name=name, progress=False
            )
    embedded: list[float] = []
    wrote: dict[str, list[float]] = {name: [] for name in stores}
    for number in track(range(n_batches), "writes"):
        rows = range(n_known + number * BATCH, n_known + (number + 1) * BATCH)
        part = passages.take(rows)
        texts, ids = list(part.texts), list(part.ids)
        embedded.append(seconds(lambda texts=texts: model.embed_documents(texts)))  # type: ignore[misc]
        for name, store in stores.items():
            add = lambda s=store, t=texts, i=ids: s.add_texts(t, ids=i)  # noqa: E731
            wrote[name].append(seconds(add))
    for guard in guards.values():
        guard.close()
    usual, mean = statistics.median(embedded), statistics.mean(embedded)
    yield f"""
## Writes beside embedding

{n_batches} batches of {BATCH} passages of Wikipedia are added to {n_known:,} that were adopted.
Embedding them by all-MiniLM-L6-v2 in float32 on the CPU takes {1000 * usual:.0f} ms a batch
(median; mean {1000 * mean:.0f} ms). They are written with vectors that were made before; the ratio
is of embedding and writing to embedding alone, once by medians, once by means: these have in them
that thresholds are taken anew whenever the knowledge base has grown by a tenth, and, where the
guard is opened, that a snapshot is written. Goal: {RATIO_GOAL:g}.

| guard | write, median, ms | mean, ms | ratio | of means |
|---|---|---|---|---|"""
    for name, times in wrote.items():
        middle, average = statistics.median(times), statistics.mean(times)
        yield (
            f"| {name} | {1000 * middle:.1f} | {1000 * average:.1f} "
            f"| {1 + middle / usual:.3f} | {1 + average / mean:.3f} |"
        )


def opening(kinds: dict[str, Databases], *, quick: bool) -> Iterator[str]:
    """Yield how long opening a guard takes, from a snapshot and with a tail behind it."""
    n_known, tails = (1_000, ((0, 0), (20, 1))) if quick else (KNOWN, TAILS)
    entries = many(n_known + max(rows * size for rows, size in tails))
    yield f"""
## Opening

A guard with all detectors has adopted {n_known:,} entries: passages of Wikipedia and the web, pages
of documentation, queries of a bank, and, past those, the same with their words shuffled and noise
on their vectors. Behind the snapshot the journal has rows that say what was learned. Seconds; the
tail is what opening takes longer than from the snapshot alone, where a process was killed: who
closes leaves none. The longest tails have a tenth of what is known: then a snapshot is written.
Goals: {OPENING_GOALS}.

| database | rows behind the snapshot | entries of each | open | tail |
|---|---|---|---|---|"""
    for name, made in kinds.items():
        adopted = made.new()
        with closing(Guard.open(adopted)) as guard:
            guard.adopt(entries.take(range(n_known)))
        base = 0.0
        for rows, size in tails:
            url = made.new(like=adopted)
            if rows:
                # As who is killed: who closes leaves no tail.
                killed = mock.patch.object(sharing, "SNAPSHOT_AT_CLOSE", math.inf)
                with killed, closing(Guard.open(url)) as guard:
                    for row in track(range(rows), f"{rows} rows of {size}", transient=True):
                        start = n_known + row * size
                        guard.learn(entries.take(range(start, start + size)))
            took = seconds(lambda url=url: Guard.open(url).close())  # type: ignore[misc]
            base = base or took
            made.drop(url)
            yield f"| {name} | {rows:,} | {size} | {took:.2f} | {took - base:.2f} |"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, SQLite only, writes nothing")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    arguments = parser.parse_args()
    quick, parts = arguments.quick, {"looks": looks, "writes": writes, "opening": opening}
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    lines = [
        "# What a shared guard costs\n",
        f"Written by `benchmarks/shared_guard.py`. Python {platform.python_version()}.\n",
    ]
    print("\n".join(lines))
    with databases(("SQLite",) if quick else KINDS) as kinds:
        for part in arguments.parts:
            for line in parts[part](kinds, quick=quick):
                print(line, flush=True)
                lines.append(line)
    if not quick and tuple(arguments.parts) == PARTS:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "shared_guard.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
