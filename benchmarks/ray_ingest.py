"""Guarded ingestion of parquet files by one process and by several on Ray, into PGVector.

    python benchmarks/ray_ingest.py            # writes benchmarks/results/ray_ingest.md
    python benchmarks/ray_ingest.py --quick    # few rows, writes nothing

Clean passages of several corpora with PoisonedRAG's texts among them, vectors given, come into an
empty store and a guard that begins empty. The last run is interrupted half-way and started again.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import load, many
from databases import Databases, databases
from decisions import failed
from rates import proportion_interval
from results_files import write

from ragshield_core import Batch, Quarantine
from ragshield_core.model.entries import concatenate

ROWS, GROUPS, GROUP_ROWS = 12_000, 60, 1_000
QUICK = 1_500, 10, 300
# The store that all processes open. URL and collection come from the environment.
APP = """
import logging
import os

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_postgres import PGVector

from ragshield_core import Guard
from ragshield_langchain import GuardedVectorStore

logging.getLogger("ragshield").setLevel(logging.ERROR)


def store():
    url = os.environ["INGEST_URL"]
    inner = PGVector(DeterministicFakeEmbedding(size=384), connection=url, collection_name="docs")
    return GuardedVectorStore(inner, guard=Guard.open(url), lineage_key="lineage")
"""


class Run(NamedTuple):
    """The result of a run."""

    seconds: float
    held: frozenset[str]
    stored: int


def written(folder: Path, rows: int, groups: int, group_rows: int) -> Batch:
    """Write clean rows and poisoned ones in random order as a parquet file; return them."""
    clean, poison = many(rows), load("poisonedrag_nq").take(range(5 * groups))
    both = concatenate([clean, poison])
    both = both.take(np.random.default_rng(0).permutation(len(both)))
    table = {
        "id": list(both.ids),
        "text": list(both.texts),
        "lineage": [lineage or i for i, lineage in zip(both.ids, both.lineages, strict=True)],
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(both.embeddings.ravel()), both.dim),
    }
    pq.write_table(pa.table(table), folder / "rows.parquet", row_group_size=group_rows)
    # The same row groups from the last to the first.
    starts = range(0, len(both), group_rows)[::-1]
    backwards = pa.concat_tables([pa.table(table).slice(at, group_rows) for at in starts])
    pq.write_table(backwards, folder / "backwards.parquet", row_group_size=group_rows)
    return both


def run(
    place: Databases,
    folder: Path,
    engine: str,
    *,
    file: str = "rows.parquet",
    killed_after: float | None = None,
) -> Run:
    """Ingest a file into a new database by the command; killed and started again if asked."""
    url = place.new()
    environment = os.environ | {"INGEST_URL": url, "PYTHONPATH": f"{folder}:{_path()}"}
    call = [
        str(Path(sys.executable).with_name("ragshield")),
        "ingest",
        file,
        "--into",
        "app:store",
    ]
    call += ["--engine", engine, "--batch-rows", "100", "--work-dir", mkdtemp(dir=folder)]
    start = time.perf_counter()
    if killed_after is not None:
        process = subprocess.Popen(call, cwd=folder, env=environment)  # noqa: S603 - our own
        time.sleep(killed_after)
        process.kill()
        process.wait()
    subprocess.run(call, cwd=folder, env=environment, check=True)  # noqa: S603 - our own
    seconds = time.perf_counter() - start
    held = frozenset(one.id for one in Quarantine(url).list())
    return Run(seconds, held, _stored(url))


def _path() -> str:
    return os.pathsep.join(filter(None, sys.path))


def _stored(url: str) -> int:
    from sqlalchemy import create_engine, text  # noqa: PLC0415

    engine = create_engine(url)
    with engine.connect() as connection:
        n = connection.execute(text("SELECT count(*) FROM langchain_pg_embedding")).scalar_one()
    engine.dispose()
    return int(n)


def line(name: str, found: Run, one: Run, both: Batch) -> str:
    """Return a row of the table."""
    out = np.array([i in found.held for i in both.ids])
    bad = np.array([not i.startswith("entry-") for i in both.ids])  # see corpora.many
    cells = (
        f"{found.seconds:.0f}",
        f"{len(both) / found.seconds:.0f}",
        proportion_interval(int(out[bad].sum()), int(bad.sum())),
        proportion_interval(int(out[~bad].sum()), int((~bad).sum())),
        len(found.held ^ one.held),
        len(both) - found.stored - len(found.held),
    )
    return f"| {name} | {' | '.join(map(str, cells))} |"


def main() -> None:
    """Run, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows, groups, group_rows = QUICK if quick else (ROWS, GROUPS, GROUP_ROWS)
    with TemporaryDirectory() as place, databases(["PostgreSQL"]) as found:
        server = found["PostgreSQL"]
        folder = Path(place)
        (folder / "app.py").write_text(APP, encoding="utf-8")
        both = written(folder, rows, groups, group_rows)
        one = run(server, folder, "local")
        lines = [line("one process", one, one, both)]
        back = run(server, folder, "local", file="backwards.parquet")
        lines.append(line("one process, row groups backwards", back, one, both))
        runs = {"Ray, two processes": None, "Ray, killed half-way, started again": one.seconds / 2}
        for name, killed_after in runs.items():
            lines.append(
                line(name, run(server, folder, "ray", killed_after=killed_after), one, both)
            )
            print(lines[-1])
    page = f"""# Guarded ingestion on Ray

Written by `benchmarks/ray_ingest.py`. Python {platform.python_version()}; 2 cores, which
PostgreSQL shares. {len(both):,} rows of a parquet file in row groups of {group_rows:,}: clean
passages of several corpora, and {5 * groups} raw texts of PoisonedRAG among them, in random order,
vectors given. `ragshield guard ingest` writes 100 at once into PGVector and `Guard.open`,
nothing known at first. The order of arrival decides as well: a run backwards shows by how much.
"Otherwise" counts rows that the first run holds and this run does not, or the reverse. "Lost"
counts rows that are neither stored nor held.

| run | seconds | rows a second | poison held | clean held | otherwise | lost |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    print(page)
    if quick:
        failed([one for one in lines if not one.endswith("| 0 |")])
    else:
        write("ray_ingest", page)


if __name__ == "__main__":
    main()
