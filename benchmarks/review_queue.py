"""Number of decisions of a reviewer about groups of poison among clean entries.

    python benchmarks/review_queue.py            # writes benchmarks/results/review_queue.md
    python benchmarks/review_queue.py --quick    # 10 groups among 500 clean entries, writes nothing
    python benchmarks/review_queue.py --kept FILE    # resumes an interrupted run with this file

The guard adopts clean passages. Then other clean passages come in batches, with groups of five
texts, each group at once or its texts in batches far apart. Held entries are grouped into cases.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cliques import attack, join, knowledge_base, renamed
from corpora import read_rows
from ingestion import chunks
from rates import proportion_interval
from results_files import write
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.tools.review.cases import Cases

FPR, BATCH, CLEAN, GROUPS, SIZE = 0.01, 500, 10_000, 200, 5
NQ, HOTPOTQA, MSMARCO = "poisonedrag_nq", "poisonedrag_hotpotqa", "poisonedrag_msmarco_half"
# Knowledge base -> attack files for its questions; no question occurs twice.
TARGETS = {"wikipedia": (NQ, HOTPOTQA), "web + msmarco": (MSMARCO, NQ, HOTPOTQA)}
TEXTS = {"text_blackbox": "black-box", "text": "raw"}
ALL_CASES = 1_000_000


class Stream(NamedTuple):
    """A stream of entries, in order of arrival."""

    entries: Batch
    group_of: dict[str, str]  # poisoned entry -> group


class Queue(NamedTuple):
    """A reviewer's queue of cases."""

    n_poisoned: int  # entries in the stream
    n_clean: int
    n_known: int  # held clean entries of the knowledge base
    cases: list[Counter[str]]  # entries of each group in each case; "" for clean ones

    @property
    def held(self) -> tuple[int, int]:
        """Poisoned and clean entries that are held."""
        clean = sum(case[""] for case in self.cases)
        return sum(case.total() for case in self.cases) - clean, clean

    @property
    def poisoned(self) -> list[Counter[str]]:
        """Cases with poison."""
        return [case for case in self.cases if case.total() > case[""]]

    @property
    def clean_in_poisoned(self) -> int:
        """Clean entries in cases with poison."""
        return sum(case[""] for case in self.poisoned)

    @property
    def decisions(self) -> int:
        """Decisions that confirm all poison and release all clean entries.

        A case needs one decision for its larger kind, and one for each entry of the smaller kind.
        """
        return sum(min(case[""], case.total() - case[""]) + 1 for case in self.cases)

    @property
    def cases_of_groups(self) -> Counter[str]:
        """Number of cases that contain each group."""
        return Counter(group for case in self.poisoned for group in case if group)


def poison(name: str, text: str, n_groups: int) -> tuple[Batch, dict[str, str]]:
    """Return groups of five texts, and the question of each text."""
    parts = []
    group_of: dict[str, str] = {}
    for file in TARGETS[name]:
        texts = renamed(attack(file, text, SIZE, one_lineage=False), f"{file}-")
        parts.append(texts)
        asked = {row["id"]: row["target_question_id"] for row in read_rows(file)}
        for entry_id in texts.ids:
            group_of[entry_id] = f"{file} {asked[entry_id.split('poison-', 1)[1]]}"
    whole = join(*parts).take(range(n_groups * SIZE))
    return whole, {entry_id: group_of[entry_id] for entry_id in whole.ids}


def stream(
    clean: Batch, bad: Batch, group_of: dict[str, str], *, scattered: bool, seed: int = 0
) -> Stream:
    """Return clean and poisoned entries in order of arrival."""
    rng = np.random.default_rng(seed)
    by_group: dict[str, list[int]] = defaultdict(list)
    for row, entry_id in enumerate(bad.ids):
        by_group[group_of[entry_id]].append(row)
    n_batches = -(-(len(clean) + len(bad)) // BATCH)
    places = np.concatenate([np.sort(rng.random(len(clean))), np.zeros(len(bad))])
    for rows in by_group.values():
        if scattered:  # one text in each of five batches at equal distances
            at = (rng.random() + np.arange(len(rows)) / len(rows)) % 1.0
        else:  # all texts in the middle of one batch
            at = np.full(len(rows), (rng.integers(n_batches) + 0.5) / n_batches)
        places[len(clean) + np.array(rows)] = at
    order = np.argsort(places, kind="stable")
    return Stream(join(clean, bad).take(order), group_of)


def reviewed(known: Batch, coming: Stream, label: str) -> Queue:
    """Let a guard adopt the known entries and judge a stream; return the review queue."""
    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)
    entries = join(coming.entries, known)
    row_of = {entry_id: row for row, entry_id in enumerate(entries.ids)}
    for batch in track(list(chunks(coming.entries, BATCH)), label, transient=True):
        report = guard.hold(guard.screen(batch))
        guard.admit(report)
        rows = [row_of[decision.entry_id] for decision in report.retroactive]
        guard.recall(entries.take(rows), report.retroactive, lambda _: None)
    queue = Cases(guard.quarantine)
    cases = [
        Counter(
            coming.group_of.get(held.id, "")
            for held in queue.members(case.number, limit=case.n_members)
        )
        for case in queue.page(limit=ALL_CASES).cases
    ]
    n_poisoned = len(coming.group_of)
    return Queue(
        n_poisoned,
        len(coming.entries) - n_poisoned,
        len(guard.quarantine.held_ids(known.ids)),
        cases,
    )


def cells_of(queue: Queue) -> str:
    """Return the figures of a queue as cells of a table."""
    poisoned, clean = queue.held
    spread = queue.cases_of_groups
    largest = max(queue.cases, key=Counter.total)
    several = sum(len([group for group in case if group]) > 1 for case in queue.cases)
    n_groups = max(1, len(spread))
    cells = (
        f"{poisoned:,} ({poisoned / queue.n_poisoned:.1%})",
        (
            f"{clean - queue.n_known:,} ({(clean - queue.n_known) / queue.n_clean:.2%}) "
            f"+ {queue.n_known} known"
        ),
        f"{len(queue.cases):,}",
        f"{len(queue.poisoned):,}",
        f"{queue.decisions:,}",
        str(proportion_interval(queue.clean_in_poisoned, clean)) if clean else "–",
        f"{sum(spread.values()) / n_groups:.2f} (at most {max(spread.values(), default=0)})",
        f"{several:,}",
        f"{largest.total():,} ({sum(1 for group in largest if group)} groups, {largest['']} clean)",
    )
    return " | ".join(cells)


def measured(
    names: list[str],
    n_clean: int = CLEAN,
    n_groups: int = GROUPS,
    n_known: int | None = None,
    kept: Path | None = None,
) -> list[str]:
    """Return the table; lines in the file of an earlier run are not measured again."""
    there = kept.read_text(encoding="utf-8").splitlines() if kept and kept.exists() else []
    lines = []
    for name in names:
        corpus = knowledge_base(name)
        order = np.random.default_rng(0).permutation(len(corpus))
        clean, known = corpus.take(order[:n_clean]), corpus.take(order[CLEAN:][:n_known])
        for text, title in TEXTS.items():
            for scattered in (False, True):
                bad, group_of = poison(name, text, n_groups)
                how = "scattered" if scattered else "each at once"
                label = f"{name}, {len(known):,} known | {title}, {how}"
                if known_line := next((one for one in there if label in one), None):
                    lines.append(known_line)
                    continue
                queue = reviewed(known, stream(clean, bad, group_of, scattered=scattered), label)
                lines.append(f"| {label} | {cells_of(queue)} |")
                print(lines[-1], flush=True)
                if kept:
                    with kept.open("a", encoding="utf-8") as file:
                        print(lines[-1], file=file)
    return lines


def main() -> None:
    """Run, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--kept", type=Path, help="file of lines, to go on if it is cut off")
    args = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if args.quick:
        measured(["wikipedia"], n_clean=500, n_groups=10, n_known=1_500)
        return
    newline = "\n"
    write(
        "review_queue",
        f"""# Decisions that a reviewer needs

Written by `benchmarks/review_queue.py`. Python {platform.python_version()}; vectors:
all-MiniLM-L6-v2. The default guard at an accepted rate of {FPR:.0%} has adopted clean passages
(known); then {CLEAN:,} others come in batches of {BATCH}, and {GROUPS} groups of {SIZE} texts of
PoisonedRAG for one question each (NQ and HotpotQA; on web pages those for MS MARCO first), black-box
or raw, each group in one batch or its texts in batches far apart. What a later text makes suspicious
is taken back out, known entries among it.

Decisions: those that confirm all held poison and release all held clean entries, as the page takes
them. A case of one kind is one; of a mixed one, the fewer ones are decided one by one, and the rest
at once. Without cases each held entry would be one. The share of clean entries in poisoned cases is
of those held, with the Wilson 95 % interval. Cases of a group: over how many cases those texts are
spread that are held, on average.

| knowledge base | groups | poisoned, held | clean, held | cases | with poison | decisions | clean in poisoned cases | cases of a group | cases of several groups | largest case |
|---|---|---|---|---|---|---|---|---|---|---|
{newline.join(measured(list(TARGETS), kept=args.kept))}

Groups were chained by a word that many of their texts have ("surprisingly"), which the detector of
phrases names, and split where the first texts of a group were held for another reason before the
group was one. Members that a group's evidence names are of its case now, and a phrase ties no text
that was found as a member of a group. Before, on wikipedia, black-box: 296 decisions, a case of 10
groups and 5 clean entries (each at once); 516 decisions, 2.13 cases of a group (scattered).

A phrase still ties texts that are held for it alone, because their group is not found or not yet one:
they are one case, and each group that names one of them as its member comes to it. That is what
chains several groups, of raw texts above all. In two smaller runs with those (wikipedia, 100 groups
scattered among 3,000 passages; web, 200 groups, each at once, among 3,000) five cases were of several
groups: four by texts that were held for "surprisingly", "unique" or "contrary to common belief" alone,
and one by four texts, of two questions, that were found as one group. Clean entries in poisoned cases
are mostly one or two that a group's evidence names, or that share such a phrase.
""",  # noqa: E501 - a table's head
    )


if __name__ == "__main__":
    main()
