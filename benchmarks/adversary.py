"""Shares of attacks that the guard holds or recalls by the end of the day, by order of arrival.

    python benchmarks/adversary.py            # stale parts, writes its result
    python benchmarks/adversary.py --quick    # small, writes nothing; fails if a goal is missed
    python benchmarks/adversary.py --only raw flips   # these parts, the others stay

The default guard at 1 %, adopted on a knowledge base that has passages on the attacked questions.
Each attack targets 50 questions. Forms of texts: "published" as in PoisonedRAG's file, "natural" as
people write them (`natural.py`). Phrases, gibberish and rewordings are our own; everything else
comes from `RAGSHIELD_DATA`.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one stream per core

import numpy as np
from corpora import from_source, load, read_rows
from decisions import arrive, chunks, failed, opened
from ingestion import PHRASES, salad, written
from label_flipping import flip
from natural import FORMS, reworded
from rates import DetectionRates
from results_files import Parts
from rich.progress import track
from vectors import embedded, use_folder

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import Detector, LabelCentroidDetector
from ragshield_core.detectors.label.model import LabelModelDetector
from ragshield_core.model.entries import concatenate
from ragshield_core.store.opening import learn_store

FPR, QUESTIONS, KNOWN, HELD_OUT = 0.01, 50, 5_000, 1_200
BASES = {"web": "redundant_web_passages", "Wikipedia": "wiki_passages"}
LATER, CARRIERS, NEW_SOURCE = 200, 20, 300
SECONDS = 58  # 250 texts in all arrivals, on one core
SLACK = 0.15  # tolerance of a quick run, which has ten questions

HEAD = f"""# Attacks, by how they arrive

Written by `benchmarks/adversary.py`. `Guard.default(fpr={FPR})`, adopted on {KNOWN:,} entries,
among them the passages that a retriever finds for the attacked questions. {QUESTIONS} questions an
attack. Cells: share of the attack's texts held or recalled by the end of the day; behind the
stroke, of clean entries in the same stream. Columns: knowledge base and texts a question. Without
another word the attack comes in fifties, shuffled, and names no source; each text is a document of
its own. Vectors: all-MiniLM-L6-v2.
"""


# Attacks


def questions(n: int = QUESTIONS) -> list[str]:
    """Return the ids of the attacked questions."""
    return list(dict.fromkeys(row["target_question_id"] for row in read_rows("poisonedrag_nq")))[:n]


def attack_of(texts: Sequence[str], groups: Sequence[str], vectors: np.ndarray | None) -> Batch:
    """Return attack texts in the order of their questions, each its own document, without source.

    Parameters
    ----------
    texts, groups
        Each text, and the question that it is about.
    vectors
        ``None`` to embed the texts.
    """
    ids = [f"attack {group} {number}" for number, group in enumerate(groups)]
    batch = Batch.of(
        ids=ids,
        texts=texts,
        embeddings=embedded("attacks", texts) if vectors is None else vectors,
        lineages=[f"document of {i}" for i in ids],
        metadatas=[{"group": group} for group in groups],
    )
    return from_source(batch, None)


def first_of_each(k: int, n: int = QUESTIONS, name: str = "poisonedrag_nq") -> list[int]:
    """Return the rows of the first k texts of each attacked question, in their order."""
    wanted, rows = questions(n) if name == "poisonedrag_nq" else [], defaultdict(list)
    for row, one in enumerate(read_rows(name)):
        rows[one["target_question_id"]].append(row)
    return [row for question in wanted or list(rows)[:n] for row in rows[question][:k]]


def published(column: str, k: int, n: int = QUESTIONS) -> Batch:
    """Return texts of PoisonedRAG as published."""
    chosen, rows = first_of_each(k, n), read_rows("poisonedrag_nq")
    batch = load("poisonedrag_nq", text=column).take(chosen)
    return attack_of(batch.texts, [rows[i]["target_question_id"] for i in chosen], batch.embeddings)


def in_form(form: str, k: int, n: int = QUESTIONS) -> Batch:
    """Return texts of PoisonedRAG with the question in front, in a form of natural.py."""
    chosen, rows = first_of_each(k, n), read_rows("poisonedrag_nq")
    texts = [
        reworded(rows[i]["target_question"], rows[i]["text"], number)
        if form == "reworded"
        else FORMS[form](rows[i]["target_question"], rows[i]["text"])
        for number, i in enumerate(chosen)
    ]
    return attack_of(texts, [rows[i]["target_question_id"] for i in chosen], None)


def of_another_model(k: int, n: int = QUESTIONS) -> Batch:
    """Return raw texts that another language model wrote: RAGDefender's "Blind", on NQ."""
    rows = read_rows("ragdefender_attacks")
    mine = [
        i for i, r in enumerate(rows) if (r["attack"], r["corpus"]) == ("ragdefender_blind", "nq")
    ]
    groups = defaultdict(list)
    for i in mine:
        groups[rows[i]["target_question_id"]].append(i)
    chosen = [i for numbers in list(groups.values())[:n] for i in numbers[:k]]
    batch = load("ragdefender_attacks").take(chosen)
    return attack_of(batch.texts, [rows[i]["target_question_id"] for i in chosen], batch.embeddings)


def orders(k: int, n: int = QUESTIONS) -> Batch:
    """Return orders to the model about the attacked questions."""
    chosen, rows = first_of_each(k, n, "promptinjection_nq"), read_rows("promptinjection_nq")
    batch = load("promptinjection_nq").take(chosen)
    return attack_of(batch.texts, [rows[i]["target_question_id"] for i in chosen], batch.embeddings)


def unseen_orders() -> Batch:
    """Return orders in several languages, by an author without knowledge of the rules."""
    texts = written("attacks_test").texts
    texts = tuple(texts[row] for row in range(0, len(texts), len(texts) // QUESTIONS))
    return attack_of(texts, [f"order {number}" for number in range(len(texts))], None)


def gibberish(k: int, n: int = QUESTIONS) -> Batch:
    """Return raw texts with 25 tokens of gibberish in front, as gradient attacks make them."""
    raw, rng = published("text", k, n), np.random.default_rng(0)
    texts = [f"{salad(rng, 25)} {text}" for text in raw.texts]
    return attack_of(texts, [str(m["group"]) for m in raw.metadatas], None)


def with_phrase(phrase: str, hosts: Batch) -> Batch:
    """Return entries with a phrase between two of their sentences, at random."""
    rng = np.random.default_rng(len(phrase))
    texts = []
    for text in hosts.texts:
        sentences = re.split(r"(?<=[.!?]) ", text)
        sentences.insert(int(rng.integers(len(sentences) + 1)), f"{phrase[0].upper()}{phrase[1:]}.")
        texts.append(" ".join(sentences))
    return attack_of(texts, [f"{phrase} {number}" for number in range(len(texts))], None)


# Knowledge bases


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A knowledge base, and more clean entries of the same source."""

    name: str
    known: Batch
    fresh: Batch
    foreign: Batch  # a clean source of another kind


@cache
def base(name: str, known: int = KNOWN) -> Base:
    """Return a knowledge base with passages about the attacked questions."""
    wanted = set(questions())
    rows = read_rows("nq_target_contexts")
    about = [
        i for i, r in enumerate(rows) if {f["question_id"] for f in r["retrieved_for"]} & wanted
    ]
    rng = np.random.default_rng(0)
    contexts = load("nq_target_contexts", lineage="title").take(
        rng.permutation(about)[: known // 4]
    )
    others = load(BASES[name], lineage="title" if name == "Wikipedia" else None)
    others = others.take(rng.permutation(len(others))[: known + HELD_OUT - len(contexts)])
    contexts = replace(contexts, ids=tuple(f"context {i}" for i in contexts.ids))
    corpus = from_source(concatenate([contexts, others]), name)
    order = [*rng.permutation(known), *range(known, len(corpus))]
    corpus = corpus.take(order)
    foreign = load("near_duplicate_docs", lineage="title")
    foreign = foreign.take(np.random.default_rng(1).permutation(6_000)[:NEW_SOURCE])
    return Base(
        name=name,
        known=corpus.take(range(known)),
        fresh=corpus.take(range(known, len(corpus))),
        foreign=from_source(foreign, "docs.example"),
    )


# Arrivals

Batches = list[Batch]


def mixed(batch: Batch, seed: int = 0) -> Batch:
    """Return the entries in a random order."""
    return batch.take(np.random.default_rng(seed).permutation(len(batch)))


def fifties(batch: Batch) -> Batches:
    """Return the shuffled attack in batches of fifty."""
    return chunks(mixed(batch), 50)


def among(batch: Batch, there: Base, n: int) -> Batches:
    """Return the attack among n times as many clean entries of the same known source."""
    clean = there.fresh.take(range(min(len(there.fresh), n * len(batch))))
    return chunks(mixed(concatenate([from_source(batch, there.name), clean])), 100)


def prepared(batch: Batch, there: Base, n: int) -> Batches:
    """Return the attack after n harmless entries of the same new source."""
    harmless = from_source(there.fresh.take(range(n)), "new.example")
    return [*chunks(harmless, 100), *fifties(from_source(batch, "new.example"))]


def updates(batch: Batch, there: Base) -> Batches:
    """Return the attack as new versions of known entries."""
    rows = np.random.default_rng(2).permutation(len(there.known))[: len(batch)]
    old = there.known.take(rows)
    new = replace(from_source(batch, there.name), ids=old.ids, lineages=old.lineages)
    return fifties(new)


def into_nothing(batch: Batch, there: Base) -> Batches:
    """Return the attack among the first thousand entries of an empty store, then some more entries.

    A guard on an empty store takes its first thresholds from a thousand entries, and judges these
    entries when more arrive.
    """
    clean = there.known.take(range(1_000 - len(batch)))
    later = there.fresh.take(range(LATER))
    first = mixed(concatenate([from_source(batch, there.name), clean]))
    return chunks(concatenate([first, later]), 100)


def while_open(batch: Batch, there: Base) -> Batches:
    """Return a large clean new source, then the attack under its name."""
    return [*chunks(there.foreign, 100), *fifties(from_source(batch, "docs.example"))]


def many_sources(batch: Batch) -> Batch:
    """Return the entries, each with its own source."""
    return from_source(batch, [f"source {number}.example" for number in range(len(batch))])


ARRIVALS: dict[str, Callable[[Batch, Base], Batches]] = {
    "one batch of nothing else": lambda a, _: [a],
    "fifties, by question": lambda a, _: chunks(a, 50),
    "fifties, shuffled": lambda a, _: fifties(a),
    "one by one": lambda a, _: chunks(mixed(a), 1),
    "1:1 among clean ones": lambda a, there: among(a, there, 1),
    "1:3 among clean ones": lambda a, there: among(a, there, 3),
    "after 200 harmless ones of its source": lambda a, there: prepared(a, there, 200),
    "after 500 harmless ones of its source": lambda a, there: prepared(a, there, 500),
    "under a new source": lambda a, _: fifties(from_source(a, "new.example")),
    "under a known source": lambda a, there: fifties(from_source(a, there.name)),
    "under many sources": lambda a, _: fifties(many_sources(a)),
    "as updates of known entries": updates,
    "in the first thousand of an empty store": into_nothing,
    "under a clean source that just came": while_open,
}
MIXED = "1:3 among clean ones"
FROM_NOTHING = "in the first thousand of an empty store"
DRIPPED = "1:20 among clean ones"  # measured for small attacks only
DRIPPING: dict[str, Callable[[Batch, Base], Batches]] = {
    DRIPPED: lambda a, there: among(a, there, 20)
}
QUICK = ("one batch of nothing else", "fifties, shuffled", MIXED, "under a new source")


# Attacks and arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The least share of an attack to hold in every arrival, and the largest allowed spread."""

    least: float
    in_one: dict[str, float] = field(default_factory=dict)  # the least share in one arrival
    apart: float | None = None  # largest drop below the mixed arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """An attack in one form and size, and its goal by knowledge base."""

    title: str
    make: Callable[[Base], list[Batch]]  # several batches if they come on different days
    goals: dict[str, Goal]


def column(title: str, make: Callable[[], Batch], **goals: Goal) -> Column:
    """Return a column whose attack is the same against every knowledge base."""
    return Column(title=title, make=lambda _: [make()], goals=goals)


def both(web: float, wikipedia: float, apart: float | None = None) -> dict[str, Goal]:
    """Return goals for both knowledge bases."""
    return {"web": Goal(least=web, apart=apart), "Wikipedia": Goal(least=wikipedia, apart=apart)}


def black_box(form: str) -> list[Column]:
    """Return the columns of texts with the question in front, from five per question to one."""

    def made(k: int) -> Batch:
        return published("text_blackbox", k) if form == "published" else in_form(form, k)

    return [
        column(f"{k}", partial(made, k), **both(0.97 if k > 1 else 0.85, 0.97))
        for k in (5, 3, 2, 1)
    ]


def planted() -> list[Column]:
    """Return the columns of phrases, each planted in entries that the guard does not know."""

    def carriers(there: Base) -> list[Batch]:
        hosts = there.fresh.take(range(len(there.fresh) - CARRIERS, len(there.fresh)))
        return [with_phrase(phrase, hosts) for phrase in PHRASES]

    goal = Goal(least=0.90, in_one={DRIPPED: 0.95, "one batch of nothing else": 0.95})
    goals = dict.fromkeys(BASES, goal)
    return [Column(title=f"{CARRIERS} entries", make=carriers, goals=goals)]


FAMILIES: dict[str, tuple[str, Callable[[], list[Column]]]] = {
    "published": ("The question in front, as published", lambda: black_box("published")),
    "natural": ("The question in front, natural form", lambda: black_box("natural")),
    "forms": (
        "The question in front, other forms, fives",
        lambda: [
            column(form, partial(in_form, form, 5), **both(0.97, 0.97))
            for form in ("heading", "bold", "Q and A", "reworded")
        ],
    ),
    "raw": (
        "Raw texts, without the question",
        lambda: [
            column("5", lambda: published("text", 5), **both(0.75, 0.95, 0.05)),
            column("3", lambda: published("text", 3), **both(0.45, 0.85, 0.05)),
            column("2", lambda: published("text", 2)),
            column("1", lambda: published("text", 1)),
            column("5, of another model", lambda: of_another_model(5)),
        ],
    ),
    "phrases": (
        f"A phrase in {CARRIERS} scattered entries, mean of {len(PHRASES)} phrases",
        planted,
    ),
    "orders": (
        "Orders to the model",
        lambda: [column("5", lambda: orders(5)), column("1", lambda: orders(1))],
    ),
    "gibberish": ("Raw texts behind gibberish", lambda: [column("1", lambda: gibberish(1))]),
}


def quick_columns() -> list[Column]:
    """Return a few columns; the first has ten questions, whose texts are embedded here."""
    return [
        column("natural, 5", lambda: in_form("natural", 5, 10), web=Goal(least=0.97)),
        column("raw, 5", lambda: published("text", 5, 30), web=Goal(least=0.75, apart=0.05)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Shares of an attack, and of the clean entries around it, that were held."""

    attack: float
    clean: float | None

    def __str__(self) -> str:
        """Return both shares."""
        return f"{self.attack:.3f}" + ("" if self.clean is None else f" / {self.clean:.3f}")


def adopted(name: str, known: int, folder: str) -> None:
    """Save a guard that adopted a knowledge base."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://"))
    learn_store(guard, base(name, known).known, None)
    guard.save(Path(folder) / name)


def cells(family: str, number: int, name: str, known: int, folder: str) -> dict[str, Cell]:
    """Return the outcome of one column against a knowledge base, by arrival."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    there = base(name, known)
    chosen = quick_columns() if family == "quick" else FAMILIES[family][1]()
    attacks = chosen[number].make(there)
    found = {}
    arrivals = {"quick": QUICK, "phrases": (*ARRIVALS, DRIPPED)}.get(family, tuple(ARRIVALS))
    for arrival in arrivals:
        out = [outcome(arrival, attack, there, Path(folder) / name) for attack in attacks]
        clean = np.concatenate([clean for _, clean in out])
        found[arrival] = Cell(
            attack=float(np.concatenate([bad for bad, _ in out]).mean()),
            clean=float(clean.mean()) if len(clean) else None,
        )
    return found


def outcome(arrival: str, attack: Batch, there: Base, saved: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the attack texts and of the clean entries that are held or recalled."""
    parts = (ARRIVALS | DRIPPING)[arrival](attack, there)
    nothing = arrival == FROM_NOTHING
    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")) if nothing else opened(saved)
    found = arrive(guard, parts, None if nothing else there.known)
    bad = np.array(["group" in metadata for part in parts for metadata in part.metadatas])
    return found.out[bad], found.out[~bad]


def table(
    family: str, found: dict[tuple[str, int], dict[str, Cell]]
) -> tuple[list[str], list[str]]:
    """Return the table of a family, and its missed goals."""
    quick = family == "quick"
    title = "A few of all" if quick else FAMILIES[family][0]
    columns = quick_columns() if quick else FAMILIES[family][1]()
    heads = [f"{name} {columns[number].title}" for name, number in found]
    lines = [
        f"\n## {title}\n",
        f"| arrival | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    arrivals = list(next(iter(found.values())))
    for arrival in arrivals:
        row = " | ".join(str(by_arrival[arrival]) for by_arrival in found.values())
        lines.append(f"| {arrival} | {row} |")
    broken = []
    for (name, number), by_arrival in found.items():
        goal = columns[number].goals.get(name)
        if goal:
            broken += missed(f"{title}: {name} {columns[number].title}", goal, by_arrival, quick)
    if any(columns[number].goals.get(name) for name, number in found):
        lines += ["\nGoals that are not met:\n", *([f"- {one}" for one in broken] or ["- none"])]
    return lines, broken


def missed(title: str, goal: Goal, by_arrival: dict[str, Cell], quick: bool) -> list[str]:  # noqa: FBT001
    """Return a line for each missed part of a goal."""
    slack = SLACK if quick else 0.0
    worst = min(by_arrival, key=lambda arrival: by_arrival[arrival].attack)
    level, others = by_arrival[worst].attack, by_arrival[MIXED].attack
    lines = [
        f"{title}: {by_arrival[one].attack:.3f} {one}, ≥ {least}"
        for one, least in goal.in_one.items()
        if by_arrival[one].attack < least - slack
    ]
    if level < goal.least - slack:
        lines.append(f"{title}: {level:.3f} {worst}, ≥ {goal.least}")
    if goal.apart is not None and level < others - goal.apart - slack:
        lines.append(f"{title}: {level:.3f} {worst}, {others:.3f} mixed, within {goal.apart}")
    return lines


# Flipped labels

FLIPPED = (0.1, 0.4, 0.7, 1.0)
FLIPS_N = 500
FLIP_ARRIVALS: dict[str, int | None] = {"one batch": None, "hundreds": 100, "one by one": 1}
LABEL_DETECTORS: dict[str, Callable[[], Detector]] = {
    "centroids": LabelCentroidDetector,
    "label model": LabelModelDetector,
}
LEAST_F1 = {("sms_spam", "centroids"): 0.70, ("sms_spam", "label model"): 0.95}
LEAST_F1[("enron1_spam", "label model")] = 0.95
MOST_APART = 0.03  # largest spread of recall over the shares of flipped labels


def flips(corpus: str, kind: str, arrivals: Sequence[str], shares: Sequence[float]) -> list[str]:
    """Return lines about flipped labels, followed by the missed goals."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    messages = mixed(load(corpus))
    half = len(messages) // 2
    known, new = messages.take(range(half)), messages.take(range(half, half + FLIPS_N))
    quarantine = Quarantine("sqlite://")
    if kind in LABEL_DETECTORS:
        policy = Policy(quarantine_at=FPR)
        guard = Guard([LABEL_DETECTORS[kind]()], policy=policy, quarantine=quarantine)
    else:
        guard = Guard.default(FPR, quarantine=quarantine)
    guard.fit(known).calibrate()
    rates: dict[tuple[str, float], DetectionRates] = {}
    with tempfile.TemporaryDirectory() as folder:
        guard.save(Path(folder) / "guard")
        for arrival in arrivals:
            for share in shares:
                batch, flipped = flip(new, share, np.random.default_rng(1))
                saved = opened(Path(folder) / "guard")
                found = arrive(saved, chunks(batch, FLIP_ARRIVALS[arrival]))
                rates[arrival, share] = DetectionRates.of(flipped, found.out)
    lines = []
    for (arrival, share), of in rates.items():
        shown = " | ".join(f"{figure:.3f}" for figure in (of.precision, of.recall, of.f1, of.fpr))
        lines.append(f"| {corpus} | {kind} | {arrival} | {share:.0%} | {shown} |")
    return lines + flips_missed(corpus, kind, rates)


def flips_missed(
    corpus: str, kind: str, rates: dict[tuple[str, float], DetectionRates]
) -> list[str]:
    """Return a line for each missed goal of flipped labels."""
    recalls = [of.recall for of in rates.values()]
    lines = []
    if max(recalls) - min(recalls) > MOST_APART:
        lines.append(f"- {corpus}, {kind}: recall {min(recalls):.3f} to {max(recalls):.3f}")
    least = LEAST_F1.get((corpus, kind), 0.0)
    f1 = min((of.f1 for (_, share), of in rates.items() if share == 0.4), default=1.0)  # noqa: PLR2004
    if f1 < least:
        lines.append(f"- {corpus}, {kind}: F1 {f1:.3f} at 40 %, ≥ {least}")
    return lines


FLIPS_HEAD = f"""
## Flipped labels

A random half of the corpus is known; of the next {FLIPS_N} entries a share has a flipped label.
"Default guard": all detectors of `Guard.default`.

| corpus | guard | arrival | flipped | precision | recall | F1 | FPR |
|---|---|---|---|---|---|---|---|"""


def all_flips(pool: ProcessPoolExecutor) -> tuple[list[str], list[str]]:
    """Return the table of flipped labels, and its missed goals."""
    names = [*LABEL_DETECTORS, "default guard"]
    jobs = [
        pool.submit(flips, corpus, kind, [a for a in FLIP_ARRIVALS if full(kind, a)], FLIPPED)
        for corpus in ("sms_spam", "enron1_spam")
        for kind in names
    ]
    found = [line for job in track(jobs, "flips") for line in job.result()]
    broken = [line for line in found if line.startswith("- ")]
    rows = [line for line in found if line.startswith("| ")]
    return [FLIPS_HEAD, *rows, "\nGoals that are not met:\n", *(broken or ["- none"])], broken


def full(kind: str, arrival: str) -> bool:
    """Return whether a guard is measured in an arrival: singles are slow, except for centroids."""
    return kind == "centroids" or arrival != "one by one"


def attacked(
    family: str, pool: ProcessPoolExecutor, known: int, folder: str
) -> tuple[list[str], list[str]]:
    """Return the table of an attack, and its missed goals."""
    quick = family == "quick"
    columns = quick_columns() if quick else FAMILIES[family][1]()
    names = ("web",) if quick else tuple(BASES)
    weight = sum(len(a) for name in names for c in columns for a in c.make(base(name, known)))
    minutes = weight / 250 * SECONDS / 60 / (os.cpu_count() or 1)
    print(f"{family}: {len(columns)} columns, about {minutes:.0f} minutes", flush=True)
    jobs = {
        (name, number): pool.submit(cells, family, number, name, known, folder)
        for name in names
        for number in range(len(columns))
    }
    return table(family, {key: jobs[key].result() for key in track(jobs, family)})


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    parser.add_argument("--only", nargs="*", choices=[*FAMILIES, "flips"], help="parts to run")
    parser.add_argument("--vectors", type=Path, help="folder of vectors that are made once")
    arguments = parser.parse_args()
    use_folder(arguments.vectors)
    done = Parts("adversary", HEAD, [*FAMILIES, "flips"])
    wanted = ["quick"] if arguments.quick else arguments.only or done.stale()
    known = 1_500 if arguments.quick else KNOWN
    broken: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as folder:
        if wanted != ["flips"]:
            bases = ("web",) if arguments.quick else tuple(BASES)
            for job in [pool.submit(adopted, name, known, folder) for name in bases]:
                job.result()
        for part in wanted:
            run = all_flips(pool) if part == "flips" else attacked(part, pool, known, folder)
            print("\n".join(run[0]), flush=True)
            broken += run[1]
            if not arguments.quick:
                done.put(part, run[0])
        if arguments.quick:
            found = pool.submit(flips, "sms_spam", "label model", ["hundreds"], (0.1, 0.4)).result()
            print("\n".join(found), flush=True)
            broken += [line for line in found if line.startswith("- ")]
    if arguments.quick:
        failed(broken)


if __name__ == "__main__":
    main()
