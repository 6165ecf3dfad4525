"""Several processes with one guard: recall of poison spread over them, against one process.

    python benchmarks/workers.py            # writes benchmarks/results/workers.*, cell by cell
    python benchmarks/workers.py --resume   # the same, without existing cells
    python benchmarks/workers.py --quick    # two processes, SQLite only, writes nothing

Every process opens the same guard (``Guard.open``) and the same store. The texts of a target come
one by one, each to another process; one in five comes at the same instant as another of its target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from cliques import attack, knowledge_base
from databases import KINDS, Databases, databases
from rates import proportion_interval
from rich.progress import track
from row_store import RowKeeper

from ragshield_core import Batch, Guard
from ragshield_core.model.entries import concatenate

KNOWN = 8_000
AT_ONCE = 0.2
PROCESSES = (1, 2, 4, 8)
CORPORA = {"Wikipedia": "wikipedia", "web": "web + nq"}
# Number of clean passages after each attack text.
CLEAN_AMONG = {"Wikipedia": 0, "web": 2}
TEXTS = {"raw": "text", "black-box": "text_blackbox"}
RESULTS = Path(__file__).parent / "results"
HEAD = """# Several processes, one guard

Written by `benchmarks/workers.py`. {known:,} passages are adopted, of Wikipedia, or of the web and
those that are retrieved for the very questions ("web + nq" of `cliques.md`); then the texts of
poisonedrag_nq come one by one, in random order, each to the next process, one in five at the same
instant as another of its target. On the web, two clean passages follow each time. Held: the share
that was held or recalled in the end, with the Wilson 95 % interval. Which of two that come at the
same instant is first makes a difference in one process as well: "pairs turned" is one process with
the other one first. Others: texts of which one process decided otherwise, in either direction.
Seconds: while they come, one process after the other but for those, on {cores} cores.

| passages | texts | of a target | database | processes | held | difference to one | others \
| seconds |
|---|---|---|---|---|---|---|---|---|"""


class Cell(NamedTuple):
    """One measurement: the settings of a row."""

    corpus: str
    per_target: int
    kind: str
    texts: str
    processes: int
    turned: bool = False  # swaps the two texts of each instant

    @property
    def name(self) -> str:
        """Name of the cell in the results."""
        return " | ".join(map(str, self[:5])) + " | turned" * self.turned

    @property
    def writers(self) -> str:
        """Number of processes, as shown in the table."""
        return f"{self.processes}{', pairs turned' * self.turned}"

    @property
    def baseline(self) -> str:
        """Name of the baseline cell with one process."""
        return self._replace(processes=1, turned=False).name


class Result(NamedTuple):
    """Result of a cell: numbers of the held texts, number of all texts, and seconds."""

    held: list[int]
    of: int
    seconds: float


class Parts(NamedTuple):
    """The adopted entries, and the poison and clean entries of the stream."""

    known: Batch
    poison: Batch
    clean: Batch


def quiet() -> None:
    """Turn off log messages about single writes."""
    logging.getLogger("ragshield").setLevel(logging.ERROR)


def work(url: str, rows: Batch, store: MutableMapping[str, int], pipe: Connection) -> None:
    """Write the rows that the parent sends."""
    quiet()
    with closing(Guard.open(url)) as guard:
        keeper = RowKeeper(guard, rows, store)
        pipe.send("ready")
        while (chosen := pipe.recv()) is not None:
            keeper.write(chosen)
            pipe.send("written")


def order(targets: Sequence[str], seed: int = 0) -> list[list[int]]:
    """Return the texts of each instant, in order."""
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


def schedule(parts: Parts, targets: Sequence[str], *, turned: bool) -> list[list[list[int]]]:
    """Return the batches of rows of each instant, in order."""
    known, poison, clean = map(len, parts)
    instants = order(targets)
    after = np.array_split(known + poison + np.arange(clean), len(instants))
    moments = []
    for instant, some in zip(instants, after, strict=True):
        moments.append([[known + number] for number in (instant[::-1] if turned else instant)])
        if len(some):
            moments.append([some.tolist()])
    return moments


@contextmanager
def working(
    url: str, rows: Batch, store: MutableMapping[str, int], n: int
) -> Iterator[list[Connection]]:
    """Yield pipes to n processes, which write the rows that they receive."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(n):
        ours, theirs = context.Pipe()
        children.append(context.Process(target=work, args=(url, rows, store, theirs)))
        children[-1].start()
        theirs.close()  # so that the failure of a child is noticed
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    yield pipes
    for pipe in pipes:
        pipe.send(None)
    for child in children:
        child.join()


def spread(
    url: str, parts: Parts, targets: Sequence[str], n: int, *, turned: bool = False
) -> Result:
    """Return the poison held by n processes on a database with the adopted entries."""
    known, poison, _ = parts
    rows = concatenate(parts)
    with multiprocessing.get_context("spawn").Manager() as manager:
        store = manager.dict({entry_id: row for row, entry_id in enumerate(known.ids)})
        with working(url, rows, store, n) as pipes:
            in_turn = itertools.cycle(pipes)
            begin = time.perf_counter()
            moments = schedule(parts, targets, turned=turned)
            for moment in track(moments, f"{n} processes", transient=True):
                asked = [next(in_turn) for _ in moment]
                for pipe, batch in zip(asked, moment, strict=True):
                    pipe.send(batch)
                for pipe in asked:
                    pipe.recv()
            seconds = time.perf_counter() - begin
        with closing(Guard.open(url)) as guard:
            guard.quarantine.log.verify()
            held = guard.quarantine.held_ids(rows.ids)
        stored = set(store.keys())
    both, missing = stored & held, set(rows.ids) - stored - held
    if both or missing:
        msg = f"{len(both)} texts are held and stored, {len(missing)} neither"
        raise SystemExit(msg)
    numbers = [number for number, entry_id in enumerate(poison.ids) if entry_id in held]
    return Result(numbers, len(poison), seconds)


class Adopted:
    """Databases in which a guard has adopted a corpus, made on demand."""

    def __init__(self, kinds: dict[str, Databases], known: int) -> None:
        self._kinds, self._known = kinds, known
        self._corpora: dict[str, Batch] = {}
        self._urls: dict[tuple[str, str], str] = {}

    def _corpus(self, name: str) -> Batch:
        """Return a corpus in random order; its first entries are known."""
        if name not in self._corpora:
            whole = knowledge_base(CORPORA[name])
            self._corpora[name] = whole.take(np.random.default_rng(0).permutation(len(whole)))
        return self._corpora[name]

    def parts(self, name: str, poison: Batch) -> Parts:
        """Return the adopted entries, and those of the stream."""
        corpus, end = self._corpus(name), self._known + CLEAN_AMONG[name] * len(poison)
        known, clean = range(self._known), range(self._known, end)
        return Parts(corpus.take(known), poison, corpus.take(clean))

    def copy(self, name: str, kind: str) -> str:
        """Return the URL of a new copy of the database with the adopted corpus."""
        made = self._kinds[kind]
        if (name, kind) not in self._urls:
            self._urls[name, kind] = made.new()
            with closing(Guard.open(self._urls[name, kind])) as guard:
                guard.adopt(self._corpus(name).take(range(self._known)))
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
        one = results[cell.baseline].held
        difference = (len(held) - len(one)) / of
        lines.append(
            f"| {cell.corpus} | {cell.texts} | {cell.per_target} | {cell.kind} | {cell.writers} "
            f"| {proportion_interval(len(held), of)} | {difference:+.3f} "
            f"| {len(set(held) ^ set(one))} | {seconds:.0f} |"
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
        cells = [Cell(*of) for of in product(CORPORA, (5, 3, 2), KINDS, TEXTS, PROCESSES)]
        turned = [cell._replace(turned=True) for cell in cells if cell.processes == 1]
        places = [cell[:4] for cell in cells]
        cells = sorted((*cells, *turned), key=lambda cell: places.index(cell[:4]))
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
            parts = adopted.parts(cell.corpus, poison)
            results[cell.name] = spread(url, parts, targets, cell.processes, turned=cell.turned)
            adopted.drop(cell.kind, url)
            print(table(results, [cell]).splitlines()[-1], flush=True)
            if not quick:
                as_json = {name: result._asdict() for name, result in results.items()}
                file.write_text(json.dumps(as_json) + "\n", encoding="utf-8")
                page = table(results, cells)
                (RESULTS / "workers.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
