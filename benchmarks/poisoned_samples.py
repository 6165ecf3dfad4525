"""Effect of poison in the adopted sample, compared with a guard that adopted a clean sample.

    python benchmarks/poisoned_samples.py            # writes benchmarks/results/
    python benchmarks/poisoned_samples.py --only "web + nq" --manner last
    python benchmarks/poisoned_samples.py --quick    # writes nothing

A guard adopts a random half of a corpus, clean or with poison; the other half is new.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
from dataclasses import replace

import numpy as np
from cliques import attack, join, knowledge_base, renamed
from corpora import load, read_rows
from decisions import failed
from ingestion import written
from joint_fpr import FPR, TOGETHER, halves, held
from phrases import plant_phrase
from results_files import RESULTS, write
from rich.progress import track
from singles import CORRUPT_RAG

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.huggingface.minilm import MiniLM

# Goals of a quick run: least share held of poisoned entries, most of clean ones.
LEAST, MOST = 0.9, 0.03
SPLITS = 3
# Corpus -> attack texts, for questions about the corpus or about other topics.
POISONED = {
    "web + nq": "poisonedrag_nq",
    "web + hotpotqa": "poisonedrag_hotpotqa",
    "wikipedia": "poisonedrag_nq",
    "near-duplicate docs": "poisonedrag_nq",
}
SHARE = 0.05
PHRASE, OTHER_PHRASE = "amber kettle northern", "copper lantern eastward"
N_PHRASES, N_OTHER = 60, 20
# Places of the poison in the sample: at the end; a random place per group, or per entry.
CLEAN = "clean"
MANNERS = ("last", "by groups", "scattered")
# Poison of one kind at a random place per entry; then new texts of all kinds come one by one.
SINGLY = {"claims": "CorruptRAG", "instructions": "promptinjection_nq"}
SINGLY_IN = "web + nq"
CLAIMED_BEFORE = ("poisonedrag_hotpotqa", "poisonedrag_msmarco_half")
N_ASKED = 20  # questions whose instructions come one by one
COMING = (("text_blackbox", 5), ("text", 5), ("text", 3))


def adopting(known: Batch) -> Guard:
    """Return the default guard after it has adopted an unchecked sample."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://")).adopt(known)


def questions_of(source: str) -> dict[str, str]:
    """Return the question of each attack text, by its id."""
    return {row["id"]: row["target_question_id"] for row in read_rows(source)}


def poison_for(known: Batch, source: str, seed: int) -> tuple[Batch, Batch, set[str]]:
    """Return groups of five, entries with a phrase, and the ids of the attacked questions."""
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
    """Return a sample with poison at places of a manner."""
    rng = np.random.default_rng(seed)
    size = 5 if manner == "by groups" else 1
    places = np.repeat(rng.random(-(-len(grouped) // size)), size)[: len(grouped)]
    places = np.concatenate([places, rng.random(len(single))])
    if manner == "last":
        places[:] = 1.0
    places = np.concatenate([np.arange(len(known)) / len(known), places])
    return join(known, grouped, single).take(np.argsort(places, kind="stable"))


def measured(guard: Guard, new: Batch, source: str, used: set[str]) -> dict[str, float]:
    """Return the shares held of clean entries, and of attack texts for other questions."""
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
    batch = new.take(range(500))
    batch = replace(batch, texts=tuple(plant_phrase(batch, range(N_OTHER), OTHER_PHRASE)))
    shares[f"another phrase, in {N_OTHER}"] = float(held(guard, batch, 500)[0][:N_OTHER].mean())
    return shares


def claims(*sources: str) -> dict[str, list[str]]:
    """Return CorruptRAG's claims about the questions of some sources, by wording."""
    rows = {row["target_question_id"]: row for source in sources for row in read_rows(source)}
    others = written("claims_near").texts
    texts: dict[str, list[str]] = {}
    for number, row in enumerate(rows.values()):
        wordings = {"claims": CORRUPT_RAG, "reworded claims": others[number % len(others)]}
        for name, wording in wordings.items():
            claim = wording.format(correct=row["correct_answer"], target=row["target_answer"])
            texts.setdefault(name, []).append(claim)
            asked = f"{row['target_question']} {claim}"
            texts.setdefault(f"{name} with the question", []).append(asked)
    return texts


def embedded(texts: list[str], prefix: str) -> Batch:
    """Return texts as entries, embedded by the model of the corpora."""
    vectors = np.array(MiniLM().embed(texts), dtype=np.float32)
    ids = [f"{prefix}-{number}" for number in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=vectors)


def instructions(*, poison: bool, seed: int) -> Batch:
    """Return the instructions for the sample, or those about the other questions for the test."""
    (source,) = (each for each in SINGLY.values() if each != "CorruptRAG")
    asked = questions_of(source)
    drawn = np.random.default_rng(seed).permutation(sorted({*asked.values()}))[:N_ASKED]
    texts = load(source)
    rows = [row for row, i in enumerate(texts.ids) if (asked[i] not in drawn) == poison]
    return renamed(texts.take(rows), "instruction-")


def with_singles(known: Batch, kind: str, seed: int) -> Batch:
    """Return a sample with poison of one kind at random places."""
    if kind == "claims":
        texts = [text for each in claims(*CLAIMED_BEFORE).values() for text in each]
        poison = embedded(texts, "claim")
    else:
        poison = instructions(poison=True, seed=seed)
    rng = np.random.default_rng(seed)
    some = poison.take(rng.permutation(len(poison))[: int(SHARE * len(known))])
    whole = join(known, some)
    return whole.take(rng.permutation(len(whole)))


def held_alone(guard: Guard, new: Batch, seed: int) -> dict[str, float]:
    """Return the shares held of clean entries, and of single texts by kind."""
    coming = {name: embedded(texts, name) for name, texts in claims("poisonedrag_nq").items()}
    coming["instructions"] = instructions(poison=False, seed=seed)
    return {"clean entries": float(held(guard, new.take(range(2_000)), TOGETHER)[0].mean())} | {
        f"{name}, alone": float(held(guard, texts, 1)[0].mean()) for name, texts in coming.items()
    }


def measure(name: str, manner: str, seed: int) -> dict[str, float]:
    """Return the shares held by a guard that adopted a sample, clean or poisoned in a manner."""
    source = POISONED[name]
    known, new = halves(knowledge_base(name), seed)
    if manner in SINGLY:
        return held_alone(adopting(with_singles(known, manner, seed)), new, seed)
    *poison, used = poison_for(known, source, seed)
    sample = known if manner == CLEAN else poisoned(known, *poison, manner, seed)
    guard = adopting(sample)
    alone = held_alone(guard, new, seed) if manner == CLEAN and name == SINGLY_IN else {}
    return measured(guard, new, source, used) | alone


def manners_in(name: str) -> list[str]:
    """Return the manners of poison in a knowledge base, with the kinds of single texts."""
    return [*MANNERS, *(SINGLY if name == SINGLY_IN else ())]


def table(figures: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Return the rows of the table of the measured figures."""
    rows = []
    for name, source in POISONED.items():
        for manner in manners_in(name):
            clean, found = (figures.get(f"{name}, {m}", {}) for m in (CLEAN, manner))
            seeds = sorted(clean.keys() & found.keys())
            for column in found[seeds[0]] if seeds else ():
                before, now = (np.mean([f[seed][column] for seed in seeds]) for f in (clean, found))
                rows.append(
                    f"| {name}, {SINGLY.get(manner, source)} | {manner} | {len(seeds)} | {column} "
                    f"| {before:.3f} | {now:.3f} | {now - before:+.3f} |"
                )
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one sample; writes nothing")
    parser.add_argument("--only", choices=POISONED, help="this knowledge base")
    parser.add_argument("--manner", choices=(CLEAN, *MANNERS, *SINGLY), help="only this one")
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    if given.quick:
        shares = measure("web + nq", MANNERS[0], 0)
        print(shares)
        held, clean = shares["black-box, 5 each"], shares["clean entries"]
        failed(["black-box texts are not held"] if held < LEAST else [])
        failed(["clean entries are held"] if clean > MOST else [])
        return
    kept = RESULTS / "poisoned_samples.json"
    figures = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    names = [given.only] if given.only else list(POISONED)
    wanted = [(name, manner) for name in names for manner in [CLEAN, *manners_in(name)]]
    for name, manner in track([each for each in wanted if given.manner in (None, each[1])]):
        found = {str(seed): measure(name, manner, seed) for seed in range(given.splits)}
        figures[f"{name}, {manner}"] = found
        kept.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    rows = "\n".join(table(figures))
    write(
        "poisoned_samples",
        f"""# What poison in the sample costs

Written by `benchmarks/poisoned_samples.py`. The default guard at an accepted rate of {FPR:.0%} has
adopted a random half of a corpus, which nobody has vouched for: as it is, and with {SHARE:.0%} of
poison. That is PoisonedRAG's texts, raw and black-box ones, five for a question, and {N_PHRASES}
entries with a phrase planted; at the end of the store, each group at a place of its own, or each
entry at one. Then texts for other questions come, all with 500 clean entries in one batch,
another phrase in {N_OTHER} of 500, and 2,000 clean ones in batches of {TOGETHER}. Of web pages
also with poison of one kind, each entry at a place of its own: CorruptRAG's claims, as published
and reworded, with the question and without, about HotpotQA's and MS MARCO's questions, or
instructions; then such texts about NQ's questions come, each alone. Shares held, means over splits.
What limits it: docs/growth.md. Python {platform.python_version()}.

| knowledge base, poison | it lies | splits | what comes | clean sample | poisoned | difference |
|---|---|---|---|---|---|---|
{rows}
""",
        partly=bool(given.only or given.manner),
    )


if __name__ == "__main__":
    main()
