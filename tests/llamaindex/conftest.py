"""Empty stores of every kind."""

import uuid

import pytest
from llama_support import TopicEmbedding
from support import DIM

NEWER = "newer "


@pytest.fixture(scope="session")
def milvus(tmp_path_factory):
    """Return a file of Milvus Lite for all tests of a process; each starts a server."""
    return str(tmp_path_factory.mktemp("milvus") / "llama.db")


def make_milvus(request, name, dim):
    from llama_index.vector_stores.milvus import MilvusVectorStore  # noqa: PLC0415

    file = request.getfixturevalue("milvus")
    store = MilvusVectorStore(file, collection_name=name, dim=dim, use_async_client=False)
    return store, lambda: store.client.drop_collection(name)


def make_lancedb(request, name, dim):  # noqa: ARG001 - as the other
    from llama_index.vector_stores.lancedb import LanceDBVectorStore  # noqa: PLC0415

    folder = request.getfixturevalue("tmp_path") / name
    return LanceDBVectorStore(str(folder)), lambda: None


# How an empty store in files is made, and how it ends.
IN_FILES = {"milvus": make_milvus, "lancedb": make_lancedb}


@pytest.fixture
def make_store(request):
    """Return a function that makes an empty, bare store of a kind.

    Those of PostgreSQL are on a newer server where the kind says so.
    """
    undo = []

    def make(kind, dim=DIM):
        server = "newer_postgres_url" if kind.startswith(NEWER) else "postgres_url"
        name = f"test_{uuid.uuid4().hex}"
        if kind in IN_FILES:
            store, end = IN_FILES[kind](request, name, dim)
            undo.append(end)
            return store
        if kind == "simple":
            from llama_index.core.vector_stores import SimpleVectorStore  # noqa: PLC0415

            return SimpleVectorStore()
        if kind == "faiss":
            import faiss  # noqa: PLC0415
            from llama_index.vector_stores.faiss import FaissVectorStore  # noqa: PLC0415

            return FaissVectorStore(faiss.IndexFlatL2(dim))
        if kind == "chroma":
            import chromadb  # noqa: PLC0415 - slow to import
            from llama_index.vector_stores.chroma import ChromaVectorStore  # noqa: PLC0415

            client = chromadb.EphemeralClient()
            undo.append(lambda: client.delete_collection(name))
            return ChromaVectorStore(client.create_collection(name))
        if kind == "qdrant":
            from llama_index.vector_stores.qdrant import QdrantVectorStore  # noqa: PLC0415
            from qdrant_client import QdrantClient  # noqa: PLC0415

            client = QdrantClient(":memory:")
            undo.append(client.close)
            return QdrantVectorStore(name, client=client)
        from llama_index.vector_stores.postgres import PGVectorStore  # noqa: PLC0415
        from sqlalchemy import NullPool, make_url  # noqa: PLC0415

        url = make_url(request.getfixturevalue(server))
        store = PGVectorStore(
            connection_string=url.set(drivername="postgresql+psycopg2"),
            async_connection_string=url.set(drivername="postgresql+asyncpg"),
            table_name=name,
            embed_dim=dim,
            create_engine_kwargs={"poolclass": NullPool},
            initialization_fail_on_error=True,
        )
        undo.append(lambda: drop(store))
        return store

    def drop(store):
        if store._engine is None:  # it was never used
            return
        with store._engine.begin() as connection:
            store._table_class.__table__.drop(connection, checkfirst=True)

    yield make
    for step in reversed(undo):
        step()


@pytest.fixture
def model():
    return TopicEmbedding()
