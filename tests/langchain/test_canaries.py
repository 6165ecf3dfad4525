"""Canaries over stores, retrievers, chains and models of LangChain."""

import numpy as np
import pytest
from canary_world import batch, embed, knowledge, poison, questions
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.tools.canary import CanaryError, CanaryMonitor, Embedder
from ragshield_core.tools.canary.knowledge_base import as_answerer, as_knowledge_base, as_passage
from ragshield_langchain import GuardedRetriever
from ragshield_langchain.vectorstore import GuardedVectorStore

TARGET = questions()[5]


class Words(Embeddings):
    """The world's embedding as a LangChain model."""

    def embed_documents(self, texts):
        return embed(texts).tolist()

    def embed_query(self, text):
        return embed([text])[0].tolist()


def in_memory():
    return InMemoryVectorStore(Words())


def in_faiss():
    return FAISS.from_texts(["to be deleted"], Words(), ids=["first"])


def guarded():
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    return GuardedVectorStore(in_memory(), guard=guard)


def put(store, batch):
    store.add_documents(
        [Document(id=e.id, page_content=e.text, metadata={"source": f"{e.id}.txt"}) for e in batch]
    )


def attacked(make):
    """Return a store with poison, its monitor with a baseline of before, and the poison."""
    store = make()
    put(store, knowledge())
    quarantine = {} if make is guarded else {"quarantine": Quarantine("sqlite://")}
    monitor = CanaryMonitor(questions(), store, **quarantine)
    monitor.record_baseline()
    assert not monitor.check().flagged
    bad = poison(TARGET, 4)
    put(store, bad)
    return store, monitor, bad


def refuse(*_args, **_options):
    raise NotImplementedError


@pytest.mark.parametrize("make", [in_memory, in_faiss, guarded])
@pytest.mark.slow
def test_from_baseline_to_remediation_and_back(make):
    store, monitor, bad = attacked(make)
    outcome = monitor.remediate()
    assert outcome.clean
    assert set(outcome.quarantined) == set(bad.ids)
    assert [drift.score for drift in outcome.after.canaries] == [0.0] * len(questions())
    # They are gone for everybody, not for the monitor alone, and held with their vectors.
    assert not {d.id for d in store.similarity_search(TARGET, k=6)} & set(bad.ids)
    inner = store.inner if make is guarded else store
    assert not {d.id for d in inner.similarity_search(TARGET, k=6)} & set(bad.ids)
    held = monitor.quarantine_store.show(bad.ids[0])
    unit = bad.vectors[0] / np.linalg.norm(bad.vectors[0])
    np.testing.assert_allclose(held.vector / np.linalg.norm(held.vector), unit, atol=1e-5)
    assert held.entry.metadata["source"] == f"{bad.ids[0]}.txt"
    monitor.restore(bad.ids)
    assert set(bad.ids) <= {d.id for d in store.similarity_search(TARGET, k=6)}
    assert monitor.check().flagged


@pytest.mark.slow
def test_a_langchain_retriever_and_runnable():
    store = in_memory()
    put(store, knowledge())
    retriever = store.as_retriever(search_kwargs={"k": 18})
    answerer = RunnableLambda(lambda query: retriever.invoke(query)[0].page_content)
    monitor = CanaryMonitor(
        questions(), retriever, answerer=answerer, quarantine=Quarantine("sqlite://")
    )
    monitor.record_baseline()
    put(store, poison(TARGET, 3))
    drift = monitor.check()[TARGET]
    assert drift.flagged
    assert drift.answer_drift > 0.1
    assert set(drift.newcomers) == {"bad-0", "bad-1", "bad-2"}


def test_canary_check_ranks_like_the_faiss_search():
    """By distance, vectors of any length rank otherwise than those of unit length."""
    store = in_faiss()
    put(store, knowledge())
    put(store, batch([("short", "orchard"), ("long", " ".join(["orchard1 orchard"] * 4))]))
    monitor = CanaryMonitor([TARGET], store, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    ids = list(monitor.check()[TARGET].ids)
    assert ids == [d.id for d in store.similarity_search(TARGET, k=6)]
    unit = embed([TARGET])[0] / np.linalg.norm(embed([TARGET])[0])
    assert ids != [d.id for d in store.similarity_search_by_vector(unit.tolist(), k=6)]


@pytest.mark.slow
def test_restore_does_not_duplicate_undeleted_entries(monkeypatch):
    store, monitor, bad = attacked(in_faiss)
    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", refuse)
        outcome = monitor.remediate()
        assert not outcome.after.flagged  # they are out of the monitor's view alone
        assert set(outcome.after.still_served) == set(bad.ids)
        assert not outcome.clean
    monitor.restore(bad.ids)
    assert store.index.ntotal == 1 + len(knowledge()) + len(bad)
    assert monitor.check().flagged


@pytest.mark.slow
def test_entries_stay_held_if_restoring_them_fails(monkeypatch):
    store, monitor, bad = attacked(in_memory)
    assert monitor.remediate().clean
    with monkeypatch.context() as patched:
        patched.setattr(store, "add_texts", refuse)
        with pytest.raises(NotImplementedError):
            monitor.restore(bad.ids)
    assert {item.id for item in monitor.quarantine_store.list()} == set(bad.ids)
    monitor.restore(bad.ids)
    assert {d.id for d in store.get_by_ids(list(bad.ids))} == set(bad.ids)


@pytest.mark.parametrize("make", [in_memory, in_faiss, guarded])
@pytest.mark.slow
def test_an_entry_that_was_corrected_meanwhile_is_not_lost(make):
    """Between a traceback and a person's answer to it, hours may pass."""
    store, monitor, bad = attacked(make)
    suspects = monitor.traceback().suspects
    store.delete([bad.ids[0]])
    put(store, batch([(bad.ids[0], "the page as its author meant it")]))
    assert set(monitor.quarantine(suspects)) == set(bad.ids[1:])
    inner = store.inner if make is guarded else store
    assert [d.page_content for d in inner.get_by_ids(list(bad.ids))] == [
        "the page as its author meant it"
    ]


@pytest.mark.slow
def test_a_release_does_not_wait_for_the_check_that_it_would_cause(on_file, caplog):
    """Within the transaction of the release, a check could not be kept."""
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine(on_file))
    store = GuardedVectorStore(in_memory(), guard=guard)
    put(store, knowledge())
    monitor = CanaryMonitor(questions(), store)
    monitor.record_baseline()
    outcomes = []
    monitor.watch(guard, lambda _report: outcomes.append(monitor.remediate()))
    bad = poison(TARGET, 4)
    put(store, bad)
    assert [set(outcome.quarantined) for outcome in outcomes] == [set(bad.ids)]
    monitor.restore(bad.ids)
    assert "failed" not in caplog.text  # as it would be after waiting for the database in vain
    put(store, batch([("other", "of other things")]))
    assert monitor.history()[-1].flagged  # and the entries that a person released stay
    assert len(outcomes) == 2
    assert set(bad.ids) <= {d.id for d in store.similarity_search(TARGET, k=6)}


# How the adapter converts LangChain's objects


@pytest.mark.parametrize(
    ("item", "entry_id", "lineage"),
    [
        (Document(id="a", page_content="text"), "a", None),
        (Document(id="a", page_content="text", metadata={"source": "f.txt"}), "a", "f.txt"),
        ((Document(id="a", page_content="text"), 0.3), "a", None),
        (Document(page_content="text", metadata={"chunk_id": "c"}), "c", None),
    ],
)
def test_a_document_becomes_a_passage(item, entry_id, lineage):
    passage = as_passage(item)
    assert (passage.id, passage.text, passage.lineage) == (entry_id, "text", lineage)


def test_functions_and_chains_may_return_documents_and_messages():
    found = as_knowledge_base(lambda query: [Document(id="a", page_content=query)])
    assert found.search(["q"], None, 3)[0][0].id == "a"
    blocks = AIMessage(content=[{"type": "text", "text": "to q"}])
    for answer in (AIMessage(content="to q"), blocks, {"answer": " to q "}):
        assert as_answerer(lambda _query, answer=answer: answer)("q", []) == "to q"
        assert as_answerer(RunnableLambda(lambda _query, answer=answer: answer))("q", []) == "to q"


def test_a_store_that_cannot_search_by_vector_is_asked_by_text(monkeypatch):
    monkeypatch.setattr(InMemoryVectorStore, "similarity_search_by_vector", refuse)
    store = in_memory()
    put(store, knowledge())
    vectors = Embedder.of(Words()).queries([TARGET, TARGET])
    found = as_knowledge_base(store).search([TARGET, TARGET], vectors, 1)
    assert [[p.id for p in passages] for passages in found] == [["orchard-1"]] * 2


class Queries(Words):
    """A model that takes several queries at once."""

    def __init__(self):
        self.asked = []

    def embed_query(self, text):
        raise AssertionError(text)

    def embed_queries(self, texts):
        self.asked.append(texts)
        return self.embed_documents(texts)


def test_a_model_that_takes_several_queries_is_asked_once():
    model = Queries()
    assert Embedder.of(model).queries(["a", "b"]).shape == (2, 512)
    assert model.asked == [["a", "b"]]
    np.testing.assert_allclose(
        Embedder.of(Words()).queries(["a", "b"]), Embedder.of(model).queries(["a", "b"])
    )


class LikeAModel:
    """What stores take as well, though it inherits from nothing."""

    embed_documents = Words.embed_documents
    embed_query = Words.embed_query


@pytest.mark.parametrize("model", [Words(), LikeAModel()])
def test_the_embedder_is_found_where_a_retriever_carries_it(model):
    store = InMemoryVectorStore(model)
    for source in (
        store,
        store.as_retriever(),
        GuardedRetriever(retriever=store, embeddings=Words()),
    ):
        carried = as_knowledge_base(source).embedder
        np.testing.assert_allclose(carried.queries(["tea"], unit=False), embed(["tea"]))
    assert as_knowledge_base(RunnableLambda(lambda query: [query])).embedder is None


def test_monitor_uses_the_quarantine_of_the_guarded_object(quarantine):
    store = in_memory()
    given = GuardedRetriever(retriever=store, quarantine=quarantine)
    assert CanaryMonitor(["q"], given).quarantine_store is quarantine
    guarded_store = guarded()
    assert CanaryMonitor(["q"], guarded_store).quarantine_store is guarded_store.quarantine
    assert as_knowledge_base(GuardedRetriever(retriever=store)).quarantine is None


def test_unsuitable_retriever_or_answerer_is_refused():
    with pytest.raises(CanaryError, match="retriever is a Words"):
        as_knowledge_base(Words())
    with pytest.raises(CanaryError, match="answerer is a InMemoryVectorStore"):
        as_answerer(in_memory())
