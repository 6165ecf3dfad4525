"""What it costs to fit a guard by partitions, and in one memory.

    python benchmarks/partitioned_fit.py            # writes benchmarks/results/partitioned_fit.md
    python benchmarks/partitioned_fit.py --quick    # small sizes, writes nothing

The default guard, without labels, on real passages in parquet files; each way in a process of its
own, which reads the files, fits and calibrates. What each guard holds of entries that nobody has
seen is compared with the one fitted in memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import many
from numpy.typing import NDArray

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.model.entries import concatenate
from ragshield_core.neighbors.rows import load_faiss
from ragshield_core.neighbors.table import FoundEntries, VectorTable
from ragshield_core.tools.audit import Parts, RayEngine, load, open_source

RESULTS = Path(__file__).parent / "results"
SIZES, QUICK = (25_000, 100_000), (1_000, 3_000)
N_NEW, FILE_ROWS = 2_000, 25_000
WAYS = {
    "memory": "in one memory",
    "local": "by partitions, one process",
    "store": "the same, vectors in the store",
    "ray": "by partitions, Ray with 2 workers",
}


class OnDisk(VectorTable):
    """A store whose vectors lie in a file, in the order of their ids."""

    name = "on disk"

    def __init__(self, path: Path, n_new: int) -> None:
        self._rows: NDArray[np.float32] = np.load(path, mmap_mode="r")
        self._first = n_new

    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Compare with all."""
        faiss = load_faiss()
        rows = np.asarray(self._rows)
        found = faiss.knn(embeddings, rows, k, metric=faiss.METRIC_INNER_PRODUCT)[1]
        near, places = np.unique(found, return_inverse=True)
        ids = [f"entry-{self._first + row}" for row in near.tolist()]
        return FoundEntries(ids, np.array(rows[near]), places.reshape(found.shape))

    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Look them up."""
        rows = [int(one.rpartition("-")[2]) - self._first for one in ids]
        return list(ids), np.array(self._rows[rows])


def held_bytes(what: str) -> int:
    """Return a figure of the kernel about the memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{what}:")[2].split()[0]) * 1024


class Anonymous(threading.Thread):
    """Watches how much memory this process holds that is no file, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        """Look twenty times a second."""
        while True:
            self.peak = max(self.peak, held_bytes("RssAnon"))
            time.sleep(0.05)


def write(folder: Path, n: int) -> None:
    """Write n entries as parquet files, their vectors, and entries to screen."""
    entries = many(N_NEW + n)
    known = entries.take(range(N_NEW, N_NEW + n))
    np.save(folder / "vectors.npy", known.embeddings)
    np.save(folder / "new.npy", entries.embeddings[:N_NEW])
    new = entries.take(range(N_NEW))
    (folder / "new.json").write_text(json.dumps([new.ids, new.texts, new.lineages]))
    (folder / "parts").mkdir()
    for start in range(0, n, FILE_ROWS):
        part = known.take(range(start, min(n, start + FILE_ROWS)))
        embedding = pa.FixedSizeListArray.from_arrays(pa.array(part.embeddings.ravel()), part.dim)
        columns = {"id": part.ids, "text": part.texts, "lineage": part.lineages}
        table = pa.table({name: list(column) for name, column in columns.items()})
        name = folder / "parts" / f"part-{start:09d}.parquet"
        pq.write_table(table.append_column("embedding", embedding), name)


def measure(way: str, folder: Path, work: Path) -> dict[str, Any]:
    """Fit in this process, and return figures."""
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    guard = Guard.default(quarantine=Quarantine("sqlite://"))
    watch = Anonymous()
    before = held_bytes("RssAnon")
    watch.start()
    start, here = time.perf_counter(), time.process_time()
    parts = Parts(path=folder / "parts", work_dir=work)
    if way == "memory":
        batches = [load(open_source(one)).batch for one in sorted(parts.path.iterdir())]
        guard.fit(concatenate(batches))
        del batches
    else:
        if way == "store":
            guard.connections.use_table(OnDisk(folder / "vectors.npy", N_NEW), "store")
        guard.fit(parts, engine=RayEngine(num_cpus=2) if way == "ray" else "local")
    guard.calibrate()
    figures = {
        "seconds": time.perf_counter() - start,
        "of this process": time.process_time() - here,
        "peak": held_bytes("VmHWM"),
        "anonymous": watch.peak - before,
    }
    ids, texts, lineages = json.loads((folder / "new.json").read_text())
    vectors = np.load(folder / "new.npy")
    new = Batch.of(ids=ids, texts=texts, lineages=lineages, embeddings=vectors)
    held = [d.entry_id for d in guard.screen(new).quarantined]
    return figures | {"held": held, "thresholds": guard.calibration.thresholds}


def measured(way: str, folder: Path) -> dict[str, Any]:
    """Fit in a process of its own, and return figures."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--work", work]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measure(given.way, given.folder, given.work)))
        return
    rows = []
    for n in QUICK if given.quick else SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, n)
            in_memory: set[str] = set()
            for way, words in WAYS.items():
                figures = measured(way, folder)
                held = set(figures["held"])
                in_memory = held if way == "memory" else in_memory
                rows.append(
                    f"| {n:,} | {words} | {figures['seconds']:.0f} s | "
                    f"{figures['of this process']:.0f} s | "
                    f"{figures['anonymous'] / 2**30:.2f} GiB | "
                    f"{figures['peak'] / 2**30:.2f} GiB | {figures['thresholds']['clique']:.2f} | "
                    f"{len(held)} | {len(held & in_memory)} |"
                )
                print(rows[-1], flush=True)
    if given.quick:
        return
    RESULTS.joinpath("partitioned_fit.md").write_text(
        f"""# What a fit by partitions costs

Written by `benchmarks/partitioned_fit.py`. The default guard, fitted and calibrated on real
passages (past 77,000 with shuffled words and noise on vectors) in parquet files, no labels,
partitions of 10,000 rows, each way in a process of its own. Seconds: of the whole, reading
included; of processor time in that process. Memory of that process, over what it held before it
began, that is no file, and its peak with files that are mapped: tasks of Ray have memory of their
own. Threshold: of groups. Held: of {N_NEW:,} clean passages that were not fitted, at a rate of
1 %. {os.cpu_count()} cores, `OMP_NUM_THREADS={os.environ.get("OMP_NUM_THREADS", "unset")}`, Python
{platform.python_version()}.

| entries | | seconds | of this process | memory | peak | threshold | held | in memory, too |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
