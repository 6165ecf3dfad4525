"""How long the review page takes with 100,000 entries held, and what cases cost when one is held.

    python benchmarks/review_speed.py            # writes benchmarks/results/review_speed.md
    python benchmarks/review_speed.py --quick    # 2,000 entries, writes nothing

Time of the server: from a request to its whole answer, within one process. SQLite and PostgreSQL.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from databases import KINDS, databases
from rich.progress import track
from starlette.testclient import TestClient

from ragshield_core import Batch, Quarantine
from ragshield_core.model.findings import Decision, Finding, Verdict
from ragshield_core.tools.review import Reviewer, review_app
from ragshield_core.tools.review.cases import Cases, Order

RESULTS = Path(__file__).parent / "results"
DIM, SIZE, PAGE, HELD = 384, 5, 1_000, 100_000  # entries of a group, held at a time, in the end
REQUESTS, GOAL = 100, 100.0  # of each kind; milliseconds
DETECTORS = ("clique", "trigger_phrase", "leading_question", "hidden_text")


def batch_of(start: int, end: int) -> tuple[Batch, list[Decision]]:
    """Return entries of a usual size in groups of five, and what was found of them."""
    rng = np.random.default_rng(start)
    numbers = range(start, end)
    batch = Batch.of(
        ids=[f"entry-{i:08}" for i in numbers],
        texts=[f"passage {i:x} about {rng.integers(1 << 60):x}. " * 15 for i in numbers],
        embeddings=rng.normal(size=(len(numbers), DIM)).astype(np.float32),
        lineages=[f"page-{i // 50}" for i in numbers],
    )
    decisions = []
    for i in numbers:
        first = i - i % SIZE
        finding = Finding(
            detector=DETECTORS[(i // SIZE) % len(DETECTORS)],
            entry_id=f"entry-{i:08}",
            score=9.0,
            threshold=6.9,
            p_value=float(rng.uniform(1e-5, 1e-2)),
            evidence="one of a group of 5 of different lineages",
            related_ids=tuple(f"entry-{j:08}" for j in range(first, first + SIZE) if j != i),
        )
        decisions.append(
            Decision(entry_id=finding.entry_id, verdict=Verdict.QUARANTINE, findings=(finding,))
        )
    return batch, decisions


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


class Visitor:
    """Asks for pages; each request is another reviewer's, for nobody may ask so often."""

    def __init__(self, quarantine: Quarantine) -> None:
        names = itertools.count()
        app = review_app(
            quarantine, authenticate=lambda _: Reviewer(name=f"reviewer {next(names) // 50}")
        )
        self._client = TestClient(app, base_url="http://localhost")

    def look(self, path: str) -> None:
        """Ask for a page."""
        answer = self._client.get(path)
        if answer.status_code != 200:  # noqa: PLR2004 - OK
            msg = f"{path} was answered with {answer.status_code}."
            raise SystemExit(msg)


def asked(quarantine: Quarantine, n_held: int, n: int) -> dict[str, list[float]]:
    """Return the milliseconds of requests of each kind."""
    cases = Cases(quarantine)
    n_pages = -(-cases.page().n_cases // 50)
    numbers = [case.number for case in cases.page(limit=n).cases]
    entries = np.random.default_rng(0).integers(n_held, size=n).tolist()
    with quarantine.database.read() as session:
        keyed = [
            milliseconds(
                lambda i=i: (
                    session.connection()
                    .exec_driver_sql(
                        f"SELECT * FROM ragshield_quarantine WHERE number = {i + 1}"  # noqa: S608
                    )
                    .all()
                )
            )
            for i in entries
        ]
    found = {"one SELECT by primary key": keyed}
    visitor = Visitor(quarantine)
    visitor.look("/")
    for order in Order:
        found[f"queue, by {order}"] = [
            milliseconds(lambda: visitor.look(f"/?order={order}")) for _ in range(n)
        ]
    found["queue, last page"] = [
        milliseconds(lambda: visitor.look(f"/?page={n_pages}")) for _ in range(n)
    ]
    found["a case"] = [milliseconds(lambda c=c: visitor.look(f"/cases/{c}")) for c in numbers]
    narrowed: dict[str, dict[str, str]] = {
        "by detector": {"detector": "trigger_phrase"},
        "by source": {"source": f"page-{n_held // 100}"},
        "search, found": {"search": f"entry-{n_held // 2:08}"},
        "search, found nowhere": {"search": "no such words"},
    }
    for name, values in narrowed.items():  # without the page around it
        found[f"queue's queries, {name}"] = [
            milliseconds(lambda values=values: cases.page(**values)) for _ in range(max(1, n // 4))
        ]
    return found


def held_with_and_without(url: str, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of a hold of 1,000 entries without cases, and with."""
    times: dict[bool, list[float]] = {False: [], True: []}
    quarantine, place = Quarantine(url), 10_000_000
    for _ in range(rounds):
        for cases, each in times.items():
            batch, decisions = batch_of(place, place + PAGE)
            place += PAGE
            if cases:
                each.append(milliseconds(lambda: quarantine.hold(batch, decisions)))
            else:
                with patch("ragshield_core.quarantine.changes.follow"):
                    each.append(milliseconds(lambda: quarantine.hold(batch, decisions)))
    quarantine.close()
    return float(np.median(times[False])), float(np.median(times[True]))


def measured(kinds: Sequence[str], n_held: int, n: int) -> tuple[list[str], list[str]]:
    """Return the rows of both tables."""
    pages, holds = [], []
    with databases(kinds) as kept:
        for kind, some in kept.items():
            quarantine = Quarantine(some.new())
            for start in track(range(0, n_held, PAGE), kind, transient=True):
                quarantine.hold(*batch_of(start, min(start + PAGE, n_held)))
            found = asked(quarantine, n_held, n)
            base = float(np.median(found["one SELECT by primary key"]))
            for name, times in found.items():
                middle, high = np.quantile(times, [0.5, 0.95]).tolist()
                pages.append(
                    f"| {kind} | {name} | {middle:.2f} | {high:.2f} | {middle / base:.0f} |"
                )
                print(pages[-1], flush=True)
            quarantine.close()
            without, with_cases = held_with_and_without(
                quarantine.database.url, 3 if n < REQUESTS else 10
            )
            ratio = with_cases / without
            holds.append(f"| {kind} | {without:.0f} | {with_cases:.0f} | {ratio:.2f} |")
            print(holds[-1], flush=True)
    return pages, holds


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    if parser.parse_args().quick:
        measured(KINDS[:1], 2_000, 5)
        return
    pages, holds = measured(KINDS, HELD, REQUESTS)
    newline = "\n"
    (RESULTS / "review_speed.md").write_text(
        f"""# The review page with {HELD:,} entries held

Written by `benchmarks/review_speed.py`. Python {platform.python_version()}, {DIM} dimensions, about
600 characters a text, in {HELD // SIZE:,} cases of {SIZE}. Milliseconds from a request to its whole
answer, in one process, over {REQUESTS} requests ({REQUESTS // 4} of filters, which are measured
without the page around them: as many queries as the page makes). Goal: p95 at most {GOAL:g} ms. The
ratio is of medians, to one SELECT of a held row by primary key.

| database | what | p50 | p95 | ratio |
|---|---|---|---|---|
{newline.join(pages)}

## What cases cost when entries are held

A hold of {PAGE:,} entries into what is held already, with cases told in the same transaction and
without; medians of ten, taken in turn.

| database | without, ms | with, ms | ratio |
|---|---|---|---|
{newline.join(holds)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
