"""Wrong types are refused when given, with the way out."""

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager
from langchain_core.vectorstores import InMemoryVectorStore
from support import CountingEmbeddings, Scripted

from ragshield_core import Guard, Quarantine
from ragshield_core.retrieval import RetrievalGuard
from ragshield_langchain import (
    GuardedRetriever,
    GuardedVectorStore,
    PoisonFilter,
    PoisonGuard,
    aguarded_index,
    aingest,
    guarded_index,
    ingest,
)

DOCUMENTS = [Document(page_content="billing", metadata={"source": "a"})]


def guard():
    return Guard([Scripted()], quarantine=Quarantine("sqlite://"))


def bare():
    return InMemoryVectorStore(CountingEmbeddings())


def guarded():
    return GuardedVectorStore(bare(), guard=guard())


def records():
    return InMemoryRecordManager("x")


async def drained(stream):
    return [one async for one in stream]


WRONG = {
    "no guard": lambda: GuardedVectorStore(bare(), guard=None),
    "a quarantine as guard": lambda: GuardedVectorStore(bare(), guard=Quarantine("sqlite://")),
    "a guard of retrieval": lambda: GuardedVectorStore(bare(), guard=RetrievalGuard()),
    "no store": lambda: GuardedVectorStore("x", guard=guard()),
    "a retriever as store": lambda: GuardedVectorStore(bare().as_retriever(), guard=guard()),
    "a guarded store inside": lambda: GuardedVectorStore(guarded(), guard=guard()),
    "no key": lambda: GuardedVectorStore(bare(), guard=guard(), lineage_key=7),
    "no access": lambda: GuardedVectorStore(bare(), guard=guard(), inner_store="x"),
    "adopt": lambda: GuardedVectorStore.adopt(bare(), guard="x", progress=False),
    "from_texts": lambda: GuardedVectorStore.from_texts(
        ["a"], CountingEmbeddings(), inner=bare(), guard="x"
    ),
    "transformer": lambda: PoisonGuard(None),
    "transformer's model": lambda: PoisonGuard(guard(), "x"),
    "guarded_index": lambda: guarded_index(DOCUMENTS, guarded(), guarded()),
    "guarded_index, bare": lambda: guarded_index(DOCUMENTS, records(), bare()),
    "aguarded_index": lambda: asyncio.run(aguarded_index(DOCUMENTS, guarded(), guarded())),
    "ingest": lambda: list(ingest(DOCUMENTS, bare())),
    "aingest": lambda: asyncio.run(drained(aingest(DOCUMENTS, bare()))),
    "one text": lambda: guarded().add_texts("billing"),
    "one id": lambda: guarded().add_texts(["billing"], ids="a"),
    "retriever": lambda: GuardedRetriever("x"),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_types_are_refused(make):
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize("name", ["delete", "release", "recall", "purge", "restore"])
def test_single_id_instead_of_a_list_is_refused(name):
    store = guarded()
    store.add_texts(["billing", "billing 2"], ids=["a", "b"])
    for one in (getattr(store, name), lambda ids: asyncio.run(getattr(store, f"a{name}")(ids))):
        with pytest.raises(TypeError, match=r"expected a list of ids: \['ab'\]"):
            one("ab")
    assert len(store.get_by_ids(["a", "b"])) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoisonFilter(guard=guard()),
        lambda: PoisonFilter(quarantine="sqlite://"),
        lambda: PoisonFilter(store="x"),
        lambda: GuardedRetriever(retriever="x"),
        lambda: GuardedRetriever(retriever=bare(), guard=guard()),
        lambda: GuardedRetriever(retriever=bare(), poison_filter=guarded()),
    ],
)
def test_wrong_field_types_fail_pydantic_validation(make):
    with pytest.raises(ValueError, match="validation error"):
        make()


def test_nothing_is_written_unguarded_by_mistake():
    store = bare()
    with pytest.raises(TypeError, match="InMemoryVectorStore, expected a GuardedVectorStore"):
        list(ingest(DOCUMENTS, store))
    assert store.store == {}


def test_repr_describes_store_guard_and_quarantine():
    store = guarded()
    store.add_texts(["billing one"])
    assert repr(store) == (
        "<GuardedVectorStore over InMemoryVectorStore: 1 entries known, not calibrated; "
        "Quarantine('sqlite://', namespace='default')>"
    )
