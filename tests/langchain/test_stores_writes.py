"""Further ways to write: in parts, from other stores, with options of the inner store."""

import threading
import time

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, CountingEmbeddings, Scripted, guard_of, vector_of
from test_events import Heard

from ragshield_core.model.errors import (
    InvalidBatchError,
    QuarantineError,
)
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner.base import Gate

TEXTS = [f"billing {i}" + (" score=2" if i % 5 == 4 else "") for i in range(23)]
IDS = [f"e{i}" for i in range(23)]
HELD = {f"e{i}" for i in range(4, 23, 5)}


@pytest.fixture
def store():
    guard = guard_of(Scripted())
    return GuardedVectorStore(InMemoryVectorStore(CountingEmbeddings()), guard=guard)


async def write(store, way, **options):
    given = {
        "add_documents": (Document(id=i, page_content=t) for i, t in zip(IDS, TEXTS, strict=True)),
        "add_texts": iter(TEXTS),
        "add_embeddings": ((text, vector_of(text).tolist()) for text in TEXTS),
    }[way.replace("aa", "a")]
    if "documents" not in way:
        options["ids"] = IDS
    written = getattr(store, way)(given, **options)
    return await written if way.startswith("aa") else written


WAYS = ["add_documents", "add_texts", "add_embeddings"]


@pytest.mark.parametrize("way", [*WAYS, *(f"a{way}" for way in WAYS)])
async def test_a_report_tells_of_all_entries(store, way):
    told = []
    assert await write(store, way, on_report=told.append) == IDS
    assert set(store.inner.store) == set(IDS) - HELD
    assert store.quarantine.held_ids(IDS) == HELD
    report = store.last_report
    assert told == [report]
    assert report.batch.ids == tuple(IDS)
    assert report.batch.texts == tuple(TEXTS)
    assert {d.entry_id for d in report.quarantined} == HELD
    assert [d.entry_id for d in report.decisions] == IDS
    np.testing.assert_array_equal(
        report.scores["scripted"], [2.0 if i in HELD else -1.0 for i in IDS]
    )
    assert len(store.embeddings.calls) == ("embeddings" not in way)
    assert store.embeddings.native == way.startswith("aa") * len(store.embeddings.calls)


def test_add_embeddings_takes_columns_only_by_keyword(store):
    vectors = [vector_of(text).tolist() for text in ("a", "b")]
    assert store.add_embeddings(texts=["a", "b"], embeddings=vectors, ids=["1", "2"]) == ["1", "2"]
    with pytest.raises(TypeError, match=r"texts=\.\.\., embeddings=\.\.\."):
        store.add_embeddings(["ab", "cd"], vectors)
    with pytest.raises(InvalidBatchError, match="1 embeddings for 2"):
        store.add_embeddings(texts=["a", "b"], embeddings=vectors[:1])


def test_callback_receives_an_event_for_held_entries(store):
    heard = Heard()
    step = RunnableLambda(lambda texts: store.add_texts(texts, ids=["a", "b"]))
    step.invoke(["fine", "score=1"], {"callbacks": [heard]})
    ((name, data),) = heard.events
    assert name == "ragshield.detection"
    assert [item["entry_id"] for item in data["quarantined"]] == ["b"]


@pytest.mark.parametrize("chosen", [{}, {"where": {"x": 1}}, {"ids": ["1"], "where": {"x": 1}}])
def test_delete_by_anything_but_ids_is_refused(store, chosen):
    store.add_texts(["a"], [{"x": 1}], ids=["1"])
    with pytest.raises(NotImplementedError, match="by ids alone"):
        store.delete(**chosen)
    assert set(store.inner.store) == {"1"}


def test_the_gate_lets_reads_in_together_and_writes_alone():
    gate, seen, start = Gate(), [], threading.Barrier(7)
    inside = {"read": 0, "write": 0}

    def visit(kind):
        start.wait()
        for _ in range(20):
            with gate.entered(alone=kind != "read"):
                inside[kind] += 1
                time.sleep(0.0005)
                seen.append((inside["read"], inside["write"]))
                inside[kind] -= 1

    threads = [threading.Thread(target=visit, args=(k,)) for k in ["read"] * 5 + ["write"] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(seen) == 140
    assert all(writing <= 1 and not (reading and writing) for reading, writing in seen)
    assert max(reading for reading, _ in seen) > 1


def test_filter_that_searches_the_store_does_not_deadlock(make_store):
    inner = make_store("faiss", CountingEmbeddings(), DIM)
    store = GuardedVectorStore(inner, guard=guard_of(Scripted()))
    store.add_texts(["a", "b"])
    found = store.similarity_search("a", filter=lambda _: bool(store.similarity_search("b", k=1)))
    assert len(found) == 2


@pytest.mark.parametrize("metadata", [{"tags": [0] * 8000}, {f"k{n}": n for n in range(20_000)}])
@pytest.mark.slow
def test_entry_with_huge_metadata_does_not_block_a_collection(make_store, metadata):
    inner = make_store("chroma", CountingEmbeddings(), DIM)
    guard = guard_of(Scripted())
    store = GuardedVectorStore(inner, guard=guard)
    store.add_texts(["billing one", "billing two"], [metadata, {"page": 2}], ids=["odd", "good"])
    assert [one.id for one in store.quarantine.list()] == ["odd"]
    store.release(["odd"], by="anna")
    store.add_texts(["billing three"], ids=["three"])
    store.delete(["good"])
    assert {one.id for one in store.similarity_search("billing", k=9)} == {"odd", "three"}


def test_metadata_of_none_is_left_out_as_in_chroma(make_store):
    inner = make_store("chroma", CountingEmbeddings(), DIM)
    guard = guard_of(Scripted())
    store = GuardedVectorStore(inner, guard=guard)
    store.add_texts(["billing one"], [{"page": 1, "author": "anna"}], ids=["a"])
    texts, nothing = ["billing one", "billing score=2"], {"page": 1, "author": None}
    store.add_texts(texts, [nothing, nothing], ids=["a", "b"])
    assert [one.id for one in store.quarantine.list()] == ["b"]
    store.release(["b"], by="anna")
    assert [one.metadata for one in store.get_by_ids(["a", "b"])] == [{"page": 1}] * 2
    assert store.reconcile().agrees


async def test_ids_may_be_the_third_positional_argument(store):
    assert store.add_texts(["billing one"], [{"page": 1}], ["a"]) == ["a"]
    assert await store.aadd_texts(["billing two"], None, ["b"]) == ["b"]


class Tokenizing(CountingEmbeddings):
    """Refuses what tokenizers refuse."""

    def embed_documents(self, texts):
        if any("\ud83d" in text for text in texts):
            msg = "TextEncodeInput must be Union[TextInputSequence, ...]"
            raise TypeError(msg)
        return super().embed_documents(texts)


def test_a_text_that_no_model_embeds_is_named_by_release_with_a_way_out():
    guard = guard_of(Scripted())
    store = GuardedVectorStore(InMemoryVectorStore(Tokenizing()), guard=guard)
    store.add_texts(["billing \ud83d", "billing one"], ids=["odd", "good"])
    with pytest.raises(QuarantineError, match=r"'odd' cannot be embedded.*under the same id"):
        store.release(["odd"], by="anna")
    store.add_texts(["billing"], ids=["odd"])
    store.purge(["odd"], by="anna")
    assert store.quarantine.count() == 0
    assert [one.page_content for one in store.get_by_ids(["odd"])] == ["billing"]


def held_with_nul(make_store):
    """Return a guarded store that holds entries its inner store cannot keep."""
    guard = guard_of(Scripted())
    guarded = GuardedVectorStore(make_store("postgres", CountingEmbeddings(), DIM), guard=guard)
    guarded.add_texts(["billing \0", "score=5 billing"], ids=["odd", "bad"])
    return guarded


@pytest.mark.slow
def test_unstorable_entry_is_not_released_but_can_be_purged(make_store):
    store = held_with_nul(make_store)
    message = r"'odd' cannot be stored.*nothing was released: it holds a NUL.*purge\(\[id\]\)"
    with pytest.raises(QuarantineError, match=message):
        store.release(["odd", "bad"], by="anna")
    assert store.quarantine.count() == 2
    store.add_texts(["billing"], ids=["odd"])
    store.purge(["odd"], by="anna")
    assert store.release(["bad"], by="anna")
    assert store.quarantine.count() == 0
    assert {one.id for one in store.similarity_search("billing", k=3)} == {"odd", "bad"}
