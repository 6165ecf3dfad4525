"""The contract of every kind of store below the guard."""

import itertools
import traceback
from unittest.mock import patch

import numpy as np
import pytest
from langchain_core.documents import Document
from store_kinds import KINDS, hybrid
from support import DIM, CountingEmbeddings, Scripted, guard_of, slowly, vector_of

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.model.errors import InvalidBatchError
from ragshield_langchain import GuardedVectorStore, check_inner_store
from ragshield_langchain.inner import access_to, count_of
from ragshield_langchain.inner.memory import InMemoryInner

UUID = "0d706099-6dd9-412a-9df6-a71043e020de"
# Ids that Qdrant takes as they are, takes as a number, and does not take.
IDS = ["plain", UUID, UUID.upper(), UUID.replace("-", ""), "7", "07", "ümläut/1", str(2**64)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(make_store):
    """Return a function that makes a bare store that keeps vectors at any length."""

    def plain(kind, **options):
        if kind == "qdrant":
            from qdrant_client import models  # noqa: PLC0415 - slow to import

            options["distance"] = models.Distance.EUCLID
        return make_store(kind, CountingEmbeddings(), DIM, **options)

    return plain


@pytest.fixture
def access(make, kind):
    return access_to(make(kind))


@pytest.fixture
def store(make, kind):
    guard = Guard([Scripted()], quarantine=Quarantine("sqlite://"))
    return GuardedVectorStore(make(kind), guard=guard)


def batch_of(texts, ids=None, metadatas=None):
    return Batch.of(
        ids=ids or [f"e{i}" for i in range(len(texts))],
        texts=texts,
        embeddings=[vector_of(text) for text in texts],
        metadatas=metadatas,
    )


def content(access, ids=None):
    """Return the entries of a store: id -> text, metadata, vector."""
    documents, vectors = access.read(access.ids() if ids is None else ids)
    return {
        d.id: (d.page_content, d.metadata, v.tolist())
        for d, v in zip(documents, vectors, strict=True)
    }


def expected(batch, metadatas):
    return {
        entry.id: (entry.text, metadata, vector.tolist())
        for entry, metadata, vector in zip(batch, metadatas, batch.vectors, strict=True)
    }


METADATAS = [
    {"page": 1, "source": "a.pdf"},
    {},
    {"x": 0.5, "flag": True},
    *[{"n": i} for i in range(5)],
]


def test_every_kind_fulfils_the_contract(access):
    check_inner_store(access, DIM)
    assert count_of(access._store.as_retriever()) == 0


def test_ids_and_metadata_come_back_as_they_went_in(access):
    batch = batch_of([f"billing {i}" for i in range(8)], IDS)
    access.write(batch, METADATAS)
    assert content(access) == expected(batch, METADATAS)


# Ids that would be orders if a store took them for a part of its own language.
HOSTILE = [
    'x" or true',
    "x' or true --",
    "x') or 1 = 1 --",
    '"] or pk != "',
    "back\\slash\\",
    'quoted \\" or true',
    "line\nbreak\rtab\t",
    "{ids} %s $1 ?",
    "\u2028\x01",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_id_is_an_id(access, hostile):
    batch = batch_of(["billing 1", "billing 2"], ["good", hostile])
    access.write(batch, [{"n": 1}, {"n": 2}])
    assert content(access, [hostile]) == expected(batch.take([1]), [{"n": 2}])
    access.delete([hostile])
    access.delete([f"missing {hostile}"])
    assert content(access, [hostile]) == {}
    assert content(access) == expected(batch.take([0]), [{"n": 1}])


def test_a_store_that_forgets_metadata_breaks_the_contract(make):
    class Forgetful(InMemoryInner):
        def write(self, batch, metadatas):
            super().write(batch, [{} for _ in metadatas])

    with pytest.raises(AssertionError, match=r"Forgetful: metadata is \{\}, expected"):
        check_inner_store(Forgetful(make("memory")), DIM)


def test_a_new_revision_leaves_nothing_of_the_old_one(access):
    access.write(batch_of(["billing 1", "billing 2"]), [{"old": 1, "both": 1}, {"old": 2}])
    new = batch_of(["shipping 1", "shipping 2", "refunds 3"])
    access.write(new, [{"both": 2}, {}, {"new": True}])
    assert content(access) == expected(new, [{"both": 2}, {}, {"new": True}])


@pytest.mark.slow
def test_large_batch_is_written_read_and_deleted_in_parts(access, kind):
    n = 6000 if kind == "chroma" else 1200
    ids = [f"id {i}" for i in range(n)]
    vectors = np.random.default_rng(0).normal(size=(n, DIM))
    batch = Batch.of(ids=ids, texts=[f"text {i}" for i in range(n)], embeddings=vectors)
    access.write(batch, [{"i": i} for i in range(n)])
    assert sorted(access.ids()) == sorted(ids)
    documents, found = access.read(ids)
    rows = [int(document.id.split()[1]) for document in documents]
    np.testing.assert_array_equal(found, batch.vectors[rows])
    access.delete(ids[:-1])
    assert access.ids() == ids[-1:]


class DiskFullError(OSError):
    """Raised in the middle of a write."""


def failing_at(function, call):
    """Return a function that raises at one call only."""
    calls = itertools.count(1)

    def run(*args, **kwargs):
        if next(calls) == call:
            raise DiskFullError
        return function(*args, **kwargs)

    return run


PARTS = ["ragshield_langchain.inner.qdrant", "ragshield_core.store.milvus_rows"]


def half_way(access, kind):
    """Break a store within its next write of four entries."""
    store = access._store
    if kind == "chroma":
        return patch.object(store, "_chroma_collection", _Failing(store._collection, "update"))
    if kind == "lancedb":  # whose writes are one commit
        get = store.get_table
        return patch.object(store, "get_table", lambda: _Failing(get(), "merge_insert"))
    if kind == "milvus":
        return patch.object(store, "_milvus_client", _Failing(store.client, "upsert", 2))
    if kind == "qdrant":
        return patch.object(store, "_client", _Failing(store.client, "upsert", 2))
    if kind == "faiss":
        return patch.object(store.docstore, "add", failing_at(store.docstore.add, 1))

    def some(items, size):  # noqa: ARG001 - as the function that it replaces
        yield items[:2]
        raise DiskFullError

    return patch("ragshield_langchain.inner.postgres.chunks", some)


class _Failing:
    def __init__(self, inner, name, call=1):
        self._inner = inner
        self._broken = {name: failing_at(getattr(inner, name), call)}

    def __getattr__(self, name):
        return self._broken.get(name) or getattr(self._inner, name)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_half_a_write_is_undone(make, kind):
    access = access_to(make(kind))
    access.write(batch_of(["billing 0", "billing 1"]), [{"old": 1}, {}])
    before = content(access)
    new = batch_of([f"shipping {i}" for i in range(4)])
    small = [patch(f"{one}.AT_ONCE", 2) for one in PARTS]
    with small[0], small[1]:
        with half_way(access, kind), pytest.raises(DiskFullError):
            access.write(new, [{"new": 1}] * 4)
        assert content(access) == before
        access.write(new, [{"new": 1}] * 4)
    assert content(access) == expected(new, [{"new": 1}] * 4)


@pytest.mark.parametrize(
    "kind", ["faiss", "chroma", *slowly("qdrant", "pgvectorstore", "milvus", "lancedb")]
)
def test_vectors_of_another_dimension_are_refused_by_name(make, kind):
    access = access_to(make(kind))
    access.write(batch_of(["billing 0"]), [{}])
    before = content(access)
    texts = ["a secret", "another secret"]
    other = Batch.of(ids=["e0", "culprit"], texts=texts, embeddings=np.ones((2, DIM + 1)))
    with pytest.raises(InvalidBatchError, match="'e0'") as seen:
        access.write(other, [{"k": texts[0]}, {}])
    assert "secret" not in "".join(traceback.format_exception(seen.value))
    assert content(access) == before


@pytest.mark.parametrize("kind", slowly("postgres", "pgvectorstore"))
def test_database_error_does_not_quote_entry_text(make, kind):
    from sqlalchemy.exc import DataError, OperationalError  # noqa: PLC0415 - slow to import

    access, secret = access_to(make(kind)), "a secret"
    gone = OperationalError("INSERT", {"content": secret}, ConnectionError("gone"))
    with patch.object(access, "_run", side_effect=gone), pytest.raises(OperationalError) as seen:
        access.write(batch_of([secret]), [{}])
    assert "gone" in str(seen.value)
    assert secret not in str(seen.value)
    unfit = DataError("INSERT", {"content": secret}, ValueError(secret))
    with (
        patch.object(access, "_run", side_effect=unfit),
        pytest.raises(InvalidBatchError, match=r"'e0' and its batch.*\(ValueError\)") as refused,
    ):
        access.write(batch_of([secret]), [{}])
    assert secret not in "".join(traceback.format_exception(refused.value))


UNFIT = (
    {
        "chroma: a dict": ("chroma", "text", {"deep": {"er": 1}}),
    }
    | {
        f"{kind}: {what}": (kind, text, metadata)
        for kind in ("postgres", "pgvectorstore")
        for what, text, metadata in (
            ("a NUL", "te\0xt", {}),
            ("a NUL in metadata", "text", {"k": "\0"}),
            ("a lone surrogate", "\ud800", {}),
            ("NaN", "text", {"k": float("nan")}),
            ("no JSON", "text", {"k": object()}),
        )
    }
    | {
        f"lancedb: {what}": ("lancedb", text, metadata)
        for what, text, metadata in (
            ("a lone surrogate", "\ud800", {}),
            ("infinity", "text", {"k": float("inf")}),
            ("a large integer", "text", {"k": 2**63}),
            ("a list", "text", {"k": ["a"]}),
            ("a dot", "text", {"a.b": 1}),
            ("another type than before", "text", {"n": "x"}),
            ("a fraction in a column of integers", "text", {"n": 1.5}),
            ("many keys", "text", {f"k{i}": 1 for i in range(201)}),
        )
    }
    | {
        f"milvus: {what}": ("milvus", text, metadata)
        for what, text, metadata in (
            ("a long text", "ü" * 2**15, {}),
            ("a lone surrogate", "\ud800", {}),
            ("infinity", "text", {"k": {"deep": [float("inf")]}}),
            ("a large integer", "text", {"k": 2**63}),
            ("no JSON", "text", {"k": object()}),
            ("a tuple", "text", {"k": (1, 2)}),
            ("its own key", "text", {"pk": "x"}),
        )
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text", "metadata"), UNFIT.values(), ids=UNFIT)
def test_entries_that_a_store_cannot_keep_are_named(make, kind, text, metadata):
    batch = Batch.of(ids=["e0", "culprit"], texts=["new", text], embeddings=np.ones((2, DIM)))
    (row,) = access_to(make(kind)).unfit(batch, [{"n": 1}, metadata])
    assert row == 1


@pytest.mark.slow
def test_an_id_of_another_collection_is_not_overwritten(make):
    one, other = access_to(make("postgres")), access_to(make("postgres"))
    one.write(batch_of(["billing 0"], ["shared"]), [{}])
    before = content(one)
    with pytest.raises(InvalidBatchError, match="'shared' is taken"):
        other.write(batch_of(["x", "y"], ["mine", "shared"]), [{}, {}])
    assert content(one) == before
    assert content(other) == {}
    other.delete(["shared"])
    assert content(one) == before


def test_points_that_were_there_keep_their_ids_in_qdrant(make):
    from qdrant_client import models  # noqa: PLC0415

    inner = make("qdrant")
    points = [
        models.PointStruct(id=point, vector={"": vector_of("a").tolist()}, payload=payload)
        for point, payload in ((7, {"page_content": "a", "metadata": {"k": 1}}), (UUID, {}))
    ]
    inner.client.upsert(inner.collection_name, points)
    store = GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
    assert {d.id for d in store.similarity_search("a", k=5)} == {"7", UUID}
    assert store.get_by_ids(["7"])[0].metadata == {"k": 1}
    store.delete(["7"])
    assert access_to(store.inner).ids() == [UUID]


def test_hybrid_points_keep_both_vectors_in_qdrant():
    store = GuardedVectorStore(hybrid(), guard=guard_of())
    store.add_texts(["billing 0", "shipping score=5", "refunds 22"], ids=["a", "b", "c"])
    assert {d.id for d in store.similarity_search("refunds 22", k=3)} == {"a", "c"}
    store.release(["b"])
    assert [d.id for d in store.similarity_search("shipping score=5", k=1)] == ["b"]
    with pytest.raises(TypeError, match="sparse mode keeps no dense vectors"):
        GuardedVectorStore(hybrid("sparse"), guard=guard_of())


@pytest.mark.slow
def test_a_milvus_that_loses_ids_metadata_or_vectors_is_refused(make):
    inner = make("milvus")
    for name, value, reason in (
        ("auto_id", True, "auto_id=False"),
        ("enable_dynamic_field", False, "enable_dynamic_field=True"),
        ("embedding_func", None, "one model of dense vectors"),
        ("embedding_func", [CountingEmbeddings()] * 2, "one model of dense vectors"),
    ):
        with patch.object(inner, name, value), pytest.raises(TypeError, match=reason):
            access_to(inner)


@pytest.mark.slow
def test_ids_of_milvus_come_in_pages(make):
    access = access_to(make("milvus"))
    access.write(batch_of([f"billing {i}" for i in range(9)]), [{}] * 9)
    with patch("ragshield_core.store.milvus_rows.PAGE", 4):
        assert sorted(access.ids()) == [f"e{i}" for i in range(9)]


def test_a_search_of_lancedb_before_the_first_write_finds_nothing(make):
    store = GuardedVectorStore(make("lancedb"), guard=guard_of())
    assert store.similarity_search("billing") == []
    assert store.get_by_ids(["a"]) == []
    store.delete(["a"])
    store.add_texts(["billing 1"], [{"id": 1}], ids=["a"])
    assert store.similarity_search("billing")[0].metadata == {"id": 1}


# Through the guard


def test_poison_is_held_and_comes_back_by_a_release_only(store):
    texts = ["billing 1", "billing score=5", "billing 2"]
    metadatas = [{"page": 1}, {"page": 2}, {}]
    assert store.add_texts(texts, metadatas, ids=["a", "b", "c"]) == ["a", "b", "c"]
    assert {d.id for d in store.similarity_search("billing score=5", k=3)} == {"a", "c"}
    assert store.get_by_ids(["a", "b"])[0].metadata == {"page": 1}
    assert len(store.get_by_ids(["a", "b"])) == 1
    store.release(["b"])
    embedded = [text for text in store.embeddings.texts if text != "dummy_text"]  # of Qdrant
    assert embedded == texts  # nothing was embedded a second time
    assert content(access_to(store.inner))["b"] == (
        texts[1],
        metadatas[1],
        vector_of(texts[1]).tolist(),
    )
    assert store.similarity_search("billing score=5", k=1)[0].id == "b"


def test_a_rejected_revision_leaves_the_good_one(store):
    store.add_texts(["billing 1"], [{"page": 1}], ids=["a"])
    store.update_document(
        "a", store.get_by_ids(["a"])[0].model_copy(update={"page_content": "score=5"})
    )
    assert store.get_by_ids(["a"])[0].page_content == "billing 1"
    assert store.similarity_search("billing", k=5)[0].page_content == "billing 1"
    assert store.quarantine.held_ids(["a"]) == {"a"}
    store.release(["a"], by="anna")
    assert [d.page_content for d in store.get_by_ids(["a"])] == ["score=5"]
    assert store.quarantine.log.lines()[-1].actor == "anna"
    store.update_document("a", Document(id="a", page_content="score=6"))
    store.delete(["a"])
    assert store.get_by_ids(["a"]) == []
    assert store.quarantine.count(None) == 0


async def test_async_writes_reads_and_searches(store):
    await store.aadd_texts(["billing 1", "score=5", "refunds 2"], ids=["a", "b", "c"])
    assert store.embeddings.native == 1
    assert [d.id for d in await store.asimilarity_search("refunds 2", k=1)] == ["c"]
    found = await store.asimilarity_search_with_score("refunds 2", k=3)
    assert found[0][0].id == "c"
    assert len(found) == 2
    vector = vector_of("billing 1").tolist()
    assert [d.id for d in await store.asimilarity_search_by_vector(vector, k=1)] == ["a"]
    assert (await store.amax_marginal_relevance_search("refunds 2", k=2))[0].id in {"a", "c"}
    assert len(await store.amax_marginal_relevance_search_by_vector(vector, k=2)) == 2
    await store.arelease(["b"])
    assert [d.id for d in await store.aget_by_ids(["b"])] == ["b"]
    await store.adelete(["a", "b"])
    assert len(await store.asimilarity_search("billing", k=5)) == 1
    assert (await store.ascan()).batch.ids == ("c",)


@pytest.mark.slow
async def test_a_postgres_in_async_mode_is_written_on_the_callers_loop(make):
    store = GuardedVectorStore(make("postgres", async_mode=True), guard=guard_of())
    await test_async_writes_reads_and_searches(store)
    for call in (
        lambda: store.add_texts(["x"]),
        lambda: store.delete(["c"]),
        lambda: store.release(["c"]),
        store.scan,
    ):
        with pytest.raises(RuntimeError, match="async mode"):
            call()
    adopted = await GuardedVectorStore.aadopt(store.inner, guard=guard_of(), progress=False)
    assert adopted.guard.writes.known(["a", "c"]) == ["c"]
