"""Flipped labels: recall, and the false-positive rate on clean entries.

    python benchmarks/label_flipping.py            # all splits, writes benchmarks/results/
    python benchmarks/label_flipping.py --quick    # one small split, writes nothing

The setting is that of Dynatrace unguard's experiments: the knowledge base is a random half of the
corpus; entries of the rest arrive in batches of 100, a share of whose labels is flipped. A guard
with one detector decides, and learns the entries that it admits: an entry is caught when it is held
or recalled by the end of the day. Targeted: 5 % of the entries of one label, the nearest to one of
them, are flipped, all to the same other label.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one split per core

import numpy as np
from corpora import load
from decisions import arrive, chunks, opened
from rates import DetectionRates, mean_interval
from results_files import RESULTS, write
from rich.progress import track

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import Detector, LabelCentroidDetector
from ragshield_core.detectors.label.model import LabelModelDetector
from ragshield_core.detectors.label.neighbors import LabelNeighborDetector

# name -> number of random splits
CORPORA = {"sms_spam": 4, "enron1_spam": 4, "banking77": 3}
SHARES = (0.0, 0.1, 0.4, 0.7, 1.0)
TARGETED = 0.05
BATCH_SIZE = 100
ARRIVING = 1_000
FPR = 0.01
SECONDS = 170  # per split, on one core


class Mode(NamedTuple):
    """A guard with one detector, and its calibration."""

    make: Callable[[], Detector]
    calibrated: bool = True
    confidence: float = 0.9


MODES = {
    "entry, default threshold": Mode(LabelCentroidDetector, calibrated=False),
    "entry, calibrated at 1 %": Mode(LabelCentroidDetector),
    "entry, calibrated at 1 %, in expectation": Mode(LabelCentroidDetector, confidence=0.5),
    "batch, default threshold": Mode(
        lambda: LabelCentroidDetector(level="batch"), calibrated=False
    ),
    "neighbours, calibrated at 1 %": Mode(LabelNeighborDetector),
    "model, calibrated at 1 %": Mode(LabelModelDetector),
    "model, calibrated at 1 %, in expectation": Mode(LabelModelDetector, confidence=0.5),
}
RATES = ("precision", "recall", "f1", "fpr")

HEAD = """# Flipped labels

Written by `benchmarks/label_flipping.py`. Vectors: all-MiniLM-L6-v2. {splits} random splits; mean
and 95 % t-interval over splits. Decisions of a guard with one detector: the knowledge base is a
random half of the corpus, {arriving:,} entries of the rest come in batches of {batch}, and the
guard learns what it admits. Caught: held or recalled by the end of the day. Share 0 % is clean
batches only: what matters there is the false-positive rate. At 100 % nothing is clean. "Calibrated"
takes its threshold from the knowledge base itself (each entry scored while held out) at an accepted
false-positive rate of {fpr:.0%}: kept with 90 % confidence (the default), or in expectation only
(`Policy(confidence=0.5)`). "Targeted" flips {targeted:.0%} of one label, the entries nearest to one
of them, and nothing else. Intervals are cut at 0 and 1.
"""


def flip(batch: Batch, share: float, rng: np.random.Generator) -> tuple[Batch, np.ndarray]:
    """Return the batch with a share of its labels flipped, and a mask of the flipped rows."""
    labels = sorted({label for label in batch.labels if label is not None})
    flipped = np.zeros(len(batch), dtype=bool)
    flipped[rng.permutation(len(batch))[: round(share * len(batch))]] = True
    changed = [
        labels[(labels.index(str(label)) + int(rng.integers(1, len(labels)))) % len(labels)]
        if is_flipped
        else label
        for label, is_flipped in zip(batch.labels, flipped, strict=True)
    ]
    return _relabelled(batch, changed), flipped


def flip_neighborhood(
    batch: Batch, share: float, rng: np.random.Generator
) -> tuple[Batch, np.ndarray]:
    """Return the batch with a neighbourhood of one label relabelled, and a mask of these rows.

    A narrow topic is moved to another label as a whole: the nearest entries of a random one, a
    ``share`` of the label and at least one entry.
    """
    labels = sorted({label for label in batch.labels if label is not None})
    target = int(rng.integers(len(batch)))
    label = batch.labels[target]
    rows = np.flatnonzero([other == label for other in batch.labels])
    similarity = batch.embeddings[rows] @ batch.embeddings[target]
    chosen = rows[np.argsort(-similarity, kind="stable")[: max(1, round(share * len(rows)))]]
    flipped = np.zeros(len(batch), dtype=bool)
    flipped[chosen] = True
    new = str(rng.choice([other for other in labels if other != label]))
    changed = [new if f else old for f, old in zip(flipped, batch.labels, strict=True)]
    return _relabelled(batch, changed), flipped


def _relabelled(batch: Batch, labels: list[str | None]) -> Batch:
    return Batch.of(ids=batch.ids, texts=batch.texts, embeddings=batch.embeddings, labels=labels)


def run_split(
    name: str, seed: int, arriving: int, shares: Sequence[float]
) -> list[dict[str, object]]:
    """Return the rates of every mode at every share on one random split of a corpus."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    rng, corpus = np.random.default_rng(seed), load(name)
    order = rng.permutation(len(corpus))
    half = len(corpus) // 2
    known, new = corpus.take(order[:half]), corpus.take(order[half : half + arriving])
    streams: dict[float | str, tuple[Batch, np.ndarray]] = {
        share: flip(new, share, rng) for share in shares
    }
    streams["targeted"] = flip_neighborhood(new, TARGETED, rng)
    rows: list[dict[str, object]] = []
    for title, mode in MODES.items():
        rates = rates_of(mode, known, streams, seed)
        rows += [
            {"corpus": name, "mode": title, "share": share, "split": seed}
            | {rate: getattr(of, rate) for rate in RATES}
            for share, of in rates.items()
        ]
    return rows


def rates_of(
    mode: Mode,
    known: Batch,
    streams: dict[float | str, tuple[Batch, np.ndarray]],
    seed: int,
) -> dict[float | str, DetectionRates]:
    """Return the rates of a guard on each stream; each starts from the known entries."""
    policy = Policy(quarantine_at=FPR, confidence=mode.confidence)
    guard = Guard([mode.make()], policy=policy, quarantine=Quarantine("sqlite://"), seed=seed)
    guard.fit(known)
    if mode.calibrated:
        guard.calibrate()
    with tempfile.TemporaryDirectory() as folder:
        guard.save(Path(folder) / "guard")
        return {
            share: DetectionRates.of(
                flipped, arrive(opened(Path(folder) / "guard"), chunks(batch, BATCH_SIZE)).out
            )
            for share, (batch, flipped) in streams.items()
        }


def page(results: Sequence[dict[str, object]], splits: str) -> str:
    """Return the page of results."""
    given = {"fpr": FPR, "targeted": TARGETED, "arriving": ARRIVING, "batch": BATCH_SIZE}
    lines = [HEAD.format(splits=splits, **given)]
    by_row: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in results:
        by_row.setdefault((row["corpus"], row["mode"], row["share"]), []).append(row)
    for corpus in dict.fromkeys(corpus for corpus, _, _ in by_row):
        lines += [
            f"\n## {corpus}\n",
            "| detector | flipped | precision | recall | F1 | FPR |",
            "|---|---|---|---|---|---|",
        ]
        for mode, share in product(MODES, (*SHARES, "targeted")):
            if rows := by_row.get((corpus, mode, share)):
                cells = [str(mean_interval([float(str(r[rate])) for r in rows])) for rate in RATES]
                flipped = share if isinstance(share, str) else f"{share:.0%}"
                lines.append(f"| {mode} | {flipped} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small split; writes nothing")
    quick = parser.parse_args().quick
    corpora = {"sms_spam": 1} if quick else CORPORA
    arriving, shares = (300, (0.0, 0.4)) if quick else (ARRIVING, SHARES)
    jobs = [(name, seed) for name, splits in corpora.items() for seed in range(splits)]
    if not quick:
        minutes = len(jobs) * SECONDS / 60 / (os.cpu_count() or 1)
        print(f"{len(jobs)} splits, about {minutes:.0f} minutes", flush=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(run_split, *job, arriving, shares) for job in jobs]
        results = [row for future in track(futures, "splits") for row in future.result()]
    text = page(results, ", ".join(f"{name} {n}" for name, n in corpora.items()))
    print(text)
    if not quick:
        write("label_flipping", text)
        (RESULTS / "label_flipping.json").write_text(
            json.dumps(results, indent=1).replace("NaN", "null") + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
