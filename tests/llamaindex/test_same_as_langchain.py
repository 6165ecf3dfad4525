"""The same texts through both frameworks: the same decisions, the same survivors."""

import os
from pathlib import Path

import numpy as np
import pytest
from corpora import ROOT, load
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_support import TableEmbedding, ids_of
from support import group, guard_of, join, passages

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector, HiddenTextDetector, LeadingQuestionDetector
from ragshield_langchain import GuardedVectorStore
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStoreIndex,
    PoisonGuard,
)

N_KNOWN, N_CLEAN, BATCH = 4_000, 1_500, 200


@pytest.fixture(scope="module")
def corpus():
    """Return a knowledge base, and 2,000 texts of which 500 are poison, in random order."""
    folder = Path(os.environ.get("RAGSHIELD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir() and os.environ.get("CI") != "true":
        pytest.skip(f"no corpora at {folder}; set RAGSHIELD_DATA")
    wiki = load("wiki_passages", lineage="title")
    poison = load("poisonedrag_nq", text="text_blackbox")
    rng = np.random.default_rng(3)
    order = rng.permutation(len(wiki))
    clean = wiki.take(order[N_KNOWN : N_KNOWN + N_CLEAN])
    new = join(clean, poison)
    assert len(new) == 2_000
    return wiki.take(order[:N_KNOWN]), new.take(rng.permutation(len(new)))


def guard_for(known):
    detectors = [CliqueDetector(), HiddenTextDetector(), LeadingQuestionDetector()]
    guard = Guard(detectors, quarantine=Quarantine("sqlite://"))
    return guard.fit(known).calibrate(fpr=0.01)


def parts(batch):
    return [
        batch.take(np.arange(start, min(start + BATCH, len(batch))))
        for start in range(0, len(batch), BATCH)
    ]


def metadata_of(entry):
    return {} if entry.lineage is None else {"source": entry.lineage}


def nodes_of(batch, *, vectors=True):
    return [
        TextNode(
            id_=entry.id,
            text=entry.text,
            metadata=metadata_of(entry),
            embedding=vector.tolist() if vectors else None,
            excluded_embed_metadata_keys=["source"],
        )
        for entry, vector in zip(batch, batch.vectors, strict=True)
    ]


def told(report):
    """Return all that was decided, in numbers."""
    return [
        (
            decision.entry_id,
            str(decision.verdict),
            [(f.detector, f.score, f.threshold, f.p_value) for f in decision.findings],
        )
        for decision in (*report.decisions, *report.retroactive)
    ]


@pytest.fixture(scope="module")
def by_langchain(corpus):
    """Return decisions, survivors and held entries of the LangChain store."""
    known, new = corpus
    inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=new.dim))
    store = GuardedVectorStore(inner, guard=guard_for(known))
    decisions = []
    for part in parts(new):
        pairs = list(zip(part.texts, part.vectors, strict=True))
        store.add_embeddings(pairs, [metadata_of(entry) for entry in part], part.ids)
        decisions += told(store.last_report)
    held = {held.id: held.entry.text_fingerprint for held in store.quarantine.list()}
    return decisions, set(inner.store), held


@pytest.mark.slow
def test_the_index_decides_as_the_langchain_store_does(corpus, by_langchain):
    known, new = corpus
    model = TableEmbedding(new.texts, new.vectors)
    index = GuardedVectorStoreIndex([], guard=guard_for(known), embed_model=model)
    decisions = []
    for part in parts(new):
        index.insert_nodes(nodes_of(part, vectors=False))
        decisions += told(index.last_report)
    survivors = set(index.index_struct.nodes_dict)
    held = {held.id: held.entry.text_fingerprint for held in index.quarantine.list()}
    assert (decisions, survivors, held) == by_langchain
    # That they agree would say little if nothing was found, or everything.
    poisoned = {i for i in new.ids if i not in survivors}
    assert len(poisoned) > 300


@pytest.mark.slow
def test_the_pipeline_decides_as_the_langchain_store_does(corpus, by_langchain, make_store):
    known, new = corpus
    pipeline = GuardedIngestionPipeline(
        transformations=[TableEmbedding(new.texts, new.vectors)],
        guard=guard_for(known),
        vector_store=make_store("chroma"),
        docstore=SimpleDocumentStore(),
        disable_cache=True,
    )
    decisions = []
    for part in parts(new):
        pipeline.run(nodes=nodes_of(part, vectors=False))
        decisions += told(pipeline.last_result.report)
    survivors = set(pipeline.vector_store.client.get(include=[])["ids"])
    held = {
        held.id: held.entry.text_fingerprint for held in pipeline.vector_store.quarantine.list()
    }
    assert (decisions, survivors, held) == by_langchain


@pytest.mark.slow
def test_one_step_decides_as_the_other_transformer_does(corpus):
    from langchain_core.documents import Document  # noqa: PLC0415

    from ragshield_langchain import PoisonGuard as DocumentGuard  # noqa: PLC0415

    known, new = corpus
    part = Batch.of(
        ids=new.ids[:500],
        texts=new.texts[:500],
        embeddings=new.vectors[:500],
        lineages=new.lineages[:500],
    )
    documents = [
        Document(id=entry.id, page_content=entry.text, metadata=metadata_of(entry))
        for entry in part
    ]

    class Table(DeterministicFakeEmbedding):
        def embed_documents(self, texts):
            row = dict(zip(part.texts, part.vectors, strict=True))
            return [row[text].tolist() for text in texts]

    theirs = DocumentGuard(guard_for(known), Table(size=part.dim))
    ours = PoisonGuard(guard_for(known))
    assert ids_of(ours(nodes_of(part))) == [d.id for d in theirs.transform_documents(documents)]
    assert told(ours.last_report) == told(theirs.last_report)


@pytest.mark.slow
def test_a_large_first_batch_into_an_empty_index_is_judged_by_itself():
    poison = group(5, 3)
    first = join(passages(300, 1), poison)
    first = first.take(np.random.default_rng(0).permutation(len(first)))
    policy = Policy(quarantine_at=0.05)
    guard = Guard([CliqueDetector()], policy=policy, quarantine=Quarantine("sqlite://"))
    index = GuardedVectorStoreIndex(
        nodes=nodes_of(first), guard=guard, embed_model=TableEmbedding(first.texts, first.vectors)
    )
    recalled = {decision.entry_id for decision in index.last_report.retroactive}
    assert len(recalled & set(poison.ids)) >= 4
    assert guard.quarantine.held_ids(list(first.ids)) == recalled
    found = index.as_retriever(similarity_top_k=len(first)).retrieve(poison.texts[0])
    assert not recalled & set(ids_of([item.node for item in found]))


def test_pages_of_a_file_are_of_one_lineage_in_both():
    batch = passages(6, 1)
    metadatas = [
        {"file_path": "/docs/a.pdf", "file_name": "a.pdf", "page_label": str(page), "source": page}
        for page in range(6)
    ]
    store = GuardedVectorStore(
        InMemoryVectorStore(DeterministicFakeEmbedding(size=8)),
        guard=guard_of(CliqueDetector()),
    )
    store.add_texts(list(batch.texts), metadatas)
    nodes = [
        TextNode(id_=i, text=text, metadata=metadata, embedding=vector.tolist())
        for i, text, metadata, vector in zip(
            batch.ids, batch.texts, metadatas, batch.vectors, strict=True
        )
    ]
    index = GuardedVectorStoreIndex(
        nodes=nodes,
        guard=guard_of(CliqueDetector()),
        embed_model=TableEmbedding(batch.texts, batch.vectors),
    )
    for report in (store.last_report, index.last_report):
        assert set(report.batch.lineages) == {"/docs/a.pdf"}
