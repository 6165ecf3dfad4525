"""PoisonedRAG end to end through LlamaIndex: poison in the top five, and lost clean passages.

    python benchmarks/llamaindex_end_to_end.py            # everything, writes benchmarks/results/
    python benchmarks/llamaindex_end_to_end.py --quick    # a quarter of the knowledge base, no file

Knowledge base: wiki_passages and nq_target_contexts. The 500 black-box texts of PoisonedRAG (nq)
are written into it through the guard, and the share of the 100 target questions with poison among
their five best is measured before and after; likewise, for 2,000 benign questions, the share whose
gold passage is among their five best. Vectors of all-MiniLM-L6-v2 are precomputed, except those of
the target questions, which need the extra ``minilm``. The search over the served entries is exact.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from corpora import load, read_rows
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.chroma import ChromaVectorStore
from numpy.typing import NDArray
from pydantic import PrivateAttr
from rates import proportion_interval
from results_files import RESULTS, write

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_llamaindex import GuardedIngestionPipeline, GuardedVectorStoreIndex

K = 5
BATCH = 200
CHUNK = 4_000
FPR = 0.01
N_LATE = 2_000


class Precomputed(BaseEmbedding):
    """Embedding model that looks up precomputed vectors."""

    _vectors: dict[str, NDArray[np.float32]] = PrivateAttr()

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        super().__init__(model_name="all-MiniLM-L6-v2, precomputed")
        self._vectors = dict(zip(texts, vectors, strict=True))

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors[text].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query].tolist()


def joined(*batches: Batch) -> Batch:
    """Return the entries of several batches as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.vectors for b in batches]),
        lineages=[lineage for b in batches for lineage in b.lineages],
    )


def without_repeats(batch: Batch, taken: set[str]) -> Batch:
    """Return the entries whose text has not occurred before."""
    rows = []
    for row, text in enumerate(batch.texts):
        if text not in taken:
            taken.add(text)
            rows.append(row)
    return batch.take(rows)


def nodes_of(batch: Batch) -> list[TextNode]:
    """Return entries as nodes without vectors, which the model adds."""
    return [
        TextNode(
            id_=entry.id,
            text=entry.text,
            metadata={} if entry.lineage is None else {"source": entry.lineage},
            excluded_embed_metadata_keys=["source"],
        )
        for entry in batch
    ]


def best(
    ids: Sequence[str], vectors: NDArray[np.float32], queries: NDArray[np.float32]
) -> list[set[str]]:
    """Return the ids of the K best entries of each query by exact cosine."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = []
    for query in queries:
        rows = np.argpartition(-(unit @ (query / np.linalg.norm(query))), K)[:K]
        found.append({ids[row] for row in rows})
    return found


def through_index(
    known: Batch, new: Batch, model: BaseEmbedding, make: Callable[[], Guard]
) -> dict[str, Any]:
    """Adopt an index of the knowledge base, and insert the new entries."""
    bare = VectorStoreIndex(nodes_of(known), embed_model=model)
    index = GuardedVectorStoreIndex.adopt(bare, guard=make())
    start = time.perf_counter()
    for first in range(0, len(new), BATCH):
        rows = np.arange(first, min(first + BATCH, len(new)))
        index.insert_nodes(nodes_of(new.take(rows)))
    seconds = time.perf_counter() - start
    return {
        "served": list(index.index_struct.nodes_dict),
        "held": {held.id for held in index.quarantine.list()},
        "seconds": seconds,
    }


def through_pipeline(
    known: Batch, new: Batch, model: BaseEmbedding, make: Callable[[], Guard]
) -> dict[str, Any]:
    """Fit a guard on the knowledge base, and run the pipeline over the new entries."""
    import chromadb  # noqa: PLC0415 - slow to import

    store = ChromaVectorStore(chromadb.EphemeralClient().create_collection(uuid.uuid4().hex))
    bare = nodes_of(known)
    for node, vector in zip(bare, known.vectors, strict=True):
        node.embedding = vector.tolist()
    for first in range(0, len(bare), CHUNK):
        store.add(bare[first : first + CHUNK])
    guard = make()
    guard.fit(known).calibrate(fpr=FPR)
    pipeline = GuardedIngestionPipeline(
        transformations=[model],
        guard=guard,
        vector_store=store,
        docstore=SimpleDocumentStore(),
        disable_cache=True,
    )
    start = time.perf_counter()
    for first in range(0, len(new), BATCH):
        rows = np.arange(first, min(first + BATCH, len(new)))
        pipeline.run(nodes=nodes_of(new.take(rows)))
    return {
        "served": list(store.client.get(include=[])["ids"]),
        "held": {held.id for held in guard.quarantine.list()},
        "seconds": time.perf_counter() - start,
    }


def measured(
    served: tuple[list[str], NDArray[np.float32]],
    targets: NDArray[np.float32],
    questions: NDArray[np.float32],
    gold: Sequence[str],
    poison: set[str],
) -> dict[str, Any]:
    """Return the shares of targets with poison, and of questions with their gold passage."""
    hits = sum(bool(found & poison) for found in best(*served, targets))
    right = sum(one in found for one, found in zip(gold, best(*served, questions), strict=True))
    return {
        "targets with poison": hits / len(targets),
        "targets interval": _bounds(hits, len(targets)),
        "gold recall": right / len(gold),
        "gold interval": _bounds(right, len(gold)),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the knowledge base")
    parser.add_argument(
        "--detectors", choices=("default", "clique"), default="default", help="of the guard"
    )
    options = parser.parse_args()
    logging.getLogger("ragshield").setLevel(logging.ERROR)

    taken: set[str] = set()
    wiki = without_repeats(load("wiki_passages", lineage="title"), taken)
    contexts = without_repeats(load("nq_target_contexts", lineage="title"), taken)
    poison = without_repeats(load("poisonedrag_nq", text="text_blackbox"), taken)
    rng = np.random.default_rng(0)
    asked = read_rows("wiki_questions")
    gold = [row["passage_id"] for row in asked]
    questions = _npz()
    rows = rng.permutation(len(wiki))
    if options.quick:
        wanted = set(gold[:500])
        rows = np.array([r for r in rows if wiki.ids[r] in wanted or r % 4 == 0])
        gold, questions = gold[:500], questions[:500]
    everything = joined(wiki.take(rows), contexts)
    named = {
        row["target_question_id"]: row["target_question"] for row in read_rows("poisonedrag_nq")
    }
    targets = _embedded(list(named.values()))
    attacked = joined(everything, poison)
    model = Precomputed(attacked.texts, attacked.vectors)

    def make() -> Guard:
        quarantine = Quarantine("sqlite://")
        if options.detectors == "default":
            return Guard.default(fpr=FPR, quarantine=quarantine)
        policy = Policy(quarantine_at=FPR)
        return Guard([CliqueDetector()], policy=policy, quarantine=quarantine)

    # Poison comes alone, or among late clean passages; lost ones are part of the cost.
    order = rng.permutation(len(everything))
    late, early = everything.take(order[:N_LATE]), everything.take(order[N_LATE:])
    mixture = joined(poison, late)
    mixture = mixture.take(rng.permutation(len(mixture)))
    arrivals = {"poison alone": (everything, poison), "among clean ones": (early, mixture)}
    bad = set(poison.ids)

    row_of = {entry_id: row for row, entry_id in enumerate(attacked.ids)}

    def shares(served: Sequence[str]) -> dict[str, Any]:
        rows = [row_of[entry_id] for entry_id in served]
        return measured((list(served), attacked.vectors[rows]), targets, questions, gold, bad)

    table = {"clean": shares(everything.ids), "unguarded": shares(attacked.ids)}
    ways = {"VectorStoreIndex": through_index, "IngestionPipeline": through_pipeline}
    for label, (known, new) in arrivals.items():
        for name, way in ways.items():
            outcome = way(known, new, model, make)
            n_clean = len(new) - len(poison)
            table[f"{name}, {label}"] = shares(outcome["served"]) | {
                "poison held": len(outcome["held"] & bad) / len(poison),
                "clean held": len(outcome["held"] - bad),
                "seconds": outcome["seconds"],
                "clean arrivals": n_clean,
            }
    report = _shown(table, options.detectors, len(everything), len(poison))
    print(report)
    if not options.quick:
        write("llamaindex_end_to_end", report)
        described = {"machine": platform.processor() or platform.machine(), "results": table}
        path = RESULTS / "llamaindex_end_to_end.json"
        path.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _bounds(hits: int, n: int) -> tuple[float, float]:
    interval = proportion_interval(hits, n)
    return interval.low, interval.high


def _npz() -> NDArray[np.float32]:
    from corpora import data_folder  # noqa: PLC0415

    with np.load(data_folder() / "embeddings" / "wiki_questions.npz", allow_pickle=False) as file:
        return file["embeddings"].astype(np.float32)


def _embedded(texts: list[str]) -> NDArray[np.float32]:
    from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - loads a model

    return np.array(MiniLMEmbeddings().embed_documents(texts), dtype=np.float32)


def _shown(table: dict[str, Any], detectors: str, n_known: int, n_poison: int) -> str:
    lines = [
        "# PoisonedRAG end to end, through LlamaIndex",
        "",
        "Written by `benchmarks/llamaindex_end_to_end.py`. Wilson 95 % intervals.",
        "",
        (
            f"Guard: {detectors}, calibrated at {FPR:g}. Knowledge base {n_known:,} passages; then "
            f"{n_poison} black-box texts in batches of {BATCH}, alone, or in random order among "
            f"{N_LATE:,} of the clean passages. Clean passages held include those recalled."
        ),
        "",
        (
            "| | targets with poison in the top 5 | gold passage in the top 5 | poison held | "
            "clean held | seconds |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        low, high = row["targets interval"]
        gold_low, gold_high = row["gold interval"]
        held = f"{row['poison held']:.3f}" if "poison held" in row else ""
        clean = str(row["clean held"]) if "clean held" in row else ""
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else ""
        lines.append(
            f"| {name} | {row['targets with poison']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{row['gold recall']:.4f} ({gold_low:.3f} to {gold_high:.3f}) | {held} | {clean} | "
            f"{seconds} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
