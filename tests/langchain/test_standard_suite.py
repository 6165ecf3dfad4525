"""LangChain's own suite for vector stores, asked of the guarded ones."""

import pytest
from langchain_tests.integration_tests.vectorstores import (
    EMBEDDING_SIZE,
    VectorStoreIntegrationTests,
)

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_langchain import GuardedVectorStore


class GuardedSuite(VectorStoreIntegrationTests):
    kind: str
    options = {}  # noqa: RUF012

    @pytest.fixture
    def vectorstore(self, make_store):
        guard = Guard(
            [CliqueDetector(), LabelCentroidDetector()], quarantine=Quarantine("sqlite://")
        )
        inner = make_store(self.kind, self.get_embeddings(), EMBEDDING_SIZE, **self.options)
        return GuardedVectorStore(inner, guard=guard)


class TestGuardedInMemory(GuardedSuite):
    kind = "memory"


@pytest.mark.slow
class TestGuardedFaiss(GuardedSuite):
    kind = "faiss"


class TestGuardedChroma(GuardedSuite):
    kind = "chroma"


@pytest.mark.slow
class TestGuardedQdrant(GuardedSuite):
    kind = "qdrant"


@pytest.mark.slow
class TestGuardedPostgres(GuardedSuite):
    kind = "postgres"


@pytest.mark.slow
class TestGuardedPGVectorStore(GuardedSuite):
    kind = "pgvectorstore"


@pytest.mark.slow
class TestGuardedPGVectorStoreAsyncpg(GuardedSuite):
    kind = "pgvectorstore"
    options = {"driver": "asyncpg"}  # noqa: RUF012


@pytest.mark.slow
class TestGuardedPostgresAsync(GuardedSuite):
    kind = "postgres"
    options = {"async_mode": True}  # noqa: RUF012


# PGVector refuses its synchronous methods in async mode, so that half of the suite has to fail.
for _name in dir(VectorStoreIntegrationTests):
    if _name.startswith("test_") and not _name.endswith(("_async", "DO_NOT_OVERRIDE")):

        def _test(self, vectorstore, name=_name):
            getattr(VectorStoreIntegrationTests, name)(self, vectorstore)

        _xfail = pytest.mark.xfail(
            reason="a PGVector in async mode has no synchronous methods",
            raises=(AssertionError, RuntimeError, ValueError),
        )
        setattr(TestGuardedPostgresAsync, _name, _xfail(_test))

del GuardedSuite  # else it is collected as well
