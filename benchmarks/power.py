"""Reported power of a guard against groups, compared with its recall of PoisonedRAG's groups.

    python benchmarks/power.py            # writes benchmarks/results/power.md
    python benchmarks/power.py --quick    # one knowledge base, writes nothing

A guard plants groups of its own in memory when it adopts a store (`status.power`). Here the raw
texts of poisonedrag_nq come to the same guard in groups of five, three and two for each question.
MiniLM is cut to its first dimensions to see a weaker model.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from corpora import load, read_rows
from numpy.typing import NDArray
from results_files import RESULTS
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.huggingface.minilm import MiniLM
from ragshield_core.store.opening import learn_store
from ragshield_core.tools.evaluate.power import SIZES

CORPORA = ("wiki_passages", "redundant_web_passages")
N, DIMS, SEEDS, QUESTIONS = 2_000, (384, 24), range(3), 60


def cut(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Return the first dimensions of vectors, normalised."""
    short = np.asarray(vectors, dtype=np.float32)[:, :dim]
    return short / np.linalg.norm(short, axis=1, keepdims=True)


def of_dim(batch: Batch, dim: int) -> Batch:
    """Return entries with vectors of fewer dimensions."""
    vectors = cut(batch.embeddings, dim)
    return Batch.of(ids=batch.ids, texts=batch.texts, embeddings=vectors, lineages=batch.lineages)


def groups() -> list[list[int]]:
    """Return the rows of the attack's texts, by question."""
    found: dict[str, list[int]] = {}
    for row, text in enumerate(read_rows("poisonedrag_nq")):
        found.setdefault(text["target_question_id"], []).append(row)
    return list(found.values())[:QUESTIONS]


def measure(corpus: str, dim: int, seed: int, model: MiniLM) -> str:
    """Return a row of the table: reported power and recall, by size of group."""
    whole, attack = load(corpus), of_dim(load("poisonedrag_nq"), dim)
    drawn = np.sort(np.random.default_rng(seed).permutation(len(whole))[:N])
    guard = Guard.default(quarantine=Quarantine("sqlite://"))
    guard.state.offer_embedder(lambda texts: cut(model.embed(texts), dim))
    learn_store(guard, of_dim(whole.take(drawn), dim), None)
    cells = []
    for size in SIZES:
        held = [np.mean(~guard.screen(attack.take(rows[:size])).admitted) for rows in groups()]
        cells.append(f"{guard.status().power[f'groups of {size}']:.2f} / {np.mean(held):.2f}")
    return f"| {corpus} | {dim} | {seed} | {' | '.join(cells)} |"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one row; writes nothing")
    quick = parser.parse_args().quick
    kinds = [(c, d, s) for c in CORPORA for d in DIMS for s in SEEDS][: 1 if quick else None]
    model = MiniLM()
    rows = list(map(partial(_row, model), track(kinds)))
    page = f"""# What a guard says that it would see

Written by `benchmarks/power.py`. Cells: share of the planted groups' texts that a guard says it
would hold (`status.power`, 20 groups of our own texts about the knowledge base) / share of
PoisonedRAG's raw texts that it holds ({QUESTIONS} questions of NQ). {N:,} entries are adopted; the
rate is 1 %.

| knowledge base | dimensions of MiniLM | seed | five, said / seen | three | two |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""
    print(page)
    if not quick:
        (RESULTS / "power.md").write_text(page, encoding="utf-8")


def _row(model: MiniLM, kind: tuple[str, int, int]) -> str:
    return measure(*kind, model)


if __name__ == "__main__":
    main()
