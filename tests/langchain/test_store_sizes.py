"""Canaries know how many entries the stores hold."""

import pytest
from support import DIM, CountingEmbeddings

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.tools.canary.interfaces import as_knowledge_base
from ragshield_langchain import GuardedVectorStore

IDS = [f"0d706099-6dd9-412a-9df6-a71043e020d{n}" for n in range(3)]


@pytest.mark.parametrize(
    "kind", ["memory", "faiss", "chroma", "qdrant", "postgres", "pgvectorstore"]
)
def test_the_size_of_a_store_is_known(kind, make_store):
    store = make_store(kind, CountingEmbeddings(), DIM)
    assert as_knowledge_base(store).size() == 0
    store.add_texts(["one", "two", "three"], ids=IDS)
    assert as_knowledge_base(store).size() == 3
    assert as_knowledge_base(store.as_retriever()).size() == 3
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    assert as_knowledge_base(GuardedVectorStore(store, guard=guard)).size() == 3
