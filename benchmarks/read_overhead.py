"""Cost of a guarded read: searches of a guarded FAISS, and screening of their results.

    python benchmarks/read_overhead.py            # writes benchmarks/results/read_overhead.md
    python benchmarks/read_overhead.py --quick    # small, writes nothing

Synthetic unit vectors. Guarded and bare searches alternate, query by query, in either order, so
that other work on the machine affects both; the spread over several rounds shows its size.
"""

from __future__ import annotations

import argparse
import logging
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from numpy.typing import NDArray

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_langchain import GuardedVectorStore, PoisonFilter

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community is being sunset
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

DIM = 384
K = 4
GOAL = 1.15
SCREENED_K, SCREENED_GOAL = 10, 3.0  # milliseconds
ROUNDS = 5  # several, because other work on the machine varies
RESULTS = Path(__file__).parent / "results"


def unit(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return random unit vectors."""
    vectors = rng.normal(size=(n, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def filled(vectors: NDArray[np.float32]) -> FAISS:
    """Return a FAISS store with the vectors."""
    index = faiss.IndexFlatL2(DIM)
    index.add(vectors)
    ids = [f"e{i}" for i in range(len(vectors))]
    documents = {i: Document(id=i, page_content=f"text {i}", metadata={"source": i}) for i in ids}
    return FAISS(
        DeterministicFakeEmbedding(size=DIM),
        index,
        InMemoryDocstore(documents),
        dict(enumerate(ids)),
    )


def milliseconds(search: Callable[..., object], query: list[float]) -> float:
    """Return the milliseconds of one search."""
    start = time.perf_counter()
    search(query, k=K)
    return 1000 * (time.perf_counter() - start)


def compare(
    bare: FAISS, guarded: GuardedVectorStore, queries: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return shape (2, n_queries): milliseconds of the bare and of the guarded search."""
    times = np.empty((2, len(queries)))
    searches = (bare.similarity_search_by_vector, guarded.similarity_search_by_vector)
    for number, query in enumerate(queries.tolist()):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which, number] = milliseconds(searches[which], query)
    return times


def screened(guarded: GuardedVectorStore, queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return shape (2, n_queries): milliseconds of a search for ten, and of their screening."""
    poison_filter = PoisonFilter(store=guarded, embeddings=Known(queries))
    times = np.empty((2, len(queries)))
    for number, query in enumerate(queries.tolist()):
        start = time.perf_counter()
        found = guarded.similarity_search_by_vector(query, k=SCREENED_K)
        middle = time.perf_counter()
        poison_filter.compress_documents(found, str(number))
        times[:, number] = 1000 * (middle - start), 1000 * (time.perf_counter() - middle)
    return times


class Known(Embeddings):
    """Embedding model with the vectors of numbered queries only, not of documents."""

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self._queries = queries.tolist()

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        vector: list[float] = self._queries[int(text)]
        return vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Raise: vectors of documents are read from the store."""
        msg = f"{len(texts)} documents would be embedded again"
        raise NotImplementedError(msg)


def screened_row(name: str, rounds: list[NDArray[np.float64]]) -> str:
    """Return a line of the second table: medians over the rounds."""
    cells = [name]
    for which in (0, 1):
        for percent in (50, 95):
            points = [np.percentile(times[which], percent) for times in rounds]
            cells.append(f"{np.median(points):.2f}")
    return f"| {' | '.join(cells)} |"


def row(name: str, rounds: list[NDArray[np.float64]]) -> str:
    """Return a line of the table: medians over the rounds, and the range of the ratios."""
    cells = [name]
    for percent in (50, 95):
        points = np.array([np.percentile(times, percent, axis=1) for times in rounds])
        ratios = points[:, 1] / points[:, 0]
        bare, guarded = np.median(points, axis=0)
        cells += [f"{bare:.2f}", f"{guarded:.2f}"]
        cells.append(f"{np.median(ratios):.3f} ({ratios.min():.3f}–{ratios.max():.3f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    n, n_queries = (2_000, 50) if quick else (100_000, 500)
    rng = np.random.default_rng(0)
    vectors, queries = unit(n, rng), unit(n_queries, rng)
    bare = filled(vectors)
    lines, more = [], []
    for name, n_held, planted in (
        ("nothing held", 0, False),
        ("1,000 held, none of them in the store", 1_000, False),
        ("100 held that are still in the store, k = 4 of the rest", 100, True),
    ):
        quarantine = Quarantine("sqlite://")
        texts = [f"text e{i}" if planted else f"held {i}" for i in range(n_held)]
        if n_held:
            ids = [f"e{i}" if planted else f"h{i}" for i in range(n_held)]
            quarantine.hold(
                Batch.of(ids=ids, texts=texts, embeddings=vectors[:n_held], lineages=ids)
            )
        guard = Guard([LabelCentroidDetector()], quarantine=quarantine)
        guarded = GuardedVectorStore(bare, guard=guard)
        # Every tenth query is for a held entry, if the store has any.
        asked = queries.copy()
        if planted:
            asked[::10] = vectors[: len(asked[::10])]
        compare(bare, guarded, asked[:20])  # warm up
        rounds = [compare(bare, guarded, asked) for _ in range(ROUNDS)]
        lines.append(row(name, rounds))
        rounds = [screened(guarded, queries[: n_queries // 5]) for _ in range(ROUNDS + 1)][1:]
        more.append(screened_row(name, rounds))
        print(lines[-1], more[-1], sep="\n")
    if quick:
        return
    text = (
        f"""# What a guarded read costs

Written by `benchmarks/read_overhead.py`. `similarity_search_by_vector`, k = {K}, of a
`GuardedVectorStore` around FAISS (flat index) over the bare store: {n:,} synthetic unit vectors of
{DIM} dimensions, {ROUNDS} rounds of {n_queries:,} queries, bare and guarded in turn; medians over
the rounds, and the range of the ratios. Milliseconds. Goal: both ratios
at most {GOAL}. Python {platform.python_version()}, threads: {faiss.omp_get_max_threads()}.

| quarantine | bare p50 | guarded p50 | ratio | bare p95 | guarded p95 | ratio |
|---|---|---|---|---|---|---|
"""
        + "\n".join(lines)
        + f"""

In the last line, every tenth query is for one of the held entries. A search that meets one is made
a second time, for more.

## With screening at retrieval

`PoisonFilter`, default detectors, vectors read back from the store, on what the guarded store
returns for k = {SCREENED_K}; the query is embedded already. Goal: at most {SCREENED_GOAL:g} ms
more.

| quarantine | search p50 | search p95 | screening p50 | screening p95 |
|---|---|---|---|---|
"""
        + "\n".join(more)
        + "\n"
    )
    (RESULTS / "read_overhead.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
