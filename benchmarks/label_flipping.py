"""Flipped labels: how many are caught, how many clean entries are held.

    python benchmarks/label_flipping.py            # all splits, writes benchmarks/results/
    python benchmarks/label_flipping.py --splits 2 # a quick look, writes nothing

Setting of the experiments in the source (Dynatrace unguard): the knowledge base is a random half
of the corpus, the rest arrives in batches of 100 in which a share of the labels is flipped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from corpora import load
from rich.progress import track

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.evaluation import DetectionRates, mean_interval

CORPORA = ("sms_spam", "enron1_spam")
SHARES = (0.0, 0.1, 0.4, 0.7, 1.0)
BATCH_SIZE = 100
FPR = 0.01
RESULTS = Path(__file__).parent / "results"

# name -> (level, confidence of the calibration or None for the published rule)
MODES = {
    "entry, published rule": ("entry", None),
    "entry, calibrated at 1 %": ("entry", 0.9),
    "entry, calibrated at 1 %, in expectation": ("entry", 0.5),
    "batch, published rule": ("batch", None),
}
RATES = ("precision", "recall", "f1", "fpr")

HEAD = """# Flipped labels

Written by `benchmarks/label_flipping.py`. Vectors: all-MiniLM-L6-v2. {splits} random splits; mean
and 95 % t-interval over splits. Share 0 % is clean batches only: what matters there is the
false-positive rate. At 100 % nothing is clean. "Calibrated" takes its threshold from the knowledge
base itself (each entry scored while held out) at an accepted false-positive rate of {fpr:.0%}: kept
with 90 % confidence (the default), or in expectation only (`Policy(confidence=0.5)`).
"""


def flip(batch: Batch, share: float, rng: np.random.Generator) -> tuple[Batch, np.ndarray]:
    """Return the batch with a share of its labels replaced by another label, and which."""
    labels = sorted({label for label in batch.labels if label is not None})
    flipped = np.zeros(len(batch), dtype=bool)
    flipped[rng.permutation(len(batch))[: round(share * len(batch))]] = True
    changed = [
        labels[(labels.index(label) + int(rng.integers(1, len(labels)))) % len(labels)]
        if is_flipped
        else label
        for label, is_flipped in zip(batch.labels, flipped, strict=True)
    ]
    return (
        Batch.of(ids=batch.ids, texts=batch.texts, embeddings=batch.embeddings, labels=changed),
        flipped,
    )


def run_split(corpus: Batch, seed: int) -> list[dict[str, object]]:
    """Return the rates of every mode at every share on one random split."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(corpus))
    half = len(corpus) // 2
    knowledge_base, rest = corpus.take(order[:half]), corpus.take(order[half:])
    guards = {}
    for mode, (level, confidence) in MODES.items():
        policy = Policy() if confidence is None else Policy(confidence=confidence)
        guard = Guard(
            [LabelCentroidDetector(level=level)],
            policy=policy,
            quarantine=Quarantine("sqlite://"),
            seed=seed,
        ).fit(knowledge_base)
        guards[mode] = guard if confidence is None else guard.calibrate(fpr=FPR)
    rows: list[dict[str, object]] = []
    for share in SHARES:
        held: dict[str, list[np.ndarray]] = {mode: [] for mode in MODES}
        truth = []
        for start in range(0, len(rest), BATCH_SIZE):
            batch, flipped = flip(
                rest.take(range(len(rest))[start : start + BATCH_SIZE]), share, rng
            )
            truth.append(flipped)
            for mode, guard in guards.items():
                held[mode].append(~guard.screen(batch).kept)
        for mode, masks in held.items():
            rates = DetectionRates.of(np.concatenate(truth), np.concatenate(masks))
            rows.append(
                {"mode": mode, "share": share, "split": seed}
                | {name: getattr(rates, name) for name in RATES}
            )
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=None, help="random splits; default 10")
    arguments = parser.parse_args()
    splits = 10 if arguments.splits is None else arguments.splits
    results = []
    for name in CORPORA:
        corpus = load(name)
        for seed in track(range(splits), description=name):
            results += [{"corpus": name} | row for row in run_split(corpus, seed)]
    lines = [HEAD.format(splits=splits, fpr=FPR)]
    for name in CORPORA:
        lines += [
            f"\n## {name}\n",
            "| detector | flipped | precision | recall | F1 | FPR |",
            "|---|---|---|---|---|---|",
        ]
        for mode in MODES:
            for share in SHARES:
                chosen = [
                    r
                    for r in results
                    if (r["corpus"], r["mode"], r["share"]) == (name, mode, share)
                ]
                cells = [str(mean_interval([float(r[rate]) for r in chosen])) for rate in RATES]
                lines.append(f"| {mode} | {share:.0%} | " + " | ".join(cells) + " |")
    table = "\n".join(lines) + "\n"
    print(table)
    if arguments.splits is None:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "label_flipping.md").write_text(table, encoding="utf-8")
        (RESULTS / "label_flipping.json").write_text(
            json.dumps(results, indent=1).replace("NaN", "null") + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
