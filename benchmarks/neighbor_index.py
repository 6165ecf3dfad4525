"""Cost of nearest neighbours: whole-corpus passes, lists against exact search and others, memory.

    python benchmarks/neighbor_index.py            # writes benchmarks/results/neighbor_index.md
    python benchmarks/neighbor_index.py --quick    # small, writes nothing
    python benchmarks/neighbor_index.py --only kinds    # one section, writes nothing

Passes alternate with `IndexFlatIP.search` over the same vectors, and ratios are taken round by
round. Other libraries (usearch, hnswlib) are measured if they are installed. A million vectors are
searched in a separate process; the growth of its peak resident size is the memory of the index.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from corpora import data_folder
from numpy.typing import NDArray
from rich.progress import track

from ragshield_core.neighbors.index import NeighborIndex, all_neighbors
from ragshield_core.neighbors.search import LISTS_PER_ROOT

DIM = 384
N_QUERIES = 1_000
BATCH = 100
K = 16
PIECE = 10_000
PER_CLUSTER = 100
# Clean corpora of passages, shuffled so that queries are held out.
CORPORA = (
    *("wiki_passages", "nq_target_contexts", "hotpotqa_target_contexts"),
    *("redundant_web_passages", "near_duplicate_docs"),
)
RESULTS = Path(__file__).parent / "results"
# Two float32 computations of one cosine differ by about 1e-7.
TIE = 1e-6


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median(run: Callable[[], object], rounds: int) -> float:
    """Return the median time of some calls, after a warm-up call."""
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
    """Return vectors of Wikipedia passages, then of other corpora."""
    with np.load(data_folder() / "embeddings" / "wiki_passages.npz", allow_pickle=False) as file:
        rows = unit(file["embeddings"].astype(np.float32))
    return np.ascontiguousarray(np.concatenate([rows, real()[: max(0, n - len(rows))]])[:n])


def clustered(n: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Yield n vectors in pieces, around n / 100 directions; neighbours have cosine .5."""
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
    runs: dict[str, Callable[[], object]] = {
        "`IndexFlatIP.search(k=11)`": lambda: flat.search(rows, 11),
        "`all_neighbors(k=16)`": lambda: all_neighbors(rows, 16),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in track(range(rounds + 1), description="passes"):
        for name, run in runs.items():
            taken = seconds(run)
            if number:  # the first round is a warm-up
                times[name].append(taken)
    base = times["`IndexFlatIP.search(k=11)`"]
    lines = [
        f"| {name} | {spread(taken, ' s')} | "
        f"{spread([a / b for a, b in zip(taken, base, strict=True)])} |"
        for name, taken in times.items()
    ]
    return (
        f"## Whole-corpus passes\n\n{n:,} × {DIM} (`wiki_passages`), {rounds} rounds.\n\n"
        f"| pass | time | of `IndexFlatIP.search` |\n|---|---|---|\n" + "\n".join(lines)
    )


def noisy(n: int) -> NDArray[np.float32]:
    """Return n shuffled real vectors; if there are fewer, they repeat with noise of .6."""
    rows, rng = real(), np.random.default_rng(1)
    source = np.resize(np.arange(len(rows)), n)
    order = rng.permutation(n)
    taken = np.empty((n, DIM), dtype=np.float32)
    for start in range(0, n, PIECE):
        chosen = order[start : start + PIECE]
        noise = rng.standard_normal((len(chosen), DIM), dtype=np.float32) / np.float32(DIM**0.5)
        noise[chosen < len(rows)] = 0
        taken[start : start + len(chosen)] = unit(rows[source[chosen]] + np.float32(0.6) * noise)
    return taken


def found_of(similarities: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """Return recall@K."""
    return float(np.mean(similarities[:, :K] >= truth[:, K - 1 : K] - TIE))


def crossover(sizes: list[int], rounds: int, *, quick: bool) -> str:
    """Return the table that compares exact search with lists."""
    corpora = [("synthetic", np.concatenate(list(clustered(n)))) for n in sizes]
    corpora += [("real", real()[: n + N_QUERIES]) for n in sizes if n < len(real())]
    if not quick:
        corpora += [("real", real()), ("real, with noise", noisy(100_000 + N_QUERIES))]
    lines = []
    for name, rows in track(corpora, description="crossover"):
        queries, known = rows[:N_QUERIES], rows[N_QUERIES:]
        exact = NeighborIndex(DIM, exact_up_to=len(rows) + 1)
        lists = NeighborIndex(DIM, exact_up_to=0)
        building = [seconds(lambda index=index: filled(index, known)) for index in (exact, lists)]
        truth, found = (index.search(queries, K).similarities for index in (exact, lists))
        recall = [np.mean(found[:, :at] >= truth[:, at - 1 : at] - TIE) for at in (1, K)]
        times = [
            [
                1e3 * median(lambda index=index, m=m: index.search(queries[:m], K), rounds)
                for m in (1, BATCH, N_QUERIES)
            ]
            for index in (exact, lists)
        ]
        lines.append(
            f"| {name} | {len(known):,} | {times[0][0]:.1f} / {times[1][0]:.1f} | "
            f"{times[0][1]:.0f} / {times[1][1]:.0f} | {times[0][2]:.0f} / {times[1][2]:.0f} | "
            f"{building[1]:.1f} | {recall[0]:.4f} | {recall[1]:.4f} |"
        )
    return f"""## Exact against lists

k = {K}; queries are held out. Recall of {N_QUERIES:,} queries: of the nearest, and of the {K}
nearest. Times are medians of {rounds} runs, exact / lists, in ms: a single query, batches of
{BATCH} and of {N_QUERIES:,}; seconds to sort the entries into lists.

| corpus | entries | 1 | {BATCH} | {N_QUERIES:,} | build (s) | recall@1 | recall@{K} |
|---|---|---|---|---|---|---|---|
""" + "\n".join(lines)


class Ours:
    """The index of this package, in lists."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.index = filled(NeighborIndex(DIM, exact_up_to=0), rows)
        self.size = 1 + 8 / (4 * DIM)  # the vectors, and the list of each

    def search(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the similarities of the nearest entries."""
        return self.index.search(queries, K).similarities

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows."""
        self.index.add([f"new {i}" for i in range(len(rows))], rows)

    def remove(self, n: int) -> None:
        """Remove the last n rows."""
        self.index.remove([f"new {i}" for i in range(n)])


class Reranked:
    """Another index; its candidates are ranked by exact vectors, which are kept beside it."""

    size: float

    def __init__(self, rows: NDArray[np.float32], room: int = BATCH) -> None:
        self.n = len(rows)
        self.rows = np.concatenate([rows, np.zeros((room, DIM), dtype=np.float32)])

    def candidates(self, queries: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return row numbers of candidates, shape (n, n_candidates)."""
        raise NotImplementedError

    def search(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the similarities of the nearest entries."""
        found = self.candidates(queries)
        best = np.empty((len(queries), K), dtype=np.float32)
        for start in range(0, len(queries), 64):  # blocks that fit into a cache
            part = slice(start, start + 64)
            near = np.einsum("ijk,ik->ij", self.rows[np.maximum(found[part], 0)], queries[part])
            near[found[part] < 0] = -np.inf
            best[part] = -np.sort(-near, axis=1)[:, :K]
        return best


class Faiss(Reranked):
    """Inverted lists or a graph of FAISS."""

    def __init__(self, rows: NDArray[np.float32], kind: str, probes: int, spare: int) -> None:
        super().__init__(rows)
        lists = int(LISTS_PER_ROOT * len(rows) ** 0.5)
        self.flat = faiss.IndexFlatIP(DIM)
        quantizer, product = faiss.ScalarQuantizer, faiss.METRIC_INNER_PRODUCT
        if kind == "HNSW":
            self.index = faiss.IndexHNSWSQ(DIM, quantizer.QT_fp16, 32, product)
            self.index.hnsw.efConstruction, self.index.hnsw.efSearch = 160, 96
        elif kind == "fast scan":
            self.index = faiss.IndexIVFPQFastScan(self.flat, DIM, lists, DIM // 2, 4, product)
        else:
            code = {"float16": quantizer.QT_fp16, "8 bits": quantizer.QT_8bit}[kind]
            self.index = faiss.IndexIVFScalarQuantizer(self.flat, DIM, lists, code, product)
            self.index.by_residual = False
        if kind != "HNSW":
            self.index.cp.niter, self.index.cp.spherical = 5, True
            self.index.cp.max_points_per_centroid, self.index.cp.min_points_per_centroid = 32, 1
            self.index.nprobe = probes
        self.index.train(rows)
        self.index.add(rows)
        self.fetched = K + spare
        code_size = 2 * DIM + 4 * 66 if kind == "HNSW" else self.index.code_size + 8
        self.size = 1 + code_size / (4 * DIM)

    def candidates(self, queries: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return row numbers of candidates."""
        return self.index.search(queries, self.fetched)[1]

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows."""
        self.rows[self.n : self.n + len(rows)] = rows
        self.index.add(rows)

    def remove(self, n: int) -> None:
        """Remove the last n rows."""
        if isinstance(self.index, faiss.IndexHNSWSQ):
            raise NotImplementedError
        self.index.remove_ids(np.arange(self.n, self.n + n))


class Usearch(Reranked):
    """A graph of usearch."""

    def __init__(self, rows: NDArray[np.float32], dtype: str) -> None:
        from usearch.index import Index  # noqa: PLC0415 - not a dependency

        super().__init__(rows)
        self.index: Any = Index(
            ndim=DIM, metric="ip", dtype=dtype, connectivity=32, expansion_add=160
        )
        self.index.expansion_search = 96
        self.index.add(np.arange(len(rows)), rows)
        self.size = 1 + self.index.memory_usage / rows.nbytes

    def candidates(self, queries: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return row numbers of candidates."""
        keys = np.atleast_2d(self.index.search(queries, K + 8).keys)
        return keys.astype(np.int64)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows."""
        self.rows[self.n : self.n + len(rows)] = rows
        self.index.add(np.arange(self.n, self.n + len(rows)), rows)

    def remove(self, n: int) -> None:
        """Remove the last n rows."""
        self.index.remove(np.arange(self.n, self.n + n))


class Hnswlib(Reranked):
    """A graph of hnswlib, which supports only float32."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        import hnswlib  # noqa: PLC0415 - not a dependency

        super().__init__(rows)
        self.index: Any = hnswlib.Index(space="ip", dim=DIM)
        self.index.init_index(max_elements=len(self.rows), M=32, ef_construction=160)
        self.index.set_ef(96)
        self.index.add_items(rows, np.arange(len(rows)))
        self.size = 1 + 64 * 4 / (4 * DIM)  # it holds the vectors themselves

    def candidates(self, queries: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return row numbers of candidates."""
        return self.index.knn_query(queries, k=K)[0].astype(np.int64)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows."""
        self.rows[self.n : self.n + len(rows)] = rows
        self.index.add_items(rows, np.arange(self.n, self.n + len(rows)))

    def remove(self, n: int) -> None:
        """Mark the last n rows as deleted."""
        for number in range(self.n, self.n + n):
            self.index.mark_deleted(number)


def kinds(n: int, rounds: int) -> str:
    """Return the table of kinds of indexes."""
    rows = noisy(n + N_QUERIES)
    queries, known = rows[:N_QUERIES], rows[N_QUERIES:]
    truth = faiss.knn(queries, known, K, metric=faiss.METRIC_INNER_PRODUCT)[0]
    probes = min(128, int(LISTS_PER_ROOT * len(known) ** 0.5))
    made: dict[str, Callable[[], Any]] = {
        "lists of this package": lambda: Ours(known),
        "FAISS lists, float16": lambda: Faiss(known, "float16", probes, 8),
        "FAISS lists, 8 bits": lambda: Faiss(known, "8 bits", probes, 8),
        "FAISS lists, 4-bit fast scan": lambda: Faiss(known, "fast scan", probes, 84),
        "FAISS HNSW 32/160, float16": lambda: Faiss(known, "HNSW", 0, 8),
    }
    missing = [name for name in ("usearch", "hnswlib") if find_spec(name) is None]
    if "usearch" not in missing:
        made["usearch 32/160, float16"] = lambda: Usearch(known, "f16")
        made["usearch 32/160, 8 bits"] = lambda: Usearch(known, "i8")
    if "hnswlib" not in missing:
        made["hnswlib 32/160, float32"] = lambda: Hnswlib(known)
    lines = []
    for name, make in track(made.items(), description="kinds"):
        start = time.perf_counter()
        index = make()
        cells = [f"{time.perf_counter() - start:.1f}"]
        recall = found_of(index.search(queries), truth)
        for m in (1, BATCH, N_QUERIES):
            taken = 1e3 * median(lambda index=index, m=m: index.search(queries[:m]), rounds)
            cells.append(f"{taken:.1f}" if m == 1 else f"{taken:.0f}")
        cells.append(f"{1e3 * seconds(lambda index=index: index.add(queries[:BATCH])):.0f}")
        try:
            cells.append(f"{1e3 * seconds(lambda index=index: index.remove(BATCH)):.1f}")
        except (NotImplementedError, RuntimeError):
            cells.append("cannot")
        lines.append(f"| {name} | {' | '.join(cells)} | {index.size:.2f} | {recall:.4f} |")
    note = f" Not installed, so not measured: {', '.join(missing)}." if missing else ""
    return (
        f"""## Kinds of indexes

{len(known):,} real vectors, past {len(real()):,} with noise; {N_QUERIES:,} held-out queries,
k = {K}. FAISS looks into {probes} of its
{int(LISTS_PER_ROOT * len(known) ** 0.5):,} lists. Candidates of all others are ranked by the
float32 vectors, which are counted as memory, as a multiple of them.{note}

| index | build (s) | search 1 (ms) | {BATCH} (ms) | {N_QUERIES:,} (ms) | add {BATCH} (ms) | """
        f"remove {BATCH} (ms) | memory | recall@{K} |\n|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
    )


def resident(which: str) -> int:
    """Return the resident size of this process in bytes, now (VmRSS) or at its peak (VmHWM).

    A process inherits `ru_maxrss` from its parent, so that is not used.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


def measure_memory(n: int, exact_up_to: int) -> None:
    """Fill an index piece by piece and print figures for one row of the table of memory."""
    index = NeighborIndex(DIM, exact_up_to=exact_up_to)
    # Load FAISS and BLAS, and allocate their buffers, before the measurement.
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
    print(
        f"| {'exact' if index.exact else 'lists'} | {len(index):,} | {grown / vectors:.2f} | "
        f"{took:.0f} | {search:.0f} |"
    )


def measure_large(n: int) -> None:
    """Fill an index at once and print one row of the table of large ones."""
    rows = noisy(n + N_QUERIES)
    queries, known = rows[:N_QUERIES], rows[N_QUERIES:]
    before = resident("VmRSS")
    index = NeighborIndex(DIM)
    building = seconds(lambda: filled(index, known))
    peak = (resident("VmHWM") - before) / known.nbytes
    flat = lambda: faiss.knn(queries[:BATCH], known, K, metric=faiss.METRIC_INNER_PRODUCT)  # noqa: E731
    exact = [1e3 * seconds(flat) for _ in range(3)]
    times = [
        1e3 * median(lambda m=m: index.search(queries[:m], K), 5) for m in (1, BATCH, N_QUERIES)
    ]
    truth = faiss.knn(queries, known, K, metric=faiss.METRIC_INNER_PRODUCT)[0]
    recall = found_of(index.search(queries, K).similarities, truth)
    ids = [f"new {i}" for i in range(BATCH)]
    adding = 1e3 * seconds(lambda: index.add(ids, queries[:BATCH]))
    removing = 1e3 * seconds(lambda: index.remove(ids))
    print(
        f"| {n:,} | {building:.0f} | {statistics.median(exact):.0f} | {times[0]:.1f} | "
        f"{times[1]:.0f} | {times[2]:.0f} | {adding:.0f} | {removing:.1f} | {peak:.2f} | "
        f"{recall:.4f} |"
    )


def in_a_process(option: str, *sizes: int) -> str:
    """Return the row that this script prints in a new process."""
    command = [sys.executable, __file__, option, *map(str, sizes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this script
    return done.stdout.strip()


def large(sizes: list[int]) -> str:
    """Return the table of large indexes."""
    return (
        f"""## Large

Real vectors, past {len(real()):,} with noise, added at once; {N_QUERIES:,} held-out queries,
k = {K}. The exact search is that of FAISS. Peak growth is beside the vectors given, as a
multiple of them.

| entries | build (s) | exact, {BATCH} (ms) | 1 (ms) | {BATCH} (ms) | {N_QUERIES:,} (ms) | """
        f"add {BATCH} (ms) | remove {BATCH} (ms) | peak | recall@{K} |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(in_a_process("--large", n) for n in sizes)
    )


def memory(sizes: list[int]) -> str:
    """Return the table of memory, each row measured in a new process."""
    lines = [
        in_a_process("--memory", n, exact_up_to)
        for n in sizes
        for exact_up_to in (n, min(n // 2, 100_000))
    ]
    return f"""## Memory

Synthetic vectors, filled in pieces of {PIECE:,}. Peak growth of the process, the ids and one piece
included, as a multiple of the vectors; seconds to fill it, making the vectors and sorting them
again as they outgrow their lists included; ms to search {BATCH}.

| index | entries | peak, of the vectors | fill (s) | search {BATCH} (ms) |
|---|---|---|---|---|
""" + "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, writes nothing")
    parser.add_argument("--only", help="one section: passes, crossover, kinds, large or memory")
    parser.add_argument("--memory", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--large", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        measure_memory(*arguments.memory)
        return
    if arguments.large:
        measure_large(arguments.large)
        return
    quick = arguments.quick
    rounds = 2 if quick else 3
    sections: dict[str, Callable[[], str]] = {
        "kinds": lambda: kinds(3_000 if quick else 53_135, rounds),
        "passes": lambda: passes(3_000 if quick else 20_000, 2 if quick else 3),
        "crossover": lambda: crossover([3_000] if quick else [10_000, 30_000], rounds, quick=quick),
        "large": lambda: large([30_000] if quick else [1_000_000]),
        "memory": lambda: memory([5_000] if quick else [100_000]),
    }
    if arguments.only:
        print(sections[arguments.only]())
        return
    text = f"""# Nearest neighbours

Written by `benchmarks/neighbor_index.py`. Median (minimum–maximum). Python
{platform.python_version()}, FAISS {faiss.__version__}, {faiss.omp_get_max_threads()} threads, a
machine shared with others.
"""
    for section in sections.values():
        text += f"\n{section()}\n"
        if not quick:  # after each section, as the last one takes longest
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "neighbor_index.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
