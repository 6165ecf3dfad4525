"""Canaries over the stores and retrievers of LangChain and LlamaIndex themselves."""

import numpy as np
import pytest
from canary_llama import LlamaWords
from canary_world import batch, embed, joined, knowledge, poison, questions
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ragshield_core import Guard, Quarantine
from ragshield_core.canary import CanaryMonitor
from ragshield_core.canary.retrievers import Embedder, as_retriever
from ragshield_core.detectors import LabelCentroidDetector
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


@pytest.mark.parametrize("make", [in_memory, in_faiss, guarded])
def test_from_baseline_to_remediation_and_back(make):
    store = make()
    put(store, knowledge())
    quarantine = {} if make is guarded else {"quarantine": Quarantine("sqlite://")}
    monitor = CanaryMonitor(questions(), store, **quarantine)
    monitor.record_baseline()
    assert not monitor.check().flagged
    bad = poison(TARGET, 4)
    put(store, bad)
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


def test_a_faiss_store_tells_its_size_and_its_vectors():
    store = in_faiss()
    put(store, knowledge())
    retriever = as_retriever(store)
    assert retriever.size() == 201
    vectors = Embedder.of(Words()).queries(questions())
    at_once = retriever.search(questions(), vectors, 4)
    one_by_one = [
        [d.id for d in store.similarity_search_by_vector(v.tolist(), k=4)] for v in vectors
    ]
    assert [[p.id for p in found] for found in at_once] == one_by_one
    assert at_once[0][0].vector is not None


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


@pytest.mark.parametrize("kind", ["index", "function"])
def test_a_llamaindex_index(kind):
    def nodes(batch):
        return [TextNode(id_=e.id, text=e.text) for e in batch]

    index = VectorStoreIndex(nodes(knowledge()), embed_model=LlamaWords())
    source, options = index, {}
    if kind == "function":
        options["embedder"] = LlamaWords()

        def source(query, k):
            return index.as_retriever(similarity_top_k=k).retrieve(query)

    monitor = CanaryMonitor(questions(), source, quarantine=Quarantine("sqlite://"), **options)
    monitor.record_baseline()
    assert not monitor.check().flagged
    bad = poison(TARGET, 4)
    index.insert_nodes(nodes(bad))
    report = monitor.check()
    assert {d.query for d in report.flagged} == {TARGET}
    outcome = monitor.remediate()
    assert set(outcome.quarantined) == set(bad.ids)
    # The index still serves them.
    assert set(bad.ids) & {n.node_id for n in index.as_retriever().retrieve(TARGET)}
    assert not outcome.after.flagged
    assert set(outcome.after.still_served) == set(bad.ids)
    assert not outcome.clean
    index.delete_nodes(list(bad.ids))
    assert monitor.remediate().clean


def test_a_llamaindex_index_that_is_told_how_to_take_out():
    index = VectorStoreIndex(
        [TextNode(id_=e.id, text=e.text) for e in knowledge()], embed_model=LlamaWords()
    )
    monitor = CanaryMonitor(
        questions(),
        index,
        quarantine=Quarantine("sqlite://"),
        remove=lambda ids: index.delete_nodes(list(ids)),
        restore=lambda entries: index.insert_nodes(
            [TextNode(id_=entry.id, text=entry.text) for entry in entries]
        ),
    )
    monitor.record_baseline()
    bad = poison(TARGET, 4)
    index.insert_nodes([TextNode(id_=e.id, text=e.text) for e in bad])
    outcome = monitor.remediate()
    assert outcome.clean
    assert set(outcome.quarantined) == set(bad.ids)
    monitor.restore(bad.ids)
    assert monitor.check().flagged


def test_a_llamaindex_retriever():
    nodes = [TextNode(id_=e.id, text=e.text) for e in knowledge()]
    retriever = VectorStoreIndex(nodes, embed_model=LlamaWords()).as_retriever(similarity_top_k=9)
    found = as_retriever(retriever).search([TARGET], None, 6)[0]
    assert found[0].id == "orchard-1"
    assert len(found) == 6


def test_a_guarded_store_has_its_monitor_watch_every_write():
    store = guarded()
    put(store, knowledge())
    monitor = CanaryMonitor(questions(), store)
    monitor.record_baseline()
    seen = []
    monitor.watch(store.guard, seen.append)
    put(store, joined(poison(TARGET, 4)))
    assert [report.flagged[0].query for report in seen] == [TARGET]


def test_a_faiss_store_ranks_as_it_does_for_the_application():
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


def test_two_monitors_do_not_stand_in_each_other_s_way():
    store = in_faiss()
    put(store, knowledge())
    quarantine = Quarantine("sqlite://")
    monitors = [CanaryMonitor(questions(), store, quarantine=quarantine) for _ in range(2)]
    monitors[0].record_baseline()
    bad = poison(TARGET, 4)
    put(store, bad)
    first, second = (monitor.traceback().suspects for monitor in monitors)
    assert len(monitors[0].quarantine(first[:2])) == 2
    assert set(monitors[1].quarantine(second)) == set(bad.ids)  # two are gone already
    assert not {d.id for d in store.similarity_search(TARGET, k=6)} & set(bad.ids)
    assert quarantine.count() == len(bad)


def test_what_could_not_be_deleted_is_not_written_twice(monkeypatch):
    store = in_faiss()
    put(store, knowledge())
    monitor = CanaryMonitor(questions(), store, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    bad = poison(TARGET, 4)
    put(store, bad)

    def refuse(*_args, **_options):
        raise NotImplementedError

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", refuse)
        outcome = monitor.remediate()
        assert not outcome.after.flagged  # they are out of the monitor's view alone
        assert set(outcome.after.still_served) == set(bad.ids)
        assert not outcome.clean
    monitor.restore(bad.ids)
    assert store.index.ntotal == 1 + len(knowledge()) + len(bad)
    assert monitor.check().flagged


def test_what_cannot_be_written_back_stays_held(monkeypatch):
    store = in_memory()
    put(store, knowledge())
    monitor = CanaryMonitor(questions(), store, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    bad = poison(TARGET, 4)
    put(store, bad)
    assert monitor.remediate().clean

    def refuse(*_args, **_options):
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_texts", refuse)
        with pytest.raises(ConnectionError):
            monitor.restore(bad.ids)
    assert {item.id for item in monitor.quarantine_store.list()} == set(bad.ids)
    monitor.restore(bad.ids)
    assert {d.id for d in store.get_by_ids(list(bad.ids))} == set(bad.ids)


@pytest.mark.parametrize("make", [in_memory, in_faiss, guarded])
def test_an_entry_that_was_corrected_meanwhile_is_not_lost(make):
    """Between a traceback and what a person does about it, hours may pass."""
    store = make()
    put(store, knowledge())
    quarantine = {} if make is guarded else {"quarantine": Quarantine("sqlite://")}
    monitor = CanaryMonitor(questions(), store, **quarantine)
    monitor.record_baseline()
    bad = poison(TARGET, 4)
    put(store, bad)
    suspects = monitor.traceback().suspects
    store.delete([bad.ids[0]])
    put(store, batch([(bad.ids[0], "the page as its author meant it")]))
    assert set(monitor.quarantine(suspects)) == set(bad.ids[1:])
    inner = store.inner if make is guarded else store
    assert [d.page_content for d in inner.get_by_ids(list(bad.ids))] == [
        "the page as its author meant it"
    ]


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
    assert monitor.history()[-1].flagged  # and what a person released stays
    assert len(outcomes) == 2
    assert set(bad.ids) <= {d.id for d in store.similarity_search(TARGET, k=6)}
