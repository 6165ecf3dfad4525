"""The store or the embedding model fails half-way: nothing comes in unseen, a retry ends it."""

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document as LlamaDocument
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.vector_stores import SimpleVectorStore
from small_store import SmallKeeper
from support import CountingEmbeddings, Scripted

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.store import recalling, reviewing
from ragshield_langchain import GuardedVectorStore
from ragshield_llamaindex import GuardedVectorStoreIndex


@pytest.fixture(params=["built", "opened"])
def guard(request, tmp_path):
    if request.param == "built":
        return Guard([Scripted()], quarantine=Quarantine(f"sqlite:///{tmp_path}/held.db"))
    return Guard.open(f"sqlite:///{tmp_path}/guard.db", detectors=[Scripted()])


class LostConnectionError(OSError):
    """The store's own."""


class Failing(SmallKeeper):
    """Fails after so many entries of a write, as long as it is told to."""

    after = None

    def write_entries(self, batch, how, older):
        after = self.after
        if after is None:
            super().write_entries(batch, how, older)
            return
        if after:
            super().write_entries(batch.take(range(min(after, len(batch)))), how, older)
        raise LostConnectionError


def check(keeper, live, held):
    assert set(keeper.store) == keeper.seen() == live
    assert set(keeper.guard.writes.known([*live, *held])) == live
    assert keeper.guard.quarantine.held_ids([*live, *held]) == held
    assert keeper.guard.status().pending == 0


@pytest.mark.parametrize("after", [0, 1, 2], ids=["before", "in part", "after all"])
@pytest.mark.slow
def test_failed_write_is_recovered_from_the_store_and_repeatable(guard, after):
    keeper = Failing(guard, {})
    keeper.after = after
    with pytest.raises(LostConnectionError) as error:
        keeper.add(a="fine", b="fine", c="score=5")
    (note,) = error.value.__notes__
    assert "repeat the operation" in note
    assert guard.quarantine.held_ids(["c"]) == {"c"}
    if guard.writes.shared:  # no more is known than is there, and no less
        assert set(guard.writes.known(["a", "b"])) == set(keeper.store)
        assert guard.status().pending == 0
    keeper.after = None
    keeper.add(a="fine", b="fine", c="score=5")
    check(keeper, {"a", "b"}, {"c"})


@pytest.mark.parametrize("after", [0, 1], ids=["before", "after all"])
@pytest.mark.slow
def test_a_release_that_fails_leaves_it_held_and_can_be_repeated(guard, after):
    keeper = Failing(guard, {})
    keeper.add(a="fine", b="score=5")
    keeper.after = after
    with pytest.raises(LostConnectionError):
        keeper.run(reviewing.release, keeper, ["b"], "anna", None)
    assert guard.quarantine.held_ids(["b"]) == {"b"}
    assert keeper.seen() == {"a"}
    keeper.after = None
    keeper.run(reviewing.release, keeper, ["b"], "anna", None)
    check(keeper, {"a", "b"}, set())


def test_a_recall_that_fails_hides_at_once_and_is_ended_later(guard):
    keeper = SmallKeeper(guard, {})
    keeper.add(a="fine", b="fine")

    def fails(*_):
        raise LostConnectionError

    keeper.delete_entries = fails
    with pytest.raises(LostConnectionError):
        keeper.run(recalling.recall, keeper, ["a"], by="anna")
    assert keeper.seen() == {"b"}
    del keeper.delete_entries
    keeper.run(recalling.recall, keeper, ["a"], by="anna")
    check(keeper, {"b"}, {"a"})


class Model(CountingEmbeddings):
    """Embeds, unless it is away."""

    away = False

    def embed_documents(self, texts):
        if self.away:
            raise LostConnectionError
        return super().embed_documents(texts)

    def embed_query(self, text):
        if self.away:
            raise LostConnectionError
        return super().embed_query(text)


def documents(**texts):
    return [Document(id=i, page_content=text) for i, text in texts.items()]


@pytest.mark.parametrize("way", ["add", "aadd"])
@pytest.mark.slow
def test_langchain_write_can_be_repeated_after_a_model_outage(guard, way):
    model = Model()
    store = GuardedVectorStore(InMemoryVectorStore(model), guard=guard)
    wanted = documents(a="billing a", b="billing score=5")

    def write():
        if way == "add":
            return store.add_documents(wanted)
        return asyncio.run(store.aadd_documents(wanted))

    model.away = True
    with pytest.raises(LostConnectionError) as error:
        write()
    (note,) = error.value.__notes__
    assert "InMemoryVectorStore failed on 2 texts" in note
    assert "write them again" in note
    assert (store.quarantine.count(), guard.status().n_known) == (0, 0)
    assert store.get_by_ids(["a", "b"]) == []
    model.away = False
    write()
    assert [document.id for document in store.get_by_ids(["a", "b"])] == ["a"]
    assert (store.quarantine.count(), guard.writes.known(["a", "b"])) == (1, ["a"])


def test_langchain_release_can_be_repeated_after_a_model_outage(guard):
    model = Model()
    store = GuardedVectorStore(InMemoryVectorStore(model), guard=guard)
    store.add_documents(documents(a="billing a"))
    held = Batch.of(ids=["b"], texts=["billing b"], embeddings=None)
    store.quarantine.hold(held)  # without one
    model.away = True
    with pytest.raises(LostConnectionError):
        store.similarity_search("billing")
    with pytest.raises(LostConnectionError) as error:
        store.release(["b"], by="anna")
    assert "embedding model failed" in error.value.__notes__[0]
    assert store.quarantine.held_ids(["b"]) == {"b"}
    model.away = False
    store.release(["b"], by="anna")
    assert {document.id for document in store.similarity_search("billing")} == {"a", "b"}
    assert store.quarantine.count() == 0


class LlamaModel(MockEmbedding):
    """Embeds, unless it is away."""

    away: bool = False

    def _get_text_embedding(self, text):
        if self.away:
            raise LostConnectionError
        return super()._get_text_embedding(text)

    def _get_query_embedding(self, query):
        if self.away:
            raise LostConnectionError
        return super()._get_query_embedding(query)


@pytest.mark.slow
def test_llamaindex_writes_can_be_repeated_after_a_model_outage(guard):
    model = LlamaModel(8)
    index = GuardedVectorStoreIndex([], guard=guard, embed_model=model)
    index.insert(LlamaDocument(id_="a", text="billing a"))
    model.away = True
    with pytest.raises(LostConnectionError):
        index.insert(LlamaDocument(id_="b", text="billing b"))
    with pytest.raises(LostConnectionError):
        index.update_ref_doc(LlamaDocument(id_="a", text="billing again"))
    with pytest.raises(LostConnectionError):
        index.as_retriever().retrieve("billing")
    assert guard.status().n_known == 1
    assert guard.quarantine.count() == 0
    model.away = False
    assert [found.text for found in index.as_retriever().retrieve("billing")] == ["billing a"]
    index.insert(LlamaDocument(id_="b", text="billing b"))
    index.update_ref_doc(LlamaDocument(id_="a", text="billing again"))
    found = {one.text for one in index.as_retriever(similarity_top_k=4).retrieve("billing")}
    assert found == {"billing again", "billing b"}
    assert guard.status().n_known == 2


@pytest.mark.slow
def test_llamaindex_write_can_be_repeated_after_a_late_store_failure(guard, monkeypatch):
    index = GuardedVectorStoreIndex([], guard=guard, embed_model=MockEmbedding(8))
    index.insert(LlamaDocument(id_="a", text="billing a"))
    add = SimpleVectorStore.add

    def fails(self, nodes, **options):
        add(self, nodes, **options)
        raise LostConnectionError

    monkeypatch.setattr(SimpleVectorStore, "add", fails)
    with pytest.raises(LostConnectionError) as error:
        index.insert(LlamaDocument(id_="b", text="billing b"))
    assert "repeat the operation" in error.value.__notes__[0]
    monkeypatch.undo()
    index.insert(LlamaDocument(id_="b", text="billing b"))
    found = [one.text for one in index.as_retriever(similarity_top_k=4).retrieve("billing")]
    assert {*found} == {"billing a", "billing b"}
