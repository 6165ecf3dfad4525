"""Several processes, one guard: poison that is spread over them, found as by one process.

Every process opens the same guard (``Guard.open``) and the same store. The texts of a target come
one by one, each to another process; one in five comes at the same instant as the next one of its
target. Writes benchmarks/results/workers.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from cliques import attack
from corpora import ROOT, load
from rich.progress import track

from ragshield_core import Batch, Guard, Report
from ragshield_core.adapters.keeper import Keeper, Standing
from ragshield_core.adapters.malformed import Columns, sift
from ragshield_core.adapters.mask import Claims, Mask
from ragshield_core.adapters.steps import Steps, own
from ragshield_core.entries import Entry, together
from ragshield_core.evaluation import proportion_interval
from ragshield_core.quarantine import HeldEntry
from ragshield_core.quarantine.entries import batch_of

KNOWN = 8_000
AT_ONCE = 0.2
HEAD = """# Several processes, one guard

Written by `benchmarks/workers.py`. {known} Wikipedia passages are adopted; then the texts of
poisonedrag_nq come one by one, in random order, each to the next process, one in five at the same
instant as another of its target. Held: the share that was held or recalled in the end, with the
Wilson 95 % interval. Texts a second: while they come, one process after the other but for those.

| database | texts | per target | processes | held | texts a second |
|---|---|---|---|---|---|"""


class Entries(Mask[Entry]):
    """A mask over entries themselves."""

    def id_of(self, item: Entry) -> str:
        """Return its id."""
        return item.id

    def claims_of(self, item: Entry) -> Claims:
        """Return what it claims."""
        return Claims(item.text, item.label, item.lineage, item.context)


class RowKeeper(Keeper[Entry]):
    """Keeps a store of row numbers, which all processes share, and a guard in step."""

    def __init__(self, guard: Guard, rows: Batch, store: MutableMapping[str, int]) -> None:
        super().__init__(guard, Entries())
        self._rows, self._store = rows, store

    def stored(self, ids: Sequence[str]) -> Steps[Standing[Entry]]:
        """Return the entries that are in the store."""
        found = yield own(lambda: [self._store.get(entry_id) for entry_id in ids])
        batch = self._rows.take([row for row in found if row is not None])
        return Standing(batch, list(batch))

    def _write(self, batch: Batch, how: Any, older: Sequence[Entry]) -> Steps[None]:  # noqa: ARG002
        rows = {entry_id: row for row, entry_id in enumerate(self._rows.ids)}
        yield own(self._store.update, {entry_id: rows[entry_id] for entry_id in batch.ids})

    def _delete(self, ids: Sequence[str], options: Any = None) -> Steps[None]:  # noqa: ARG002
        yield own(lambda: [self._store.pop(entry_id, None) for entry_id in ids])

    def _near(self, vector: list[float], k: int) -> Steps[Sequence[Entry]]:  # noqa: ARG002
        return []
        yield

    def _entries_of(self, held: Sequence[HeldEntry], embed: Any) -> Batch:  # noqa: ARG002
        return batch_of(held)

    def everything(self, *_: Any) -> Batch:
        """Return all that is stored."""
        return self._rows.take(sorted(self._store.values()))

    def write(self, batch: Batch) -> Report:
        """Write entries as an adapter does."""
        columns = Columns(
            ids=batch.ids,
            texts=batch.texts,
            vectors=batch.vectors,
            labels=batch.labels,
            lineages=batch.lineages,
            metadatas=batch.metadatas,
            contexts=batch.contexts,
        )
        return self.run(self.add(sift(columns, self.guard), lambda _: None))


def work(url: str, rows: Batch, store: MutableMapping[str, int], pipe: Connection) -> None:
    """Write what the parent asks for."""
    with closing(Guard.open(url)) as guard:
        keeper = RowKeeper(guard, rows, store)
        pipe.send("ready")
        while (row := pipe.recv()) is not None:
            keeper.write(rows.take([row]))
            pipe.send(row)


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database."""
    with TemporaryDirectory() as folder:
        if kind == "SQLite":
            yield f"sqlite:///{folder}/guard.db"
            return
        import pgserver  # noqa: PLC0415 - an extra of its own

        server = pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        server.cleanup()


def order(targets: Sequence[str], seed: int = 0) -> list[list[int]]:
    """Return which texts come at the same instant, one instant after the other."""
    rng = np.random.default_rng(seed)
    waiting = defaultdict(list)
    for number in rng.permutation(len(targets)).tolist():
        waiting[targets[number]].append(number)
    groups = []
    for of_target in waiting.values():
        while of_target:
            pair = len(of_target) > 1 and rng.random() < AT_ONCE / 2
            groups.append([of_target.pop() for _ in range(2 if pair else 1)])
    return [groups[number] for number in rng.permutation(len(groups)).tolist()]


def spread(kind: str, poison: Batch, targets: Sequence[str], known: Batch, n: int) -> list[Any]:
    """Return how many texts end up held with so many processes, of how many, and how fast."""
    rows = together([known, poison])
    context = multiprocessing.get_context("spawn")
    with database(kind) as url, context.Manager() as manager:
        store = manager.dict({entry_id: row for row, entry_id in enumerate(known.ids)})
        with closing(Guard.open(url)) as guard:
            guard.adopt(known)
        pipes = [context.Pipe() for _ in range(n)]
        children = [
            context.Process(target=work, args=(url, rows, store, theirs)) for _, theirs in pipes
        ]
        for child in children:
            child.start()
        for ours, _ in pipes:
            ours.recv()
        begin, turn = time.perf_counter(), 0
        for instant in track(order(targets), f"{kind}, {n} processes", transient=True):
            asked = []
            for number in instant:
                ours, _ = pipes[turn % n]
                ours.send(len(known) + number)
                asked.append(ours)
                turn += 1
            for ours in asked:
                ours.recv()
        seconds = time.perf_counter() - begin
        for ours, _ in pipes:
            ours.send(None)
        for child in children:
            child.join()
        with closing(Guard.open(url)) as guard:
            guard.quarantine.verify()
            held = len(guard.quarantine.held_ids(poison.ids))
        both = set(store) & guard.quarantine.held_ids(poison.ids)
        missing = set(poison.ids) - set(store) - guard.quarantine.held_ids(poison.ids)
        if both or missing:
            msg = f"{len(both)} texts are held and stored, {len(missing)} neither"
            raise SystemExit(msg)
    return [held, len(poison), seconds]


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two processes; writes nothing")
    quick = parser.parse_args().quick
    known = load("wiki_passages").take(range(1000 if quick else KNOWN))
    lines, results = [HEAD.format(known=f"{len(known):,}")], []
    for kind in ("SQLite",) if quick else ("SQLite", "PostgreSQL"):
        for per_target in (5,) if quick else (5, 3, 2):
            poison = attack("poisonedrag_nq", "text", per_target, one_lineage=False)
            targets = [str(row // per_target) for row in range(len(poison))]
            if quick:
                poison, targets = poison.take(range(20)), targets[:20]
            for n in (1, 2) if quick else (1, 2, 4, 8):
                held, of, seconds = spread(kind, poison, targets, known, n)
                results.append([kind, per_target, n, held, of, seconds])
                lines.append(
                    f"| {kind} | raw | {per_target} | {n} | "
                    f"{proportion_interval(held, of)} | {of / seconds:.1f} |"
                )
                print(lines[-1])
    if not quick:
        folder = ROOT / "benchmarks" / "results"
        (folder / "workers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "workers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
