"""What the guard costs: screening alone, and a guarded write against an unguarded one.

    python benchmarks/guard_cost.py            # writes benchmarks/results/guard_cost.md
    python benchmarks/guard_cost.py --quick    # small, writes nothing

Vectors are synthetic and given, so that embedding, which costs far more, is left out. Guarded and
unguarded runs alternate, and ratios are taken pair by pair.
"""

from __future__ import annotations

import argparse
import logging
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_langchain import GuardedVectorStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community is being sunset
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding

DIM = 384
N_NEW = 1000
SHARE_FLIPPED = 0.1
RESULTS = Path(__file__).parent / "results"


def entries(n: int, prefix: str, rng: np.random.Generator, flipped: float = 0.0) -> Batch:
    """Return entries of three labels around three directions; a share has another label."""
    directions = np.random.default_rng(0).normal(size=(3, DIM))
    topic = rng.integers(0, 3, n)
    vectors = (directions[topic] + 3.0 * rng.normal(size=(n, DIM))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    label = np.where(rng.random(n) < flipped, (topic + 1) % 3, topic)
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[f"text {i} of about a hundred words " * 10 for i in range(n)],
        embeddings=vectors,
        labels=[f"label {code}" for code in label],
        metadatas=[
            {"label": f"label {code}", "source": f"file {i // 10}"} for i, code in enumerate(label)
        ],
    )


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def empty_faiss() -> FAISS:
    """Return an empty FAISS store."""
    model = DeterministicFakeEmbedding(size=DIM)
    return FAISS(model, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})


def spread(values: list[float], unit: str = "", scale: float = 1.0) -> str:
    """Return minimum, median and maximum."""
    low, mid, high = (f(values) * scale for f in (min, statistics.median, max))
    return f"{mid:.2f}{unit} ({low:.2f}–{high:.2f})"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, writes nothing")
    arguments = parser.parse_args()
    n_known, rounds = (5_000, 3) if arguments.quick else (100_000, 15)
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    rng = np.random.default_rng(1)
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    fit = seconds(lambda: guard.fit(entries(n_known, "known", rng)))
    guard.calibrate(fpr=0.01)
    new = entries(N_NEW, "new", rng, SHARE_FLIPPED)
    screening = [seconds(lambda: guard.screen(new)) for _ in range(rounds)]
    admitting = []
    for number in range(rounds):
        report = guard.screen(entries(N_NEW, f"admitted{number}-", rng))
        admitting.append(seconds(lambda report=report: guard.admit(report)))

    rows = []
    for given in ("Python lists", "NumPy rows"):
        vectors = new.vectors.tolist() if given == "Python lists" else list(new.vectors)
        raw, held, guarded = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            alone = Quarantine(f"sqlite:///{folder}/alone.db")
            guard.save(f"{folder}/guard")  # a guard belongs to one store
            inside = Quarantine(f"sqlite:///{folder}/inside.db")
            copy = Guard.load(f"{folder}/guard", quarantine=inside)
            store = GuardedVectorStore(empty_faiss(), guard=copy)
            for number in track(range(rounds + 1), description=f"writes, vectors as {given}"):
                report = guard.screen(new)
                out = np.flatnonzero(~report.admitted)
                decisions = [report.decisions[row] for row in out]
                held.append(seconds(lambda: alone.hold(new.take(out), decisions)))
                alone.purge(new.ids)
                plain = empty_faiss()
                pairs = list(zip(new.texts, vectors, strict=True))
                columns = {"metadatas": list(new.metadatas), "ids": list(new.ids)}
                raw.append(seconds(lambda: plain.add_embeddings(pairs, **columns)))
                guarded.append(seconds(lambda: store.add_embeddings(pairs, **columns)))
                store.delete(list(new.ids))  # the guard forgets them again
                if number == 0:  # the first round makes tables and compiles statements
                    for times in (raw, held, guarded):
                        times.clear()
            alone.close()
            inside.close()
        ratio = [g / (r + h) for g, r, h in zip(guarded, raw, held, strict=True)]
        rows.append(
            f"| {given} | {spread(raw, ' ms', 1e3)} | {spread(held, ' ms', 1e3)} | "
            f"{spread(guarded, ' ms', 1e3)} | {spread(ratio)} |"
        )

    table = (
        f"""# What the guard costs

Written by `benchmarks/guard_cost.py`. One guard with `LabelCentroidDetector`, calibrated; {N_NEW}
new entries of {DIM} dimensions, {SHARE_FLIPPED:.0%} with a flipped label; vectors given. Median
(minimum–maximum) of {rounds} rounds; ratios pair by pair. Python {platform.python_version()},
{faiss.omp_get_max_threads()} threads.

| step | time |
|---|---|
| fit {n_known:,} entries, with held-out scores | {fit:.2f} s |
| screen {N_NEW} against {n_known:,} | {spread(screening, " ms", 1e3)} |
| admit {N_NEW} | {spread(admitting, " ms", 1e3)} |

Writing {N_NEW} entries: unguarded `FAISS.add_embeddings`, the quarantine's own writes of those that
are held, and both together through `GuardedVectorStore.add_embeddings`.

| vectors as | unguarded | quarantine writes | guarded | guarded / (unguarded + quarantine) |
|---|---|---|---|---|
"""
        + "\n".join(rows)
        + "\n"
    )
    print(table)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "guard_cost.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
