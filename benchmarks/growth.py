"""False-positive rate and recall of a guard while its knowledge base grows.

    python benchmarks/growth.py            # stale parts, writes benchmarks/results/growth.md
    python benchmarks/growth.py --quick    # small streams, writes nothing; fails on missed goals
    python benchmarks/growth.py --only clean imitations   # these parts, the others stay

The default guard at 1 %, entries in batches of 100, written as the guarded stores write them:
screen, hold, recall, learn; some streams go through a real guarded store. An entry that is held or
recalled counts once.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one stream per core

import numpy as np
from cliques import attack, knowledge_base
from corpora import load, read_rows
from decisions import Outcome, arrive, chunks
from langchain_end_to_end import Looked, bare_store, documents_of
from rates import proportion_interval
from results_files import Parts
from rich.progress import track

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.claims import lineage_of
from ragshield_core.model.entries import concatenate
from ragshield_core.store.opening import learn_store
from ragshield_langchain import GuardedVectorStore

FPR = 0.01
BATCH = 100
ADOPTED = 1_000
BLOCK = 1_000
POISONED = 0.01
# Most entries that a short stream of --quick may have held and recalled: the goals of long streams
# and a tolerance for the chance in two thousand entries.
MOST_HELD, MOST_RECALLED = 0.02, 0.005

HEAD = """# A knowledge base that grows

Written by `benchmarks/growth.py`. `Guard.default(fpr=0.01)`; entries arrive in batches of 100 and
are written as the guarded stores do it. Vectors: all-MiniLM-L6-v2.
"""
CLEAN_HEAD = """
## Clean streams

"Held": share of the whole stream that was ever held or recalled; "worst": of its worst thousand;
"recalled": after admission. Adopted: the first thousand entries, in the order of the stream. "Own
lineages": a lineage an entry; else the article, or none. "Before": as far as the guard had not
calibrated itself.

| stream | entries | held | worst | recalled | before | findings | shift named |
|---|---|---|---|---|---|---|---|"""
ATTACK_HEAD = f"""
## The same streams with {POISONED:.0%} of poison

PoisonedRAG, the documents of a target at random places of the stream, the first thousand (which is
adopted) included. "In the stream": share of those that came after the adoption which were held or
recalled in the end. "Static": the same texts in one batch with 1,000 clean entries, before a guard
fitted and calibrated on the clean entries of the whole stream. "Clean": share of clean entries of
the stream that was held or recalled.

| stream | texts | per target | in the stream | static | clean |
|---|---|---|---|---|---|"""
CLEAN_START_HEAD = """
### No poison among what is adopted

| stream | texts | per target | in the stream | static | clean |
|---|---|---|---|---|---|"""
NOTHING_HEAD = """
### Nothing adopted

The guard begins with nothing; its first thresholds are from a thousand entries of this stream.

| stream | texts | per target | in the stream | static | clean |
|---|---|---|---|---|---|"""
IMITATION_HEAD = """
## Imitations of good entries

Wikipedia, {adopted} adopted, {good} good entries admitted after that; then one or four imitations
of each come, each of its own lineage. Vectors: at the given cosine in a random direction, with an
unrelated text; words: half of the words of the good text, shuffled, embedded by the model.

| imitations | made by | good ones recalled | imitations held |
|---|---|---|---|"""
SLOW_HEAD = """
## A slow poisoner

6,000 entries are adopted. Entries on the topics of the targets come first, among as many clean
ones: by vector, random mixtures of a target's raw texts and the passages nearest to it. Then the
500 raw texts come, in fives.

| knowledge base | prepared | of these, held | caught without them | caught after them |
|---|---|---|---|---|"""
TOPIC_HEAD = """
## Good entries on an attacked topic

The 500 texts of poisonedrag_nq among 2,000 clean passages, which hold passages retrieved for the
very questions; 10,000 adopted.

| knowledge base | texts | poison caught | clean held, on the topics | clean held, others |
|---|---|---|---|---|"""
CLAIMS_HEAD = """
## Groups under claimed lineages

Raw texts of poisonedrag_nq, the groups detector alone at 1 %, fitted on 8,000 entries; 90 texts of
random targets come in one batch with 1,000 clean ones, two draws. Lineages are claimed: its own for
each text, one for each target, two or one for all of them.

| knowledge base | texts | its own each | one a target | two in all | one in all | clean held |
|---|---|---|---|---|---|---|"""
PAGES_HEAD = """
## Pages, with the lineage that metadata says by default

Clean pages, file after file (of templated documentation 60 in a row make one; of Wikipedia an
article is one), the first thousand adopted. "Page numbers": metadata names nothing but the page, so
that each stands for itself; "files": `file_path` as readers give it.

| corpus | read as | held | worst thousand | findings |
|---|---|---|---|---|"""
# Draws of targets; pages per file of templated documentation.
DRAWS, PAGES = 2, 60
COST_HEAD = """
## Cost

Per entry, at batches of 100, Wikipedia, from {adopted} to the size given; one thread.

| entries | screening | learning, calibrations included | calibrations |
|---|---|---|---|"""


def grow(guard: Guard, stream: Batch, adopted: int, size: int = BATCH) -> Outcome:
    """Adopt the first entries of a stream, then write the rest."""
    if adopted:
        learn_store(guard, stream.take(range(adopted)), None)
    return arrive(guard, chunks(stream.take(range(adopted, len(stream))), size))


# Streams


def shuffled(batch: Batch, seed: int = 0) -> Batch:
    """Return the entries in random order."""
    return batch.take(np.random.default_rng(seed).permutation(len(batch)))


def by_lineage(batch: Batch, seed: int = 0) -> Batch:
    """Return the entries by document, the documents in random order."""
    names = list(dict.fromkeys(batch.lineages))
    rank = dict(zip(names, np.random.default_rng(seed).permutation(len(names)), strict=True))
    return batch.take(sorted(range(len(batch)), key=lambda r: (rank[batch.lineages[r]], r)))


def own_lineages(batch: Batch) -> Batch:
    """Return the entries, each with its own lineage."""
    return replace(batch, lineages=tuple(f"source {i}" for i in batch.ids))


def by_topic(seed: int = 0) -> Batch:
    """Return the web passages by topic, without lineages."""
    topics = [row["topic"] for row in read_rows("redundant_web_passages")]
    batch = replace(load("redundant_web_passages"), lineages=tuple(topics))
    return replace(by_lineage(batch, seed), lineages=(None,) * len(batch))


def versions(seed: int = 0) -> Batch:
    """Return Wikipedia passages; a third of them repeats a sentence shorter, under new ids."""
    base = own_lineages(shuffled(load("wiki_passages"), seed)).take(range(9_000))
    again = base.take(range(3_000))
    texts = tuple(t.rpartition(". ")[0] or t for t in again.texts)
    noise = np.random.default_rng(seed).normal(size=again.embeddings.shape)
    noise *= 0.2 / np.linalg.norm(noise, axis=1, keepdims=True)
    later = Batch.of(
        ids=[f"{i} v2" for i in again.ids],
        texts=texts,
        embeddings=again.embeddings + noise,
        lineages=again.lineages,
    )
    head, tail = base.take(range(4_000)), concatenate([base.take(range(4_000, 9_000)), later])
    return concatenate([head, shuffled(tail, seed)])


def ham(name: str) -> Batch:
    """Return the good messages of a corpus, labelled."""
    batch = shuffled(load(name))
    good = batch.take([row for row, label in enumerate(batch.labels) if label == "not_spam"])
    return replace(good, ids=tuple(f"{name} {i}" for i in good.ids))


@cache
def streams() -> dict[str, tuple[Callable[[], Batch], int, int | None]]:
    """Return streams by name: a function that makes it, entries to adopt, entries in all."""
    wiki, web, docs = (
        lambda name=name: knowledge_base(name)
        for name in ("wikipedia", "web + nq", "near-duplicate docs")
    )
    return {
        "Wikipedia, random, own lineages": (lambda: own_lineages(shuffled(wiki())), 1000, 19_000),
        "Wikipedia, random": (lambda: shuffled(wiki()), 1000, 19_000),
        "Wikipedia, by article, own lineages": (
            lambda: own_lineages(by_lineage(wiki())),
            1000,
            19_000,
        ),
        "Wikipedia, whole articles": (lambda: by_lineage(wiki()), 1000, 19_000),
        "Wikipedia, random, then by article": (
            lambda: concatenate(
                [
                    own_lineages(shuffled(wiki())).take(range(1000)),
                    own_lineages(by_lineage(wiki().take(shuffled_rest(len(wiki()), 1000)))),
                ]
            ),
            1000,
            12_000,
        ),
        "Wikipedia, new versions of a third": (versions, 1000, None),
        "web + contexts, own lineages": (lambda: own_lineages(shuffled(web())), 1000, 16_000),
        "web passages, topic after topic": (by_topic, 1000, None),
        "near-duplicate docs": (lambda: shuffled(docs()), 1000, 9_000),
        "Enron ham, then SMS ham": (
            lambda: concatenate([ham("enron1_spam"), ham("sms_spam")]),
            1000,
            None,
        ),
        "from nothing: Wikipedia": (lambda: own_lineages(shuffled(wiki())), 0, 10_000),
        "from nothing: web + contexts": (lambda: own_lineages(shuffled(web())), 0, 10_000),
        "from nothing: whole articles": (lambda: by_lineage(wiki()), 0, 10_000),
    }


def shuffled_rest(n: int, first: int) -> np.ndarray:
    """Return the rows of a shuffled stream after its first ones, sorted."""
    return np.sort(np.random.default_rng(0).permutation(n)[first:])


def clean_stream(name: str, seed: int, longest: int | None) -> dict[str, Any]:
    """Return the outcome of a clean stream."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    make, adopted, size = streams()[name]
    stream = make()
    if seed:  # another, shorter draw: only for streams in random order
        stream, longest = shuffled(stream, seed), longest or 8_000
    stream = stream.take(range(min(len(stream), size or len(stream), longest or len(stream))))
    found = grow(default_guard(), stream, adopted)
    out, counted = found.out, ~found.before
    return {
        "name": name + (f" (draw {seed + 1})" if seed else ""),
        "n": len(out),
        "held": float(out[counted].mean()),
        "worst": worst_block(out),
        "recalled": float(found.recalled.mean()),
        "before": float(found.held[found.before].mean()) if found.before.any() else None,
        "findings": ", ".join(f"{n} {k}" for n, k in found.findings.most_common(4)) or "none",
        "named": found.named,
    }


def worst_block(out: np.ndarray) -> float:
    """Return the largest share held or recalled in a thousand consecutive entries."""
    starts = range(0, max(1, len(out) - BLOCK // 2), BLOCK)
    return max(float(out[start : start + BLOCK].mean()) for start in starts)


def stored_stream(name: str, longest: int | None) -> dict[str, Any]:
    """Return the outcome of a clean stream that is written through a guarded store."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    make, adopted, _ = streams()[name]
    stream = make()
    stream = stream.take(range(longest or 8_000))
    model = Looked(dict(zip(stream.texts, stream.vectors.tolist(), strict=True)))
    store = GuardedVectorStore.adopt(
        bare_store(stream.take(range(adopted)), model), guard=default_guard(), progress=False
    )
    rest = stream.take(range(adopted, len(stream)))
    for start in range(0, len(rest), BATCH):
        part = rest.take(range(start, min(start + BATCH, len(rest))))
        store.add_documents(documents_of(part))
    there = {document.id for document in store.get_by_ids(list(rest.ids))}
    out = np.array([entry_id not in there for entry_id in rest.ids])
    status = store.guard.status()
    spent = {name: of.held + of.recalled for name, of in status.by_detector.items()}
    most = sorted(spent.items(), key=lambda item: -item[1])[:4]
    return {
        "name": f"{name}, through GuardedVectorStore",
        "n": len(out),
        "held": float(out.mean()),
        "worst": worst_block(out),
        "recalled": status.spent.recalled / len(out),
        "before": None,
        "findings": ", ".join(f"{name} {n}" for name, n in most if n) or "none",
        "named": ", ".join(f"shift in {s.detector}" for s in status.shifts) or "–",
    }


def default_guard() -> Guard:
    """Return the measured guard."""
    return Guard.default(FPR, quarantine=Quarantine("sqlite://"))


def clean(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of clean streams."""
    jobs = [(name, 0) for name in streams()]
    jobs += [
        (name, seed)
        for name in ("Wikipedia, random, own lineages", "web + contexts, own lineages")
        for seed in (1, 2)
    ]
    if longest:
        wanted = (
            "Wikipedia, random, own lineages",
            "near-duplicate docs",
            "from nothing: Wikipedia",
        )
        jobs = [(name, 0) for name in wanted]
    lines = [CLEAN_HEAD]
    rows = [*progress(pool, clean_stream, [(*job, longest) for job in jobs], "clean streams")]
    stored = ["Wikipedia, random, own lineages", "web + contexts, own lineages"]
    jobs = [(name, longest) for name in (stored[:1] if longest else stored)]
    rows += progress(pool, stored_stream, jobs, "through a store")
    for row in rows:
        if longest and (row["held"] > MOST_HELD or row["recalled"] > MOST_RECALLED):
            msg = f"{row['name']}: {row['held']:.4f} held, {row['recalled']:.4f} of it recalled."
            raise SystemExit(msg)
        before = "–" if row["before"] is None else f"{row['before']:.4f}"
        lines.append(
            f"| {row['name']} | {row['n']:,} | {row['held']:.4f} | {row['worst']:.3f} | "
            f"{row['recalled']:.4f} | {before} | {row['findings']} | {row['named']} |"
        )
    return lines


# Attacks


def attacked_stream(
    base: str, source: str, text: str, k: int, longest: int | None, start: str = "as it comes"
) -> str:
    """Return a line about a stream with poison in it.

    The adopted entries are those "as it comes" with poison, or "clean", or "nothing".
    """
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    corpus = shuffled(knowledge_base(base))
    corpus = corpus.take(range(min(len(corpus), longest or 9_000)))
    poison = attack(source, text, k, one_lineage=False)
    n = int(POISONED * len(corpus)) // k
    rng = np.random.default_rng(0)
    targets = rng.permutation(len(poison) // k)[:n]
    poison = own_lineages(poison.take([k * t + i for t in targets for i in range(k)]))
    stream = shuffled(concatenate([corpus, poison]), 1)
    if start == "clean":
        rest = corpus.take(range(ADOPTED, len(corpus)))
        first = corpus.take(range(ADOPTED))
        stream = concatenate([first, shuffled(concatenate([rest, poison]), 1)])
    adopted = 0 if start == "nothing" else ADOPTED
    found = grow(default_guard(), stream, adopted)
    bad = np.array([i.startswith("poison-") for i in stream.ids[adopted:]])
    guard = default_guard().fit(corpus.take(range(len(corpus) - 1000))).calibrate()
    late = corpus.take(range(len(corpus) - 1000, len(corpus)))
    static = ~guard.screen(concatenate([poison, late])).admitted[: len(poison)]
    caught = proportion_interval(int(found.out[bad].sum()), int(bad.sum()))
    still = proportion_interval(int(static.sum()), len(static))
    kind = "black-box" if text == "text_blackbox" else "raw"
    wrongly = float(found.out[~bad].mean())
    return f"| {base}, {source} | {kind} | {k} | {caught} | {still} | {wrongly:.4f} |"


def attacks(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of streams with poison."""
    bases = {
        "wikipedia": ("poisonedrag_nq", "poisonedrag_hotpotqa"),
        "web + nq": ("poisonedrag_nq",),
        "web + hotpotqa": ("poisonedrag_hotpotqa",),
    }
    kinds, sizes = ("text_blackbox", "text"), (5, 3, 2)
    if longest:
        bases, sizes = {"wikipedia": ("poisonedrag_nq",)}, (5,)
    jobs = [
        (base, source, text, k, longest)
        for base, sources in bases.items()
        for source in sources
        for text in kinds
        for k in sizes
    ]
    return [ATTACK_HEAD, *progress(pool, attacked_stream, jobs, "attacks")]


def starts(start: str, longest: int | None) -> list[tuple[Any, ...]]:
    """Return the jobs of streams with poison that start clean, or with nothing."""
    return [
        (base, "poisonedrag_nq", text, k, longest, start)
        for base in ("wikipedia", "web + nq")
        for text in ("text_blackbox", "text")
        for k in (5, 3, 2)
    ]


def clean_starts(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of streams with poison whose adopted entries are clean."""
    jobs = starts("clean", longest)
    return [CLEAN_START_HEAD, *progress(pool, attacked_stream, jobs, "clean starts")]


def from_nothing(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of streams with poison that adopted nothing."""
    jobs = starts("nothing", longest)
    return [NOTHING_HEAD, *progress(pool, attacked_stream, jobs, "from nothing")]


# Imitations


def imitated(n: int, made_by: str, cosine: float) -> str:
    """Return a line about imitations of good entries."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    corpus = own_lineages(shuffled(load("wiki_passages")))
    known, good = corpus.take(range(5_000)), corpus.take(range(5_000, 5_110))
    others = corpus.take(range(6_000, 6_000 + 110 * n))
    rng = np.random.default_rng(0)
    if made_by == "vectors":
        own = np.repeat(good.embeddings, n, axis=0)
        noise = rng.normal(size=own.shape)
        noise -= (noise * own).sum(axis=1, keepdims=True) * own
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        texts, vectors = others.texts, cosine * own + np.sqrt(1 - cosine**2) * noise
    else:
        from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - loads a model

        texts = tuple(half_of(text, rng) for text in good.texts for _ in range(n))
        vectors = np.array(MiniLMEmbeddings().embed_documents(list(texts)))
    made = Batch.of(
        ids=[f"imitation-{row}" for row in range(len(texts))],
        texts=texts,
        embeddings=vectors,
        lineages=[f"imitator {row}" for row in range(len(texts))],
    )
    guard = Guard(
        [CliqueDetector()], policy=Policy(quarantine_at=FPR), quarantine=Quarantine("sqlite://")
    )
    stream = concatenate([known, good, shuffled(made)])
    found = grow(guard, stream, len(known), size=10)
    mine = found.recalled[: len(good)]
    stood = ~found.held[: len(good)]
    held = found.out[len(good) :]
    label = f"vectors, cosine {cosine:g}" if made_by == "vectors" else "words"
    if mine[stood].mean() > (0.01 if n == 1 else 0.05):
        msg = f"{n} imitations ({label}) had {mine[stood].mean():.3f} of the good ones recalled."
        raise SystemExit(msg)
    recalled = proportion_interval(int(mine[stood].sum()), int(stood.sum()))
    return f"| {n} | {label} | {recalled} | {held.mean():.3f} |"


def half_of(text: str, rng: np.random.Generator) -> str:
    """Return half of the words of a text, in another order."""
    words = text.split()
    return " ".join(rng.permutation(words)[: max(5, len(words) // 2)])


def imitations(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of imitations."""
    jobs = [(n, "vectors", c) for n in (1, 4) for c in (0.97, 0.8, 0.71)]
    if not longest:
        jobs += [(n, "words", 0.0) for n in (1, 4)]
    head = IMITATION_HEAD.format(adopted="5,000", good=110)
    return [head, *progress(pool, imitated, jobs, "imitations")]


# A slow poisoner, and good entries on an attacked topic


def slow(base: str, n: int) -> str:
    """Return a line about an attacker who prepares the ground."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    corpus = own_lineages(shuffled(knowledge_base(base)))
    known, later = corpus.take(range(6_000)), corpus.take(range(6_000, 6_000 + n))
    poison = own_lineages(attack("poisonedrag_nq", "text", 5, one_lineage=False))
    rng = np.random.default_rng(0)
    vectors, texts = [], []
    for _ in range(n):
        target = poison.embeddings[rng.integers(len(poison))]
        near = np.argsort(-(known.embeddings @ target))[:20]
        mixed = rng.dirichlet([1.0] * 4) @ np.vstack(
            [target, known.embeddings[rng.choice(near, 3)]]
        )
        vectors.append(mixed + rng.normal(scale=0.6 / np.sqrt(len(mixed)), size=len(mixed)))
        texts.append(" ".join(rng.permutation(known.texts[near[0]].split())[:60]))
    ground = Batch.of(
        ids=[f"ground-{i}" for i in range(n)],
        texts=texts,
        embeddings=np.array(vectors),
        lineages=[f"ground {i}" for i in range(n)],
    )
    caught, held = [], 0.0
    for first in (later, shuffled(concatenate([later, ground]))):
        guard = default_guard()
        stream = concatenate([known, first, poison])
        found = grow(guard, stream, len(known))
        bad = np.array([i.startswith("poison-") for i in stream.ids[len(known) :]])
        laid = np.array([i.startswith("ground-") for i in stream.ids[len(known) :]])
        caught.append(proportion_interval(int(found.out[bad].sum()), int(bad.sum())))
        held = float(found.out[laid].mean()) if laid.any() else 0.0
    return f"| {base} | {n:,} | {held:.3f} | {caught[0]} | {caught[1]} |"


def slow_poisoner(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of the slow poisoner."""
    jobs = [("wikipedia", 300)]
    if not longest:
        jobs = [(base, n) for base in ("wikipedia", "web + nq") for n in (200, 500, 2_000)]
    return [SLOW_HEAD, *progress(pool, slow, jobs, "slow poisoner")]


def attacked_topic(base: str, text: str) -> str:
    """Return a line about good entries on the topics of an attack."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    contexts = load("nq_target_contexts", lineage="title")
    contexts = replace(contexts, ids=tuple(f"context-{i}" for i in contexts.ids))
    other = "wiki_passages" if base == "wikipedia" else "redundant_web_passages"
    others = load(other, lineage="title" if base == "wikipedia" else None)
    corpus = shuffled(concatenate([others, contexts]), 1)
    poison = load("poisonedrag_nq", text=text)
    poison = own_lineages(replace(poison, ids=tuple(f"poison-{i}" for i in poison.ids)))
    stream = concatenate(
        [
            corpus.take(range(10_000)),
            shuffled(concatenate([corpus.take(range(10_000, 12_000)), poison])),
        ]
    )
    found = grow(default_guard(), stream, 10_000)
    kinds = {
        prefix: np.array([i.startswith(prefix) for i in stream.ids[10_000:]])
        for prefix in ("poison-", "context-")
    }
    rest = ~(kinds["poison-"] | kinds["context-"])
    cells = [
        str(proportion_interval(int(found.out[rows].sum()), int(rows.sum())))
        for rows in (*kinds.values(), rest)
    ]
    kind = "black-box" if text == "text_blackbox" else "raw"
    return f"| {base} + contexts | {kind} | " + " | ".join(cells) + " |"


def topics(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of good entries on an attacked topic."""
    bases = ("wikipedia",) if longest else ("wikipedia", "web")
    jobs = [(base, text) for base in bases for text in ("text_blackbox", "text")]
    return [TOPIC_HEAD, *progress(pool, attacked_topic, jobs[: 1 if longest else None], "topics")]


# Lineages: claimed by an attacker, and read from metadata by default


def claimed(base: str, k: int) -> str:
    """Return a line about raw groups under lineages that the attacker made up."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    corpus = shuffled(knowledge_base(base)).take(range(9_000))
    guard = Guard(
        [CliqueDetector()], policy=Policy(quarantine_at=FPR), quarantine=Quarantine("sqlite://")
    )
    guard.fit(corpus.take(range(8_000))).calibrate()
    late = corpus.take(range(8_000, 9_000))
    poison = attack("poisonedrag_nq", "text", k, one_lineage=False)
    n_targets = 90 // k
    claims: dict[str, Callable[[int], str]] = {
        "its own each": lambda row: f"source {row}",
        "one a target": lambda row: f"source {row // k}",
        "two in all": lambda row: f"source {row % 2}",
        "one in all": lambda _row: "source",
    }
    shares = []
    for claim in claims.values():
        caught = n = 0
        for seed in range(DRAWS):
            targets = np.random.default_rng(seed).permutation(len(poison) // k)[:n_targets]
            group = poison.take([k * t + i for t in targets for i in range(k)])
            lineages = tuple(claim(row) for row in range(len(group)))
            report = guard.screen(concatenate([replace(group, lineages=lineages), late]))
            caught, n = caught + int((~report.admitted[: len(group)]).sum()), n + len(group)
        shares.append(proportion_interval(caught, n))
    wrongly = float((~guard.screen(late).admitted).mean())
    return f"| {base} | {k} | {' | '.join(map(str, shares))} | {wrongly:.4f} |"


def claims(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of claimed lineages."""
    bases, sizes = (("wikipedia",), (5,)) if longest else (("wikipedia", "web + nq"), (5, 3, 2))
    jobs = [(base, k) for base in bases for k in sizes]
    return [CLAIMS_HEAD, *progress(pool, claimed, jobs, "claimed lineages")]


def read_by(reader: str, corpus: str, longest: int | None) -> str:
    """Return a line about pages that arrive file by file, with the metadata of a reader."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    pages = load(corpus, lineage="title")
    if corpus == "near_duplicate_docs":  # a file is a run of pages on one topic
        pages = pages.take(np.argsort(pages.ids, kind="stable"))
        pages = replace(pages, lineages=tuple(f"{i // PAGES}" for i in range(len(pages))))
    pages = by_lineage(pages)
    pages = pages.take(range(min(len(pages), longest or 8_000)))
    described = [
        {"source": str(row), "page": str(row)}
        | ({} if reader == "page numbers" else {"file_path": f"files/{file} of it.pdf"})
        for row, file in enumerate(pages.lineages)
    ]
    found = [lineage_of(one, i) for one, i in zip(described, pages.ids, strict=True)]
    stream = replace(pages, lineages=tuple(found))
    grown = grow(default_guard(), stream, ADOPTED)
    by = ", ".join(f"{n} {k}" for n, k in grown.findings.most_common(3)) or "none"
    held = proportion_interval(int(grown.out.sum()), len(grown.out))
    return f"| {corpus} | {reader} | {held} | {worst_block(grown.out):.3f} | {by} |"


def pages(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of pages whose lineage is read from metadata by default."""
    jobs = [
        (reader, corpus, longest)
        for corpus in ("near_duplicate_docs", "wiki_passages")
        for reader in ("page numbers", "files")
    ]
    return [PAGES_HEAD, *progress(pool, read_by, jobs[: 2 if longest else None], "pages")]


def cost_of(size: int) -> str:
    """Return a line about the cost of growth."""
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    stream = own_lineages(shuffled(load("wiki_passages"))).take(range(size))
    found = grow(default_guard(), stream, ADOPTED)
    n = size - ADOPTED
    screening, rest = (1000 * s / n for s in found.seconds)
    return f"| {size:,} | {screening:.2f} ms | {rest:.2f} ms | {found.calibrations} |"


def cost(longest: int | None, pool: ProcessPoolExecutor) -> list[str]:
    """Return the table of costs, measured one at a time."""
    del pool
    sizes = (2_000,) if longest else (3_000, 10_000)
    return [COST_HEAD.format(adopted=f"{ADOPTED:,}"), *(cost_of(size) for size in sizes)]


def progress(
    pool: ProcessPoolExecutor, work: Callable[..., Any], jobs: list[tuple[Any, ...]], label: str
) -> Iterable[Any]:
    """Return results in the order of the jobs."""
    futures = [pool.submit(work, *job) for job in jobs]
    return [future.result() for future in track(futures, description=label)]


PARTS: dict[str, Callable[[int | None, ProcessPoolExecutor], list[str]]] = {
    "clean": clean,
    "attacks": attacks,
    "clean_starts": clean_starts,
    "from_nothing": from_nothing,
    "imitations": imitations,
    "slow": slow_poisoner,
    "topics": topics,
    "claims": claims,
    "pages": pages,
    "cost": cost,
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short streams; writes nothing")
    parser.add_argument("--only", nargs="*", help="parts to run; others stay as they were")
    arguments = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.CRITICAL)
    longest = 3_000 if arguments.quick else None
    done = Parts("growth", HEAD, list(PARTS))
    wanted = arguments.only or (("clean", "imitations") if arguments.quick else done.stale())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in wanted:
            lines = PARTS[name](longest, pool)
            print("\n".join(lines), flush=True)
            if not arguments.quick:  # write each part as soon as it is measured
                done.put(name, lines)


if __name__ == "__main__":
    main()
