"""Nodes, an embedding model and a guard for the tests of the LlamaIndex package."""

import uuid

import numpy as np
from llama_index.core import StorageContext
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import VectorStoreQuery
from pydantic import PrivateAttr
from support import DIM, TOPICS, slowly, vector_of

from ragshield_core import Guard, Policy, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
)
from ragshield_llamaindex.convert import MetadataKeys
from ragshield_llamaindex.index import access_behind

# Kinds of stores: the fast suite takes two, the whole suite all.
TEXT_KINDS = ["chroma", *slowly("qdrant", "postgres", "milvus", "lancedb")]
KINDS = ["simple", *slowly("faiss"), *TEXT_KINDS]
ALL_KINDS = ("simple", "faiss", "chroma", "qdrant", "postgres", "milvus", "lancedb")
KEYS = MetadataKeys(label="label", lineage="source")


class TopicEmbedding(BaseEmbedding):
    """The vectors of ``support.vector_of``; remembers the texts it was asked for."""

    _texts: list = PrivateAttr(default_factory=list)
    _queries: list = PrivateAttr(default_factory=list)

    @property
    def texts(self):
        return self._texts

    @property
    def queries(self):
        return self._queries

    def _get_text_embedding(self, text):
        self._texts.append(text)
        return vector_of(text).tolist()

    def _get_query_embedding(self, query):
        self._queries.append(query)
        return vector_of(query).tolist()

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class TableEmbedding(BaseEmbedding):
    """Vectors that were computed before, by text."""

    _table: dict = PrivateAttr()

    def __init__(self, texts, vectors):
        super().__init__()
        self._table = dict(zip(texts, np.asarray(vectors, dtype=np.float64), strict=True))

    def _get_text_embedding(self, text):
        return self._table[text].tolist()

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


def id_of(name):
    """Return a UUID, which Qdrant asks for, that is not a random one."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def node(text, name=None, *, label=None, vector=True, document=None, **metadata):
    """Return a node named after its text; ``document`` is the id of its source."""
    made = TextNode(
        id_=id_of(name or text),
        text=text,
        metadata=({"label": label} if label else {}) | metadata,
        embedding=vector_of(text).tolist() if vector else None,
        excluded_embed_metadata_keys=["label"],
        excluded_llm_metadata_keys=["label"],
    )
    if document is not None:
        made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return made


def document(name, text, *, label="billing", **metadata):
    """Return a document whose label models do not see."""
    return Document(
        id_=name,
        text=text,
        metadata={"label": label} | metadata,
        excluded_embed_metadata_keys=["label"],
        excluded_llm_metadata_keys=["label"],
    )


def about(topic, n, *, prefix="kb", label=None, **options):
    """Return n nodes about a topic, labelled with it or with a wrong ``label``."""
    return [node(f"{topic} {prefix} {i}", label=label or topic, **options) for i in range(n)]


def known(**options):
    return [one for topic in TOPICS for one in about(topic, 6, **options)]


def good(**options):
    return about("billing", 2, prefix="new", **options)


def bad(**options):
    return about("shipping", 2, prefix="bad", label="billing", **options)


def mixed(**options):
    first, last = good(**options)
    return [first, *bad(**options), last]


def guard_of(*detectors, quarantine=None, **policy):
    return Guard(
        detectors or [LabelCentroidDetector(min_entries=3)],
        policy=Policy(**policy),
        quarantine=quarantine or Quarantine("sqlite://"),
    )


def ids_of(nodes):
    return [getattr(one, "node", one).node_id for one in nodes]


def index_over(inner, model, nodes=(), guard=None):
    """Return a guarded index over a bare store."""
    context = StorageContext.from_defaults(vector_store=inner)
    return GuardedVectorStoreIndex(
        list(nodes), guard=guard or guard_of(), storage_context=context, embed_model=model
    )


def guarded_over(inner, model, nodes=(), guard=None):
    """Return a guarded store, or, where a store keeps vectors only, a guarded index over it."""
    if not inner.stores_text:
        return index_over(inner, model, nodes, guard)
    store = GuardedVectorStore(inner, guard=guard or guard_of())
    store.add(list(nodes))
    return store


def pipeline_over(inner, steps, guard=None):
    """Return a guarded pipeline into a bare or guarded store, with a document store."""
    return GuardedIngestionPipeline(
        steps, guard=guard or guard_of(), vector_store=inner, docstore=SimpleDocumentStore()
    )


def insert(guarded, nodes):
    (guarded.add if isinstance(guarded, GuardedVectorStore) else guarded.insert_nodes)(nodes)


def live(guarded):
    """Return the nodes that the store inside has, hidden ones included."""
    access = access_behind(guarded)
    return access.read(access.ids())


def shown(guarded):
    """Return the texts that a guarded store or index shows."""
    there = live(guarded)
    if not there:
        return []
    if isinstance(guarded, GuardedVectorStoreIndex):
        found = guarded.as_retriever(similarity_top_k=len(there)).retrieve("billing")
    else:
        query = VectorStoreQuery(there[0].get_embedding(), similarity_top_k=len(there))
        found = guarded.query(query).nodes
    return sorted(one.text for one in found)


def splitter():
    """Return a splitter that makes a node of each short sentence."""
    return SentenceSplitter(chunk_size=6, chunk_overlap=0)


def sentences(text):
    return sorted(f"{part}." for part in text.removesuffix(".").split(". "))


async def ran(pipeline, documents, *, asynchronous):
    """Run a pipeline in either way."""
    if asynchronous:
        return await pipeline.arun(documents=documents)
    return pipeline.run(documents=documents)


def learned(guard):
    """Return how many entries the guard's label centroids hold, and their sum."""
    values, arrays = guard.detectors[0].state()
    of_each = zip(values["labels"], arrays["counts"], arrays["sums"], strict=True)
    return {label: (int(n), total.round(4).tolist()) for label, n, total in of_each if n}


def fresh(nodes):
    """Return the label centroids of a guard that knows exactly these nodes."""
    sums = {}
    for one in nodes:
        unit = np.float32(one.embedding) / np.linalg.norm(np.float32(one.embedding))
        count, total = sums.get(one.metadata["label"], (0, np.zeros(DIM)))
        sums[one.metadata["label"]] = (count + 1, total + unit)
    return sums


def assert_knows(guard, nodes):
    ours, expected = learned(guard), fresh(nodes)
    assert {label: n for label, (n, _) in ours.items()} == {
        label: n for label, (n, _) in expected.items()
    }
    for label, (_, total) in ours.items():
        np.testing.assert_allclose(total, expected[label][1], atol=1e-3)
