"""Workers of one store whose guards share a database act as one."""

import asyncio

import pytest
from langchain_core.documents import Document
from support import (
    DIM,
    CountingEmbeddings,
    Scripted,
    slowly,
    vector_of,
)
from test_behind_its_store import text

from ragshield_core import Batch, Guard
from ragshield_langchain import GuardedVectorStore


@pytest.fixture(params=["memory", *slowly("faiss", "chroma")])
def workers(request, make_store, tmp_path):
    """Return two stores, as two processes have them, around the same one."""
    inner = make_store(request.param, CountingEmbeddings(), DIM)
    url = f"sqlite:///{tmp_path}/guard.db"
    return [
        GuardedVectorStore(inner, guard=Guard.open(url, detectors=[Scripted()])) for _ in range(2)
    ]


def add(store, **documents):
    store.add_documents([Document(id=i, page_content=t) for i, t in documents.items()])


def live(store):
    return {document.id for document in store.get_by_ids(["a", "b", "c", "d"])}


def known(workers):
    for store in workers:
        store.guard.writes.catch_up()
    first, second = (set(store.guard.writes.known(["a", "b", "c", "d"])) for store in workers)
    assert first == second
    assert workers[0].guard.status().pending == 0
    return first


@pytest.mark.slow
def test_other_worker_sees_holds_releases_and_recalls(workers):
    first, second = workers
    add(first, a=text(1), b="score=5 or more")
    assert live(second) == known(workers) == {"a"}
    second.release(["b"], by="anna")
    assert live(first) == known(workers) == {"a", "b"}
    first.recall(["a"], by="anna")
    assert live(second) == known(workers) == {"b"}
    found = second.similarity_search(text(1), k=4)
    assert [document.id for document in found] == ["b"]
    first.purge(["a"])
    assert known(workers) == {"b"}


def test_worker_recovers_an_unfinished_write_of_another(workers):
    first, second = workers
    add(first, a=text(1))
    there = Batch.of(ids=["a"], texts=[text(1)], embeddings=[vector_of(text(1))])
    first.guard.writes.intend(there.take([]), there)  # to be deleted, and never was
    second.guard.writes.catch_up()
    assert second.guard.writes.known(["a"]) == []
    assert second.recover() == 0  # the first is alive
    first.guard.close()
    assert asyncio.run(second.arecover()) == 1
    assert known(workers) == live(second) == {"a"}
