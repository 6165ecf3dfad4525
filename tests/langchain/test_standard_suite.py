"""LangChain's own suite for vector stores, asked of the guarded ones."""

import faiss
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests.vectorstores import (
    EMBEDDING_SIZE,
    VectorStoreIntegrationTests,
)

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_langchain import GuardedVectorStore


def guarded(inner):
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    return GuardedVectorStore(inner, guard=guard)


class TestGuardedInMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        return guarded(InMemoryVectorStore(self.get_embeddings()))


class TestGuardedFaiss(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        index = faiss.IndexFlatL2(EMBEDDING_SIZE)
        return guarded(FAISS(self.get_embeddings(), index, InMemoryDocstore(), {}))
