"""Cost and misses of an audit by partitions on Ray.

    python benchmarks/ray_audit.py            # writes benchmarks/results/ray_audit.md
    python benchmarks/ray_audit.py --quick    # small sizes, printed, writes nothing
    python benchmarks/ray_audit.py --real     # real passages, writes results/ray_audit_real.md

Synthetic entries with planted groups, as parquet files in partitions of one size, so that tasks
grow with entries; the smallest size runs again with a worker killed half-way. Processor time counts
the tasks alone: other work on the machine makes an audit wait, not compute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from corpora import CLEAN, load
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from ragshield_core import Batch
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.findings import finding_to_dict
from ragshield_core.tools.audit import Parts, RayEngine, ScanReport, scan

DIM, FILE_ROWS, GROUP_SIZE = 384, 50_000, 5
# Entries per direction, as in audit_speed.py: about as similar as texts on one subject.
PER_TOPIC = 2_000
# Sizes with one, two, four and twenty times the work.
SIZES, QUICK = (100_000, 200_000, 400_000, 2_000_000), (5_000, 10_000, 20_000)
RESULTS = Path(__file__).parent / "results"
console = Console(stderr=True)


def synthetic(n: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the columns of n entries in parts; one entry in 10,000 is in a planted group."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(20, n // PER_TOPIC), DIM)).astype(np.float32)
    words = np.array([f"word{i}" for i in range(20_000)])
    for start in range(0, n, FILE_ROWS):
        size = min(FILE_ROWS, n - start)
        vectors = rng.normal(size=(size, DIM)).astype(np.float32)
        vectors += centres[rng.integers(0, len(centres), size)]
        groups = max(1, size // 10_000)
        # Members of a group have random places in a file.
        members = rng.choice(size, (groups, GROUP_SIZE), replace=False)
        noise = rng.normal(scale=0.15, size=(groups, GROUP_SIZE, DIM)).astype(np.float32)
        vectors[members] = vectors[members[:, :1]] + noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        chosen = words[rng.integers(0, len(words), (size, 30))]
        yield {
            "ids": [
                f"{'p' if planted else 's'}{start + row}"
                for row, planted in enumerate(np.isin(np.arange(size), members).tolist())
            ],
            "texts": [" ".join(row) for row in chosen],
            "lineages": [f"source {(start + row) // 4}" for row in range(size)],
            "vectors": vectors,
        }


def write(folder: Path, n: int) -> int:
    """Write n entries as parquet files; return the number of planted ones."""
    planted = 0
    for number, part in enumerate(synthetic(n)):
        table = _table(part["ids"], part["texts"], part["lineages"], part["vectors"])
        pq.write_table(table, folder / f"part-{number:05d}.parquet", compression="none")
        planted += sum(name.startswith("p") for name in part["ids"])
    return planted


def _table(
    ids: Sequence[str],
    texts: Sequence[str],
    lineages: Sequence[str | None],
    vectors: NDArray[np.float32],
) -> pa.Table:
    """Return entries as a parquet table."""
    flat = pa.array(vectors.ravel())
    columns = {"id": list(ids), "text": list(texts), "lineage": list(lineages)}
    embedding = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return pa.table({**columns, "embedding": embedding})


def measured(folder: str, kill: str | None, function: Callable[..., Any], *task: Any) -> Any:
    """Run a task on a worker, and record its time and memory; exit once if it is to be killed."""
    marker = Path(folder) / "killed"
    if kill is not None and function.func.__name__ == kill and not marker.exists():
        marker.touch()
        os._exit(1)
    # Reset the peak, so that it counts this task alone.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    begin, wall = time.process_time(), time.perf_counter()
    result = function(*task)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = [
        function.func.__name__,
        time.process_time() - begin,
        time.perf_counter() - wall,
        peak,
    ]
    name = "-".join(map(str, (function.func.__name__, os.getpid(), time.monotonic_ns())))
    (Path(folder) / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")
    return result


class MeasuredRay(RayEngine):
    """Ray engine that records the time and the memory of every task."""

    def __init__(self, folder: Path, *, kill: str | None = None) -> None:
        super().__init__()
        self._figures, self._kill = folder, kill
        self.pairs = self.bytes = 0

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Run tasks and measure them."""
        plan = function.args[0]
        if function.func.__name__ == "search":
            sizes = np.diff(plan.starts)
            looked_into = (plan.read(p, "nearest") for p in plan.filled)
            self.pairs = sum(int(sizes[nearest].sum()) for nearest in looked_into)
        half = len(tasks) // 2
        kill = self._kill if function.func.__name__ == self._kill else None
        run = partial(measured, str(self._figures))
        yield from super().run(partial(run, None, function), tasks[:half])
        yield from super().run(partial(run, kill, function), tasks[half:])
        files = (path.stat().st_size for path in plan.folder.rglob("*") if path.is_file())
        self.bytes = max(self.bytes, sum(files))


def audit(
    folder: Path, rows: int, cores: int, *, kill: str | None = None
) -> tuple[ScanReport, dict[str, Any]]:
    """Audit the files of a folder; return the report, and its time and memory."""
    with tempfile.TemporaryDirectory() as figures, Progress(console=console) as bar:
        shown = bar.add_task("")
        ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
        engine = MeasuredRay(Path(figures), kill=kill)
        with engine, tempfile.TemporaryDirectory() as work:
            begin = time.perf_counter()
            report = scan(
                Parts(path=folder, work_dir=Path(work), partition_rows=rows),
                [CliqueDetector()],
                engine=engine,
                progress=lambda step, done, total: bar.update(
                    shown, description=step, completed=done, total=total
                ),
            )
            wall = time.perf_counter() - begin
        ray.shutdown()
        if kill is not None and not (Path(figures) / "killed").exists():
            sys.exit("no worker was killed")
        tasks = [json.loads(p.read_text(encoding="utf-8")) for p in Path(figures).glob("*.json")]
    steps: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for name, seconds, _, peak in tasks:
        steps[name] = steps.get(name, 0.0) + seconds
        peaks[name] = max(peaks.get(name, 0), peak)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return report, {
        "wall": wall,
        "steps": steps,
        "searched": sum(task[2] for task in tasks if task[0] == "search"),
        "tasks": len(tasks),
        "peaks": peaks,
        "driver": int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024,
        "pairs": engine.pairs,
        "bytes": engine.bytes,
    }


def found_in(report: ScanReport) -> list[dict[str, Any]]:
    """Return the findings of a report as dicts, for comparison."""
    return [finding_to_dict(finding) for d in report.found for finding in d.findings]


def against_memory(n: int, rows: int, cores: int) -> str:
    """Return a comparison of audits of the same entries in memory and by partitions."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), n)
        parted, _ = audit(Path(folder), rows, cores)
    parts = list(synthetic(n))
    batch = Batch.of(
        ids=[i for part in parts for i in part["ids"]],
        texts=[text for part in parts for text in part["texts"]],
        lineages=[lineage for part in parts for lineage in part["lineages"]],
        embeddings=np.concatenate([part["vectors"] for part in parts]),
    )
    whole = scan(batch, [CliqueDetector()])
    here, there = ({d.entry_id for d in report.found} for report in (whole, parted))
    planted = {i for i in batch.ids if i.startswith("p")}
    shares = ", ".join(f"{v:.3f} of the {k} nearest" for k, v in parted.neighbors_found.items())
    return (
        f"{n:,} entries in memory, all pairs compared, and in {parted.n_partitions} partitions: "
        f"{len(here)} and {len(there)} found, {len(here & there)} by both; of {len(planted)} "
        f"planted {len(here & planted)} and {len(there & planted)}. The partitions found {shares} "
        "neighbours."
    )


def real(cores: int) -> str:
    """Return a table of audits of real passages and poison, by partitions and in memory."""
    clean = [load(name, lineage=lineage) for name, lineage in CLEAN.items()]
    corpora = [*clean, load("poisonedrag_nq")]
    batch = Batch.of(
        ids=[
            f"{'bad' if number == len(clean) else 'e'} {number} {entry_id}"
            for number, corpus in enumerate(corpora)
            for entry_id in corpus.ids
        ],
        texts=[text for corpus in corpora for text in corpus.texts],
        lineages=[lineage for corpus in corpora for lineage in corpus.lineages],
        embeddings=np.concatenate([corpus.embeddings for corpus in corpora]),
    )
    batch = batch.take(np.random.default_rng(0).permutation(len(batch)))

    def row(name: str, report: ScanReport, whole: ScanReport) -> str:
        found, there = ({d.entry_id for d in one.found} for one in (report, whole))
        poison = sum(name.startswith("bad") for name in found)
        shares = [f"{v:.3f}" for v in report.neighbors_found.values()] if name else ["1", "1"]
        cells = [name or "in memory", len(found), len(found & there), poison, *shares]
        return f"| {' | '.join(map(str, cells))} |"

    whole = scan(batch, [CliqueDetector()])
    lines = [
        "# What partitions miss among real passages\n",
        f"Written by `benchmarks/ray_audit.py --real`. {len(batch):,} entries,",
        f"{len(corpora[-1])} of them poison (poisonedrag_nq); groups only.\n",
        "| partitions | found | of these in memory too | poison | of the 2 nearest | of the 16 |",
        "|---|---|---|---|---|---|",
        row("", whole, whole),
    ]
    with tempfile.TemporaryDirectory() as folder:
        table = _table(batch.ids, batch.texts, list(batch.lineages), batch.embeddings)
        pq.write_table(table, Path(folder) / "part.parquet", row_group_size=FILE_ROWS)
        for rows in (10_000, 4_000, 2_000):
            report, _ = audit(Path(folder), rows, cores)
            lines.append(row(f"{report.n_partitions} of {rows:,}", report, whole))
            console.print(lines[-1], markup=False)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, writes nothing")
    parser.add_argument("--real", action="store_true", help="real passages")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of entries")
    parser.add_argument("--rows", type=int, default=2_000, help="of a partition")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    sizes, rows, cores = arguments.sizes, arguments.rows, arguments.cores
    if arguments.real:
        table = real(cores)
        (RESULTS / "ray_audit_real.md").write_text(table, encoding="utf-8")
        return
    if arguments.quick:
        sizes, rows = QUICK, 500
    lines = [
        "# An audit by partitions, on Ray\n",
        f"Written by `benchmarks/ray_audit.py`. {cores} cores, one task on each; {DIM} dimensions,",
        f"texts of 30 words, partitions of about {rows:,} rows.\n",
        (
            "| entries | partitions | tasks | pairs compared | searching | of it per 10^9 pairs | "
            "all tasks | of it per 10^5 entries | wall | peak of a task | of the driver | files |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    per_pair, per_entry, notes = [], [], []
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            planted = write(Path(folder), n)
            report, took = audit(Path(folder), rows, cores)
            if n == sizes[0] and len(sizes) > 1:  # once, as it doubles the time
                killed, _ = audit(Path(folder), rows, cores, kill="search")
                same = found_in(killed) == found_in(report)
                notes.append(
                    f"{n:,} entries again, with a worker killed while it was searching, after half "
                    f"of the tasks: the findings are {'the same' if same else 'NOT THE SAME'}."
                )
        searching, everything = took["steps"]["search"], sum(took["steps"].values())
        per_pair.append(searching / took["pairs"] * 1e9)
        per_entry.append(everything / n * 1e5)
        lines.append(
            f"| {n:,} | {report.n_partitions} | {took['tasks']} | {took['pairs']:.2e} | "
            f"{searching:.0f} s | {per_pair[-1]:.1f} s | {everything:.0f} s | {per_entry[-1]:.1f} s"
            f" | {took['wall']:.0f} s | {max(took['peaks'].values()) / 2**30:.2f} GiB | "
            f"{took['driver'] / 2**30:.2f} GiB | {took['bytes'] / 2**30:.1f} GiB |"
        )
        true = sum(decision.entry_id.startswith("p") for decision in report.found)
        shares = ", ".join(f"{v:.3f} of the {k}" for k, v in report.neighbors_found.items())
        notes.append(
            f"{n:,} entries: {len(report.found)} found, {true} of {planted} planted ones among "
            f"them; by a sample, {shares} nearest neighbours were found."
        )
        steps = sorted(took["steps"].items(), key=lambda step: -step[1])
        spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in steps)
        notes.append(f"{n:,} entries, processor seconds by step: {spent}.")
        peaks = sorted(took["peaks"].items(), key=lambda step: -step[1])
        most = ", ".join(f"{name} {peak / 2**30:.2f}" for name, peak in peaks)
        notes.append(f"{n:,} entries, GiB of a task at its peak, by step: {most}.")
        console.print(lines[-1], notes[-3:], markup=False)
    spread = [max(values) / min(values) - 1.0 for values in (per_pair, per_entry)]
    lines += [
        "",
        (
            f"Searching takes time in proportion to the pairs within {spread[0]:.0%}, all together "
            f"in proportion to the entries within {spread[1]:.0%} (largest against smallest)."
        ),
        "",
        *itertools.chain.from_iterable((note, "") for note in notes),
        against_memory(sizes[0] // 5, rows, cores),
    ]
    table = "\n".join(lines) + "\n"
    if arguments.quick:
        print(table)
        return
    # Written to files only: Ray reports on its workers on standard output.
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "ray_audit.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
