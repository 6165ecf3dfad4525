"""The canary notebook's published rule beside ours."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from canaries import N_ADDED, N_CANARIES, SIZES, Embed, K, World, crafted, joined, world
from canary_notebook import scores_of, suspects_of
from corpora import load, read_rows
from peer_tables import Counts, embedding_cost, threshold_at, timed
from rich.progress import track

from ragshield_core import Batch, Quarantine
from ragshield_core.tools.canary import (
    AnomalyWeights,
    CanaryMonitor,
    DriftReport,
    MatrixRetriever,
)
from ragshield_core.tools.evaluate.attacks import STYLES

# Draws of canaries: one for the test, as in canaries.py, and others for calibration.
TEST_DRAWS, CLEAN_DRAWS = range(1), range(10, 13)
SENTENCE = re.compile(r"(?<=[.!?])\s+")

HEAD = """
## 5. Canaries

{canaries} canaries, twenty of them attacked, in Wikipedia that grows by {added:,} clean passages,
as in [canaries.md](canaries.md); six wordings of poison, pooled; {draws} draws, pooled as if
independent. The notebook compares answers as well; a model that writes them is not at hand, so an
extractive answerer gives the sentence of the first passage that is nearest to the question, which
is deterministic, as the notebook asks. Its score also rises with the planted truth
(`poison_ratio`), which nobody has outside of a demonstration, and which is left out. "As it
comes": flagged at .65, which it cannot reach without answers. "At 1 %": at the score that 1 % of
canaries exceed when clean passages alone are added, in {clean} other draws. Ours is the default
rule, with the same answerer and without one; it has no single score, and nothing was calibrated.

"Growth": canaries flagged though nothing was planted; "beside": those that nobody attacked, while
others were. Suspects: of those named, the share that is poison; of the poison retrieved for
flagged canaries, the share that is named. The notebook names ten entries at most, and takes the
first three out.
"""


class Watch(NamedTuple):
    """A rule, ours or the notebook's, and whether it compares answers."""

    ours: bool
    answers: bool

    @property
    def name(self) -> str:
        """Name of the row in the table."""
        shown = "**ours**" if self.ours else "canary notebook"
        return shown if self.answers else f"{shown}, without answers"


WATCHES = (
    *(Watch(ours=False, answers=True), Watch(ours=False, answers=False)),
    *(Watch(ours=True, answers=True), Watch(ours=True, answers=False)),
)


class Answerer:
    """Extractive answerer: the sentence of the first passage nearest to the question."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._given: dict[tuple[str, str], str] = {}

    def __call__(self, query: str, texts: list[str]) -> str:
        """Return the sentence."""
        key = query, texts[0]
        if key not in self._given:
            sentences = SENTENCE.split(texts[0])
            similarity = self._embed(sentences) @ self._embed([query])[0]
            self._given[key] = sentences[int(np.argmax(similarity))]
        return self._given[key]


def monitor_of(
    watch: Watch, drawn: World, embed: Embed
) -> tuple[CanaryMonitor, MatrixRetriever, DriftReport]:
    """Return a monitor, its retriever, and a check right after its baseline."""
    retriever = MatrixRetriever(drawn.base, embed)
    monitor = CanaryMonitor(
        drawn.suite,
        retriever,
        answerer=Answerer(embed) if watch.answers else None,
        embedder=embed,
        k=K,
        quarantine=Quarantine("sqlite://"),
    )
    monitor.record_baseline()
    return monitor, retriever, monitor.compare()


def whole_wikipedia() -> Batch:
    """Return the passages with their titles."""
    plain = load("wiki_passages")
    titles = [row["title"] for row in read_rows("wiki_passages")]
    return Batch.of(ids=plain.ids, texts=plain.texts, embeddings=plain.embeddings, lineages=titles)


def canaries(*, quick: bool = False) -> tuple[list[str], dict[str, object]]:
    """Return the table, and all counts."""
    wiki = whole_wikipedia()
    test_draws, clean_draws = (TEST_DRAWS, CLEAN_DRAWS)
    styles, sizes, watches = list(STYLES), SIZES, WATCHES
    if quick:
        test_draws, clean_draws = test_draws[:1], clean_draws[:1]
        styles, sizes, watches = styles[:1], SIZES[:1], WATCHES[1::2]
    counts, costs = Counts(), []
    with tempfile.TemporaryDirectory() as folder:
        embed = Embed(Path(folder))
        thresholds = {}
        for watch in watches:
            if not watch.ours:
                clean = []
                for seed in track(clean_draws, description=f"{watch.name}, clean draws"):
                    drawn = world(wiki, seed, articles=False)
                    monitor, retriever, before = monitor_of(watch, drawn, embed)
                    retriever.batch = joined(drawn.base, drawn.added)
                    clean.append(scores_of(before, monitor.compare()))
                thresholds[watch] = threshold_at(np.concatenate(clean))
        for seed in track(test_draws, description="canaries"):
            drawn = world(wiki, seed, articles=False)
            runs = {f"{n} documents": [(style, n) for style in styles] for n in sizes}
            poisons = {
                column: [crafted(drawn, style, n, embed) for style, n in cases]
                for column, cases in runs.items()
            } | {"growth": [drawn.added.take([])]}
            costs.append(embedding_cost(drawn.suite.queries))
            for watch in watches:
                monitor, retriever, before = monitor_of(watch, drawn, embed)
                for column, several in poisons.items():
                    for poison in several:
                        retriever.batch = joined(drawn.base, drawn.added, poison)
                        at = thresholds.get(watch)
                        count(watch, monitor, before, drawn, poison, column, at, counts)
    cost = float(np.mean(costs))
    columns = ["growth", "beside", *(f"{n} documents" for n in sizes)]
    columns += ["suspects that are poison", "poison that is named"]
    lines = [
        HEAD.format(
            canaries=N_CANARIES, added=N_ADDED, draws=len(test_draws), clean=len(clean_draws)
        )
    ]
    lines += counts.table(columns, cost, of="embedding a question")
    return lines, counts.to_dict()


def count(
    watch: Watch,
    monitor: CanaryMonitor,
    before: DriftReport,
    drawn: World,
    poison: Batch,
    column: str,
    threshold: float | None,
    counts: Counts,
) -> None:
    """Check once, and count flagged canaries and blamed entries."""
    report = monitor.compare()  # caches answers, so that the next check is timed without them
    _, seconds = timed(monitor.compare)
    wanted = {target["id"] for target in drawn.targets} if len(poison) else set()
    bad = np.array([drift.name in wanted for drift in report.canaries])
    if watch.ours:
        rows = {watch.name: np.array([drift.flagged for drift in report.canaries])}
    else:
        scores = scores_of(before, report)
        rows = {f"{watch.name}, as it comes": scores >= AnomalyWeights().threshold}
        if threshold is not None:
            rows[f"{watch.name}, at 1 %"] = scores > threshold
    for row, flagged in rows.items():
        if not wanted:
            counts.add(row, column, flagged)
            counts.took(row, seconds, len(flagged))
            continue
        counts.add(row, column, flagged[bad])
        counts.add(row, "beside", flagged[~bad])
    if wanted:
        row = next(iter(rows))
        planted = set(poison.ids)
        named_canaries = [
            drift.name
            for drift, is_flagged in zip(report.canaries, rows[row], strict=True)
            if is_flagged
        ]
        suspects = set(suspects_of(report, named_canaries))
        if watch.ours:
            suspects = {suspect.entry_id for suspect in monitor.traceback(report).suspects}
        seen = planted & {i for name in named_canaries for i in report[name].ids}
        named = np.array([i in planted for i in suspects], dtype=np.bool_)
        counts.add(row, "suspects that are poison", named)
        found = np.array([i in suspects for i in seen], dtype=np.bool_)
        counts.add(row, "poison that is named", found)
