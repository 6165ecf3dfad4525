"""Workers of one store whose guards were opened on one database are as one."""

import asyncio

import pytest
from llama_index.core.schema import Document, TextNode
from llama_support import TopicEmbedding
from support import Scripted, vector_of

from ragshield_core import Guard
from ragshield_llamaindex import GuardedVectorStore, GuardedVectorStoreIndex

IDS = ("a", "b", "c")


@pytest.fixture
def workers(make_store, tmp_path):
    """Return two stores, as two processes have them, around the same one."""
    inner, url = make_store("chroma"), f"sqlite:///{tmp_path}/guard.db"
    return [
        GuardedVectorStore(inner, guard=Guard.open(url, detectors=[Scripted()])) for _ in range(2)
    ]


def add(store, **texts):
    store.add([TextNode(id_=i, text=t, embedding=vector_of(t).tolist()) for i, t in texts.items()])


def live(store):
    return {node.node_id for node in store.get_nodes(list(IDS))}


def known(workers):
    for store in workers:
        store.guard.catch_up()
    first, second = (set(store.guard.known(IDS)) for store in workers)
    assert first == second
    assert workers[0].guard.status().pending == 0
    return first


def test_what_one_writes_holds_and_releases_the_other_knows(workers):
    first, second = workers
    add(first, a="billing a", b="billing score=5")
    assert known(workers) == live(second) == {"a"}
    add(second, a="billing again", c="refunds c")
    assert known(workers) == live(first) == {"a", "c"}
    asyncio.run(second.arelease(["b"], by="anna"))
    assert known(workers) == live(first) == {"a", "b", "c"}
    second.recall(["a"], by="anna")
    first.delete_nodes(["c"])
    assert known(workers) == live(first) == {"b"}


def test_documents_are_updated_and_deleted_for_all(tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    guard, other = (Guard.open(url, detectors=[Scripted()]) for _ in range(2))
    index = GuardedVectorStoreIndex([], guard=guard, embed_model=TopicEmbedding())
    index.insert(Document(id_="doc", text="billing one"))
    index.insert(Document(id_="gone", text="billing two"))
    index.update_ref_doc(Document(id_="doc", text="billing three"))
    index.delete_ref_doc("gone")
    index.update_ref_doc(Document(id_="doc", text="billing score=5"))  # is held
    other.catch_up()
    (node,) = index.index_struct.nodes_dict.values()
    assert other.known([node]) == [node]
    assert other.status().n_known == guard.status().n_known == 1
    assert other.status().pending == 0
    assert other.quarantine.count() == 1
