"""What poison in the sample costs: a guard that has adopted it, and one that adopted a clean one.

    python benchmarks/poisoned_samples.py            # writes benchmarks/results/
    python benchmarks/poisoned_samples.py --quick    # one split, one manner; writes nothing

A random half of a corpus is adopted, as it is and with poison; the other half is new.
"""

from __future__ import annotations

import argparse
import logging
import platform
from pathlib import Path

import numpy as np
from cliques import attack, join, knowledge_base, renamed
from corpora import read_rows
from joint_fpr import FPR, TOGETHER, halves, held
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.attacks import plant_phrase

RESULTS = Path(__file__).parent / "results"
SPLITS = 2
# The corpus, and the attack texts: for questions about it, or about anything else.
POISONED = {
    "web + nq": "poisonedrag_nq",
    "web + hotpotqa": "poisonedrag_hotpotqa",
    "wikipedia": "poisonedrag_nq",
    "near-duplicate docs": "poisonedrag_nq",
}
SHARE = 0.05
PHRASE = "amber kettle northern"
N_PHRASES = 60
# How it lies in what is adopted: at its end; each group at a place of its own; each entry.
MANNERS = ("last", "by groups", "scattered")
COMING = (("text_blackbox", 5), ("text", 5), ("text", 3))


def adopting(known: Batch) -> Guard:
    """Return the default guard that has adopted a sample that nobody has vouched for."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)


def questions_of(source: str) -> dict[str, str]:
    """Return the question of each attack text, by its id."""
    return {row["id"]: row["target_question_id"] for row in read_rows(source)}


def poison_for(known: Batch, source: str, seed: int) -> tuple[Batch, Batch, set[str]]:
    """Return groups of five and entries with a phrase, and the questions that they are made for."""
    rng = np.random.default_rng(seed)
    fives = join(
        *(
            renamed(attack(source, column, 5, one_lineage=False), f"{column}-")
            for column in ("text_blackbox", "text")
        )
    )
    chosen = rng.permutation(len(fives) // 5)
    wanted = int(SHARE * len(known)) - N_PHRASES
    rows = (5 * chosen[:, None] + np.arange(5)).ravel()[:wanted]
    carriers = known.take(rng.permutation(len(known))[:N_PHRASES])
    phrased = Batch.of(
        ids=[f"phrase-{i}" for i in carriers.ids],
        texts=plant_phrase(carriers, range(N_PHRASES), PHRASE, seed=seed),
        embeddings=carriers.embeddings,
        lineages=[None] * N_PHRASES,
    )
    asked = questions_of(source)
    used = {asked[fives.ids[row].split("poison-")[1]] for row in rows.tolist()}
    return fives.take(rows), phrased, used


def poisoned(known: Batch, grouped: Batch, single: Batch, manner: str, seed: int) -> Batch:
    """Return what is adopted, with poison in it in a manner."""
    rng = np.random.default_rng(seed)
    size = 5 if manner == "by groups" else 1
    places = np.repeat(rng.random(-(-len(grouped) // size)), size)[: len(grouped)]
    places = np.concatenate([places, rng.random(len(single))])
    if manner == "last":
        places[:] = 1.0
    places = np.concatenate([np.arange(len(known)) / len(known), places])
    return join(known, grouped, single).take(np.argsort(places, kind="stable"))


def measured(guard: Guard, new: Batch, source: str, used: set[str]) -> dict[str, float]:
    """Return the share that is held of clean entries, and of texts for other questions."""
    asked = questions_of(source)
    shares = {"clean entries": float(held(guard, new.take(range(2_000)), TOGETHER)[0].mean())}
    for column, size in COMING:
        texts = attack(source, column, 5, one_lineage=False)
        fresh = [
            row
            for start in range(0, len(texts), 5)
            if asked[texts.ids[start].removeprefix("poison-")] not in used
            for row in range(start, start + size)
        ]
        batch = join(texts.take(fresh), new.take(range(500)))
        out = held(guard, batch, len(batch))[0][: len(fresh)]
        name = "black-box" if column == "text_blackbox" else "raw"
        shares[f"{name}, {size} each"] = float(out.mean())
    return shares


def table(names: list[str], manners: tuple[str, ...], splits: int) -> list[str]:
    """Return the rows of the table."""
    rows = []
    for name in names:
        source, corpus = POISONED[name], knowledge_base(name)
        found: dict[str, list[dict[str, float]]] = {}
        for seed in track(range(splits), description=name):
            known, new = halves(corpus, seed)
            *poison, used = poison_for(known, source, seed)
            samples = {m: poisoned(known, *poison, m, seed) for m in manners}
            for manner, sample in ({"clean": known} | samples).items():
                shares = measured(adopting(sample), new, source, used)
                found.setdefault(manner, []).append(shares)
        for manner in manners:
            for what in found[manner][0]:
                clean, bad = (np.mean([s[what] for s in found[m]]) for m in ("clean", manner))
                rows.append(
                    f"| {name}, {source} | {manner} | {what} | {clean:.3f} | {bad:.3f} "
                    f"| {bad - clean:+.3f} |"
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if quick:
        table(["near-duplicate docs"], MANNERS[:1], 1)
        return
    rows = "\n".join(table(list(POISONED), MANNERS, SPLITS))
    RESULTS.joinpath("poisoned_samples.md").write_text(
        f"""# What poison in the sample costs

Written by `benchmarks/poisoned_samples.py`. The default guard at an accepted rate of {FPR:.0%} has
adopted a random half of a corpus, which nobody has vouched for: as it is, and with {SHARE:.0%} of
poison. That is PoisonedRAG's texts, raw and black-box ones, five for a question, and {N_PHRASES}
entries with a phrase planted; at the end of the store, each group at a place of its own, or each
entry at one. Then texts for other questions come, all with 500 clean entries in one batch, and
2,000 clean ones in batches of {TOGETHER}. Shares held, means of {SPLITS} splits. What limits it:
docs/growth.md. Python {platform.python_version()}.

| knowledge base, poison | it lies | what comes | clean sample | poisoned | difference |
|---|---|---|---|---|---|
{rows}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
