"""Several processes, one guard: poison that is spread over them, found as by one process.

    python benchmarks/workers.py            # writes benchmarks/results/workers.*, cell by cell
    python benchmarks/workers.py --resume   # the same, without the cells that are there already
    python benchmarks/workers.py --quick    # two processes, SQLite only, writes nothing

Every process opens the same guard (``Guard.open``) and the same store. The texts of a target come
one by one, each to another process; one in five comes at the same instant as another of its target.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from contextlib import closing
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from cliques import attack, knowledge_base
from databases import KINDS, Databases, databases
from rich.progress import track
from row_store import RowKeeper

from ragshield_core import Batch, Guard
from ragshield_core.entries import together
from ragshield_core.evaluation import proportion_interval

KNOWN = 8_000
AT_ONCE = 0.2
PROCESSES = (1, 2, 4, 8)
CORPORA = {"Wikipedia": "wikipedia", "web": "web + nq"}
TEXTS = {"raw": "text", "black-box": "text_blackbox"}
RESULTS = Path(__file__).parent / "results"
HEAD = """# Several processes, one guard

Written by `benchmarks/workers.py`. {known:,} passages are adopted, of Wikipedia, or of the web and
those that are retrieved for the very questions ("web + nq" of `cliques.md`); then the texts of
poisonedrag_nq come one by one, in random order, each to the next process, one in five at the same
instant as another of its target. Held: the share that was held or recalled in the end, with the
Wilson 95 % interval. Others: texts of which one process decided otherwise than several, in either
direction. Texts a second: while they come, one process after the other but for those, on {cores}
cores.

| passages | texts | of a target | database | processes | held | difference to one | others \
| texts a second |
|---|---|---|---|---|---|---|---|---|"""


class Cell(NamedTuple):
    """What is measured once."""

    corpus: str
    per_target: int
    kind: str
    texts: str
    processes: int

    @property
    def name(self) -> str:
        """How it is called among the results."""
        return " | ".join(map(str, self))

    @property
    def of_one(self) -> str:
        """The name of what it is compared with."""
        return self._replace(processes=1).name


class Result(NamedTuple):
    """What came of a cell: the numbers of the texts that are held, of how many, in how long."""

    held: list[int]
    of: int
    seconds: float


def quiet() -> None:
    """Say nothing of single writes."""
    logging.getLogger("ragshield").setLevel(logging.ERROR)


def work(url: str, rows: Batch, store: MutableMapping[str, int], pipe: Connection) -> None:
    """Write what the parent asks for."""
    quiet()
    with closing(Guard.open(url)) as guard:
        keeper = RowKeeper(guard, rows, store)
        pipe.send("ready")
        while (row := pipe.recv()) is not None:
            keeper.write([row])
            pipe.send(row)


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


def spread(url: str, known: Batch, poison: Batch, targets: Sequence[str], n: int) -> Result:
    """Return what so many processes hold of poison, on a database that has adopted the known."""
    rows = together([known, poison])
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        store = manager.dict({entry_id: row for row, entry_id in enumerate(known.ids)})
        pipes = [context.Pipe() for _ in range(n)]
        children = [
            context.Process(target=work, args=(url, rows, store, theirs)) for _, theirs in pipes
        ]
        for child in children:
            child.start()
        for _, theirs in pipes:
            theirs.close()  # so that a child that fails is noticed
        for ours, _ in pipes:
            ours.recv()
        begin, turn = time.perf_counter(), 0
        for instant in track(order(targets), f"{n} processes", transient=True):
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
            held = guard.quarantine.held_ids(poison.ids)
        stored = set(store.keys())
    both, missing = stored & held, set(poison.ids) - stored - held
    if both or missing:
        msg = f"{len(both)} texts are held and stored, {len(missing)} neither"
        raise SystemExit(msg)
    numbers = [number for number, entry_id in enumerate(poison.ids) if entry_id in held]
    return Result(numbers, len(poison), seconds)


class Adopted:
    """Databases in which a guard has adopted a corpus, made when asked for."""

    def __init__(self, kinds: dict[str, Databases], known: int) -> None:
        self._kinds, self._known = kinds, known
        self._corpora: dict[str, Batch] = {}
        self._urls: dict[tuple[str, str], str] = {}

    def corpus(self, name: str) -> Batch:
        """Return random entries of a corpus."""
        if name not in self._corpora:
            whole = knowledge_base(CORPORA[name])
            chosen = np.random.default_rng(0).permutation(len(whole))[: self._known]
            self._corpora[name] = whole.take(chosen)
        return self._corpora[name]

    def copy(self, name: str, kind: str) -> str:
        """Return the URL of a database of its own in which the corpus is adopted."""
        made = self._kinds[kind]
        if (name, kind) not in self._urls:
            self._urls[name, kind] = made.new()
            with closing(Guard.open(self._urls[name, kind])) as guard:
                guard.adopt(self.corpus(name))
        return made.new(like=self._urls[name, kind])

    def drop(self, kind: str, url: str) -> None:
        """Delete a copy."""
        self._kinds[kind].drop(url)


def table(results: dict[str, Result], cells: Sequence[Cell]) -> str:
    """Return the results as a page."""
    lines = [HEAD.format(known=KNOWN, cores=os.cpu_count())]
    for cell in cells:
        if cell.name not in results:
            continue
        held, of, seconds = results[cell.name]
        one = results[cell.of_one].held
        difference = (len(held) - len(one)) / of
        lines.append(
            f"| {cell.corpus} | {cell.texts} | {cell.per_target} | {cell.kind} | {cell.processes} "
            f"| {proportion_interval(len(held), of)} | {difference:+.3f} "
            f"| {len(set(held) ^ set(one))} | {of / seconds:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two processes; writes nothing")
    parser.add_argument("--resume", action="store_true", help="keep the results that are there")
    arguments = parser.parse_args()
    quick = arguments.quick
    quiet()
    cells = [Cell("Wikipedia", 5, "SQLite", "raw", n) for n in (1, 2)]
    if not quick:
        parts = product(CORPORA, (5, 3, 2), KINDS, TEXTS, PROCESSES)
        cells = [Cell(*part) for part in parts]
    file = RESULTS / "workers.json"
    results: dict[str, Result] = {}
    if arguments.resume and file.exists():
        there = json.loads(file.read_text(encoding="utf-8"))
        results = {name: Result(**result) for name, result in there.items()}
    with databases(("SQLite",) if quick else KINDS) as kinds:
        adopted = Adopted(kinds, 1000 if quick else KNOWN)
        for cell in cells:
            if cell.name in results:
                continue
            n = cell.per_target
            poison = attack("poisonedrag_nq", TEXTS[cell.texts], n, one_lineage=False)
            if quick:
                poison = poison.take(range(20))
            targets = [str(row // n) for row in range(len(poison))]
            url = adopted.copy(cell.corpus, cell.kind)
            known = adopted.corpus(cell.corpus)
            results[cell.name] = spread(url, known, poison, targets, cell.processes)
            adopted.drop(cell.kind, url)
            print(table(results, [cell]).splitlines()[-1], flush=True)
            if not quick:
                as_json = {name: result._asdict() for name, result in results.items()}
                file.write_text(json.dumps(as_json) + "\n", encoding="utf-8")
                page = table(results, cells)
                (RESULTS / "workers.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
