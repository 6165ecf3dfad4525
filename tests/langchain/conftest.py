"""Empty stores of every kind."""

import uuid
import warnings

import faiss
import pytest
from langchain_core.vectorstores import InMemoryVectorStore

NEWER = "newer "


@pytest.fixture(scope="session")
def milvus(tmp_path_factory):
    """Return a file of Milvus Lite for all tests of a process; each starts a server."""
    return str(tmp_path_factory.mktemp("milvus") / "tests.db")


def make_milvus(request, name, embedding):
    from langchain_milvus import Milvus  # noqa: PLC0415

    file = {"uri": request.getfixturevalue("milvus")}
    store = Milvus(embedding, name, connection_args=file, enable_dynamic_field=True)
    return store, store.drop


def make_memory(request, name, embedding):  # noqa: ARG001 - as the others
    return InMemoryVectorStore(embedding), lambda: None


def make_lancedb(request, name, embedding):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from langchain_community.vectorstores import LanceDB  # noqa: PLC0415
    folder = request.getfixturevalue("tmp_path") / name
    # By default, its own writes replace the table.
    return LanceDB(uri=str(folder), embedding=embedding, mode="append"), lambda: None


# How an empty store of a kind without options is made, and how it ends.
SIMPLE = {"memory": make_memory, "milvus": make_milvus, "lancedb": make_lancedb}


@pytest.fixture
def make_store(request):
    """Return a function that makes an empty, bare store of a kind for vectors of a dimension.

    Those of PostgreSQL are on a newer server where the kind says so.
    """
    undo = []

    def make(kind, embedding, dim, **options):
        newer, kind = kind.startswith(NEWER), kind.removeprefix(NEWER)
        server = "newer_postgres_url" if newer else "postgres_url"
        name = f"test-{uuid.uuid4().hex}"
        if kind in SIMPLE:
            store, end = SIMPLE[kind](request, name.replace("-", "_"), embedding)
            undo.append(end)
            return store
        if kind == "faiss":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                from langchain_community.docstore.in_memory import (  # noqa: PLC0415
                    InMemoryDocstore,
                )
                from langchain_community.vectorstores import FAISS  # noqa: PLC0415
            index = options.get("index") or faiss.IndexFlatL2(dim)
            return FAISS(embedding, index, InMemoryDocstore(), {})
        if kind == "chroma":
            from langchain_chroma import Chroma  # noqa: PLC0415 - slow to import

            store = Chroma(collection_name=name, embedding_function=embedding)
            undo.append(store.delete_collection)
            return store
        if kind == "qdrant":
            from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415
            from qdrant_client import QdrantClient, models  # noqa: PLC0415

            client = QdrantClient(":memory:")
            distance = options.get("distance", models.Distance.COSINE)
            client.create_collection(
                name, vectors_config=models.VectorParams(size=dim, distance=distance)
            )
            undo.append(client.close)
            return QdrantVectorStore(
                client, name, embedding, distance=distance, validate_collection_config=False
            )
        if kind == "pgvectorstore":
            return make_table(name, embedding, dim, server, **options)
        from langchain_postgres import PGVector  # noqa: PLC0415
        from sqlalchemy import NullPool  # noqa: PLC0415

        settings = {
            "connection": request.getfixturevalue(server),
            "collection_name": name,
            "engine_args": {"poolclass": NullPool},
        }
        undo.append(lambda: PGVector(embedding, **settings).delete_collection())
        return PGVector(embedding, **settings, **options)

    def make_table(
        name,
        embedding,
        dim,
        server,
        *,
        ids="TEXT",
        driver="psycopg",
        loop=True,
        columns=(),
        **options,
    ):
        from langchain_postgres import Column, PGEngine, PGVectorStore  # noqa: PLC0415
        from sqlalchemy import NullPool  # noqa: PLC0415

        url = request.getfixturevalue(server).replace("+psycopg", f"+{driver}")
        engine = PGEngine.from_connection_string(url, poolclass=NullPool)
        engine.init_vectorstore_table(
            name,
            dim,
            id_column=Column("langchain_id", ids, nullable=False),
            metadata_columns=[Column(column, of) for column, of in columns],
            store_metadata=options.pop("store_metadata", True),
            hybrid_search_config=options.get("hybrid_search_config"),
        )
        undo.append(lambda: engine.drop_table(name))
        options |= {"metadata_columns": [column for column, _ in columns]}
        store = PGVectorStore.create_sync(engine, embedding, name, **options)
        if not loop:  # as after PGVectorStore.create with such an engine
            store._engine = PGEngine.from_engine(engine._pool)
        return store

    yield make
    for step in reversed(undo):
        step()
