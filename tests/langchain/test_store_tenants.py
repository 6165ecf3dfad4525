"""Stores of two tenants in one database never show, judge or name each other's documents."""

import warnings

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, CountingEmbeddings, Scripted, the_one

from ragshield_core import Guard, Quarantine
from ragshield_core.model.errors import QuarantineError, StateError
from ragshield_langchain import GuardedVectorStore, SharedQuarantineWarning

IDS = ["a", "b", "c"]


def guarded(url, namespace, inner=None, **options):
    inner = InMemoryVectorStore(CountingEmbeddings()) if inner is None else inner
    guard = Guard.open(url, namespace, detectors=[Scripted()])
    return GuardedVectorStore(inner, guard=guard, **options)


def add(store, **texts):
    store.add_documents([Document(id=i, page_content=text) for i, text in texts.items()])


def live(store):
    return {d.id: d.page_content for d in store.get_by_ids(IDS)}


def found(store):
    return [d.page_content for d in store.similarity_search("billing", k=5)]


@pytest.mark.slow
def test_what_one_holds_releases_recalls_and_purges_is_nothing_to_the_other(url):
    mine, theirs = guarded(url, "mine"), guarded(url, "theirs")
    texts = {"a": "billing one", "b": "billing score=5", "c": "billing three"}
    add(mine, **texts)
    add(theirs, **texts)
    before = live(mine), found(mine), mine.quarantine.list(), mine.guard.status()
    theirs.release(["b"], by="anna")
    theirs.recall(["a"], by="anna")
    theirs.quarantine.confirm(["a"], by="anna")
    theirs.delete(["c"])
    after = live(mine), found(mine), mine.quarantine.list(), mine.guard.status()
    assert [*map(str, after)] == [*map(str, before)]
    # The very text that they confirmed as poisoned, under any id, is good here.
    add(mine, c="billing one")
    assert live(mine) == {"a": "billing one", "c": "billing one"}
    add(theirs, c="billing one")
    assert "c" not in live(theirs)
    for act in (mine.release, mine.restore):
        with pytest.raises(QuarantineError):
            act(["a"], by="anna")
    mine.purge(["b"])
    assert theirs.quarantine.show("b").entry.text == "billing score=5"


# One namespace is one store


def chroma(make_store, **options):
    return make_store("chroma", CountingEmbeddings(), DIM, **options)


def test_a_second_store_in_a_namespace_is_refused_with_the_way_out(url, make_store):
    inner, second = chroma(make_store), chroma(make_store)
    first = guarded(url, "docs", inner)
    add(first, a="billing one")
    names = [f"Chroma {one._collection.name}" for one in (inner, second)]
    said = f"is that of the store '{names[0]}'.*'{names[1]}'.*another namespace.*name='{names[0]}'"
    with pytest.raises(StateError, match=said):
        guarded(url, "docs", second)
    with pytest.raises(StateError, match="is that of the store"):
        guarded(url, "docs")  # in memory
    guarded(url, "other docs", second)
    guarded(url, "docs", second, name=names[0])  # which was moved
    assert first.guard.status().n_known == 1


def test_nothing_is_said_where_it_is_the_same_store(url, make_store):
    inner = chroma(make_store)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        for _ in range(3):  # workers, or the store opened again
            add(guarded(url, "docs", inner), a="billing one")
        for _ in range(2):  # of no name, made again after a restart
            store = guarded(url, "memory")
            add(store, a="billing one")
            del store
        for _ in range(2):
            guarded(url, "named", name="mine")
        for name in ("a", "b"):  # guards of one process: many stores may share a quarantine
            guard = Guard([Scripted()], quarantine=Quarantine(url, namespace="docs"))
            GuardedVectorStore(inner, guard=guard, name=name)


def test_one_collection_in_two_frameworks_is_warned_of(url, make_store):
    inner = chroma(make_store)
    name = f"ChromaVectorStore {inner._collection.name}"  # as LlamaIndex names it
    guarded(url, "docs", name=name)
    with pytest.warns(SharedQuarantineWarning, match="one collection in two frameworks") as seen:
        guarded(url, "docs", inner)
    assert the_one(seen, SharedQuarantineWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        guarded(url, "docs", inner, name=name)
