"""A guard is of one store; what it holds is held under the store's name, and for no other."""

import warnings

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, CountingEmbeddings, guard_of, the_one

from ragshield_core import Quarantine
from ragshield_core.model.errors import QuarantineError
from ragshield_langchain import GuardedVectorStore, SharedQuarantineWarning

BAD = "alpha score=5"


def bare():
    return InMemoryVectorStore(CountingEmbeddings())


def guarded(url, name, inner=None):
    inner = bare() if inner is None else inner
    return GuardedVectorStore(inner, guard=guard_of(url=url), name=name)


def add(store, **texts):
    store.add_documents([Document(id=i, page_content=text) for i, text in texts.items()])


def test_two_stores_without_a_name_in_one_namespace_are_warned_of(on_file):
    first = GuardedVectorStore(bare(), guard=guard_of(url=on_file))
    with pytest.warns(SharedQuarantineWarning, match="Give each a name=") as seen:
        GuardedVectorStore(bare(), guard=guard_of(url=on_file))
    assert the_one(seen, SharedQuarantineWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        GuardedVectorStore(
            bare(), guard=guard_of(quarantine=Quarantine(on_file, namespace="second"))
        )
        GuardedVectorStore(first.inner, guard=guard_of(url=on_file))
        guarded(on_file, "news")
        GuardedVectorStore(bare(), guard=guard_of(quarantine=Quarantine(on_file, store="mail")))
        GuardedVectorStore(bare(), guard=guard_of())
        GuardedVectorStore(bare(), guard=guard_of())


def test_two_stores_of_one_namespace_keep_their_entries_apart(on_file):
    news, mail = guarded(on_file, "news"), guarded(on_file, "mail")
    add(news, a=BAD, b="alpha good")
    add(mail, a="alpha another")
    with pytest.raises(QuarantineError, match="'a' is not held"):
        mail.release(["a"])
    add(mail, b=BAD)
    mail.inner.add_documents([Document(id="a", page_content=BAD)])  # past the guard
    again = guarded(on_file, "mail", mail.inner)
    # Held for the news alone, so that reads of the mail show it, and its own one is hidden.
    assert [d.page_content for d in again.get_by_ids(["a", "b"])] == [BAD]
    again.refresh_quarantine()
    assert [d.id for d in again.similarity_search("alpha", k=3)] == ["a"]
    news.release(["a"])
    assert {d.id for d in news.get_by_ids(["a", "b"])} == {"a", "b"}
    assert again.quarantine.held_ids(["a", "b"]) == {"b"}
    again.delete(["a", "b"])
    assert [held.store for held in Quarantine(on_file).list(None)] == ["news"]


@pytest.mark.parametrize(
    ("kind", "named"), [("memory", ""), ("faiss", ""), ("chroma", "Chroma "), ("qdrant", "Qdrant")]
)
def test_the_name_is_that_of_class_and_collection_and_outlives_the_process(
    kind, named, make_store, on_file
):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    first = GuardedVectorStore(inner, guard=guard_of(url=on_file))
    add(first, a=BAD)
    (held,) = Quarantine(on_file).list()
    assert held.store.startswith(named)
    assert bool(held.store) == bool(named)
    later = GuardedVectorStore(inner, guard=guard_of(url=on_file))  # another process
    assert later.quarantine.store == held.store
    assert [one.id for one in later.release(["a"])] == ["a"]


def test_every_way_to_a_store_takes_its_name(on_file):
    made = GuardedVectorStore.from_texts(
        [BAD],
        CountingEmbeddings(),
        guard=guard_of(quarantine=Quarantine(on_file, namespace="1")),
        inner=bare(),
        name="news",
    )
    adopted = GuardedVectorStore.adopt(
        bare(), guard=guard_of(url=on_file), name="news", progress=False
    )
    add(adopted, a=BAD)
    for store in (made, adopted):
        assert [held.store for held in store.quarantine.list()] == ["news"]
        assert "store='news'" in repr(store)


def test_a_guard_in_two_stores_is_refused(quarantine):
    inner = bare()
    store = GuardedVectorStore(inner, guard=guard_of(quarantine=quarantine))
    with pytest.raises(ValueError, match="belongs to another InMemoryVectorStore"):
        GuardedVectorStore(bare(), guard=store.guard)
    GuardedVectorStore(inner, guard=store.guard)  # of the same store
