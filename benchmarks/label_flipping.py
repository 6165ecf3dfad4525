"""Flipped labels: how many are caught, how many clean entries are held.

    python benchmarks/label_flipping.py            # all splits, writes benchmarks/results/
    python benchmarks/label_flipping.py --splits 2 # a quick look, writes nothing

Setting of the experiments in the source (Dynatrace unguard): the knowledge base is a random half
of the corpus, the rest arrives in batches of 100 in which a share of the labels is flipped.
Targeted: only the entries of one label that are nearest to one of them, 5 % of the label, are
flipped, all to the same other label.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from corpora import load
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.calibration import JointCalibration
from ragshield_core.detectors import Detector, LabelCentroidDetector
from ragshield_core.detectors.label_model import LabelModelDetector
from ragshield_core.detectors.label_neighbors import LabelNeighborDetector
from ragshield_core.evaluation import DetectionRates, mean_interval

# name -> random splits
CORPORA = {"sms_spam": 10, "enron1_spam": 10, "banking77": 5}
SHARES = (0.0, 0.1, 0.4, 0.7, 1.0)
TARGETED = 0.05
BATCH_SIZE = 100
FPR = 0.01
# What each of about eight detectors would have of the same budget, if it were shared equally.
SMALL_FPR = 0.002
RESULTS = Path(__file__).parent / "results"

DETECTORS: dict[str, Callable[[], Detector]] = {
    "entry": LabelCentroidDetector,
    "batch": lambda: LabelCentroidDetector(level="batch"),
    "neighbours": LabelNeighborDetector,
    "neighbours, majority": lambda: LabelNeighborDetector(vote="majority"),
    "model": LabelModelDetector,
}


class Mode(NamedTuple):
    """How a detector decides."""

    detector: str
    fpr: float | None = None  # None for the default threshold
    confidence: float = 0.9


MODES = {
    "entry, default threshold": Mode("entry"),
    "entry, calibrated at 1 %": Mode("entry", FPR),
    "entry, calibrated at 1 %, in expectation": Mode("entry", FPR, 0.5),
    "batch, default threshold": Mode("batch"),
    "neighbours, default threshold": Mode("neighbours"),
    "neighbours, calibrated at 1 %": Mode("neighbours", FPR),
    "neighbours, calibrated at 1 %, in expectation": Mode("neighbours", FPR, 0.5),
    "neighbours, calibrated at 0.2 %": Mode("neighbours", SMALL_FPR),
    "neighbours by majority, calibrated at 1 %": Mode("neighbours, majority", FPR),
    "model, default threshold": Mode("model"),
    "model, calibrated at 1 %": Mode("model", FPR),
    "model, calibrated at 1 %, in expectation": Mode("model", FPR, 0.5),
    "model, calibrated at 0.2 %": Mode("model", SMALL_FPR),
}
RATES = ("precision", "recall", "f1", "fpr")

HEAD = """# Flipped labels

Written by `benchmarks/label_flipping.py`. Vectors: all-MiniLM-L6-v2. {splits} random splits; mean
and 95 % t-interval over splits. Share 0 % is clean batches only: what matters there is the
false-positive rate. At 100 % nothing is clean. "Calibrated" takes its threshold from the knowledge
base itself (each entry scored while held out) at an accepted false-positive rate of {fpr:.0%}: kept
with 90 % confidence (the default), or in expectation only (`Policy(confidence=0.5)`). "Targeted"
flips {targeted:.0%} of one label, the entries nearest to one of them, and nothing else.
Intervals are cut at 0 and 1.
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
    return _relabelled(batch, changed), flipped


def flip_neighborhood(
    batch: Batch, share: float, rng: np.random.Generator
) -> tuple[Batch, np.ndarray]:
    """Return the batch with one label's entries around a random one of them relabelled, and which.

    A narrow topic is moved to another label as a whole: ``share`` of the label's entries, at least
    one.
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


def run_split(corpus: Batch, seed: int) -> list[dict[str, object]]:
    """Return the rates of every mode at every share on one random split."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(corpus))
    half = len(corpus) // 2
    knowledge_base, rest = corpus.take(order[:half]), corpus.take(order[half:])
    guards = {
        name: Guard([make()], quarantine=Quarantine("sqlite://"), seed=seed).fit(knowledge_base)
        for name, make in DETECTORS.items()
    }
    thresholds = {
        mode: _threshold(guards[m.detector], knowledge_base, m) for mode, m in MODES.items()
    }
    rows: list[dict[str, object]] = []

    def judge(share: float | str, batches: list[tuple[Batch, np.ndarray]]) -> None:
        poisoned = np.concatenate([flipped for _, flipped in batches])
        scores = {
            name: np.concatenate(
                [next(iter(guard.screen(batch).scores.values())) for batch, _ in batches]
            )
            for name, guard in guards.items()
        }
        for mode, (detector, _, _) in MODES.items():
            # NaN, which is not judged, is above no threshold.
            rates = DetectionRates.of(poisoned, scores[detector] > thresholds[mode])
            rows.append(
                {"mode": mode, "share": share, "split": seed}
                | {name: getattr(rates, name) for name in RATES}
            )

    parts = [
        range(len(rest))[start : start + BATCH_SIZE] for start in range(0, len(rest), BATCH_SIZE)
    ]
    for share in SHARES:
        judge(share, [flip(rest.take(part), share, rng) for part in parts])
    aimed, flipped = flip_neighborhood(rest, TARGETED, rng)
    judge("targeted", [(aimed.take(part), flipped[part]) for part in parts])
    return rows


def _threshold(guard: Guard, knowledge_base: Batch, mode: Mode) -> float:
    """Return the score above which a mode holds entries."""
    (detector,) = guard.detectors
    if mode.fpr is None:
        return guard.thresholds[detector.name]
    clean = {detector.name: detector.held_out_scores(knowledge_base, guard.seed)}
    joint = JointCalibration(clean, {detector.name: detector.floor})
    return joint.thresholds(mode.fpr, mode.confidence)[detector.name]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=None, help="random splits; default 10 or 5")
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), help="a quick look at some")
    arguments = parser.parse_args()
    results = []
    for name in arguments.corpora:
        corpus = load(name)
        splits = CORPORA[name] if arguments.splits is None else arguments.splits
        for seed in track(range(splits), description=name):
            results += [{"corpus": name} | row for row in run_split(corpus, seed)]
    shown = "10 (banking77: 5)" if arguments.splits is None else arguments.splits
    lines = [HEAD.format(splits=shown, fpr=FPR, targeted=TARGETED)]
    for name in arguments.corpora:
        lines += [
            f"\n## {name}\n",
            "| detector | flipped | precision | recall | F1 | FPR |",
            "|---|---|---|---|---|---|",
        ]
        for mode in MODES:
            for share in (*SHARES, "targeted"):
                chosen = [
                    r
                    for r in results
                    if (r["corpus"], r["mode"], r["share"]) == (name, mode, share)
                ]
                cells = [str(mean_interval([float(r[rate]) for r in chosen])) for rate in RATES]
                flipped = share if isinstance(share, str) else f"{share:.0%}"
                lines.append(f"| {mode} | {flipped} | " + " | ".join(cells) + " |")
    table = "\n".join(lines) + "\n"
    print(table)
    if arguments.splits is None and arguments.corpora == list(CORPORA):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "label_flipping.md").write_text(table, encoding="utf-8")
        (RESULTS / "label_flipping.json").write_text(
            json.dumps(results, indent=1).replace("NaN", "null") + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
