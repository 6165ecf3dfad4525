"""Particulars of langchain-postgres' PGVectorStore below the guard."""

import datetime as dt

import pytest
import test_stores_contract as contract
from support import DIM, CountingEmbeddings, Scripted, guard_of, vector_of

from ragshield_core.model.errors import InvalidBatchError
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

pytestmark = pytest.mark.slow

UUID = "0d706099-6dd9-412a-9df6-a71043e020de"


@pytest.fixture
def make(make_store):
    def plain(**options):
        return make_store("pgvectorstore", CountingEmbeddings(), DIM, **options)

    return plain


def guarded(inner):
    return GuardedVectorStore(inner, guard=guard_of(Scripted()))


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_engine_without_a_loop_works_on_the_callers(make, driver):
    store = guarded(make(loop=False, driver=driver))
    await contract.test_async_writes_reads_and_searches(store)
    for call in (
        lambda: store.add_texts(["x"]),
        lambda: store.get_by_ids(["c"]),
        lambda: store.delete(["c"]),
        store.scan,
    ):
        with pytest.raises(RuntimeError, match="use the async methods"):
            call()
    await store.aadd_texts(["score=7"], ids=["d"])
    assert await store.apurge(["d"]) == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_ids_that_a_table_of_uuids_cannot_hold_are_refused_by_name(make, driver):
    store = guarded(make(ids="UUID", driver=driver))
    store.add_texts(["billing 1", "score=5"], ids=[UUID, UUID[:-1] + "f"])
    for unfit in ("plain", UUID.upper()):
        with pytest.raises(InvalidBatchError, match=f"'{unfit}' is no UUID.*TEXT"):
            store.add_texts(["billing 2", "billing 3"], ids=[UUID[:-1] + "0", unfit])
        assert store.get_by_ids([unfit]) == []
        assert store.delete([unfit])
    assert access_to(store.inner).ids() == [UUID]
    assert [d.id for d in store.get_by_ids([UUID, "plain"])] == [UUID]
    assert store.recall([UUID, "plain"]) == (UUID,)
    store.release([UUID])
    assert store.delete([UUID, "plain"])
    assert access_to(store.inner).ids() == []


def test_a_table_with_other_ids_is_refused(make):
    with pytest.raises(TypeError, match="of type integer, expected TEXT, VARCHAR or UUID"):
        guarded(make(ids="INTEGER")).add_texts(["billing"], ids=["1"])


def test_a_table_that_drops_metadata_is_refused(make):
    inner = make(store_metadata=False)
    with pytest.raises(TypeError, match=r"drops metadata.*ADD COLUMN langchain_metadata"):
        guarded(inner)


COLUMNS = [("source", "TEXT"), ("page", "INTEGER"), ("day", "DATE")]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_metadata_goes_into_the_columns_of_the_table(make, driver):
    store = guarded(make(columns=COLUMNS, driver=driver))
    metadata = {"source": "a.pdf", "page": 3, "day": dt.date(2026, 1, 2), "more": ["x"]}
    store.add_texts(["billing 1", "score=5", "billing 2"], [metadata] * 3, ids=["a", "b", "c"])
    found = store.similarity_search("billing", k=3, filter={"page": {"$gt": 2}})
    assert {d.id: d.metadata for d in found} == {"a": metadata, "c": metadata}
    store.release(["b"])
    assert contract.content(access_to(store.inner))["b"] == (
        "score=5",
        metadata,
        vector_of("score=5").tolist(),
    )
    store.add_texts(["billing 3"], [{}], ids=["a"])
    assert contract.content(access_to(store.inner))["a"][1] == dict.fromkeys(
        ("source", "page", "day")
    )


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_metadata_of_another_type_is_refused_without_being_quoted(make, driver):
    store = guarded(make(columns=COLUMNS, driver=driver))
    store.add_texts(["billing 1"], ids=["a"])
    with pytest.raises(InvalidBatchError, match=r"'b' and its batch.*types of its columns") as seen:
        store.add_texts(["a secret"], [{"page": "hush"}], ids=["b"])
    assert not {"secret", "hush"} & set(str(seen.value).split())
    assert seen.value.__cause__ is None
    assert seen.value.__suppress_context__
    assert access_to(store.inner).ids() == ["a"]


def test_hybrid_table_finds_words_and_hides_held_entries(make):
    from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig  # noqa: PLC0415

    search = HybridSearchConfig(tsv_column="words", primary_top_k=1, secondary_top_k=3)
    store = guarded(make(hybrid_search_config=search))
    store.add_texts(
        ["billing zebra", "refunds 1", "refunds zebra", "zebra score=5"], ids=["a", "b", "c", "d"]
    )
    assert {d.id for d in store.similarity_search("zebra", k=4)} >= {"a", "c"}
    store.inner.add_texts(["zebra score=5"], ids=["d"])  # past the guard
    assert "d" not in {d.id for d in store.similarity_search("zebra", k=4)}


def test_a_table_is_filled_and_adopted(make):
    inner = make()
    inner.add_texts([f"billing {i}" for i in range(40)], ids=[f"e{i}" for i in range(40)])
    guard = guard_of(Scripted())
    store = GuardedVectorStore.adopt(inner, guard=guard, progress=False)
    assert len(store.guard.writes.known([f"e{i}" for i in range(40)])) == 40
    store.add_texts(["billing 40", "score=5"], ids=["e40", "e41"])
    assert len(access_to(inner).ids()) == 41


def test_a_table_that_is_gone_is_named(make):
    inner = make()
    access = access_to(inner)
    inner._engine.drop_table(inner.get_table_name())
    with pytest.raises(RuntimeError, match="not in the database any more"):
        access.write(contract.batch_of(["billing"]), [{}])
    inner._engine.init_vectorstore_table(inner.get_table_name(), DIM)


def test_async_pgvectorstore_is_refused(make):
    with pytest.raises(TypeError, match=r"AsyncPGVectorStore cannot be guarded yet.*PGVectorStore"):
        guarded(make()._PGVectorStore__vs)


def test_a_store_that_hides_its_table_is_refused(make):
    inner = make()
    del inner._PGVectorStore__vs
    with pytest.raises(TypeError, match=r"known are 0\.0\.14 to"):
        guarded(inner)
