"""Indexes of two tenants in one database never show, judge or name each other's documents."""

import pytest
from llama_index.core.schema import Document
from llama_support import TopicEmbedding
from support import Scripted

from ragshield_core import Guard
from ragshield_core.model.errors import QuarantineError
from ragshield_llamaindex import GuardedVectorStoreIndex


def index_of(url, namespace):
    guard = Guard.open(url, namespace, detectors=[Scripted()])
    return GuardedVectorStoreIndex([], guard=guard, embed_model=TopicEmbedding())


def found(index):
    nodes = index.as_retriever(similarity_top_k=5).retrieve("billing")
    return sorted(node.text for node in nodes)


def told(index):
    quarantine = index.guard.quarantine
    held = [(one.entry.text, str(one.status)) for one in quarantine.list(None)]
    return found(index), held, len(quarantine.log.lines()), str(index.guard.status())


def test_documents_of_one_are_nothing_to_the_other(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    mine, theirs = index_of(url, "mine"), index_of(url, "theirs")
    for index in (mine, theirs):
        index.insert(Document(id_="doc", text="billing one"))
        index.insert(Document(id_="bad", text="billing score=5"))
    before = told(mine)
    theirs.release(["bad"], by="anna")
    theirs.update_ref_doc(Document(id_="doc", text="billing three"))
    theirs.recall([node.node_id for node in theirs.as_retriever().retrieve("billing")], by="anna")
    theirs.delete_ref_doc("doc")
    assert told(mine) == before
    assert found(mine) == ["billing one"]
    assert found(theirs) == []
    mine.delete_ref_doc("bad")
    with pytest.raises(QuarantineError):
        mine.release(["bad"], by="anna")
    assert theirs.guard.quarantine.count() > 0
