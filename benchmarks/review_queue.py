"""What reviewers have to decide, and how long the review page takes with 100,000 entries held.

python benchmarks/review_queue.py            # writes benchmarks/results/review_queue.md
python benchmarks/review_queue.py --quick    # small, writes nothing
"""

from __future__ import annotations

import argparse
import logging
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cliques import attack, join, knowledge_base
from databases import databases
from growth import grow
from sqlalchemy import text as sql
from starlette.testclient import TestClient

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.findings import Decision, Finding, Verdict
from ragshield_core.quarantine import Order
from ragshield_core.quarantine.grouping import follow
from ragshield_core.review import review_app

RESULTS = Path(__file__).parent / "results"
TOKEN = "of a benchmark, and long enough"  # noqa: S105
N_CLEAN, GROUP, BATCH = 10_000, 5, 500
N_HELD, REQUESTS = 100_000, 200
HEAD = (
    "| knowledge base | poison | held | cases | with poison | decisions | times fewer | share "
    "| split | mixed | largest |"
)
COLUMNS = {"black-box": "text_blackbox", "raw": "text"}


def poison(column: str, n_groups: int) -> Batch:
    """Return groups of five texts, each for one question of NQ or HotpotQA."""
    both = join(
        *(
            attack(f"poisonedrag_{name}", column, GROUP, one_lineage=False)
            for name in ("nq", "hotpotqa")
        )
    )
    return both.take(range(min(len(both), n_groups * GROUP)))


def stream(clean: Batch, bad: Batch, *, together: bool) -> tuple[Batch, dict[str, int]]:
    """Return clean entries with poison among them, and which group each poisoned one is of."""
    rng = np.random.default_rng(0)
    group_of = {entry_id: row // GROUP for row, entry_id in enumerate(bad.ids)}
    everything = join(clean, bad)
    if not together:
        return everything.take(rng.permutation(len(everything))), group_of
    units: list[list[int]] = [[row] for row in range(len(clean))]
    starts = range(len(clean), len(everything), GROUP)
    units += [list(range(start, start + GROUP)) for start in starts]
    order = rng.permutation(len(units)).tolist()
    return everything.take([row for unit in order for row in units[unit]]), group_of


def decisions_needed(quarantine: Quarantine, group_of: dict[str, int]) -> dict[str, Any]:
    """Return how many decisions it takes to confirm all poison and to release all else."""
    poisoned = clean = decisions = in_poisoned = with_poison = largest = 0
    cases_of: dict[int, set[int]] = defaultdict(set)
    groups_in: Counter[int] = Counter()
    cases = quarantine.cases.list(limit=100_000)
    for case in cases:
        ids = [one.id for one in quarantine.cases.members(case.number, limit=100_000)]
        bad = [entry_id for entry_id in ids if entry_id in group_of]
        good = len(ids) - len(bad)
        poisoned, clean = poisoned + len(bad), clean + good
        largest = max(largest, len(ids))
        # One for all of a kind; in a mixed case another one for the few that are chosen.
        decisions += bool(bad) + bool(good)
        if bad:
            with_poison += 1
            in_poisoned += good
            for entry_id in bad:
                cases_of[group_of[entry_id]].add(case.number)
            groups_in[case.number] = len({group_of[entry_id] for entry_id in bad})
    return {
        "held": f"{poisoned:,} / {clean:,}",
        "cases": len(cases),
        "poison": with_poison,
        "decisions": decisions,
        "alone": f"{(poisoned + clean) / max(1, decisions):.1f}",
        "share": f"{in_poisoned / max(1, clean):.3f}",
        "split": f"{np.mean([len(some) for some in cases_of.values()] or [0]):.2f}",
        "mixed": sum(count > 1 for count in groups_in.values()),
        "largest": largest,
    }


def queues(n_clean: int, n_groups: int, n_known: int | None) -> Iterator[str]:
    """Yield a row for each knowledge base, attack and way of arriving."""
    bases = {
        "Wikipedia": lambda: join(
            knowledge_base("wikipedia"), *(_contexts(name) for name in ("nq", "hotpotqa"))
        ),
        "web pages": lambda: join(knowledge_base("web + nq"), _contexts("hotpotqa")),
    }
    for base, read in bases.items():
        corpus = read()
        order = np.random.default_rng(0).permutation(len(corpus))
        clean = corpus.take(order[:n_clean])
        known = corpus.take(order[n_clean : None if n_known is None else n_clean + n_known])
        for name, column in COLUMNS.items():
            for together in (True, False):
                guard = Guard.default(quarantine=Quarantine("sqlite://"))
                arriving, group_of = stream(clean, poison(column, n_groups), together=together)
                grow(guard, join(known, arriving), len(known), BATCH)
                found = decisions_needed(guard.quarantine, group_of)
                way = "whole" if together else "scattered"
                row = f"| {base} | {name}, {way} | {' | '.join(map(str, found.values()))} |"
                print(row, flush=True)
                yield row


def _contexts(name: str) -> Batch:
    both = knowledge_base(f"web + {name}")
    rows = [row for row, entry_id in enumerate(both.ids) if entry_id.startswith("context-")]
    mine = both.take(rows)
    return Batch.of(
        ids=[f"{name}-{entry_id}" for entry_id in mine.ids],
        texts=mine.texts,
        embeddings=mine.embeddings,
        lineages=mine.lineages,
    )


# The page


def fill(quarantine: Quarantine, n: int) -> tuple[float, float]:
    """Hold entries in groups of five; return the seconds for 1,000, and those of them for cases."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 6)) for _ in range(5_000)]
    vectors = rng.normal(size=(1_000, 384)).astype(np.float32)
    seconds, cases = [], []
    for start in range(0, n, 1_000):
        ids = [f"entry-{number}" for number in range(start, start + 1_000)]
        batch = Batch.of(
            ids=ids,
            texts=[" ".join(rng.choice(words, 80)) for _ in ids],
            embeddings=vectors,
            lineages=[f"source-{number % 500}" for number in range(1_000)],
        )
        found = [
            Decision(
                entry_id=entry_id,
                verdict=Verdict.QUARANTINE,
                findings=(
                    Finding(
                        detector=("clique", "trigger_phrase", "instruction")[row % 3],
                        entry_id=entry_id,
                        score=9.0,
                        threshold=6.9,
                        p_value=float(10.0 ** -rng.uniform(2, 5)),
                        evidence="a sentence about what convinced the detector, with a number: 9.0",
                        related_ids=tuple(ids[row - row % 5 : row - row % 5 + 5]),
                    ),
                ),
            )
            for row, entry_id in enumerate(ids)
        ]
        spent = 0.0

        def timed(*given: Any, **named: Any) -> None:
            nonlocal spent
            begin = time.perf_counter()
            follow(*given, **named)
            spent += time.perf_counter() - begin

        import ragshield_core.quarantine.changes as changes  # noqa: PLC0415, PLR0402

        changes.follow = timed  # type: ignore[attr-defined]
        begin = time.perf_counter()
        quarantine.hold(batch, found)
        seconds.append(time.perf_counter() - begin)
        cases.append(spent)
        changes.follow = follow  # type: ignore[attr-defined]
    return median(seconds), median(cases)


def percentiles(ask: Callable[[], Any], n: int) -> tuple[float, float]:
    """Return median and 95th percentile of the milliseconds that something takes."""
    ask()
    took = []
    for _ in range(n):
        begin = time.perf_counter()
        ask()
        took.append(1000.0 * (time.perf_counter() - begin))
    return float(np.percentile(took, 50)), float(np.percentile(took, 95))


def page_times(url: str, n_held: int, n: int) -> Iterator[str]:
    """Yield a row for each page: what the server takes, against reading one row by its number."""
    quarantine = Quarantine(url)
    held, cases = fill(quarantine, n_held)
    kind = url.partition(":")[0].partition("+")[0]
    client = TestClient(
        review_app(quarantine, token=TOKEN, secret="s" * 32),
        base_url="http://localhost",
    )
    answer = client.post("/login", data={"name": "anna", "token": TOKEN})
    csrf = re.search(r'name="csrf" value="([^"]+)"', answer.text)
    assert csrf is not None  # noqa: S101
    rng = np.random.default_rng(0)

    def one_row() -> None:
        with quarantine.engine() as engine, engine.connect() as connection:
            statement = sql("SELECT * FROM ragshield_quarantine WHERE number = :n")
            connection.execute(statement, {"n": int(rng.integers(1, n_held))}).all()

    def get(path: str) -> Callable[[], Any]:
        def ask() -> None:
            found = client.get(path.replace("#", str(5 * int(rng.integers(0, n_held // 5)) + 1)))
            assert found.status_code == 200  # noqa: S101, PLR2004
            limits.storage.reset()

        return ask

    def narrowed(**given: str) -> Callable[[], Any]:
        client.post("/filter", data={"csrf": csrf[1], **given})
        return get("/")

    limits = _limits(client)
    last = max(1, n_held // 5 // 50)
    pages: dict[str, Callable[[], Callable[[], Any]]] = {
        **{f"queue by {order}": lambda order=order: get(f"/?order={order}") for order in Order},  # type: ignore[misc]
        "queue, last page": lambda: get(f"/?page={last}"),
        "queue, one detector": lambda: narrowed(detector="instruction"),
        "queue, one source": lambda: narrowed(source="source-7"),
        "queue, searched": lambda: narrowed(search="entry-4711"),
        "case": lambda: get("/cases/#"),
        "health": lambda: get("/health"),
    }
    base = percentiles(one_row, n)[0]
    yield f"| {kind} | one row by its number | {base:.1f} | | 1 |"
    for name, make in pages.items():
        client.post("/filter", data={"csrf": csrf[1]})
        p50, p95 = percentiles(make(), n)
        yield f"| {kind} | {name} | {p50:.0f} | {p95:.0f} | {p50 / base:.0f} |"
    yield (
        f"| {kind} | hold 1,000 entries | {1000 * held:.0f} | | "
        f"{held / max(1e-9, held - cases):.2f} of without cases |"
    )
    quarantine.close()


def _limits(client: TestClient) -> Any:
    """Return the counter of requests: a benchmark asks more often than a person."""
    app: Any = client.app
    route = next(route for route in app.routes if getattr(route, "name", "") == "queue")
    return route.endpoint.args[0].access._rates  # noqa: SLF001


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--part", choices=("queues", "pages"), help="only one part; printed")
    given = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    rows: list[str] = []
    if given.part != "pages":
        sizes = (500, 20, 2_000) if given.quick else (N_CLEAN, 200, None)
        rows = list(queues(*sizes))
    times: list[str] = []
    if given.part != "queues":
        kinds = ["SQLite"] if given.quick else ["SQLite", "PostgreSQL"]
        n_held, n = (2_000, 5) if given.quick else (N_HELD, REQUESTS)
        with databases(kinds) as found:
            for kind in kinds:
                for row in page_times(found[kind].new(), n_held, n):
                    print(row, flush=True)
                    times.append(row)
    if given.quick or given.part:
        return
    RESULTS.joinpath("review_queue.md").write_text(
        f"""# The queue of reviewers

Written by `benchmarks/review_queue.py`. Python {platform.python_version()}.

1,000 poisoned texts in 200 groups of five (PoisonedRAG, 100 questions of NQ and 100 of HotpotQA)
arrive among {N_CLEAN:,} clean entries, in batches of {BATCH}; a group whole in one place, or its
texts scattered over all batches. The guard has adopted the rest of the clean corpus. Entries held:
poisoned / clean. Decisions: one for each case, two for one that holds both; against one for each
entry, so many times fewer. Share: of held clean entries, in a case with poison. Split: cases that a
group is spread over, on average. Mixed: cases with texts of several groups.

{HEAD}
{"|---" * 11}|
{chr(10).join(rows)}

What the server takes for a page, in milliseconds, with {N_HELD:,} entries held in groups of five
(texts of 80 words): median and 95th percentile of {REQUESTS} requests, and the median against
reading one row by its number. From the application, without a network.

| database | page | median | p95 | of one row |
|---|---|---|---|---|
{chr(10).join(times)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
