"""Recall and false-positive rates of all detectors at ingestion, each alone and together.

    python benchmarks/ingestion.py            # stale parts, writes its result
    python benchmarks/ingestion.py --quick    # small, writes nothing
    python benchmarks/ingestion.py --only texts guard   # these parts, the others stay

The planted phrases and gibberish are our own; everything else comes from
`RAGSHIELD_DATA`.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import faiss
import numpy as np
from cliques import attack, join, knowledge_base
from corpora import load, read_rows
from label_flipping import flip
from phrases import plant_phrase
from rates import DetectionRates, mean_interval, proportion_interval
from results_files import Parts
from rich.progress import track

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import (
    Detector,
    DisfluencyDetector,
    HiddenTextDetector,
    InstructionDetector,
    LeadingQuestionDetector,
    TriggerPhraseDetector,
)

WORDINGS = Path(__file__).parent / "wordings"
FPR = 0.01
SPLITS = 3
PHRASES = (
    "purple elephant",
    "see the silver almanac",
    "as the harbour master confirmed",
    "remember what the lantern told us that night",
)
# Fragments of code and web pages, as in text by an optimiser.
SALAD = (  # noqa: SIM905 - a list is harder to read
    "ument describing similarly ##ial write Me giving please revert interface ))); <? cont nj "
    "abuses spectator hollow Plaint oppos parsed != ${ izing sheriff utt $\\ ]( ICON Sure ++; "
    "Entity bordered Mixed ability tutorial -- vor Hamlet ] {} polynomial Canon yclop sche Toxic"
).split()

HEAD = """# All detectors at ingestion

Written by `benchmarks/ingestion.py`. Vectors: all-MiniLM-L6-v2. Mean or share with 95 % interval,
within 0 and 1.
Flipped labels: [label_flipping.md](label_flipping.md).
"""
PHRASES_HEAD = f"""
## Planted phrases

`TriggerPhraseDetector`, calibrated at {FPR:.0%} on a random half of the corpus; batches of 1,000 of
the rest; {len(PHRASES)} phrases of two to eight words, at start and end of an entry, or once at a
random position. Drop by drop: 20 batches of 100 with one poisoned entry each, findings against
earlier entries included.

| corpus | where | poisoned | precision | recall | F1 | FPR |
|---|---|---|---|---|---|---|"""
TEXTS_HEAD = """
## Instructions and hidden text, by the rule

Share of entries above the rule's threshold, which needs no knowledge base.

| entries | instruction | hidden_text |
|---|---|---|"""
GIBBERISH_HEAD = f"""
## Gibberish and questions in front

Each detector alone, calibrated on 70 % of the corpus, at {FPR:.0%} / 0.2 %. Gibberish: 25 random
tokens of our own list before, inside or after a clean passage or a raw attack text. Questions:
black-box texts of PoisonedRAG, singly; repaired: with a capital letter and a question mark, as a
person would write.

| knowledge base | detector | entries | held |
|---|---|---|---|"""
GUARD_HEAD = """
## The default guard

`Guard.default(fpr={fpr})`, fitted and calibrated on a random 70 % of the corpus ({splits} splits),
attack texts screened in one batch with 1,000 clean new ones. Cells: share held, by the number of
documents per target. Intervals: Wilson, 95 %; documents of one target are held together, so that
the true ones are wider.
"""
LABELS_HEAD = """
### Flipped labels

The default guard on a random half of the corpus; of the rest, in batches of 100, a tenth has a
flipped label.

| corpus | precision | recall | F1 | FPR |
|---|---|---|---|---|"""
COST_HEAD = """
## Cost

Screening {new:,} passages of 100 words (vectors and labels given) against {known:,}; median
(minimum–maximum) of {rounds} rounds, {threads} threads. To fit and calibrate took {fitted:.0f} s.

| detector | time |
|---|---|"""


def guard_of(detectors: list[Detector], known: Batch, fpr: float = FPR) -> Guard:
    """Return a guard that is fitted and calibrated on a knowledge base."""
    guard = Guard(detectors, policy=Policy(quarantine_at=fpr), quarantine=Quarantine("sqlite://"))
    return guard.fit(known).calibrate()


def split(corpus: Batch, seed: int, share: float = 0.7) -> tuple[Batch, Batch]:
    """Return a random part of a corpus, and the rest."""
    order = np.random.default_rng(seed).permutation(len(corpus))
    border = int(share * len(corpus))
    return corpus.take(order[:border]), corpus.take(order[border:])


def chunks(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield a batch in parts of a size."""
    for start in range(0, len(batch), size):
        yield batch.take(range(start, min(start + size, len(batch))))


def held(guard: Guard, batch: Batch, size: int = 500) -> np.ndarray:
    """Return a mask of quarantined entries; batches are screened, not learned."""
    return np.concatenate([~guard.screen(part).admitted for part in chunks(batch, size)])


# Planted phrases


def phrases(splits: int) -> list[str]:
    """Return the table of planted phrases."""
    lines = [PHRASES_HEAD]
    for name in ("sms_spam", "enron1_spam"):
        corpus = load(name)
        rates: dict[tuple[str, str], list[DetectionRates]] = defaultdict(list)
        for seed in track(range(splits), description=f"phrases in {name}"):
            known, new = split(corpus, seed, 0.5)
            guard = guard_of([TriggerPhraseDetector()], known)
            for number, phrase in enumerate(PHRASES):
                for where in ("ends", "random"):
                    for share in (0.1, 0.02):
                        rates[where, f"{share:.0%}"].append(
                            planted(guard, new, phrase, where, share, 100 * seed + number)
                        )
                    rates[where, "1 in 100, drop by drop"].append(
                        dripped(known, new, phrase, where, 100 * seed + number)
                    )
        for (where, share), found in rates.items():
            cells = [
                str(mean_interval([getattr(rate, which) for rate in found]))
                for which in ("precision", "recall", "f1", "fpr")
            ]
            lines.append(f"| {name} | {where} | {share} | " + " | ".join(cells) + " |")
    return lines


def planted(
    guard: Guard, new: Batch, phrase: str, where: str, share: float, seed: int
) -> DetectionRates:
    """Plant a phrase in a share of one batch and screen it."""
    batch = new.take(np.random.default_rng(seed).permutation(len(new))[:1000])
    rows = range(round(share * len(batch)))
    poisoned = np.zeros(len(batch), dtype=np.bool_)
    poisoned[list(rows)] = True
    texts = plant_phrase(batch, rows, phrase, position=where, seed=seed)
    return DetectionRates.of(poisoned, ~guard.screen(replace(batch, texts=tuple(texts))).admitted)


def dripped(known: Batch, new: Batch, phrase: str, where: str, seed: int) -> DetectionRates:
    """Plant a phrase in one entry of each batch of a hundred, and return the final rates."""
    guard = guard_of([TriggerPhraseDetector()], known)
    stream = new.take(np.random.default_rng(seed).permutation(len(new))[:2000])
    bad = np.arange(0, len(stream), 100)
    texts = plant_phrase(stream, bad.tolist(), phrase, position=where, seed=seed)
    stream = replace(stream, texts=tuple(texts))
    row_of = {entry_id: row for row, entry_id in enumerate(stream.ids)}
    gone = np.zeros(len(stream), dtype=np.bool_)
    for batch in chunks(stream, 100):
        report = guard.hold(guard.screen(batch))
        guard.admit(report)
        earlier = [row_of[decision.entry_id] for decision in report.retroactive]
        guard.recall(stream.take(earlier), report.retroactive, lambda _: None)
        gone[[row_of[decision.entry_id] for decision in report.quarantined] + earlier] = True
    return DetectionRates.of(np.isin(np.arange(len(stream)), bad), gone)


# Detectors of single texts


def texts() -> list[str]:
    """Return the tables of detectors of single texts, at their default thresholds."""
    ham = load("enron1_spam")
    ham = ham.take([row for row, label in enumerate(ham.labels) if label == "not_spam"])
    clean = {
        "notinject_one": load("notinject_one"),
        "Wikipedia": load("wiki_passages"),
        "near-duplicate docs": load("near_duplicate_docs"),
        "Enron, ham": ham,
        "web passages": load("redundant_web_passages"),
        "NQ contexts": load("nq_target_contexts"),
        "SMS": load("sms_spam"),
        "banking77": load("banking77"),
    }
    detectors: list[Detector] = [InstructionDetector(), HiddenTextDetector()]
    lines = [TEXTS_HEAD]
    rows = read_rows("promptinjection_nq")
    injected = load("promptinjection_nq")
    hosts = np.array([row["carrier_id"] is not None for row in rows])
    attacks = {
        "promptinjection_nq": injected,
        "promptinjection_nq, a document of its own": injected.take(~hosts),
        "promptinjection_nq, inside a clean passage": injected.take(hosts),
    }
    wordings = {
        "unseen wordings, attacks": written("attacks_test"),
        "unseen wordings, hard benign texts": written("benign_test"),
        "wordings looked at, attacks": written("attacks_dev"),
        "wordings looked at, hard benign texts": written("benign_dev"),
    }
    for name, batch in {**attacks, **wordings, **clean}.items():
        cells = []
        for detector in detectors:
            hits = detector.score(batch) > max(detector.default_threshold, detector.traits.floor)
            cells.append(str(proportion_interval(int(hits.sum()), len(hits))))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def written(name: str) -> Batch:
    """Return our own texts; see wordings/README.md."""
    lines = (WORDINGS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return Batch.of(
        ids=[row["id"] for row in rows], texts=[row["text"] for row in rows], embeddings=None
    )


def salad(rng: np.random.Generator, n: int) -> str:
    """Return n tokens of gibberish, some of them glued together."""
    words = rng.choice(SALAD, n).tolist()
    return "".join(word + ("" if rng.random() < 0.2 else " ") for word in words)  # noqa: PLR2004


def gibberish(splits: int) -> list[str]:
    """Return the table of gibberish, and of questions put in front."""
    lines = [GIBBERISH_HEAD]
    fprs = (FPR, 0.002)
    for name in ("wikipedia", "web + nq"):
        counts: dict[tuple[str, str], dict[float, list[int]]] = defaultdict(
            lambda: {fpr: [0, 0] for fpr in fprs}
        )
        for seed in track(range(splits), description=f"gibberish in {name}"):
            known, new = split(knowledge_base(name), seed)
            entries = {
                DisfluencyDetector: {"clean": new, **spliced(new, seed)},
                LeadingQuestionDetector: {"clean": new, **questioned()},
            }
            for make, sets in entries.items():
                guard = guard_of([make()], known)
                for fpr in fprs:
                    guard.calibrate(fpr=fpr)
                    for label, batch in sets.items():
                        hits = held(guard, batch)
                        counts[make.kind, label][fpr][0] += int(hits.sum())
                        counts[make.kind, label][fpr][1] += len(hits)
        for (kind, label), by_rate in counts.items():
            cell = " / ".join(str(proportion_interval(*by_rate[fpr])) for fpr in fprs)
            lines.append(f"| {name} | {kind} | {label} | {cell} |")
    return lines


def spliced(new: Batch, seed: int) -> dict[str, Batch]:
    """Return clean passages and attack texts with gibberish in them."""
    rng = np.random.default_rng(seed)
    passages, raw = new.take(range(200)), attack("poisonedrag_nq", "text", 1, one_lineage=False)
    inside = []
    for text in passages.texts:
        words = text.split()
        at = int(rng.integers(len(words) + 1))
        inside.append(" ".join([*words[:at], salad(rng, 25), *words[at:]]))
    return {
        "gibberish before a raw attack text": replace(
            raw, texts=tuple(f"{salad(rng, 25)} {text}" for text in raw.texts)
        ),
        "gibberish inside a clean passage": replace(passages, texts=tuple(inside)),
        "gibberish after a clean passage": replace(
            passages, texts=tuple(f"{text} {salad(rng, 25)}" for text in passages.texts)
        ),
    }


def questioned() -> dict[str, Batch]:
    """Return single attack texts with the question in front, as published and with repairs."""
    sets = {}
    for name in ("poisonedrag_nq", "poisonedrag_hotpotqa"):
        batch = load(name, text="text_blackbox")
        sets[name] = batch
        repaired = []
        for row in read_rows(name):
            question = row["target_question"].strip().rstrip(".?")
            repaired.append(f"{question[:1].upper()}{question[1:]}? {row['text']}")
        sets[f"{name}, repaired"] = replace(batch, texts=tuple(repaired))
    return sets


# All together


class Tally:
    """Counts of held entries, and of findings by detector, for each kind of entries."""

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._reasons: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def screen(self, guard: Guard, label: str, entries: Batch, others: Batch) -> None:
        """Screen entries together with others, and count the held ones of the former."""
        report = guard.screen(join(entries, others))
        self._held[label][0] += int((~report.admitted[: len(entries)]).sum())
        self._held[label][1] += len(entries)
        mine = set(entries.ids)
        for decision in report.quarantined:
            for finding in decision.findings if decision.entry_id in mine else ():
                self._reasons[label][finding.detector] += 1

    def share(self, label: str) -> str:
        """Return the share held, with its interval."""
        return str(proportion_interval(*self._held[label]))

    def reasons(self, label: str) -> str:
        """Return the number of findings of each detector."""
        counts = sorted(self._reasons[label].items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {n}" for name, n in counts) or "none"


TITLES = {"text_blackbox": "black-box", "text": "raw, without the question"}


def default_guard(bases: dict[str, list[str]], splits: int) -> list[str]:
    """Return the tables of the default guard."""
    lines = [GUARD_HEAD.format(fpr=FPR, splits=splits)]
    for name, attacks in bases.items():
        tally = Tally()
        for seed in track(range(splits), description=f"default guard, {name}"):
            known, new = split(knowledge_base(name), seed)
            guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()
            for part in chunks(new, 500):
                tally.screen(guard, "clean", part, new.take([]))
            for source, text, n in product(attacks, TITLES, (5, 3, 2, 1)):
                poison = attack(source, text, n, one_lineage=False, seed=seed)
                tally.screen(guard, f"{source} {text} {n}", poison, new.take(range(1000)))
        lines += [
            f"\n### {name}\n",
            f"Joint false-positive rate: {tally.share('clean')}.\n",
            "| attack | texts | 5 | 3 | 2 | 1 |",
            "|---|---|---|---|---|---|",
        ]
        for source, text in product(attacks, TITLES):
            cells = [tally.share(f"{source} {text} {n}") for n in (5, 3, 2, 1)]
            lines.append(f"| {source} | {TITLES[text]} | " + " | ".join(cells) + " |")
        lines += ["\nFindings by detector (an entry may have several):\n"]
        singles = [f"{source} {text} 1" for source, text in product(attacks, TITLES)]
        lines += [f"- {label}: {tally.reasons(label)}" for label in ("clean", *singles)]
    return lines


def labelled(splits: int) -> list[str]:
    """Return the table of flipped labels under the default guard."""
    lines = [LABELS_HEAD]
    for name in ("sms_spam", "enron1_spam", "banking77"):
        rates = []
        for seed in track(range(splits), description=f"default guard, labels of {name}"):
            known, new = split(load(name), seed, 0.5)
            guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")).fit(known).calibrate()
            batch, flipped = flip(new, 0.1, np.random.default_rng(seed))
            rates.append(DetectionRates.of(flipped, held(guard, batch, 100)))
        cells = [
            str(mean_interval([getattr(rate, which) for rate in rates]))
            for which in ("precision", "recall", "f1", "fpr")
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


# Cost


def cost(n_known: int, n_new: int, rounds: int) -> list[str]:
    """Return the time of each detector for a batch of passages of 100 words."""
    source = load("wiki_passages", lineage="title")
    words = " ".join(source.texts).split()
    rng = np.random.default_rng(0)

    def passages(n: int, prefix: str) -> Batch:
        starts = rng.integers(0, len(words) - 100, n)
        rows = rng.integers(0, len(source), n)
        noise = rng.normal(scale=0.04, size=(n, source.dim))  # nearest cosine .6, as in Wikipedia
        return Batch.of(
            ids=[f"{prefix}{i}" for i in range(n)],
            texts=[" ".join(words[start : start + 100]) for start in starts],
            embeddings=source.embeddings[rows] + noise,
            labels=[f"label {row % 5}" for row in rows],
            lineages=[f"{prefix}document {i // 5}" for i in range(n)],
        )

    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://"))
    start = time.perf_counter()
    guard.fit(passages(n_known, "kb")).calibrate()
    fitted = time.perf_counter() - start
    timings: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        report = guard.screen(passages(n_new, f"new{number}-"))
        if number:  # the first round imports modules and builds tables
            for name, seconds in report.timings.items():
                timings[name].append(seconds)
            timings["all together"].append(sum(report.timings.values()))
    lines = [
        COST_HEAD.format(
            new=n_new,
            known=n_known,
            rounds=rounds,
            threads=faiss.omp_get_max_threads(),
            fitted=fitted,
        )
    ]
    for name, values in timings.items():
        ms = np.array(values) * 1000
        lines.append(f"| {name} | {np.median(ms):.0f} ms ({ms.min():.0f}–{ms.max():.0f}) |")
    return lines


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two parts, small; writes nothing")
    parser.add_argument("--only", nargs="*", help="parts to run; others stay as they were")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    nq, hotpotqa = "poisonedrag_nq", "poisonedrag_hotpotqa"
    bases = {
        "wikipedia": [nq, hotpotqa],
        "web + nq": [nq],
        "web + hotpotqa": [hotpotqa],
        "near-duplicate docs": [],
    }
    splits, size, rounds = SPLITS, (100_000, 1000), 5
    if arguments.quick:
        size, rounds = (3000, 200), 1
    parts: dict[str, Callable[[], list[str]]] = {
        "phrases": lambda: phrases(splits),
        "texts": texts,
        "gibberish": lambda: gibberish(splits),
        "guard": lambda: default_guard(bases, splits),
        "labels": lambda: labelled(splits),
        "cost": lambda: cost(*size, rounds),
    }
    done = Parts("ingestion", HEAD, list(parts))
    for name in arguments.only or (("texts", "cost") if arguments.quick else done.stale()):
        lines = parts[name]()
        print("\n".join(lines))
        if not arguments.quick:
            done.put(name, lines)


if __name__ == "__main__":
    main()
