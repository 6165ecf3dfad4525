"""No public method of an inner store returns or takes in poison through the guarded store.

Methods are enumerated by introspection: a new one of an inner store makes a test fail until it is
classified in one of the tables below.
"""

import asyncio
import inspect

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from store_kinds import KINDS, scan_in_place
from support import DIM, CountingEmbeddings, Scripted, guard_of, vector_of

from ragshield_core import Batch
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

QUERY = "billing score=9"
VECTOR = vector_of(QUERY).tolist()
GOOD = [f"billing {i}" for i in range(30)]
PLANTED = [f"billing planted {i} score=9" for i in range(7)]  # nearest to the query
WRITTEN = "billing written score=9"
POISON = Document(id="written", page_content=WRITTEN, metadata={"n": 1})


class WithImages(CountingEmbeddings):
    def embed_image(self, uris):
        return [VECTOR for _ in uris]


def by_query(store, name, **kwargs):
    return getattr(store, name)(QUERY, k=5, **kwargs)


def by_vector(store, name, **kwargs):
    return getattr(store, name)(VECTOR, k=5, **kwargs)


# Methods that return documents: how each is called. Those of five results must return five.
READS = {
    "similarity_search": by_query,
    "similarity_search_with_score": by_query,
    "similarity_search_with_relevance_scores": by_query,
    "similarity_search_with_vectors": by_query,
    "similarity_search_by_vector": by_vector,
    "similarity_search_with_score_by_vector": by_vector,
    "similarity_search_by_vector_with_relevance_scores": by_vector,
    "similarity_search_by_image": lambda s, name: getattr(s, name)("an image", k=5),
    "max_marginal_relevance_search": by_query,
    "max_marginal_relevance_search_with_score": by_query,
    "max_marginal_relevance_search_by_vector": by_vector,
    "max_marginal_relevance_search_with_score_by_vector": by_vector,
    "search": lambda s, name: getattr(s, name)(QUERY, search_type="similarity", k=5),
    "as_retriever": lambda s, name: getattr(s, name)(search_kwargs={"k": 5}).invoke(QUERY),
}
OTHER_READS = {
    "get_by_ids": lambda s, name: getattr(s, name)(["written", "p0", "p1", "g0"]),
}
# Reads that always raise in the inner store as well.
BROKEN = {
    ("memory", "similarity_search_with_relevance_scores"),  # it has no such scores
    # Chroma passes a list of vectors where one is expected.
    ("chroma", "similarity_search_by_image_with_relevance_score"),
    ("chroma", "hybrid_search"),  # of its cloud only
}

# Methods that write documents: how each is called with poison.
WRITES = {
    "add_documents": lambda s, name: getattr(s, name)([POISON]),
    "add_texts": lambda s, name: getattr(s, name)([WRITTEN], ids=["written"]),
    "add_embeddings": lambda s, name: getattr(s, name)(
        texts=[WRITTEN], embeddings=[VECTOR], ids=["written"]
    ),
    "add_rows": lambda s, name: getattr(s, name)(["written"], [WRITTEN], [{}], None),
    "update_document": lambda s, name: getattr(s, name)("g0", POISON),
    "update_documents": lambda s, name: getattr(s, name)(["g0"], [POISON]),
}
# Class methods that make a store: how each is called with poison.
MAKERS = {
    "from_texts": lambda name, **given: getattr(GuardedVectorStore, name)([WRITTEN], **given),
    "from_documents": lambda name, **given: getattr(GuardedVectorStore, name)([POISON], **given),
}
# Refused on the guarded store, with a pointer to the alternative: they write or return entries that
# no detector has judged, make an unguarded store, or change the store as a whole.
REFUSED = {
    *("add_images", "get", "fork", "delete_collection", "reset_collection"),
    *(
        "from_embeddings",
        "encode_image",
        "save_local",
        "serialize_to_bytes",
        "deserialize_from_bytes",
    ),
    *("load", "dump", "construct_instance", "from_existing_collection", "from_existing_index"),
    *("merge_from", "load_local"),
    *("CONTENT_KEY", "METADATA_KEY", "SPARSE_VECTOR_NAME", "VECTOR_NAME"),
    *("client", "sparse_embeddings", "distance_strategy", "get_connection_string"),
    *("connection_string_from_db_params", "create_collection", "create_tables_if_not_exists"),
    *("create_vector_extension", "drop_tables", "get_collection"),
    *("create", "create_sync", "get_table_name", "is_valid_index", "reindex"),
    *("apply_hybrid_search_index", "apply_vector_index", "drop_vector_index"),
    *("col", "drop", "get_pks", "search_by_metadata", "upsert", "vector_fields"),
    *("create_index", "get_table", "results_to_docs"),
}
HARMLESS = {"delete", "embeddings"}


def decided(name):
    """Return whether somebody decided about a method, or about its synchronous twin."""
    tables = [READS, OTHER_READS, WRITES, MAKERS, REFUSED, HARMLESS]
    names = {method for _, method in BROKEN}.union(*tables)
    return name in names or name.removeprefix("a") in names


def public(cls):
    return sorted(name for name in dir(cls) if not name.startswith("_"))


def is_poison(result):
    document = result[0] if isinstance(result, tuple) else result
    return "score=9" in document.page_content


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def store(kind, make_store):
    """Return a store with poison planted around the guard, found, held and not removed."""
    guard = guard_of(Scripted())
    store = GuardedVectorStore(make_store(kind, WithImages(), DIM), guard=guard)
    store.add_texts(GOOD, ids=[f"g{i}" for i in range(30)])
    planted = Batch.of(
        ids=[f"p{i}" for i in range(7)],
        texts=PLANTED,
        embeddings=[0.99 * np.array(VECTOR) + 0.01 * vector_of(text) for text in PLANTED],
    )
    access_to(store.inner).write(planted, [{} for _ in PLANTED])
    assert sum(map(is_poison, store.inner.similarity_search(QUERY, k=7))) == 7
    assert sum(map(is_poison, store.similarity_search(QUERY, k=7))) == 7  # nobody knows yet
    report = scan_in_place(store)
    assert len(report.found) == 7
    return store


def call(store, table, name):
    """Call a method, or the async twin of one, as the table says."""
    sync = name if name in table else name.removeprefix("a")
    result = table[sync](store, name)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def test_every_public_method_is_classified(store):
    undecided = [name for name in public(type(store.inner)) if not decided(name)]
    assert undecided == []


def test_refused_methods_raise_attribute_error(store):
    for name in public(type(store.inner)):
        refused = name in REFUSED or (name not in READS and name.removeprefix("a") in REFUSED)
        if not refused:
            continue
        with pytest.raises(AttributeError, match="around the guard"):
            getattr(store, name)


@pytest.mark.slow
def test_no_read_returns_poison_and_k_is_exact(store, kind):
    names = [n for n in public(type(store.inner)) if n in READS or n.removeprefix("a") in READS]
    assert "amax_marginal_relevance_search_by_vector" in names
    for name in names:
        if (kind, name) in BROKEN or (kind, name.removeprefix("a")) in BROKEN:
            continue
        found = call(store, READS, name)
        assert not any(map(is_poison, found)), name
        assert len(found) == 5, name
        documents = [one[0] if isinstance(one, tuple) else one for one in found]
        assert all(document.id in {f"g{i}" for i in range(30)} for document in documents), name
    for name in ("get_by_ids", "aget_by_ids"):
        assert [d.id for d in call(store, OTHER_READS, name)] == ["g0"]
    # Only the way around is a way around.
    assert sum(map(is_poison, store.inner.similarity_search(QUERY, k=7))) == 7


@pytest.mark.slow
def test_no_write_brings_poison_in(store, kind):
    written = set()
    for name in public(GuardedVectorStore):
        if not (name in WRITES or name.removeprefix("a") in WRITES):
            continue
        call(store, WRITES, name)
        written.add(name)
        assert not any(map(is_poison, store.similarity_search(QUERY, k=40))), name
        access = access_to(store.inner)
        inside = {document.page_content for document in access.read(access.ids()).documents}
        assert WRITTEN not in inside, name
    missing = {n for n in public(type(store.inner)) if n in WRITES} - written
    assert missing == set(), kind


@pytest.mark.parametrize("name", [*MAKERS, *(f"a{name}" for name in MAKERS)])
def test_no_new_store_begins_with_poison(name):
    from langchain_core.vectorstores import InMemoryVectorStore  # noqa: PLC0415

    guard = guard_of(Scripted())
    given = {"embedding": CountingEmbeddings(), "inner": InMemoryVectorStore(CountingEmbeddings())}
    made = MAKERS[name.removeprefix("a") if name.startswith("a") else name](
        name, guard=guard, **given
    )
    store = asyncio.run(made) if inspect.iscoroutine(made) else made
    assert access_to(store.inner).ids() == []
    assert store.quarantine.count() == 1


def test_methods_of_the_guarded_store_itself_are_classified():
    ours = {name for name in public(GuardedVectorStore) if name not in public(VectorStore)}
    about = {"adopt", "aadopt", "scan", "ascan", "release", "arelease", "refresh_quarantine"}
    about |= {"recall", "arecall", "purge", "apurge", "restore", "arestore"}
    about |= {"recover", "arecover", "rescreen", "arescreen", "reconcile", "areconcile"}
    about |= {"adopt_source", "aadopt_source", "keep_holding"}
    about |= {"origins", "aorigins", "vouched_by", "avouched_by"}
    state = {"guard", "inner", "keys", "last_report", "quarantine", "standing"}
    assert {name for name in ours if not decided(name)} == about | state
