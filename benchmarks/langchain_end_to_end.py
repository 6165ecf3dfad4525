"""PoisonedRAG end to end through LangChain: poison in the top five, and lost clean passages.

    python benchmarks/langchain_end_to_end.py            # everything, writes benchmarks/results/
    python benchmarks/langchain_end_to_end.py --quick    # one knowledge base, writes nothing

A FAISS store of clean passages is adopted with the default guard at 1 %, and the 500 texts of the
attack are written into it through the guard. Vectors are precomputed, except those of the target
questions, which need the extra ``minilm``. Takes about 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import logging
import math
import platform
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from corpora import data_folder, load, read_rows
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray
from rates import proportion_interval
from results_files import write
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.tools.evaluate.rates import Interval
from ragshield_langchain import GuardedRetriever, GuardedVectorStore, ingest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community is being sunset
    from langchain_community.vectorstores import FAISS

K = 5
FPR = 0.01
SPLITS = 3
TEXTS = {"text_blackbox": "black-box", "text": "raw, without the question"}
# Documents per call, and whether the documents of a question come together.
WAYS = {
    "all at once": (500, True),
    "5 at a time, a question's together": (5, True),
    "5 at a time, shuffled": (5, False),
}
KNOWLEDGE_BASES = {
    "wiki + nq contexts": ("nq", ("wiki_passages", "nq_target_contexts")),
    "the same + redundant web passages": (
        "nq",
        ("wiki_passages", "nq_target_contexts", "redundant_web_passages"),
    ),
    "wiki + hotpotqa contexts": ("hotpotqa", ("wiki_passages", "hotpotqa_target_contexts")),
}
UNTITLED = {"redundant_web_passages"}

HEAD = """# PoisonedRAG through LangChain, end to end

Written by `benchmarks/langchain_end_to_end.py`. A FAISS store of clean passages,
`GuardedVectorStore.adopt` with `Guard.default(fpr={fpr})`, then all 500 texts of the attack, 5 per
target question, through `add_documents`. "Targets with poison": share of the 100 target questions
with any of these texts among the five best, in a bare store, in the guarded one, and through a
`GuardedRetriever` over the guarded one. "Gold": share of 2,000 benign questions whose passage is
among the five best; "drop": of the guarded store against the clean one, before the attack.
all-MiniLM-L6-v2; 95 % intervals (Wilson; of differences, by the questions that change).
Python {python}, {minutes:.0f} minutes.

Goals for black-box texts (nq): at most .020 after, .100 with redundant web passages; drop at most
.005. Stores that were poisoned before they were guarded: [retrieval.md](retrieval.md).
"""


class Looked(Embeddings):
    """Embedding model that looks up precomputed vectors."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self._vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of known texts."""
        return [self._vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a known text."""
        return self._vectors[text]


class Questions(NamedTuple):
    """The target questions of an attack, and benign questions."""

    targets: list[str]
    benign: list[str]
    gold: list[str]  # id of the passage with the answer, per benign question


class Outcome(NamedTuple):
    """Answers of a store to all questions."""

    poisoned: NDArray[np.bool_]  # (n_targets,): any text of the attack among the K best
    gold: NDArray[np.bool_]  # (n_benign,): the passage with the answer among them


def join(batches: Sequence[Batch]) -> Batch:
    """Return the passages of several corpora as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.vectors for b in batches]),
        lineages=[lineage for b in batches for lineage in b.lineages],
    )


def documents_of(batch: Batch) -> list[Document]:
    """Return passages as documents; the page of each is its source."""
    return [
        Document(id=i, page_content=t, metadata={} if source is None else {"source": source})
        for i, t, source in zip(batch.ids, batch.texts, batch.lineages, strict=True)
    ]


def bare_store(batch: Batch, model: Embeddings) -> FAISS:
    """Return an unguarded store of passages."""
    documents = documents_of(batch)
    return FAISS.from_embeddings(
        list(zip(batch.texts, batch.vectors.tolist(), strict=True)),
        model,
        metadatas=[document.metadata for document in documents],
        ids=list(batch.ids),
    )


def asked(store: VectorStore, questions: Questions, bad: set[str]) -> Outcome:
    """Return the answers of a store to all questions."""
    found = [{d.id for d in store.similarity_search(q, k=K)} for q in questions.targets]
    gold = [
        any(document.id == passage for document in store.similarity_search(question, k=K))
        for question, passage in zip(questions.benign, questions.gold, strict=True)
    ]
    return Outcome(np.array([bool(bad & ids) for ids in found]), np.array(gold))


def share(hits: NDArray[np.bool_]) -> str:
    """Return a share with its interval."""
    return str(proportion_interval(int(hits.sum()), len(hits)))


def drop(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> str:
    """Return the drop of a share, with the interval of a paired difference."""
    n = len(before)
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    mean = (lost - won) / n
    half = 1.96 * math.sqrt(max(lost + won - n * mean**2, 0.0)) / n
    return str(Interval(mean=mean, low=mean - half, high=mean + half))


def vectors_of(batches: Sequence[Batch], targets: Sequence[str]) -> Looked:
    """Return a model with the vectors of all texts of a run."""
    from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - an extra

    vectors: dict[str, list[float]] = {}
    for batch in batches:
        vectors |= dict(zip(batch.texts, batch.vectors.tolist(), strict=True))
    with np.load(data_folder() / "embeddings" / "wiki_questions.npz", allow_pickle=False) as file:
        rows = file["embeddings"].astype(np.float32).tolist()
    questions = [row["question"] for row in read_rows("wiki_questions")]
    vectors |= dict(zip(questions, rows, strict=True))
    vectors |= dict(zip(targets, MiniLMEmbeddings().embed_documents(list(targets)), strict=True))
    return Looked(vectors)


def corpus(names: Sequence[str]) -> Batch:
    """Return clean corpora as one knowledge base."""
    return join([load(name, lineage=None if name in UNTITLED else "title") for name in names])


def questions_of(attack: str) -> Questions:
    """Return the target questions of an attack, and the benign ones."""
    rows = read_rows("wiki_questions")
    targets = dict.fromkeys(row["target_question"] for row in read_rows(f"poisonedrag_{attack}"))
    return Questions(
        list(targets), [row["question"] for row in rows], [row["passage_id"] for row in rows]
    )


def attacked(name: str, folder: Path, ways: Sequence[str]) -> list[str]:
    """Return the rows of one knowledge base, for each kind of text and each way to write it."""
    attack, names = KNOWLEDGE_BASES[name]
    known, questions = corpus(names), questions_of(attack)
    poison = {text: load(f"poisonedrag_{attack}", text=text) for text in TEXTS}
    model = vectors_of([known, *poison.values()], questions.targets)
    store = GuardedVectorStore.adopt(
        bare_store(known, model),
        guard=Guard.default(FPR, quarantine=Quarantine("sqlite://")),
        progress=False,
    )
    clean = asked(store.inner, questions, set())
    store.guard.save(folder)
    lines = []
    for text, title in TEXTS.items():
        bad = set(poison[text].ids)
        bare = bare_store(join([known, poison[text]]), model)
        before = asked(bare, questions, bad)
        for way in track(ways, description=f"{name}, {title}"):
            size, together = WAYS[way]
            guard = Guard.load(folder, quarantine=Quarantine("sqlite://"))
            store = GuardedVectorStore(bare_store(known, model), guard=guard)
            batch = poison[text]
            if not together:
                batch = batch.take(np.random.default_rng(0).permutation(len(batch)))
            list(ingest(documents_of(batch), store, batch_size=size))
            after = asked(store, questions, bad)
            retriever = GuardedRetriever(retriever=store.as_retriever(search_kwargs={"k": K}))
            screened = [
                any(document.id in bad for document in retriever.invoke(question))
                for question in questions.targets
            ]
            held = len(bad & store.quarantine.held_ids(list(bad)))
            lines.append(
                f"| {name} | {title} | {way} | {share(before.poisoned)} | "
                f"{share(after.poisoned)} | {share(np.array(screened))} | {held} | "
                f"{share(clean.gold)} | {share(after.gold)} | {drop(clean.gold, after.gold)} |"
            )
            print(lines[-1], flush=True)
    return lines


def ingested(name: str, part: float) -> str:
    """Return the row of a knowledge base with a part written through the guard."""
    attack, names = KNOWLEDGE_BASES[name]
    known, questions = corpus(names), questions_of(attack)
    model = vectors_of([known], questions.targets)
    clean = asked(bare_store(known, model), questions, set())
    documents = np.unique(
        [i if d is None else d for i, d in zip(known.ids, known.lineages, strict=True)]
    )
    held, n, before, after = 0, 0, [], []
    for split in track(range(SPLITS), description=f"{name}, ingested"):
        chosen = set(
            np.random.default_rng(split).permutation(documents)[: int(part * len(documents))]
        )
        new = np.array([(d or i) in chosen for i, d in zip(known.ids, known.lineages, strict=True)])
        store = GuardedVectorStore.adopt(
            bare_store(known.take(~new), model),
            guard=Guard.default(FPR, quarantine=Quarantine("sqlite://")),
            progress=False,
        )
        list(ingest(documents_of(known.take(new)), store))
        held += store.quarantine.count()
        n += int(new.sum())
        before.append(clean.gold)
        after.append(asked(store, questions, set()).gold)
    gold, left = np.concatenate(before), np.concatenate(after)
    line = (
        f"| {name} | {proportion_interval(held, n)} | {share(clean.gold)} | {share(left)} | "
        f"{drop(gold, left)} |"
    )
    print(line, flush=True)
    return line


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one knowledge base, writes nothing")
    quick = parser.parse_args().quick
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    start = time.perf_counter()
    first = next(iter(KNOWLEDGE_BASES))
    rows = []
    for name in [first] if quick else KNOWLEDGE_BASES:
        with tempfile.TemporaryDirectory() as folder:
            ways = list(WAYS) if name == first else [way for way in WAYS if "together" not in way]
            rows += attacked(name, Path(folder) / "guard", ways[:1] if quick else ways)
    if quick:
        return
    ingestion = ingested(first, 0.3)
    minutes = (time.perf_counter() - start) / 60
    lines = [
        HEAD.format(fpr=FPR, python=platform.python_version(), minutes=minutes),
        (
            "| knowledge base | texts | written | targets with poison, bare | guarded | "
            "and screened at retrieval | of 500 held | gold before | gold after | drop |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "\n## Clean documents through the guard\n",
        (
            f"No attack: 30 % of the source documents, drawn at random ({SPLITS} times), are left "
            "out of the adopted store and written through the guard, 100 passages at a time.\n"
        ),
        "| knowledge base | of these held | gold, bare | gold, guarded | drop |",
        "|---|---|---|---|---|",
        ingestion,
    ]
    write("langchain_end_to_end", "\n".join(lines))


if __name__ == "__main__":
    main()
