"""Neighbours that the store finds, against those of an index in memory.

    python benchmarks/stored_neighbors.py            # writes benchmarks/results/stored_neighbors.md
    python benchmarks/stored_neighbors.py --quick    # small, writes nothing
    python benchmarks/stored_neighbors.py --memory 1000000    # one size; printed only

PostgreSQL is a server of its own (pgserver) on the same machine, its table and HNSW index in
memory once they were read. Qdrant runs in its local mode, which compares with all in Python.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from cliques import attack, join, knowledge_base
from corpora import many
from databases import databases
from langchain_core.embeddings import DeterministicFakeEmbedding
from neighbor_index import DIM, N_QUERIES, K, real, spread
from numpy.typing import NDArray
from sqlalchemy import create_engine
from sqlalchemy import text as sql

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.table import FoundEntries, VectorTable
from ragshield_langchain.inner import access_to

RESULTS = Path(__file__).parent / "results"
EFS = (40, 100, 200)
ROUNDS = 5
MODEL = DeterministicFakeEmbedding(size=DIM)
GROUPS = (("text_blackbox", 5), ("text_blackbox", 3), ("text", 5), ("text", 3))
N_CLEAN = 500


class InMemory(VectorTable):
    """A store that answers at once: what stays in a worker does not depend on it."""

    name = "a store in memory"

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}

    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return the nearest entries, compared with all."""
        _, rows = faiss.knn(
            embeddings, self._batch.embeddings, k, metric=faiss.METRIC_INNER_PRODUCT
        )
        used, places = np.unique(rows, return_inverse=True)
        ids = [self._batch.ids[row] for row in used.tolist()]
        return FoundEntries(ids, self._batch.embeddings[used], places.reshape(rows.shape))

    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return the vectors of ids."""
        known = [entry_id for entry_id in ids if entry_id in self._row_of]
        return known, self._batch.embeddings[[self._row_of[entry_id] for entry_id in known]]


@contextmanager
def postgres(batch: Batch) -> Iterator[Any]:
    """Yield the table of a collection that holds a batch, with an HNSW index for cosines."""
    from langchain_postgres import PGVector  # noqa: PLC0415 - an extra of its own

    with databases(["PostgreSQL"]) as found:
        url = found["PostgreSQL"].new()
        inner = access_to(PGVector(MODEL, connection=url, embedding_length=DIM))
        start = time.perf_counter()
        for first in range(0, len(batch), 5_000):
            part = batch.take(range(first, min(first + 5_000, len(batch))))
            inner.write(part, [{} for _ in part.ids])
        written = time.perf_counter() - start
        engine = create_engine(url)
        start = time.perf_counter()
        with engine.begin() as connection:
            connection.execute(sql("SET maintenance_work_mem = '1GB'"))
            connection.execute(
                sql(
                    "CREATE INDEX ON langchain_pg_embedding "
                    "USING hnsw (embedding vector_cosine_ops)"
                )
            )
        with engine.begin() as connection:
            version = connection.scalar(
                sql("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
            )
        engine.dispose()
        indexed = time.perf_counter() - start
        table: Any = inner.table
        table.told = f"pgvector {version}; written in {written:.0f} s, indexed in {indexed:.0f} s"
        yield table


def qdrant(batch: Batch) -> Any:
    """Return the table of a local collection that holds a batch."""
    from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415 - an extra of its own
    from qdrant_client import QdrantClient, models  # noqa: PLC0415

    client = QdrantClient(":memory:")
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection("passages", vectors_config=params)
    inner = access_to(QdrantVectorStore(client, "passages", embedding=MODEL))
    inner.write(batch, [{} for _ in batch.ids])
    return inner.table


def timed(run: Callable[[], Any], rounds: int) -> tuple[Any, list[float]]:
    """Return what calls return, and how long each took; the first one does not count."""
    run()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = run()
        taken.append(time.perf_counter() - start)
    return result, taken


def recall(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the share of the nearest that was found."""
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]
    return sum(hits) / truth.size


def searches(vectors: NDArray[np.float32], rounds: int) -> tuple[list[str], str]:
    """Return the rows of the table of searches, and what is said of the store."""
    queries, rows = vectors[:N_QUERIES], np.ascontiguousarray(vectors[N_QUERIES:])
    ids = [str(row) for row in range(len(rows))]
    batch = Batch.of(ids=ids, texts=[""] * len(rows), embeddings=rows)
    _, truth = faiss.knn(queries, rows, K, metric=faiss.METRIC_INNER_PRODUCT)
    index = NeighborIndex(DIM)
    index.add(ids, rows)
    found, alone = timed(lambda: index.search(queries, K), rounds)
    base = statistics.median(alone)
    table = [f"| in memory | {recall(found.slots, truth):.3f} | {spread(alone)} | 1.0 |"]

    def line(name: str, stored: Any, rounds: int) -> str:
        got, taken = timed(lambda: stored.search(queries, K), rounds)
        slots = np.array([int(entry_id) for entry_id in got.ids] + [-1])[got.rows]
        share = statistics.median(taken) / base
        return f"| {name} | {recall(slots, truth):.3f} | {spread(taken)} | {share:.1f} |"

    with postgres(batch) as stored:
        for ef in EFS:
            stored.ef_search = ef
            table.append(line(f"PGVector, ef_search {ef}", stored, rounds))
            print(table[-1], flush=True)
        told = stored.told
    some = min(len(batch), 20_000)
    stored = qdrant(batch.take(range(some)))
    _, taken = timed(lambda: stored.search(queries[:100], K), 1)
    table.append(f"| Qdrant, local mode, {some:,} entries, 100 queries | | {spread(taken)} | |")
    return table, told


def decisions(share: float) -> list[str]:
    """Return the table of decisions: by neighbours in memory, and from PGVector."""
    corpus = knowledge_base("web + nq")
    order = np.random.default_rng(0).permutation(len(corpus))[: int(share * len(corpus))]
    n = int(0.7 * len(order))
    known, clean = corpus.take(order[:n]), corpus.take(order[n : n + 2 * N_CLEAN])
    guards = {}
    for where in ("memory", "store"):
        guards[where] = Guard.default(quarantine=Quarantine("sqlite://")).fit(known).calibrate()
    batches = {"clean entries": clean}
    for column, size in GROUPS:
        name = f"{'black-box' if column == 'text_blackbox' else 'raw'}, groups of {size}"
        poison = attack("poisonedrag_nq", column, size, one_lineage=False)
        batches[name] = join(poison, clean.take(range(min(N_CLEAN, len(clean)))))
    rows = []
    with postgres(known) as stored:
        guards["store"].use_table(stored, "store")
        guards["store"].let_go()
        print(guards["store"].status().neighbors)
        for name, batch in batches.items():
            held = {}
            for where, guard in guards.items():
                report = guard.screen(batch)
                held[where] = np.array([d.verdict == "quarantine" for d in report.decisions])
            bad = np.array([entry_id.startswith("poison-") for entry_id in batch.ids])
            counted = bad if bad.any() else ~bad
            shares = [f"{held[where][counted].mean():.3f}" for where in ("memory", "store")]
            differ = int((held["memory"] != held["store"]).sum())
            rows.append(f"| {name} | {' | '.join(shares)} | {differ} of {len(batch):,} |")
            print(rows[-1], flush=True)
    return rows


# What is run in a process of its own: a worker opens a saved guard.
WORKER = """
import json, sys
import psutil
from ragshield_core import Guard, Quarantine
import ragshield_core.neighbors.stored, scipy.sparse, faiss
process = psutil.Process()
before = process.memory_info().rss
guard = Guard.load(sys.argv[1], quarantine=Quarantine("sqlite://"))
import gc
gc.collect()
print(json.dumps(process.memory_info().rss - before))
"""


def memory(n: int, *, all_detectors: bool) -> dict[str, float]:
    """Return by how much a worker grows, in GiB, that opens a guard which knows n entries."""
    grown = {}
    for where in ("memory", "store"):
        batch = many(n)
        quarantine = Quarantine("sqlite://")
        guard = (
            Guard.default(quarantine=quarantine)
            if all_detectors
            else Guard([CliqueDetector()], quarantine=quarantine)
        )
        guard.fit(batch).calibrate()
        if where == "store":
            guard.use_table(InMemory(batch), "store")
            guard.let_go()
        with tempfile.TemporaryDirectory(prefix="ragshield") as folder:
            guard.save(Path(folder) / "guard")
            del guard, batch
            gc.collect()
            done = subprocess.run(  # noqa: S603 - of our own making
                [sys.executable, "-c", WORKER, str(Path(folder) / "guard")],
                check=True,
                capture_output=True,
                text=True,
            )
        grown[where] = json.loads(done.stdout.splitlines()[-1]) / 2**30
    return grown


def memory_row(n: int, *, all_detectors: bool) -> str:
    """Return a row of the table of memory."""
    grown = memory(n, all_detectors=all_detectors)
    who = "all detectors" if all_detectors else "groups alone"
    cells = [f"{grown[w]:.2f} GiB | {grown[w] * 2**30 / n:,.0f}" for w in ("memory", "store")]
    row = f"| {n:,} | {who} | {' | '.join(cells)} |"
    print(row, flush=True)
    return row


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--memory", type=int, help="one size; printed only")
    given = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if given.memory:
        memory_row(given.memory, all_detectors=False)
        memory_row(given.memory, all_detectors=True)
        return
    vectors = real()[: N_QUERIES + 2_000] if given.quick else real()
    table, told = searches(vectors, 1 if given.quick else ROUNDS)
    decided = decisions(0.1 if given.quick else 1.0)
    sizes = [(1_000, False)] if given.quick else [(100_000, False), (100_000, True)]
    taken = [memory_row(n, all_detectors=all_of_them) for n, all_of_them in sizes]
    if given.quick:
        return
    newline = "\n"
    RESULTS.joinpath("stored_neighbors.md").write_text(
        f"""# Neighbours from the store

Written by `benchmarks/stored_neighbors.py`. Python {platform.python_version()}.

{N_QUERIES:,} queries for {K} neighbours among {len(vectors) - N_QUERIES:,} passages of the shared
corpora, {DIM} dimensions. Recall against comparing with all; seconds: median (least to most) of
{ROUNDS} rounds. From the store, the vectors of what is found come with it. PostgreSQL on the same
machine, {told}.

| neighbours | recall@{K} | seconds | of in memory |
|---|---|---|---|
{newline.join(table)}

The same guard (all detectors, fitted and calibrated on 70 % of web pages and NQ contexts) with
neighbours in memory and from PGVector at its defaults: share held of clean entries, or of the
poison among {N_CLEAN} clean ones, and how many decisions differ.

| batch | in memory | from PGVector | decisions that differ |
|---|---|---|---|
{newline.join(decided)}

By how much a process grows that opens a saved guard, past what its packages take.

| known | detectors | in memory | bytes an entry | from the store | bytes an entry |
|---|---|---|---|---|---|
{newline.join(taken)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
