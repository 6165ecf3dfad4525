"""Held entries that are still in the inner store are left out of reads, and nothing else is."""

from unittest.mock import patch

import faiss
import numpy as np
import pytest
from store_kinds import scan_in_place
from support import DIM, CountingEmbeddings, guard_of, vector_of

from ragshield_core import Batch
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

QUERY = "billing query"
VECTOR = vector_of(QUERY)


def near(n, prefix, score=""):
    """Return n entries as near the query as can be, in a random order with others like them."""
    rng = np.random.default_rng(sum(prefix.encode()))
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[f"billing {prefix} {i} {score}" for i in range(n)],
        embeddings=VECTOR + 0.1 * rng.normal(size=(n, DIM)),
        metadatas=[{"even": i % 2 == 0} for i in range(n)],
    )


GOOD, BAD = near(60, "good"), near(40, "bad", "score=3")


def add(inner, batch):
    inner.add_embeddings(
        list(zip(batch.texts, batch.vectors.tolist(), strict=True)),
        [dict(m) for m in batch.metadatas],
        list(batch.ids),
    )


@pytest.fixture
def clean(make_store):
    """Return a bare store that holds good entries only."""
    inner = make_store("faiss", CountingEmbeddings(), DIM)
    add(inner, GOOD)
    return inner


@pytest.fixture
def store(make_store, on_file):
    """Return a guarded store around one that holds poison as well, held and not removed."""
    inner = make_store("faiss", CountingEmbeddings(), DIM)
    add(inner, BAD)
    add(inner, GOOD)
    store = GuardedVectorStore(inner, guard=guard_of(url=on_file))
    assert len(scan_in_place(store).found) == len(BAD)
    return store


EVEN = {"filter": lambda metadata: metadata["even"]}


@pytest.mark.parametrize(
    "options",
    [{}, EVEN, {"filter": {"even": True}, "fetch_k": 35}],
    ids=["all", "by a function", "by a mapping"],
)
@pytest.mark.parametrize("k", [1, 4, 20, 100])
async def test_results_are_those_of_a_store_without_the_poison(store, clean, k, options):
    raw = {**options, "fetch_k": 200} if options else {}  # enough to be sure of every entry
    for name, argument in (
        ("similarity_search", QUERY),
        ("similarity_search_with_score", QUERY),
        ("similarity_search_by_vector", VECTOR.tolist()),
        ("similarity_search_with_score_by_vector", VECTOR.tolist()),
    ):
        given = {**options, "fetch_k": 60} if options else {}
        expected = getattr(clean, name)(argument, k=k, **raw)
        assert getattr(store, name)(argument, k=k, **given) == expected
        assert await getattr(store, f"a{name}")(argument, k=k, **given) == expected
        assert getattr(store, name)(argument, k, **given) == expected


@pytest.mark.parametrize("lambda_mult", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("options", [{}, EVEN], ids=["all", "filtered"])
async def test_hidden_poison_does_not_change_mmr_results(store, clean, lambda_mult, options):
    for name, argument in (
        ("max_marginal_relevance_search", QUERY),
        ("max_marginal_relevance_search_by_vector", VECTOR.tolist()),
    ):
        given = {"k": 6, "fetch_k": 12, "lambda_mult": lambda_mult, **options}
        expected = getattr(clean, name)(argument, **given)
        if options:  # FAISS itself filters 2 * fetch_k; here it may see a few more
            assert all(d.metadata["even"] for d in getattr(store, name)(argument, **given))
            assert getattr(store, name)(argument, **given)[0] == expected[0]
            continue
        assert getattr(store, name)(argument, **given) == expected
        assert await getattr(store, f"a{name}")(argument, **given) == expected


def test_a_store_without_held_documents_is_asked_once(clean):
    store = GuardedVectorStore(clean, guard=guard_of())
    with patch.object(clean.index, "search", wraps=clean.index.search) as search:
        store.similarity_search(QUERY, k=4)
        store.max_marginal_relevance_search(QUERY, k=4)
        assert search.call_count == 2
        store.add_texts(["score=1"])  # held, and not in there, nor is a copy, which is looked for
        store.similarity_search(QUERY, k=4)
        assert search.call_count == 4


def test_relevance_searches_and_retrievers_return_no_poison(store, clean):
    found = store.similarity_search_with_relevance_scores(QUERY, k=5)
    assert found == clean.similarity_search_with_relevance_scores(QUERY, k=5)
    for options in ({}, {"search_type": "mmr"}):
        documents = store.as_retriever(**options, search_kwargs={"k": 5}).invoke(QUERY)
        assert [d.page_content for d in documents if "score" in d.page_content] == []
        assert len(documents) == 5


def test_new_process_hides_held_entries_too(store, on_file):
    again = GuardedVectorStore(store.inner, guard=guard_of(url=on_file))
    assert all("score" not in d.page_content for d in again.similarity_search(QUERY, k=50))
    assert again.get_by_ids(["bad0", "good0"]) == store.inner.get_by_ids(["good0"])


@pytest.fixture
def append_only(make_store):
    """Return a guarded store around an index that cannot delete."""
    index = faiss.IndexHNSWFlat(DIM, 16)
    inner = make_store("faiss", CountingEmbeddings(), DIM, index=index)
    return GuardedVectorStore(inner, guard=guard_of())


def test_where_the_store_cannot_delete_findings_are_hidden(append_only):
    add(append_only.inner, BAD.take([0, 1]))
    add(append_only.inner, GOOD)
    assert len(append_only.scan(quarantine=True).found) == 2
    assert append_only.inner.index.ntotal == len(GOOD) + 2
    assert {d.id for d in append_only.similarity_search(QUERY, k=60)} <= set(GOOD.ids)
    assert append_only.get_by_ids(["bad0", "bad1"]) == []
    append_only.release(["bad0"])
    assert len(append_only.get_by_ids(["bad0", "bad1"])) == 1


def test_documents_of_old_folders_learn_their_ids(make_store):
    inner = make_store("faiss", CountingEmbeddings(), DIM)
    add(inner, BAD.take([0]))
    for document in inner.docstore._dict.values():
        document.id = None
    store = GuardedVectorStore(inner, guard=guard_of())
    scan_in_place(store)
    assert store.similarity_search(QUERY) == []


def test_vectors_are_read_back_from_an_inverted_file(make_store):
    quantizer = faiss.IndexFlatL2(DIM)
    index = faiss.IndexIVFFlat(quantizer, DIM, 2)
    index.train(GOOD.vectors)
    inner = make_store("faiss", CountingEmbeddings(), DIM, index=index)
    add(inner, GOOD)
    store = GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
    np.testing.assert_array_equal(
        access_to(store.inner).read(["good7"]).vectors[0], GOOD.vectors[7]
    )
