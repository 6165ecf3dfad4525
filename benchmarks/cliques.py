"""Groups crafted for one question: recall, and the false-positive rate on clean entries.

    python benchmarks/cliques.py            # all knowledge bases, writes benchmarks/results/
    python benchmarks/cliques.py --quick    # one split of one knowledge base, writes nothing

A random 70 % of a corpus is the knowledge base that the guard is fitted and calibrated on; the
rest is clean and new. Poison is screened in one batch with 2,000 of these, and also one by one.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from corpora import load, read_rows
from rates import proportion_interval
from results_files import RESULTS, write
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector

FPRS = (0.01, 0.002)
# The default keeps the accepted rate in nine samples of ten, so on average it is stricter.
CONFIDENCES = {"": 0.9, ", rate in expectation": 0.5}
SPLITS = 3
SHARE_KNOWN = 0.7
# Words from the prompts behind the published attack texts; they give the texts away.
ARTEFACT = re.compile(r"alternate|parallel universe|hypothetical", re.IGNORECASE)

HEAD = """# Groups crafted for one question

Written by `benchmarks/cliques.py`. Vectors: all-MiniLM-L6-v2. {splits} random splits: fitted and
calibrated on 70 % of the corpus, screened with the rest. Cells are recall at an accepted
false-positive rate of 1 % / 0.2 %; all groups of an attack come in one batch with 2,000 clean
entries, which flatters (streams: [stream.md](stream.md)). "One" and "many": whether the attacker
gives all documents of a target one lineage, or none. "No artefacts": without texts that say
alternate, parallel universe or hypothetical. False-positive rates are of clean entries that the
guard did not know, pooled over splits, with the Wilson 95 % interval; alarms come in groups, so
that the true interval is wider. The default keeps the rate with 90 % confidence, over the draw of
the clean sample, and is stricter than the rate therefore; "rate in expectation" is calibrated with
`Policy(confidence=0.5)`.
"""


def join(*batches: Batch) -> Batch:
    """Return the entries of several batches as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.embeddings for b in batches]),
        lineages=[lineage for b in batches for lineage in b.lineages],
    )


def renamed(batch: Batch, prefix: str, lineages: list[str | None] | None = None) -> Batch:
    """Return a batch with other ids, and other lineages if given."""
    return Batch.of(
        ids=[f"{prefix}{i}" for i in batch.ids],
        texts=batch.texts,
        embeddings=batch.embeddings,
        lineages=batch.lineages if lineages is None else lineages,
    )


def knowledge_base(name: str) -> Batch:
    """Return a clean corpus by name."""
    if name == "wikipedia":
        return load("wiki_passages", lineage="title")
    if name == "near-duplicate docs":
        return load("near_duplicate_docs")
    contexts, lineage = {
        "web + nq": ("nq_target_contexts", "title"),
        "web + hotpotqa": ("hotpotqa_target_contexts", "title"),
        "web + msmarco": ("msmarco_half_target_contexts", None),  # web pages: no titles
    }[name]
    return join(
        renamed(load("redundant_web_passages"), "web-"),
        renamed(load(contexts, lineage=lineage), "context-"),
    )


def attack(
    name: str, text: str, n: int, *, one_lineage: bool, artefacts: bool = True, seed: int = 0
) -> Batch:
    """Return n random attack texts of each target."""
    rows, texts = read_rows(name), load(name, text=text)
    rng = np.random.default_rng(seed)
    by_target = defaultdict(list)
    for number in rng.permutation(len(rows)).tolist():
        if artefacts or not ARTEFACT.search(rows[number]["text"]):
            by_target[rows[number]["target_question_id"]].append(number)
    chosen = [
        number for numbers in by_target.values() if len(numbers) >= n for number in numbers[:n]
    ]
    lineages = [f"attack {rows[i]['target_question_id']}" if one_lineage else None for i in chosen]
    return renamed(texts.take(chosen), "poison-", lineages)


def clones(name: str, copies: int) -> Batch:
    """Return exact copies of one black-box text of each target, each with its own lineage."""
    one = attack(name, "text_blackbox", 1, one_lineage=False)
    return Batch.of(
        ids=[f"{i}-{copy}" for i in one.ids for copy in range(copies)],
        texts=[text for text in one.texts for _ in range(copies)],
        embeddings=np.repeat(one.embeddings, copies, axis=0),
        lineages=[f"clone {copy}" for _ in one.ids for copy in range(copies)],
    )


def group_of_fifty(name: str, embed: Callable[[list[str]], Any], targets: int = 4) -> Batch:
    """Return 50 texts for each of some targets: shuffled sentences of its attack texts."""
    leads = ("Briefly,", "In fact,", "For the record:", "Experts agree.", "To sum up,", "As noted,")
    rng = np.random.default_rng(0)
    sentences, questions = defaultdict(list), {}
    for row in read_rows(name):
        target = row["target_question_id"]
        sentences[target] += [s for s in row["text"].split(". ") if s]
        questions[target] = row["target_question"]
    texts = []
    for target in list(sentences)[:targets]:
        for number in range(50):
            parts = rng.permutation(sentences[target])[:2].tolist()
            question = f"{questions[target]}. " if number % 2 else ""
            texts.append(f"{question}{rng.choice(leads)} {'. '.join(parts)}")
    return Batch.of(
        ids=[f"fifty-{i}" for i in range(len(texts))], texts=texts, embeddings=embed(texts)
    )


class Screen:
    """A guard fitted on a knowledge base, with its threshold at each accepted rate."""

    def __init__(self, known: Batch) -> None:
        detector = CliqueDetector()
        self.guard = Guard([detector], quarantine=Quarantine("sqlite://")).fit(known)
        self.guard.calibrate(fpr=max(FPRS))
        joint = self.guard.state.calibrator.calibration
        self.thresholds = {
            (fpr, kept): joint.thresholds(fpr, confidence)[detector.name]
            for fpr in FPRS
            for kept, confidence in CONFIDENCES.items()
        }

    def caught(self, poison: Batch, clean: Batch) -> dict[tuple[float, str], np.ndarray]:
        """Return a mask of the quarantined poison at each rate, in one batch with clean entries."""
        (scores,) = self.guard.screen(join(poison, clean)).scores.values()
        return {
            rate: scores[: len(poison)] > threshold for rate, threshold in self.thresholds.items()
        }


def trickle(guard: Guard, poison: Batch, clean: Batch) -> tuple[float, float]:
    """Return recall and false-positive rate of poison that comes singly among clean entries."""
    rng = np.random.default_rng(0)
    held: set[str] = set()
    order = rng.permutation(len(poison))
    every = max(1, len(clean) // max(1, len(poison)))
    for number, row in enumerate(order):
        for part in (clean.take(range(number * every, (number + 1) * every)), poison.take([row])):
            report = guard.hold(guard.screen(part))
            held |= {decision.entry_id for decision in report.quarantined}
            held |= {decision.entry_id for decision in report.retroactive}
            known = {entry_id: i for i, entry_id in enumerate((*poison.ids, *clean.ids))}
            if report.retroactive:
                rows = [known[d.entry_id] for d in report.retroactive]
                earlier = join(poison, clean).take(rows)
                guard.recall(earlier, report.retroactive, lambda _: None)
            guard.admit(report)
    seen = clean.ids[: len(order) * every]
    return (
        sum(i in held for i in poison.ids) / len(poison),
        sum(i in held for i in seen) / max(1, len(seen)),
    )


class Tally:
    """Counts of hits and trials, by name."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, key: tuple[str, ...], hits: np.ndarray) -> None:
        """Add a set of trials."""
        count = self._counts[key]
        count[0] += int(np.count_nonzero(hits))
        count[1] += len(hits)

    def share(self, *key: str) -> str:
        """Return the share of hits, or a dash."""
        hits, n = self._counts[key]
        return f"{hits / n:.3f}" if n else "–"

    def interval(self, *key: str) -> str:
        """Return the share of hits with its interval."""
        return str(proportion_interval(*self._counts[key]))

    def to_json(self) -> str:
        """Return all counts."""
        rows = {" | ".join(key): counts for key, counts in self._counts.items()}
        return json.dumps(rows, indent=1) + "\n"


CASES = [
    (text, lineage, artefacts, n)
    for text in ("text_blackbox", "text")
    for lineage, artefacts in (("many", True), ("one", True), ("many", False))
    for n in (5, 3, 2, 1)
]


# Lineages, whether texts with artefacts count, and the confidence of the rate.
ROWS = [
    *((lineage, True, kept) for kept in CONFIDENCES for lineage in ("many", "one")),
    ("many", False, ""),
]


def measure(name: str, attacks: list[str], tally: Tally, splits: int, fifty: Batch | None) -> None:
    """Screen every attack against one knowledge base."""
    corpus = knowledge_base(name)
    for seed in track(range(splits), description=name):
        order = np.random.default_rng(seed).permutation(len(corpus))
        border = int(SHARE_KNOWN * len(corpus))
        known, new = corpus.take(order[:border]), corpus.take(order[border:])
        some = new.take(range(2000))
        screen = Screen(known)

        def count(
            key: tuple[str, ...], poison: Batch, clean: Batch, screen: Screen = screen
        ) -> None:
            for (fpr, kept), hits in screen.caught(poison, clean).items():
                tally.add((*key, f"{fpr}{kept}"), hits)

        for start in range(0, len(new), 500):
            count((name, "clean"), new.take(range(len(new))[start : start + 500]), new.take([]))
        for source in attacks:
            for text, lineage, artefacts, n in CASES:
                poison = attack(
                    source, text, n, one_lineage=lineage == "one", artefacts=artefacts, seed=seed
                )
                count((name, source, text, lineage, str(artefacts), str(n)), poison, some)
            count((name, source, "clones"), clones(source, 5), some)
        if fifty is not None:
            count((name, "fifty"), fifty, some)


def reference_rule(name: str, attacks: list[str], tally: Tally) -> None:
    """Audit a knowledge base with poison in it by CleanBase's rule."""
    corpus = knowledge_base(name)
    for source in attacks or ["none"]:
        for text in ("text_blackbox", "text") if attacks else ("none",):
            for n in (5, 3, 2) if attacks else (0,):
                poison = attack(source, text, n, one_lineage=False) if n else corpus.take([])
                detector = CliqueDetector(rule="cleanbase")
                scores = detector.audit(join(poison, corpus))
                found = scores > detector.default_threshold
                tally.add((name, source, text, "reference", str(n)), found[: len(poison)])
                tally.add((name, source, text, "reference FPR", str(n)), found[len(poison) :])


def report(tally: Tally, bases: dict[str, list[str]], splits: int) -> str:
    """Return the tables."""
    lines = [HEAD.format(splits=splits)]
    titles = {"text_blackbox": "black-box", "text": "raw, without the question"}
    for name, attacks in bases.items():
        rates = ", ".join(
            f"at {fpr:.1%}{kept}: {tally.interval(name, 'clean', f'{fpr}{kept}')}"
            for kept in CONFIDENCES
            for fpr in FPRS
        )
        lines += [f"\n## {name}\n", f"False-positive rate, {rates}.\n"]
        if not attacks:
            rate = tally.interval(name, "none", "none", "reference FPR", "0")
            lines.append(f"The reference rule condemns {rate} of the clean corpus.")
            continue
        lines += ["| attack | texts | lineages | 5 | 3 | 2 | 1 |", "|---|---|---|---|---|---|---|"]
        for source in attacks:
            for text, title in titles.items():
                for lineage, artefacts, kept in ROWS:
                    cells = [
                        " / ".join(
                            tally.share(
                                *(name, source, text, lineage, str(artefacts), n, f"{fpr}{kept}")
                            )
                            for fpr in FPRS
                        )
                        for n in ("5", "3", "2", "1")
                    ]
                    label = f"{title}{kept}" if artefacts else f"{title}, no artefacts"
                    lines.append(f"| {source} | {label} | {lineage} | " + " | ".join(cells) + " |")
                cells = [tally.share(name, source, text, "reference", n) for n in ("5", "3", "2")]
                rate = tally.share(name, source, text, "reference FPR", "5")
                label = f"{title}; reference rule, FPR {rate}"
                lines.append(f"| {source} | {label} | many | " + " | ".join(cells) + " | – |")
            clone = " / ".join(tally.share(name, source, "clones", str(fpr)) for fpr in FPRS)
            lines.append(f"| {source} | exact clones | 5 | {clone} | | | |")
        group = " / ".join(tally.share(name, "fifty", str(fpr)) for fpr in FPRS)
        lines.append(f"\nGroups of 50 (four targets of NQ): {group}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one split, writes nothing")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    nq, hotpotqa = "poisonedrag_nq", "poisonedrag_hotpotqa"
    bases = {
        "wikipedia": [nq, hotpotqa],
        "web + nq": [nq],
        "web + hotpotqa": [hotpotqa],
        "web + msmarco": ["poisonedrag_msmarco_half"],
        "near-duplicate docs": [],
    }
    fifty, splits = None, 1
    if arguments.quick:
        bases = {"web + nq": [nq]}
    else:
        from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - slow to import

        fifty, splits = group_of_fifty(nq, MiniLMEmbeddings().embed_documents), SPLITS
    tally = Tally()
    for name, attacks in bases.items():
        measure(name, attacks, tally, splits, fifty)
        reference_rule(name, attacks, tally)
    text = report(tally, bases, splits)
    corpus = knowledge_base("wikipedia")
    order = np.random.default_rng(0).permutation(len(corpus))
    if not arguments.quick:
        poison = attack(nq, "text_blackbox", 5, one_lineage=False).take(range(250))
        known, new = corpus.take(order[:8000]), corpus.take(order[8000:13000])
        screen = Screen(known)
        at_once = screen.caught(poison, new)[max(FPRS), ""].mean()
        recall, rate = trickle(screen.guard, poison, new)
        text += (
            f"\n## Drop by drop\n\n50 targets of NQ, five black-box texts each, among 5,000 clean "
            f"passages of Wikipedia, at 1 %: at once recall {at_once:.3f}; singly, one after every "
            f"20 clean ones, recall {recall:.3f} with {rate:.4f} of the clean ones held.\n"
        )
        write("cliques", text)
        (RESULTS / "cliques.json").write_text(tally.to_json(), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
