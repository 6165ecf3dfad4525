"""Lost, repeated and readable entries after kills at random points of an ingest.

python benchmarks/faults.py            # writes benchmarks/results/faults.md
python benchmarks/faults.py --quick    # small, writes nothing

A client writes made-up entries, a tenth of them poisoned, with updates, deletions and releases
between, and is killed (SIGKILL) again and again; see crashes.py. The same ingest without kills
is the baseline for held entries. Then the losses of the bare frameworks without a guard, saved in
place and as docs/operating.md says.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bare_crashes import BARE, killed_in_place
from crash_stores import STORES
from crashes import Outcome, Task, chosen, ingest

RESULTS = Path(__file__).parent / "results"
N, KNOWN, BATCH, FPR = 5000, 1000, 100, 0.01
KILLS, BARE_KILLS = 40, 25
MOMENTS = (
    *("opening", "recovering", "judging", "journal: intended", "store", "journal: done"),
    *("saving", "in a call", "between calls"),
)
HEAD = f"""# Killed at random points of an ingest

Written by `benchmarks/faults.py`. {N:,} entries, a tenth of them poisoned, go into a guarded
store that holds {KNOWN:,}, in batches of {BATCH}, with updates, deletions and releases between.
The process is killed (SIGKILL), started again, opens everything and repeats the call that was
not acknowledged; half of the times at once, half of the times when the lease of the one that
was killed is over.

What the process was about when it was killed:
"""
AFTER = """
Entries that were wrong when the store was opened again, before the call was repeated, over all
kills. Nowhere yet: of the open call, an update or release of which no revision is there before
it is repeated. In both: held, and in the store, where no read of the guarded store shows it.
Ahead: the guard knows it and the store does not, or the other way about: what was written in
memory and not saved, or intended by the process that was killed.
"""
END = """
In the end, with everything repeated, against the same ingest without a kill:
"""
WITHOUT = """
The bare frameworks, without a guard: batches are written and saved, and the process is killed
at random moments. Unreadable: could not be opened again. Missing: trials in which acknowledged
documents were not there. Torn: trials in which one that was being updated was there in no
version.
"""
KILLED = ("store", "kills", *MOMENTS)
REOPENED = (
    *("store", "acknowledged and missing", "nowhere yet", "twice", "in both"),
    *("held and readable", "stale", "ahead", "logs broken"),
)
ENDED = (
    *("store", "missing", "twice", "in both", "held and readable", "stale"),
    *("guard and store differ", "log", "entries in the store"),
    *("poisoned held, killed", "not killed"),
)
OF_BARE = ("store", "saved", "kills", "unreadable", "missing", "torn")
WRONG = ("missing", "neither", "twice", "both", "readable", "stale", "unknown", "log")


@contextmanager
def server(store: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a PostgreSQL database, if the store needs one."""
    if store != "PGVector":
        yield ""
        return
    import pgserver  # noqa: PLC0415 - an optional extra

    running = pgserver.get_server(folder / "pg", cleanup_mode="stop")
    yield running.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    running.cleanup()


def measured(store: str, n: int, known: int, kills: int, fpr: float) -> tuple[Outcome, Outcome]:
    """Return the outcomes of an ingest without kills, and of one with kills."""
    with TemporaryDirectory() as name, server(store, folder := Path(name)) as url:

        def task(name: str) -> Task:
            database = url or f"sqlite:///{folder}/{name}.db"
            return Task(store, folder / name, database, url, n, known, 0, fpr, BATCH)

        alone = ingest(task("alone"))
        when = chosen(kills, len(task("alone").plan.steps), seed=len(store))
        return alone, ingest(task("killed"), when, alone.seconds)


def row(*cells: Any) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def rows(store: str, task: Task, alone: Outcome, killed: Outcome) -> list[str]:
    """Return the rows of a store in the three tables."""
    end, poisoned = killed.end, task.plan.poisoned
    held = [len(poisoned.intersection(one.end.held)) for one in (killed, alone)]
    wrong = Counter({n: len(v) if isinstance(v, list) else 1 for n, v in end.wrong.items()})
    log = "broken" if end.log else "intact"
    asked = len(poisoned - task.plan.released)
    return [
        row(store, killed.kills.total(), *(killed.kills[moment] for moment in MOMENTS)),
        row(store, *(killed.wrong[name] for name in WRONG)),
        row(
            store,
            *(wrong[name] for name in ("missing", "twice", "both", "readable", "stale", "unknown")),
            *(log, end.known, *(f"{n} of {asked}" for n in held)),
        ),
    ]


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    parser.add_argument("--only", choices=STORES, action="append", help="these stores; prints only")
    given = parser.parse_args()
    n, known, kills, fpr = (200, 300, 3, 0.05) if given.quick else (N, KNOWN, KILLS, FPR)
    tables: Sequence[list[str]] = ([], [], [])
    results: dict[str, Any] = {}
    for store in given.only or (list(STORES)[:1] if given.quick else STORES):
        alone, killed = measured(store, n, known, kills, fpr)
        task = Task(store, Path(), "", "", n, known, 0, fpr, BATCH)
        for table, line in zip(tables, rows(store, task, alone, killed), strict=True):
            table.append(line)
            print(line, flush=True)
        results[store] = {
            "kills": killed.kills,
            "wrong": killed.wrong,
            "times": killed.times,
            "end": killed.end.wrong,
            "held": [len(one.end.held) for one in (alone, killed)],
            "held otherwise": sorted({*alone.end.held} ^ {*killed.end.held}),
        }
    print(json.dumps(results), flush=True)
    bare = []
    for store in () if given.only else BARE:
        for atomic in (False, True) if store in BARE[:2] else (None,):
            lost = killed_in_place(store, 2 if given.quick else BARE_KILLS, atomic=bool(atomic))
            how = {None: "by itself", False: "in place", True: "into a new folder"}[atomic]
            bare.append(row(store, how, *lost))
            print(bare[-1], flush=True)
    if not (given.quick or given.only):
        parts = []
        for text, columns, table in (
            (HEAD, KILLED, tables[0]),
            (AFTER, REOPENED, tables[1]),
            (END, ENDED, tables[2]),
            (WITHOUT, OF_BARE, bare),
        ):
            parts += [text, row(*columns), row(*["---"] * len(columns)), *table]
        (RESULTS / "faults.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
        (RESULTS / "faults.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
