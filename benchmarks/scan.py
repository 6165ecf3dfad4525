"""Scan of documentation sites with planted attacks of six kinds.

    python benchmarks/scan.py            # writes benchmarks/results/scan.md
    python benchmarks/scan.py --quick    # one collection, writes nothing

Twenty-one of our texts ([wordings](wordings/README.md)) are planted in three or four documentation
sites, each as its own document. Every other row trusts half of the clean chunks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import results_files
from corpora import load, read_rows
from rich.progress import track
from sources import site
from vectors import embedded, use_folder

from ragshield_core import Batch
from ragshield_core.detectors.registry import built_in_detectors
from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.model.entries import concatenate
from ragshield_core.tools.audit import ScanReport, scan

WORDINGS = Path(__file__).parent / "wordings" / "planted_docs.json"
FPR = 0.01
# Goals: largest share of clean chunks named, without and with trusted entries.
MOST_NAMED = {False: 0.012, True: 0.006}
KINDS = (
    *("group of five", "group of three", "single with its question", "order", "hidden"),
    "trigger phrase",
)
SOURCES = ("wiki_passages", "redundant_web_passages", "near_duplicate_docs", "enron1_spam")
ENTRIES, GROUPS, SINGLES = 2_000, 3, 4
# Texts whose embedding is timed.
EMBEDDED = 300
HEADS = (
    *("collection", "chunks", "half trusted", "found of 21", *KINDS),
    *("clean named of those not trusted", "of all clean", "first five"),
)


def collection(name: str) -> tuple[Batch, dict[str, str], list[list[str]]]:
    """Return chunks with planted texts, the kinds of these by id, and the ids of each attack."""
    chosen = json.loads(WORDINGS.read_text(encoding="utf-8"))[name]
    clean = concatenate([site(each) for each in chosen["sites"]])
    texts, kinds, attacks = [], {}, []
    for attack in chosen["attacks"]:
        attacks.append([f"planted-{len(texts) + n}" for n in range(len(attack["texts"]))])
        kinds.update(dict.fromkeys(attacks[-1], attack["kind"]))
        texts += attack["texts"]
    planted = Batch.of(
        ids=list(kinds), texts=texts, embeddings=embedded("planted", texts), lineages=list(kinds)
    )
    both = concatenate([clean, planted])
    return both.take(np.random.default_rng(0).permutation(len(both))), kinds, attacks


def measured(name: str, *, trusting: bool) -> tuple[ScanReport, dict[str, str], list[float], int]:
    """Return a report, planted kinds by id, shares of clean chunks named, number of split groups.

    The shares are of those that are not trusted, and of all.
    """
    batch, kinds, attacks = collection(name)
    clean = [i for i in batch.ids if i not in kinds]
    trusted = None
    if trusting:
        drawn = np.random.default_rng(1).permutation(len(clean))[: len(clean) // 2]
        trusted = [clean[row] for row in drawn.tolist()]
    report = scan(
        batch,
        built_in_detectors()[0],
        fpr=FPR,
        clean_ids=trusted,
        embed=None if trusting else partial(embedded, "planted"),
    )
    named = sum(decision.entry_id not in kinds for decision in report.found)
    found = {decision.entry_id for decision in report.found}
    split = sum(
        len({n for n, case in enumerate(report.cases) if {*ids} & {*case.entry_ids}}) > 1
        for ids in attacks
        if {*ids} & found
    )
    open_clean = len(clean) - len(trusted or ())
    return report, kinds, [named / open_clean, named / len(clean)], split


def embedding_seconds(batch: Batch) -> float:
    """Return the processor time in which MiniLM embeds all texts, from a sample of them."""
    model = MiniLM()
    drawn = np.random.default_rng(0).permutation(len(batch))[:EMBEDDED].tolist()
    model.embed(batch.texts[:1], lambda _done: None)  # loads the model
    begin = time.process_time()
    model.embed([batch.texts[row] for row in drawn], lambda _done: None)
    return (time.process_time() - begin) / len(drawn) * len(batch)


def row(name: str, *, trusting: bool) -> tuple[str, str, bool]:
    """Return a row of the table, the report's verdict, and whether the goal is met."""
    begin = time.process_time()
    report, kinds, named, split = measured(name, trusting=trusting)
    seconds = time.process_time() - begin
    embedding = 0.0 if trusting else embedding_seconds(report.batch)
    by_kind = Counter(kinds[d.entry_id] for d in report.found if d.entry_id in kinds)
    of = Counter(kinds.values())
    first = ["attack" if {*case.entry_ids} & {*kinds} else "clean" for case in report.cases[:5]]
    cells = (
        *(name, f"{report.n_audited:,}", "yes" if trusting else "no", sum(by_kind.values())),
        *(f"{by_kind[kind]} of {of[kind]}" for kind in KINDS),
        *(f"{one:.4f}" for one in named),
        ", ".join(first),
    )
    said = (
        f"- {name}: {report.verdict} {seconds:.1f} s of processor time; groups split: {split}. "
        f"To embed the entries takes {embedding:.0f} s; both together are "
        f"{1.0 + seconds / max(embedding, 1e-9):.2f} of that."
    )
    return f"| {' | '.join(map(str, cells))} |", said, named[0] <= MOST_NAMED[trusting]


def published(name: str) -> str:
    """Return a row on another source: clean, then with published attacks as single documents."""
    rng = np.random.default_rng(3)
    clean = load(name)
    rows = [row for row, label in enumerate(clean.labels) if label != "spam"]
    drawn = rng.permutation(rows)[:ENTRIES]
    clean = replace(clean.take(np.sort(drawn)), labels=(None,) * len(drawn))
    asked = [one["target_question_id"] for one in read_rows("poisonedrag_nq")]
    questions = list(dict.fromkeys(asked))
    fives = [row for row, one in enumerate(asked) if one in questions[:GROUPS]]
    singles = [asked.index(one) for one in questions[10 : 10 + SINGLES]]
    parts = (load("poisonedrag_nq").take(fives),)
    parts += (load("poisonedrag_nq", text="text_blackbox").take(singles),)
    planted = [
        replace(part, ids=tuple(f"planted-{n}-{i}" for i in part.ids), labels=(None,) * len(part))
        for n, part in enumerate(parts)
    ]
    alone = scan(clean, built_in_detectors()[0], fpr=FPR).found
    found = scan(concatenate([clean, *planted]), built_in_detectors()[0], fpr=FPR).found
    by = Counter(one.entry_id[:9] for one in found if one.entry_id.startswith("planted-"))
    cells = (
        *(name, f"{len(alone) / len(clean):.4f}"),
        *(f"{by['planted-0']} of {len(fives)}", f"{by['planted-1']} of {len(singles)}"),
        f"{(len(found) - sum(by.values())) / len(clean):.4f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--vectors", type=Path)
    options = parser.parse_args()
    use_folder(options.vectors)
    names = list(json.loads(WORDINGS.read_text(encoding="utf-8")))
    todo = [(name, trusting) for name in names for trusting in (False, True)]
    rows = [row(name, trusting=t) for name, t in track(todo[: 1 if options.quick else None])]
    lines = [
        "# Scans of documentation sites",
        "",
        "Written by `benchmarks/scan.py`. Twenty-one texts of our own, of six kinds, stand among",
        "the chunks of documentation sites. The accepted rate is 1 %.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(line for line, _, _ in rows),
        "",
        "What the scan itself says, without trusted entries:",
        "",
        *(said for (_, said, _), (_, trusting) in zip(rows, todo, strict=False) if not trusting),
    ]
    if not options.quick:
        lines += [
            "",
            f"Other sources, {ENTRIES:,} entries, with PoisonedRAG's texts for NQ:",
            "",
            "| source | clean: named | raw fives | questions in front | clean named beside them |",
            "|---|---|---|---|---|",
            *map(published, SOURCES),
        ]
    print("\n".join(lines))
    if not options.quick:
        results_files.write("scan", "\n".join(lines))
    if not rows[0][2]:
        sys.exit("more clean chunks are named than the goal allows")


if __name__ == "__main__":
    main()
