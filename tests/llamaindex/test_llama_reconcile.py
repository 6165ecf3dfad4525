"""Nodes written past a guarded store or index, or lost, cause a warning; reconcile repairs them."""

import uuid
import warnings

import pytest
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import TextNode
from llama_support import TEXT_KINDS, TopicEmbedding
from support import Scripted, the_one, vector_of

from ragshield_core import Guard
from ragshield_llamaindex import (
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    StoreDiffersWarning,
    adopt,
)
from ragshield_llamaindex.index import access_behind
from ragshield_llamaindex.inner import access_to


def opened(url):
    return Guard.open(url, detectors=[Scripted()])


def named(letter):
    """Return an id that every store takes."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, letter))


def node(letter, text):
    return TextNode(id_=named(letter), text=text, embedding=vector_of(text).tolist())


def quiet(make):
    """Return what ``make`` returns; a warning of ours is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreDiffersWarning)
        return make()


@pytest.mark.parametrize("kind", TEXT_KINDS)
@pytest.mark.slow
def test_reconcile_repairs_a_store_after_a_warning_at_opening(kind, make_store, url):
    inner = make_store(kind)
    first = quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))
    first.add([node(i, f"billing {i}") for i in "abc"])
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))
    inner.add([node("p", "billing p"), node("x", "billing score=5")])
    access_to(inner).delete([named("c")])
    with pytest.warns(StoreDiffersWarning, match=r"holds 2 .*lacks 1 ") as seen:
        store = GuardedVectorStore(inner, guard=opened(url))
    assert the_one(seen, StoreDiffersWarning).filename == __file__
    found = store.reconcile(adopt=True, forget=True)
    assert (found.adopted, found.held) == ((named("p"),), (named("x"),))
    assert found.forgotten == (named("c"),)
    assert set(access_behind(first).ids()) == {named(i) for i in "abp"}
    assert first.reconcile().agrees
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))


@pytest.mark.slow
def test_reconcile_repairs_an_index_over_a_simple_store(url, tmp_path):
    model = TopicEmbedding()
    index = GuardedVectorStoreIndex([], guard=opened(url), embed_model=model)
    index.insert_nodes([node(i, f"billing {i}") for i in "abc"])
    folder = str(tmp_path / "saved")
    index.storage_context.persist(folder)
    bare = load_index_from_storage(
        StorageContext.from_defaults(persist_dir=folder), embed_model=model
    )
    quiet(lambda: adopt(bare, guard=opened(url), fit=False))
    bare.insert_nodes([node("p", "billing p"), node("x", "billing score=5")])
    bare.delete_nodes([named("c")], delete_from_docstore=True)
    with pytest.warns(StoreDiffersWarning, match=r"the index .*holds 2 .*lacks 1 "):
        again = adopt(bare, guard=opened(url), fit=False)
    found = again.reconcile(adopt=True, forget=True)
    assert (found.adopted, found.held) == ((named("p"),), (named("x"),))
    assert found.forgotten == (named("c"),)
    assert set(again.index_struct.nodes_dict.values()) == {named(i) for i in "abp"}
    assert again.reconcile().agrees
    assert {one.node_id for one in again.as_retriever(similarity_top_k=9).retrieve("billing")} == {
        named(i) for i in "abp"
    }


@pytest.mark.slow
def test_rebuilding_an_index_warns_of_missing_nodes(url):
    model = TopicEmbedding()
    nodes = [node(i, f"billing {i}") for i in "ab"]
    GuardedVectorStoreIndex(nodes, guard=opened(url), embed_model=model)
    with pytest.warns(StoreDiffersWarning, match="lacks 2 "):
        index = GuardedVectorStoreIndex(nodes, guard=opened(url), embed_model=model)
    assert index.reconcile().agrees
    quiet(lambda: GuardedVectorStoreIndex(nodes, guard=opened(url), embed_model=model, check=False))


async def test_a_client_that_is_asynchronous_only_is_asked_by_async_methods(url):
    from llama_index.vector_stores.qdrant import QdrantVectorStore  # noqa: PLC0415
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415

    inner = QdrantVectorStore("only-async", aclient=AsyncQdrantClient(":memory:"))
    store = GuardedVectorStore(inner, guard=opened(url))
    await store.async_add([node("a", "billing a")])
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))  # cannot be asked from here
    assert (await store.areconcile()).agrees
    with pytest.raises(NotImplementedError, match="use the async ones, such as areconcile"):
        store.reconcile()


def test_empty_index_over_a_simple_store_reconciles(url):
    index = adopt(VectorStoreIndex([], embed_model=TopicEmbedding()), guard=opened(url))
    assert index.reconcile().agrees
