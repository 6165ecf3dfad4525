"""What nearest neighbours cost: whole-corpus passes, exact search against HNSW, memory.

    python benchmarks/neighbor_index.py            # writes benchmarks/results/neighbor_index.md
    python benchmarks/neighbor_index.py --quick    # small, writes nothing

Passes alternate with `IndexFlatIP.search` over the same vectors, and ratios are taken round by
round. Memory is the growth of the peak resident size of a process of its own that is fed piece by
piece.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
from corpora import data_folder
from numpy.typing import NDArray
from rich.progress import track

from ragshield_core.neighbors.corpus import all_neighbors, pairs_above
from ragshield_core.neighbors.hnsw import EF_CONSTRUCTION, EF_SEARCH, LINKS
from ragshield_core.neighbors.index import EXACT_UP_TO, NeighborIndex
from ragshield_core.neighbors import hnsw as neighbors

DIM = 384
N_QUERIES = 1_000
BATCH = 100
K = 10
PIECE = 10_000
PER_CLUSTER = 100
EF_CONSTRUCTION_FOR_SIZE = 40
# Clean corpora of passages; shuffled, so that queries are held out.
CORPORA = (
    *("wiki_passages", "nq_target_contexts", "hotpotqa_target_contexts"),
    *("redundant_web_passages", "near_duplicate_docs"),
)
RESULTS = Path(__file__).parent / "results"
# Two float32 computations of one cosine differ by about 1e-7.
TIE = 1e-6


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median(run: Callable[[], object], rounds: int) -> float:
    """Return the median time of some calls, after one that does not count."""
    run()
    return statistics.median(seconds(run) for _ in range(rounds))


def spread(values: list[float], unit: str = "") -> str:
    """Return median, minimum and maximum."""
    low, mid, high = (f(values) for f in (min, statistics.median, max))
    return f"{mid:.2f}{unit} ({low:.2f}–{high:.2f})"


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of unit length, shape as given."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def real() -> NDArray[np.float32]:
    """Return the vectors of all corpora, shuffled."""
    parts = []
    for name in CORPORA:
        with np.load(data_folder() / "embeddings" / f"{name}.npz", allow_pickle=False) as file:
            parts.append(unit(file["embeddings"].astype(np.float32)))
    rows = np.concatenate(parts)
    return rows[np.random.default_rng(0).permutation(len(rows))]


def passages(n: int) -> NDArray[np.float32]:
    """Return vectors of Wikipedia passages, filled up with others."""
    with np.load(data_folder() / "embeddings" / "wiki_passages.npz", allow_pickle=False) as file:
        rows = unit(file["embeddings"].astype(np.float32))
    return np.ascontiguousarray(np.concatenate([rows, real()[: max(0, n - len(rows))]])[:n])


def clustered(n: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Yield pieces of n vectors around n / 100 directions; neighbours within have cosine .5."""
    rng = np.random.default_rng(seed)
    centers = unit(rng.standard_normal((max(1, n // PER_CLUSTER), DIM), dtype=np.float32))
    for start in range(0, n + N_QUERIES, PIECE):
        size = min(PIECE, n + N_QUERIES - start)
        noise = rng.standard_normal((size, DIM), dtype=np.float32) / np.float32(np.sqrt(DIM))
        yield unit(centers[rng.integers(0, len(centers), size)] + noise)


def filled(index: NeighborIndex, rows: NDArray[np.float32]) -> NeighborIndex:
    """Return the index with all rows added at once."""
    index.add([str(row) for row in range(len(rows))], rows)
    return index


def passes(n: int, rounds: int) -> str:
    """Return the table of whole-corpus passes."""
    rows = passages(n)
    flat = faiss.IndexFlatIP(DIM)
    flat.add(rows)
    # The threshold of the reference rule over these passages leaves some thousand pairs.
    runs: dict[str, Callable[[], object]] = {
        "`IndexFlatIP.search(k=11)`": lambda: flat.search(rows, 11),
        "`all_neighbors(k=16)`": lambda: all_neighbors(rows, 16),
        "`pairs_above(.8)`": lambda: pairs_above(rows, 0.8),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in track(range(rounds + 1), description="passes"):
        for name, run in runs.items():
            taken = seconds(run)
            if number:  # the first round only warms up
                times[name].append(taken)
    base = times["`IndexFlatIP.search(k=11)`"]
    lines = [
        f"| {name} | {spread(taken, ' s')} | "
        f"{spread([a / b for a, b in zip(taken, base, strict=True)])} |"
        for name, taken in times.items()
    ]
    n_pairs = len(pairs_above(rows, 0.8)[0])
    return (
        f"## Whole-corpus passes\n\n{n:,} × {DIM} (`wiki_passages`), {rounds} rounds; "
        f"{n_pairs:,} pairs above .8.\n\n| pass | time | of `IndexFlatIP.search` |\n|---|---|---|\n"
        + "\n".join(lines)
    )


def crossover(sizes: list[int], rounds: int, *, quick: bool) -> str:
    """Return the table of exact search against HNSW."""
    corpora = [("synthetic", np.concatenate(list(clustered(n)))) for n in sizes]
    corpora.insert(0, ("real", real()[: 4_000 if quick else None]))
    lines = []
    for name, rows in track(corpora, description="crossover"):
        queries, known = rows[:N_QUERIES], rows[N_QUERIES:]
        exact = NeighborIndex(DIM, exact_up_to=len(rows) + 1)
        hnsw = NeighborIndex(DIM, exact_up_to=0)
        building = [seconds(lambda index=index: filled(index, known)) for index in (exact, hnsw)]
        truth = exact.search(queries, K).similarities
        found = hnsw.search(queries, K).similarities
        recall = [np.mean(found[:, :at] >= truth[:, at - 1 : at] - TIE) for at in (1, K)]
        times = [
            [
                1e3 * median(lambda index=index, m=m: index.search(queries[:m], K), rounds)
                for m in (1, BATCH)
            ]
            for index in (exact, hnsw)
        ]
        adding = 1e3 * seconds(
            lambda: hnsw.add([f"new {i}" for i in range(BATCH)], queries[:BATCH])
        )
        lines.append(
            f"| {name} | {len(known):,} | {times[0][0]:.1f} | {times[0][1]:.0f} | "
            f"{times[1][0]:.1f} | {times[1][1]:.0f} | {adding:.0f} | {building[1]:.1f} | "
            f"{recall[0]:.4f} | {recall[1]:.4f} |"
        )
    return (
        f"""## Exact against HNSW

M = {LINKS}, efConstruction = {EF_CONSTRUCTION}, efSearch = {EF_SEARCH}; k = {K}. Queries are held
out. Recall of {N_QUERIES:,} queries: of the nearest, and of the {K} nearest. Times are medians of
{rounds} runs, in ms: a single query, a batch of {BATCH}; what adding that batch to the graph costs;
seconds to build it.

| corpus | entries | exact, 1 | exact, {BATCH} | HNSW, 1 | HNSW, {BATCH} | add {BATCH} | """
        "build (s) | recall@1 | recall@10 |\n|---|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
    )


def resident(which: str) -> int:
    """Return the resident size of this process in bytes, now (VmRSS) or at its peak (VmHWM).

    `ru_maxrss` will not do: a process inherits it from the one that started it.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


def measure_memory(n: int, exact_up_to: int) -> None:
    """Fill an index piece by piece and print figures for one row of the table of memory."""
    # The size of a graph does not depend on how carefully its links are chosen.
    neighbors.EF_CONSTRUCTION = EF_CONSTRUCTION_FOR_SIZE
    index = NeighborIndex(DIM, exact_up_to=exact_up_to)
    # FAISS and BLAS are loaded, and their buffers there, before the counting starts.
    warm = next(clustered(PIECE))
    all_neighbors(warm, K)
    filled(NeighborIndex(DIM, exact_up_to=0), warm[:1_000])
    before = resident("VmRSS")
    start = time.perf_counter()
    for number, piece in enumerate(clustered(n)):
        queries = piece[-N_QUERIES:]
        rows = piece[:-N_QUERIES] if len(index) + len(piece) > n else piece
        index.add([f"{number}-{row}" for row in range(len(rows))], rows)
    took = time.perf_counter() - start
    search = 1e3 * median(lambda: index.search(queries[:BATCH], K), 3)
    grown = resident("VmHWM") - before
    vectors = 4 * DIM * len(index)
    size = index.bytes_per_entry
    print(
        f"| {'exact' if index.exact else 'HNSW'} | {len(index):,} | {size:,.0f} | "
        f"{size * len(index) / vectors:.2f} | {grown / vectors:.2f} | {took:.0f} | {search:.0f} |"
    )


def memory(sizes: list[int]) -> str:
    """Return the table of memory, each row measured in a process of its own."""
    lines = []
    for n in sizes:
        for exact_up_to in (n, min(n // 2, EXACT_UP_TO)):
            command = [sys.executable, __file__, "--memory", str(n), str(exact_up_to)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this script
            lines.append(done.stdout.strip())
    return (
        f"""## Memory

Filled in pieces of {PIECE:,}. `bytes_per_entry` as reported and as a multiple of the vectors; peak
growth of the process, the ids and one piece included, as a multiple of the vectors; seconds to fill
it, making the vectors included; ms to search {BATCH}. efConstruction is
{EF_CONSTRUCTION_FOR_SIZE} here: it changes the time, not the size.

| index | entries | bytes per entry | of the vectors | peak, of the vectors | fill (s) | """
        f"search {BATCH} (ms) |\n|---|---|---|---|---|---|---|\n" + "\n".join(lines)
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, writes nothing")
    parser.add_argument("--memory", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        measure_memory(*arguments.memory)
        return
    quick = arguments.quick
    rounds = 2 if quick else 7
    sections: list[Callable[[], str]] = [
        lambda: passes(3_000 if quick else 20_000, 2 if quick else 9),
        lambda: crossover([3_000] if quick else [10_000, 30_000, 100_000], rounds, quick=quick),
        lambda: memory([5_000] if quick else [100_000, 1_000_000]),
    ]
    text = f"""# Nearest neighbours

Written by `benchmarks/neighbor_index.py`. Median (minimum–maximum). Python
{platform.python_version()}, FAISS {faiss.__version__}, {faiss.omp_get_max_threads()} threads, a
machine shared with others.
"""
    for section in sections:
        text += f"\n{section()}\n"
        if not quick:  # after every section: the last one takes longest
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "neighbor_index.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
