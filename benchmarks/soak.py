"""A guard under load for a long time: memory, latency, and remains of replaced entries.

    python benchmarks/soak.py            # writes benchmarks/results/soak.md, takes half an hour
    python benchmarks/soak.py --quick    # small, writes nothing
    python benchmarks/soak.py --minutes 10 --rounds 20

One process, a guard with all detectors opened on an SQLite file, around LangChain's store in
memory; passages of Wikipedia and poison of poisonedrag_nq, with their stored vectors.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import platform
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from corpora import load
from langchain_core.vectorstores import InMemoryVectorStore
from looked_up import LookedUp
from rich.progress import track

from ragshield_core import Guard
from ragshield_langchain import GuardedVectorStore

ADDED, UPDATED, SEARCHES = 20, 5, 5  # per step
BATCH = 100  # entries per call in a round
POISONED_EVERY, REVIEW_EVERY = 5, 10  # in steps
WAITING = 50  # most held entries that wait for review
GROWTH_GOAL = 0.05
WORKS = ("add", "update", "delete", "search", "bare search")
SETTLED_AFTER = 2  # minutes until the memory baseline, which is compared with the end
RESULTS = Path(__file__).parent / "results"


class State(NamedTuple):
    """Sizes of a guard in memory and on disk."""

    resident: int  # MiB
    saved: int  # KiB
    slots: int
    snapshot: int  # KiB of the latest
    journal: int  # rows
    database: int  # KiB
    log: int  # rows


def resident() -> int:
    """Return the memory of this process, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class World:
    """A guarded store of constant size."""

    def __init__(self, folder: Path, known: int) -> None:
        self._folder, self._file = folder, folder / "guard.db"
        passages, poison = load("wiki_passages"), load("poisonedrag_nq", text="text_blackbox")
        texts = passages.texts
        self._texts, self._poison = itertools.cycle(texts), itertools.cycle(poison.texts)
        self._rng = np.random.default_rng(0)
        self._made = 0
        self.live: deque[str] = deque()
        self._held: deque[str] = deque()
        inner = InMemoryVectorStore(LookedUp(passages, poison))
        ids = self._new_ids(known)
        inner.add_texts([next(self._texts) for _ in ids], ids=ids)
        self._inner = inner
        self.guard = Guard.open(f"sqlite:///{self._file}")
        self.store = GuardedVectorStore.adopt(inner, guard=self.guard, progress=False)
        self.live.extend(ids)
        self._questions = texts[:200]

    def _new_ids(self, n: int) -> list[str]:
        self._made += n
        return [f"entry-{number}" for number in range(self._made - n, self._made)]

    def add(self, n: int, poisoned: int = 0) -> None:
        """Add new entries, some of them poisoned."""
        texts = [next(self._texts) for _ in range(n)] + [
            next(self._poison) for _ in range(poisoned)
        ]
        self._write(texts, self._new_ids(len(texts)))

    def update(self, n: int) -> None:
        """Replace the texts of some entries."""
        chosen = self._rng.choice(len(self.live), n, replace=False)
        ids = [self.live[row] for row in sorted(chosen.tolist())]
        gone = set(ids)
        self.live = deque(i for i in self.live if i not in gone)
        self._write([next(self._texts) for _ in ids], ids)
        there = set(self.live)
        report = self.store.last_report
        recalled = {decision.entry_id for decision in report.retroactive}
        # If the new revision is held, the old one stays.
        self.live.extend(i for i in ids if i not in there | recalled)

    def _write(self, texts: list[str], ids: list[str]) -> None:
        self.store.add_texts(texts, ids=ids)
        report = self.store.last_report
        held = {decision.entry_id for decision in report.quarantined}
        recalled = {decision.entry_id for decision in report.retroactive}
        self._held.extend(sorted(held | recalled))
        self.live = deque(i for i in self.live if i not in recalled)
        self.live.extend(i for i in ids if i not in held)

    def delete(self, n: int) -> None:
        """Delete the oldest entries."""
        self.store.delete([self.live.popleft() for _ in range(max(0, n))])

    def search(self) -> None:
        """Search for one of the questions."""
        question = self._questions[int(self._rng.integers(len(self._questions)))]
        self.store.similarity_search(question, k=4)

    def bare_search(self) -> None:
        """Search the bare store for one of the questions."""
        question = self._questions[int(self._rng.integers(len(self._questions)))]
        self._inner.similarity_search(question, k=4)

    def review(self, keep: int) -> None:
        """Release one held entry; purge the oldest ones, except ``keep`` entries."""
        if self._held:
            released = self._held.pop()
            self.store.release([released], by="reviewer")
            if released not in self.live:
                self.live.append(released)
        old = [self._held.popleft() for _ in range(len(self._held) - keep)]
        if old:
            self.store.purge(old, by="reviewer")

    def state(self) -> State:
        """Return the current sizes."""
        saved = self._folder / "saved"
        self.guard.save(saved)
        manifest = json.loads((saved / "ragshield.json").read_text(encoding="utf-8"))
        n_bytes = sum(path.stat().st_size for path in saved.iterdir())
        with closing(sqlite3.connect(self._file)) as database:
            (latest,) = database.execute(
                "SELECT id FROM ragshield_snapshots ORDER BY position DESC LIMIT 1"
            ).fetchone()
            (snapshot,) = database.execute(
                "SELECT sum(length(data)) FROM ragshield_snapshot_chunks WHERE snapshot = ?",
                (latest,),
            ).fetchone()
            (journal,) = database.execute("SELECT count(*) FROM ragshield_journal").fetchone()
            (log,) = database.execute("SELECT count(*) FROM ragshield_audit_log").fetchone()
        on_disk = sum(path.stat().st_size for path in self._folder.glob("guard.db*"))
        return State(
            resident=resident() >> 20,
            saved=n_bytes >> 10,
            slots=max(_values_of("capacity", manifest)),
            snapshot=snapshot >> 10,
            journal=journal,
            database=on_disk >> 10,
            log=log,
        )


def _values_of(key: str, values: Any) -> Iterator[int]:
    """Yield the values of a key at every depth."""
    if isinstance(values, dict):
        for name, value in values.items():
            if name == key:
                yield value
            else:
                yield from _values_of(key, value)
    elif isinstance(values, list):
        for value in values:
            yield from _values_of(key, value)


def under_load(world: World, known: int, minutes: float) -> tuple[list[str], list[int]]:
    """Return a line for each minute, and the memory at its end."""
    lines, memory = [], []
    end = time.monotonic() + 60 * minutes
    step = 0
    while time.monotonic() < end:
        times: dict[str, list[float]] = {name: [] for name in WORKS}
        until, before = min(end, time.monotonic() + 60), step
        while time.monotonic() < until:
            step += 1
            poisoned = 1 if step % POISONED_EVERY == 0 else 0
            works: list[tuple[str, Callable[[], None]]] = [
                ("add", lambda poisoned=poisoned: world.add(ADDED, poisoned)),  # type: ignore[misc]
                ("update", lambda: world.update(UPDATED)),
                *[("search", world.search), ("bare search", world.bare_search)] * SEARCHES,
                ("delete", lambda: world.delete(len(world.live) - known)),
            ]
            for name, work in works:
                start = time.perf_counter()
                work()
                times[name].append(1000 * (time.perf_counter() - start))
            if step % REVIEW_EVERY == 0:
                world.review(WAITING)
        memory.append(resident())
        cells = [
            f"{np.median(column):.1f} / {np.quantile(column, 0.95):.1f}"
            for column in times.values()
        ]
        row = [len(memory), step - before, *cells, f"{memory[-1] / 2**20:.0f}"]
        lines.append(f"| {' | '.join(map(str, row))} |")
        print(lines[-1], flush=True)
    return lines, memory


def in_rounds(world: World, known: int, rounds: int) -> list[State]:
    """Return the sizes after each round that replaces all entries."""
    states = [world.state()]
    for number in range(rounds):
        for _ in track(range(known // BATCH), f"round {number + 1}", transient=True):
            if number % 2:  # new texts under the same ids
                world.update(BATCH)
            else:
                world.add(BATCH)
                world.delete(len(world.live) - known)
        world.review(0)
        states.append(world.state())
        print(states[-1], flush=True)
    return states


def page(minutes: list[str], memory: list[int], states: list[State], known: int) -> str:
    """Return the results as a page."""
    growth = memory[-1] / memory[min(SETTLED_AFTER, len(memory)) - 1] - 1
    rounds = [
        f"| {number} | {' | '.join(f'{value:,}' for value in state)} |"
        for number, state in enumerate(states)
    ]
    return f"""# A guard under load for long

Written by `benchmarks/soak.py`. One process; all detectors; {known:,} passages of Wikipedia
adopted; an SQLite file. Python {platform.python_version()}.

## {len(minutes)} minutes of load

As fast as it goes: a step adds {ADDED} entries, every {POISONED_EVERY}th of them a poisoned one
as well, replaces {UPDATED}, searches {SEARCHES} times and deletes the oldest, so that
the knowledge base stays of its size. Every {REVIEW_EVERY} steps a held entry is released, and all
but the latest {WAITING} are purged. Milliseconds: median / 95th percentile. A snapshot is written
whenever a thousand entries have come, by the write that brings it to that. Memory grew by
{growth:.1%} from the end of minute {min(SETTLED_AFTER, len(memory))} on (goal: less than
{GROWTH_GOAL:.0%}). A bare search is one of the store inside, right after.

| minute | steps | {" | ".join(WORKS)} | memory, MiB |
|---|---|---|---|---|---|---|---|
{chr(10).join(minutes)}

## {len(states) - 1} rounds of replacing all entries

In odd rounds by entries with other ids, in even ones under the same ids; {BATCH} at once; what is
held is purged after each. Slots: of the largest index. A snapshot is written every thousand
entries and two are kept, with the journal from the older one on; the file keeps what they free. The
log of the quarantine is kept for good.

| round | memory, MiB | saved guard, KiB | slots | snapshot, KiB | journal, rows | database, KiB \
| log, rows |
|---|---|---|---|---|---|---|---|
{chr(10).join(rounds)}
"""


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    known, minutes, rounds = 5_000, arguments.minutes, arguments.rounds
    if arguments.quick:
        known, minutes, rounds = 1_000, 0.1, 2
    with TemporaryDirectory(prefix="ragshield", ignore_cleanup_errors=True) as folder:
        for part in ("load", "rounds"):
            (Path(folder) / part).mkdir()
        world = World(Path(folder) / "rounds", known)
        states = in_rounds(world, known, rounds)
        world.guard.close()
        world = World(Path(folder) / "load", known)
        lines, memory = under_load(world, known, minutes)
        world.guard.close()
    text = page(lines, memory, states, known)
    print(text)
    if not arguments.quick:
        (RESULTS / "soak.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
