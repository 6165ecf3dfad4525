"""Cost of an audit and a screening for groups, against a bare FAISS search of the same vectors.

    python benchmarks/audit_speed.py            # writes benchmarks/results/audit_speed.md
    python benchmarks/audit_speed.py --quick    # small sizes, writes nothing
    python benchmarks/audit_speed.py --screen 1000000   # 100 new against this many, prints JSON

Each size runs in its own process, so that its peak memory can be read (on Linux). Search and audits
alternate.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from corpora import load
from rich.progress import track

from ragshield_core import Batch
from ragshield_core.detectors import CliqueDetector

DIM = 384
RESULTS = Path(__file__).parent / "results"


def synthetic(n: int, prefix: str = "s", seed: int = 0) -> Batch:
    """Return unit vectors around one direction for every hundred of them, without text."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(1000, DIM)).astype(np.float32)
    vectors = np.empty((n, DIM), dtype=np.float32)
    for start in range(0, n, 50_000):
        part = rng.normal(size=(min(50_000, n - start), DIM)).astype(np.float32)
        part += centres[rng.integers(0, len(centres), len(part))]
        vectors[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return Batch.of(ids=[f"{prefix}{i}" for i in range(n)], texts=[""] * n, embeddings=vectors)


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def bare_search(batch: Batch) -> None:
    """Search eleven neighbours of every entry, itself included, as the reference rule needs."""
    index = faiss.IndexFlatIP(batch.dim)
    index.add(batch.embeddings)
    index.search(batch.embeddings, 11)


def audit_ratios(n: int, rounds: int) -> list[str]:
    """Return rows of times relative to the bare search, on real passages."""
    corpus = load("wiki_passages", lineage="title").take(range(n))
    bare = Batch.of(ids=corpus.ids, texts=[""] * len(corpus), embeddings=corpus.embeddings)
    passes: dict[str, Callable[[], object]] = {
        "`IndexFlatIP.search(k=11)`": lambda: bare_search(bare),
        "audit, texts compared": lambda: CliqueDetector().audit(corpus),
        "audit, vectors only": lambda: CliqueDetector().audit(bare),
        "reference rule, vectors only": lambda: CliqueDetector(rule="cleanbase").audit(bare),
    }
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in track(range(rounds), description=f"audits of {n}"):
        for name, run in passes.items():
            times[name].append(seconds(run))
    search = times["`IndexFlatIP.search(k=11)`"]
    rows = []
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, search, strict=True)]
        rows.append(
            f"| {name} | {statistics.median(values):.2f} s | {statistics.median(ratios):.2f} |"
        )
    return rows


def screening(n: int, rounds: int) -> str:
    """Return the time of screening 100 new entries against n."""
    corpus = load("wiki_passages", lineage="title")
    known, new = corpus.take(range(n)), corpus.take(range(n, n + 100))
    detector = CliqueDetector().fit(known)
    times = []
    for number in range(rounds + 1):
        batch = new.take(np.random.default_rng(number).permutation(100))
        times.append(seconds(lambda batch=batch: detector.score(batch)))
    return f"{statistics.median(times[1:]) * 1000:.0f} ms"


def clones(n: int) -> str:
    """Return the time of auditing n clones of one text, by both rules."""
    corpus = load("wiki_passages", lineage="title").take(range(1000))
    one = corpus.take([0])
    batch = Batch.of(
        ids=[*corpus.ids, *(f"clone {i}" for i in range(n))],
        texts=[*corpus.texts, *(list(one.texts) * n)],
        embeddings=np.concatenate([corpus.embeddings, np.repeat(one.embeddings, n, axis=0)]),
        lineages=[*corpus.lineages, *(f"lineage {i}" for i in range(n))],
    )
    cells = [
        f"{seconds(lambda rule=rule: CliqueDetector(rule=rule).audit(batch)):.1f} s"
        for rule in ("groups", "cleanbase")
    ]
    return " / ".join(cells)


def one_size(n: int) -> dict[str, float]:
    """Audit n synthetic vectors in this process."""
    batch = synthetic(n)
    taken = seconds(lambda: CliqueDetector().audit(batch))
    # VmHWM counts this process alone; ru_maxrss starts at the peak of the parent.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    return {"n": n, "seconds": taken, "peak": peak, "vectors": batch.embeddings.nbytes}


def screen_large(n: int, rounds: int = 10) -> dict[str, float]:
    """Fit on n synthetic vectors, then screen 100 new ones several times, in this process."""
    detector = CliqueDetector()
    fit = seconds(lambda: detector.fit(synthetic(n)))
    times = []
    for number in range(rounds):
        batch = synthetic(100, f"new{number}-", seed=number + 1)
        times.append(seconds(lambda batch=batch: detector.score(batch)))
    return {
        "n": n,
        "fit_seconds": fit,
        "median_ms": 1000 * statistics.median(times),
        "worst_ms": 1000 * max(times),
    }


def in_a_process(option: str, n: int) -> dict[str, float]:
    """Return the figures that this script measures in a new process."""
    command = [sys.executable, __file__, option, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return dict(json.loads(done.stdout))


def large(n: int) -> str:
    """Return the time of screening 100 new entries against n synthetic ones."""
    run = in_a_process("--screen", n)
    return (
        f"\nScreening 100 new vectors against {n:,} synthetic ones, approximate index: "
        f"{run['median_ms']:.0f} ms (worst of ten {run['worst_ms']:.0f} ms; fitted in "
        f"{run['fit_seconds']:.0f} s)."
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, writes nothing")
    parser.add_argument("--size", type=int, help="audit so many synthetic vectors, print JSON")
    parser.add_argument("--screen", type=int, help="screen 100 against so many, print JSON")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if arguments.size or arguments.screen:
        one = one_size(arguments.size) if arguments.size else screen_large(arguments.screen)
        print(json.dumps(one))
        return
    n, rounds, sizes = (
        (3000, 2, [2000, 4000]) if arguments.quick else (20_000, 5, [10_000, 100_000, 1_000_000])
    )
    ratios = audit_ratios(min(n, 19_993), rounds)
    known = 2000 if arguments.quick else 12_000
    lines = [
        "# What looking for groups costs\n",
        f"Written by `benchmarks/audit_speed.py`. {faiss.omp_get_max_threads()} threads;",
        f"medians of {rounds} rounds.\n",
        f"\n{min(n, 19_993):,} passages of Wikipedia, {DIM} dimensions:\n",
        "| pass | time | of the bare search |",
        "|---|---|---|",
        *ratios,
        f"\nScreening 100 new passages against {known:,}: {screening(known, 2 * rounds)}.",
        (
            f"\n{known:,} clones of one text among 1,000 passages, default / reference rule: "
            f"{clones(known)}."
        ),
        "\nSynthetic vectors without text, audited by the default rule, each in its own process:\n",
        "| entries | time | peak memory | of the vectors |",
        "|---|---|---|---|",
    ]
    runs = []
    for size in track(sizes, description="sizes"):
        runs.append(in_a_process("--size", size))  # noqa: PERF401 - shows progress
    lines += [
        f"| {run['n']:,} | {run['seconds']:.1f} s | {run['peak'] / 2**30:.2f} GiB | "
        f"{run['peak'] / run['vectors']:.1f} |"
        for run in runs
    ]
    first, last = runs[0], runs[-1]
    exponent = math.log(last["seconds"] / first["seconds"]) / math.log(last["n"] / first["n"])
    lines.append(f"\nTime grows with the size to the power of {exponent:.2f}.")
    print("\n".join(lines))  # before the last figure: it builds an index of a million entries
    lines.append(large(20_000 if arguments.quick else 1_000_000))
    table = "\n".join(lines) + "\n"
    print(table)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "audit_speed.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
