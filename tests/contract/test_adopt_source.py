"""A new source is adopted or kept out: the same in both frameworks."""

import uuid

import chromadb
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document as Page
from llama_index.core import MockEmbedding
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore
from support import DIM, CountingEmbeddings, Scripted, entries, guard_of

from ragshield_langchain import GuardedVectorStore
from ragshield_llamaindex import GuardedIngestionPipeline, GuardedVectorStoreIndex
from ragshield_llamaindex import GuardedVectorStore as GuardedNodeStore

RATE = 0.05
SITE = "docs.example"


def calibrated(scores):
    """Return a guard that holds what scores higher than nearly all of the given scores."""
    known = entries([f"score={score:.3f}" for score in scores], embeddings=np.ones((300, DIM)))
    guard = guard_of(Scripted(), quarantine_at=RATE, flag_at=RATE)
    return guard.fit(known).calibrate(fpr=RATE)


def texts_of(start, n, low, high):
    return [
        f"chapter {start + i} score={score:.3f}"
        for i, score in enumerate(np.linspace(low, high, n))
    ]


class Stored:
    """LangChain's guarded store."""

    def __init__(self, guard, _):
        self.inner = InMemoryVectorStore(CountingEmbeddings())
        self.guarded = GuardedVectorStore(self.inner, guard=guard)

    def bring(self, texts, source):
        metadata = {"source": f"https://{source}/guide.html"} if source else {}
        self.guarded.add_documents(
            [Document(id=text, page_content=text, metadata=dict(metadata)) for text in texts]
        )

    def served(self):
        return {one["text"] for one in self.inner.store.values()}


def named(kind, text, source, **columns):
    """Return a node of LlamaIndex that names its source."""
    metadata = {"ragshield_source": source} if source else {}
    return kind(id_=text, text=text, metadata=metadata, **columns)


class Nodes:
    """LlamaIndex' guarded store."""

    def __init__(self, guard, collection):
        self.collection = collection
        self.guarded = GuardedNodeStore(ChromaVectorStore(collection), guard=guard)

    def bring(self, texts, source):
        self.guarded.add([named(TextNode, t, source, embedding=[1.0] * DIM) for t in texts])

    def served(self):
        return set(self.collection.get()["documents"])


class Indexed:
    """LlamaIndex' guarded index."""

    def __init__(self, guard, _):
        self.guarded = GuardedVectorStoreIndex([], guard=guard, embed_model=MockEmbedding(DIM))

    def bring(self, texts, source):
        self.guarded.insert_nodes([named(TextNode, t, source) for t in texts])

    def served(self):
        return {node.text for node in self.guarded.docstore.docs.values()}


class Ingested(Nodes):
    """LlamaIndex' guarded pipeline."""

    def __init__(self, guard, collection):
        self.collection = collection
        self.guarded = GuardedIngestionPipeline(
            [MockEmbedding(DIM)], guard=guard, vector_store=ChromaVectorStore(collection)
        )

    def bring(self, texts, source):
        self.guarded.run(documents=[named(Page, t, source) for t in texts])


@pytest.fixture
def collection():
    """Return an empty collection of Chroma."""
    client, name = chromadb.EphemeralClient(), f"sources_{uuid.uuid4().hex}"
    yield client.get_or_create_collection(name)
    client.delete_collection(name)


@pytest.fixture(params=[Stored, Nodes, Indexed, Ingested], ids=lambda kind: kind.__name__)
def world(request, collection):
    """Return a knowledge base that half of a new source is held for."""
    made = request.param(calibrated(np.linspace(0.0, 1.0, 300)), collection)
    made.guard = (
        made.guarded.poison_guard.guard if request.param is Ingested else made.guarded.guard
    )
    made.usual, made.unusual = texts_of(0, 30, 0.0, 0.9), texts_of(100, 30, 1.5, 3.0)
    made.bring(made.usual + made.unusual, SITE)
    assert made.served() == set(made.usual)
    assert [one.source for one in made.guard.sources.questions()] == [SITE]
    return made


def held(world):
    return {one.entry.text for one in world.guard.quarantine.list()}


@pytest.mark.slow
def test_released_entries_of_an_adopted_source_are_stored(world):
    released = world.guarded.adopt_source(SITE, by="anna", note="the new handbook")
    worst = set(world.unusual[-int(RATE * 60) :])
    assert {one.entry.text for one in released} == set(world.unusual) - worst
    assert world.served() == set(world.usual + world.unusual) - worst
    assert held(world) == worst
    assert world.guard.sources.questions() == ()
    log = [
        (one.action, one.actor) for one in world.guard.quarantine.log.lines()[-len(released) - 1 :]
    ]
    assert log == [("adopt", "anna")] + [("release", "anna")] * len(released)


@pytest.mark.slow
def test_later_documents_of_an_adopted_source_pass_and_those_of_others_do_not(world):
    world.guarded.adopt_source(SITE, by="anna")
    later, worse, other = (
        texts_of(200, 5, 1.5, 2.0),
        texts_of(300, 2, 8.0, 9.0),
        texts_of(400, 2, 1.5, 2.0),
    )
    world.bring(later + worse, SITE)
    world.bring(other, "other.example")
    assert set(later) <= world.served()
    assert not world.served().intersection(worse + other)


@pytest.mark.slow
def test_entries_of_a_source_kept_out_stay_held(world):
    world.guarded.keep_holding(SITE, by="anna")
    assert world.guard.sources.questions() == ()
    assert held(world) == set(world.unusual)
    later = texts_of(200, 2, 1.5, 2.0)
    world.bring(later, SITE)
    assert held(world) == set(world.unusual + later)


@pytest.mark.slow
def test_source_without_held_entries_is_refused(world):
    with pytest.raises(ValueError, match="nothing of the source 'other'"):
        world.guarded.adopt_source("other")


@pytest.mark.slow
def test_entries_without_a_source_can_be_adopted(world):
    world.bring(texts_of(200, 30, 1.5, 2.0), None)
    assert None in {one.source for one in world.guard.sources.questions()}
    assert len(world.guarded.adopt_source(None)) == 29
    assert [one.source for one in world.guard.sources.questions()] == [SITE]


@pytest.mark.parametrize("kind", [Stored, Nodes])
@pytest.mark.slow
async def test_source_can_be_adopted_asynchronously(kind, collection):
    made = kind(calibrated(np.linspace(0.0, 1.0, 300)), collection)
    unusual = texts_of(100, 30, 1.5, 3.0)
    made.bring(unusual, SITE)
    assert len(await made.guarded.aadopt_source(SITE, by="anna")) == 29
    assert made.served() == set(unusual[:-1])
