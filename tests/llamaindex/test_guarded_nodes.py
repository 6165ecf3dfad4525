"""The guarded store and the guarded index: writes, held nodes and releases."""

import asyncio
import copy
import threading
import time
from unittest.mock import patch

import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.vector_stores import VectorStoreQuery
from llama_support import (
    KEYS,
    KINDS,
    TEXT_KINDS,
    about,
    assert_knows,
    bad,
    document,
    good,
    guard_of,
    guarded_over,
    id_of,
    ids_of,
    index_over,
    known,
    live,
    mixed,
    node,
)
from support import DIM, TOPICS, ScriptedGroups, slowly, vector_of

from ragshield_core import Guard
from ragshield_core.model.errors import InvalidBatchError
from ragshield_llamaindex import GuardedVectorStore, GuardedVectorStoreIndex, adopt
from ragshield_llamaindex.convert import to_batch
from ragshield_llamaindex.index import access_behind
from ragshield_llamaindex.inner import access_to, check_inner_store


def ask(text, k=3):
    return VectorStoreQuery(query_embedding=vector_of(text).tolist(), similarity_top_k=k)


@pytest.fixture(params=TEXT_KINDS)
def store(request, make_store):
    """Return a guarded store that holds ``known()``."""
    return guarded_over(make_store(request.param), None, known())


@pytest.fixture(params=KINDS)
def index(request, make_store, model):
    """Return a guarded index that holds ``known()``."""
    return index_over(make_store(request.param), model, known())


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_every_kind_fulfils_the_contract(kind, make_store):
    check_inner_store(access_to(make_store(kind)), DIM)


def assert_in_step(guarded):
    assert_knows(guarded.guard, live(guarded))
    ids = ids_of(live(guarded))
    assert sorted(guarded.guard.writes.known(ids)) == sorted(ids)


# The store


def test_flipped_nodes_stay_out_and_ids_stay_aligned(store):
    assert store.add(mixed()) == ids_of(mixed())
    assert set(ids_of(live(store))) == set(ids_of([*known(), *good()]))
    assert [held.id for held in store.quarantine.list()] == ids_of(bad())
    assert_in_step(store)


def test_node_is_stored_unchanged(store):
    given = node("billing extra", label="billing", page=3, document="doc")
    store.add([given])
    (found,) = store.get_nodes([given.node_id])
    assert (found.text, found.metadata, found.ref_doc_id) == (given.text, given.metadata, "doc")
    assert found.excluded_llm_metadata_keys == given.excluded_llm_metadata_keys
    (read,) = access_behind(store).read([given.node_id])
    assert read.embedding == pytest.approx(given.embedding, rel=1e-5) or read.embedding == (
        pytest.approx([v / 2.5 for v in given.embedding], rel=1e-4)  # Qdrant's cosine normalises
    )


def test_a_rejected_revision_leaves_the_old_one_and_an_admitted_one_replaces_it(store):
    text = known()[0].text
    store.add([node("shipping poison", text, label="billing")])
    assert [n.text for n in store.get_nodes([id_of(text)])] == [text]
    store.add([node("billing better", text, label="billing")])
    assert [n.text for n in store.get_nodes([id_of(text)])] == ["billing better"]
    assert len(live(store)) == len(known())
    assert_in_step(store)


def test_release_puts_the_node_back_with_its_vector_and_relations(store, model):
    poison = bad(document="doc")[0]
    store.add([poison])
    store.release([poison.node_id], by="anna")
    (found,) = access_behind(store).read([poison.node_id])
    assert (found.text, found.ref_doc_id, found.metadata) == (poison.text, "doc", poison.metadata)
    assert model.texts == []  # no second embedding
    assert store.quarantine.count() == 0
    store.add([poison])
    assert store.quarantine.count() == 0  # it passes from now on
    assert_in_step(store)


def test_detectors_are_told_of_holds_and_releases(make_store):
    class Told(ScriptedGroups):
        def __init__(self):
            super().__init__()
            self.calls = []

        def remember_held(self, entries):
            self.calls.append(("remember_held", *entries.ids))

        def forget_held(self, ids):
            self.calls.append(("forget_held", *ids))

        def trust(self, ids):
            self.calls.append(("trust", *ids))

    told = Told()
    store = GuardedVectorStore(make_store("chroma"), guard=guard_of(told))
    store.add([node("a score=5"), node("b")])
    store.release([id_of("a score=5")])
    assert told.calls == [
        (call, id_of("a score=5")) for call in ("remember_held", "forget_held", "trust")
    ]
    assert told.learned == 2


def test_a_failed_write_leaves_the_old_revision(store, monkeypatch):
    text = known()[0].text
    access = access_behind(store)
    step = "write"
    write, fails = getattr(access, step), [True]

    def failing(nodes, **kwargs):
        if fails.pop() if fails else False:
            msg = "disk full"
            raise OSError(msg)
        return write(nodes, **kwargs)

    monkeypatch.setattr(access, step, failing)
    with pytest.raises(OSError, match="disk full"):
        store.add([node("billing better", text, label="billing")])
    assert [n.text for n in store.get_nodes([id_of(text)])] == [text]
    assert_in_step(store)


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_nodes_are_replaced_in_one_step_where_the_store_can(kind, make_store, monkeypatch):
    store = guarded_over(make_store(kind), None, known())
    access = access_behind(store)
    assert access.replaces == (kind != "postgres")  # there, a killed call has to be repeated
    if not access.replaces:
        return
    monkeypatch.setattr(access, "delete", None)  # never called
    first, last = (node("billing", "one", label="billing", page=1), node("shipping", "one"))
    for revision in (first, last):
        store.add([revision])
    (found,) = access.read([first.node_id])
    assert (found.text, found.metadata) == (last.text, last.metadata)
    units = [np.array(v) / np.linalg.norm(v) for v in (found.embedding, last.embedding)]
    np.testing.assert_allclose(*units, atol=1e-5)  # Qdrant keeps directions
    assert access.ids().count(first.node_id) == 1
    if kind == "chroma":  # which merges metadata
        (metadata,) = store.inner.client.get(ids=[first.node_id])["metadatas"]
        assert not {"page", "label"} & metadata.keys()


def test_delete_by_document_forgets_and_purges_the_quarantine_but_confirmed_poison(store):
    store.add(mixed(document="doc"))
    store.quarantine.confirm(ids_of(bad())[:1])
    store.delete("doc")
    assert store.quarantine.count() == 0
    assert store.quarantine.count(None) == 1
    assert len(live(store)) == len(known())
    assert_in_step(store)


def test_a_document_called_none_owns_no_nodes_without_a_document(store):
    store.add([node("billing extra", label="billing", document="None")])
    store.delete("None")
    assert sorted(ids_of(live(store))) == sorted(ids_of(known()))


def test_clear_forgets_everything_but_the_quarantine(store):
    store.add(bad())
    store.clear()
    assert live(store) == []
    assert store.guard.writes.known(ids_of(known())) == []
    assert store.quarantine.count() == 2
    store.add(known())
    assert_in_step(store)


def test_results_stay_parallel_and_are_as_many_as_asked_for(store):
    store.add(bad())
    store.inner.add(bad())  # past the guard
    result = store.query(ask("shipping bad 0", k=5))
    assert len(result.nodes) == len(result.ids) == len(result.similarities) == 5
    assert not set(result.ids) & set(ids_of(bad()))
    assert result.ids == ids_of(result.nodes)
    bare = store.inner.query(ask("shipping bad 0", k=7))
    assert result.ids == [i for i in bare.ids if i not in ids_of(bad())]
    assert result.similarities == [
        s for i, s in zip(bare.ids, bare.similarities, strict=True) if i not in ids_of(bad())
    ]
    assert not set(ids_of(store.get_nodes(ids_of(bad()))))


def test_a_node_without_a_vector_is_named(store):
    with pytest.raises(InvalidBatchError, match=id_of("plain")):
        store.add([node("plain", vector=False)])


@pytest.mark.parametrize("kind", ["chroma", *slowly("postgres", "milvus", "lancedb")])
@pytest.mark.slow
async def test_async_methods_match_the_sync_ones(kind, make_store):
    store = GuardedVectorStore(make_store(kind), guard=guard_of())
    await store.async_add(known())
    assert await store.async_add(mixed(document="doc")) == ids_of(mixed())
    assert [held.id for held in store.quarantine.list()] == ids_of(bad())
    assert_in_step(store)
    result = await store.aquery(ask("billing new 0"))
    assert result.ids[0] == id_of("billing new 0")
    await store.arelease(ids_of(bad())[:1])
    assert ids_of(await store.aget_nodes(ids_of(bad()))) == ids_of(bad())[:1]
    assert_in_step(store)
    await store.adelete_nodes(ids_of(bad())[:1])
    await store.adelete("doc")
    assert store.quarantine.count() == 0
    assert_in_step(store)
    await store.aclear()
    assert live(store) == []


async def test_qdrant_store_works_with_only_an_async_client():
    from llama_index.vector_stores.qdrant import QdrantVectorStore  # noqa: PLC0415
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415

    client = AsyncQdrantClient(":memory:")
    store = GuardedVectorStore(QdrantVectorStore("only", aclient=client), guard=guard_of())
    await store.async_add(known())
    await store.async_add(mixed(document="doc"))
    found = await store.aquery(ask("shipping bad 0", k=30))
    assert set(found.ids) == set(ids_of([*known(), *good()]))
    await store.arelease(ids_of(bad()))
    assert len((await store.aquery(ask("shipping bad 0", k=30))).ids) == len(known()) + 4
    await store.adelete("doc")
    assert len((await store.aquery(ask("shipping bad 0", k=30))).ids) == len(known())
    assert_knows(store.guard, known())
    await client.close()


@pytest.mark.slow
async def test_a_write_that_is_cancelled_is_finished_and_loses_nothing(make_store):
    store = guarded_over(make_store("chroma"), None, known())
    access, text = access_behind(store), known()[0].text
    write, begun = access.write, threading.Event()

    def slow(nodes, **kwargs):
        begun.set()
        time.sleep(0.05)
        write(nodes, **kwargs)

    with patch.object(access, "write", slow):
        better = node("billing better", text, label="billing")
        task = asyncio.create_task(store.async_add([better]))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.adelete_nodes(["unheard-of"])  # waits for the write
    assert [n.text for n in store.get_nodes([id_of(text)])] == ["billing better"]
    assert_in_step(store)


def test_a_store_that_holds_nodes_is_adopted(make_store):
    inner = make_store("chroma")
    inner.add(known())
    store = GuardedVectorStore.adopt(inner, guard=guard_of())
    store.add(mixed())
    assert [held.id for held in store.quarantine.list()] == ids_of(bad())
    assert_in_step(store)


# The index


def retrieved(index, text, k=30):
    return ids_of(index.as_retriever(similarity_top_k=k).retrieve(text))


@pytest.mark.slow
def test_an_index_keeps_flipped_nodes_out_over_any_store(index):
    index.insert_nodes(mixed(vector=False))
    assert set(retrieved(index, "shipping bad 0")) == set(ids_of([*known(), *good()]))
    assert [held.id for held in index.quarantine.list()] == ids_of(bad())
    assert_in_step(index)
    for one in index.as_retriever(similarity_top_k=30).retrieve("billing new 0"):
        assert id_of(one.text) == one.node_id  # text and vector belong together
    found = index.as_retriever(similarity_top_k=1).retrieve("billing new 0")
    assert found[0].text == "billing new 0"


# An in-memory Qdrant of two clients is two databases; see the test with one.


@pytest.mark.slow
def test_index_releases_and_deletes_nodes(index, model):
    index.insert_nodes(mixed(vector=False, document="doc"))
    embedded = len(model.texts)
    index.release(ids_of(bad())[:1], by="anna")
    assert len(model.texts) == embedded  # no second embedding
    assert ids_of(bad())[0] in retrieved(index, "shipping bad 0")
    assert_in_step(index)
    index.delete_ref_doc("doc", delete_from_docstore=True)
    assert set(retrieved(index, "shipping bad 0")) == set(ids_of(known()))
    assert index.quarantine.count() == 0
    assert_in_step(index)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_holds_nodes_is_adopted(kind, make_store, model):
    context = StorageContext.from_defaults(vector_store=make_store(kind))
    bare = VectorStoreIndex(known(vector=False), storage_context=context, embed_model=model)
    index = adopt(bare, guard=guard_of())
    index.insert_nodes(mixed(vector=False))
    assert [held.id for held in index.quarantine.list()] == ids_of(bad())
    assert_in_step(index)


@pytest.mark.slow
def test_update_waits_until_its_held_part_is_released(index):
    update = document("d", "shipping turned")
    index.insert(document("d", "billing fine"))
    first = [n for n in live(index) if n.ref_doc_id == "d"]
    assert index.refresh_ref_docs([update]) == [True]
    assert [n.node_id for n in live(index) if n.ref_doc_id == "d"] == ids_of(first)
    (held,) = index.quarantine.list()
    assert index.docstore.get_document_hash("d") != update.hash
    index.refresh_ref_docs([update])
    assert index.quarantine.count(None) == 1  # the same id again
    index.quarantine.release([held.id])
    index.refresh_ref_docs([update])
    assert [n.text for n in live(index) if n.ref_doc_id == "d"] == ["shipping turned"]
    assert index.refresh_ref_docs([update]) == [False]
    assert index.quarantine.count("released") == 1  # the decision stands for the next time
    assert_in_step(index)


def test_an_update_replaces_nodes_that_the_guard_has_not_learned(index):
    first, second = (document("d", "billing fine", page=page) for page in (1, 2))
    for one in (first, second):
        one.excluded_embed_metadata_keys = ["label", "page"]
    index.insert(first)
    (before,) = [n for n in live(index) if n.ref_doc_id == "d"]
    index.guard.forget(to_batch([before], KEYS))
    index.update_ref_doc(second)  # the same text, so the same id
    assert [n.metadata["page"] for n in live(index) if n.ref_doc_id == "d"] == [2]
    assert_in_step(index)


def test_a_document_that_is_all_held_is_not_recorded(index):
    poison = document("d", "shipping poison")
    index.insert(poison)
    assert index.docstore.get_document_hash("d") is None
    assert index.quarantine.count() == 1


def test_index_struct_is_recorded_once_per_write(index):
    records = index.storage_context.index_store
    with patch.object(records, "add_index_struct", wraps=records.add_index_struct) as recorded:
        index.insert_nodes([*good(), *bad()])
        assert recorded.call_count == 1
        index.release(ids_of(bad())[:1])
        assert recorded.call_count == 2


def test_an_index_over_a_guarded_store_is_refused(store):
    context = StorageContext.from_defaults(vector_store=store)
    with pytest.raises(TypeError, match="guarded already"):
        GuardedVectorStoreIndex([], guard=guard_of(), storage_context=context)
    with pytest.raises(TypeError, match="already"):
        GuardedVectorStore(store, guard=guard_of())


def test_vector_store_of_a_guarded_index_is_read_only(index):
    with pytest.raises(NotImplementedError, match="insert_nodes"):
        index.vector_store.add(good())
    with pytest.raises(NotImplementedError, match="delete_ref_doc"):
        index.vector_store.delete("doc")


def test_nodes_that_came_in_are_not_changed(store):
    given = mixed()
    before = copy.deepcopy(given)
    store.add(given)
    assert [one.to_dict() for one in given] == [one.to_dict() for one in before]


def test_a_saved_index_and_its_saved_guard_go_on_as_before(tmp_path, model):
    index = GuardedVectorStoreIndex(known(vector=False), guard=guard_of(), embed_model=model)
    index.insert_nodes(bad(vector=False))
    index.storage_context.persist(str(tmp_path / "index"))
    index.guard.save(tmp_path / "guard")
    context = StorageContext.from_defaults(persist_dir=str(tmp_path / "index"))
    loaded = load_index_from_storage(context, embed_model=model)
    guard = Guard.load(tmp_path / "guard", quarantine=index.quarantine)
    again = adopt(loaded, guard=guard, fit=False)
    again.insert_nodes(mixed(vector=False))
    again.release(ids_of(bad()))
    assert set(retrieved(again, "shipping bad 0")) == set(ids_of([*known(), *mixed()]))
    assert_in_step(again)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_audit_quarantines_poison_stored_before_the_guard(kind, make_store, model):
    context = StorageContext.from_defaults(vector_store=make_store(kind))
    everything = [
        *(one for topic in TOPICS for one in about(topic, 40, vector=False)),
        *bad(vector=False),
    ]
    bare = VectorStoreIndex(everything, storage_context=context, embed_model=model)
    index = adopt(bare, guard=guard_of())
    assert {d.entry_id for d in index.scan(fpr=0.02).found} == set(ids_of(bad()))
    assert index.quarantine.count() == 0
    index.scan(fpr=0.02, quarantine=True)
    assert set(retrieved(index, "shipping bad 0", 200)) == set(ids_of(everything[:-2]))
    assert {held.id for held in index.quarantine.list()} == set(ids_of(bad()))
    assert_in_step(index)
    index.release(ids_of(bad()))
    assert set(retrieved(index, "shipping bad 0", 200)) == set(ids_of(everything))
    stays = index.scan(fpr=0.02, quarantine=True)
    assert index.quarantine.count() == 0
    assert stays.found == ()
