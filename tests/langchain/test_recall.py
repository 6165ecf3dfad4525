"""Documents recalled from a guarded store by hand, and how later reads ask the store."""

from unittest.mock import patch

import faiss
import pytest
from store_kinds import KINDS, hybrid
from support import DIM, LENGTH, CountingEmbeddings, Scripted, guard_of, vector_of

from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

TEXTS = [f"billing {i}" for i in range(12)]
IDS = [f"b{i}" for i in range(12)]


def guarded(make_store, kind, **options):
    inner = make_store(kind, CountingEmbeddings(), DIM, **options)
    store = GuardedVectorStore(inner, guard=guard_of(Scripted()))
    store.add_texts(TEXTS, [{"source": f"doc {i}", "page": i} for i in range(12)], ids=IDS)
    return store


@pytest.fixture(params=KINDS)
def store(request, make_store):
    return guarded(make_store, request.param)


@pytest.fixture
def hiding(make_store):
    """Return a store around one that cannot delete."""
    return guarded(make_store, "faiss", index=faiss.IndexHNSWFlat(DIM, 32))


def known(store):
    return store.guard.detectors[0].learned


def test_recalled_document_is_held_unchanged_and_can_be_released(store):
    gone = store.recall(["b3", "b1", "b3", "unheard-of"], by="anna", note="reported")
    assert sorted(gone) == ["b1", "b3"]
    assert access_to(store.inner).read(["b1", "b3"]).documents == []
    assert known(store) == 10
    held = store.quarantine.show("b3")
    assert (held.held_by, held.note, held.entry.lineage) == ("anna", "reported", "doc 3")
    assert held.entry.metadata == {"source": "doc 3", "page": 3}
    expected = vector_of("billing 3") / LENGTH  # Qdrant keeps directions only
    assert held.entry.embedding.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    store.release(["b3"])
    assert [d.metadata["page"] for d in store.get_by_ids(["b1", "b3"])] == [3]
    assert known(store) == 11


def test_unguarded_entry_with_malformed_metadata_can_be_recalled(make_store):
    store = guarded(make_store, "memory")
    store.inner.add_texts(["odd"], [{"source": ["a", "list"]}], ids=["odd"])
    assert store.recall(["b1", "odd"]) == ("b1", "odd")
    assert store.inner.get_by_ids(["odd"]) == []
    assert store.quarantine.show("odd").entry.metadata == {"source": ["a", "list"]}


def asked(store, query, k=3, **options):
    """Return the pages found, and how many results the index was asked for."""
    index = store.inner.index
    with patch.object(index, "search", wraps=index.search) as search:
        found = store.similarity_search(query, k=k, **options)
    return [d.metadata["page"] for d in found], [call.args[1] for call in search.call_args_list]


def test_diverse_choices_leave_out_confirmed_poison_under_any_id(hiding):
    hiding.recall(["b1"])
    hiding.quarantine.confirm(["b1"])
    hiding.refresh_quarantine()
    held = hiding.quarantine.show("b1").entry
    hiding.inner.add_embeddings([(held.text, held.embedding.tolist())], [held.metadata], ["copy"])
    hiding._mask.discard(["b1"])  # as after a deletion in another process
    found = hiding.max_marginal_relevance_search("billing 1", k=5, fetch_k=12)
    assert held.text not in {d.page_content for d in found}
    assert len(found) == 5


def test_hybrid_search_after_a_recall_matches_the_inner_store():
    store = GuardedVectorStore(hybrid(), guard=guard_of(Scripted()))
    store.add_texts(TEXTS, ids=IDS)
    store.recall(["b1"])
    for query in ("billing 3", "billing 10", "shipping 2"):
        found = store.similarity_search_with_score(query, k=3)
        bare = store.inner.similarity_search_with_score(query, k=3)
        assert found == [
            (access_to(store.inner).outward(document), score) for document, score in bare
        ]
