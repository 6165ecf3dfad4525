"""How many documents a store holds; packages of stores are not imported until needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ragshield_core.adapters.sizes import size_by

# Where guarded stores and retrievers keep what they ask.
INSIDE = ("inner", "vectorstore")


def size_of(source: Any) -> int | None:
    """Return how many documents there are; None where nobody can be asked.

    Parameters
    ----------
    source
        An InMemoryVectorStore, FAISS, Chroma, QdrantVectorStore, PGVector or PGVectorStore, or a
        retriever or a guarded store around one.
    """
    return size_by(source, _COUNTS, INSIDE)


def _faiss(store: Any) -> int:
    if not hasattr(store, "index_to_docstore_id"):
        raise TypeError
    return int(store.index.ntotal)


def _in_memory(store: Any) -> int:
    if not isinstance(store.store, dict):
        raise TypeError
    return len(store.store)


def _chroma(store: Any) -> int:
    return int(store._collection.count())  # noqa: SLF001 - there is no public way to it


def _qdrant(store: Any) -> int:
    return int(store.client.count(collection_name=store.collection_name).count)


def _pgvector(store: Any) -> int:
    from sqlalchemy import func, select  # noqa: PLC0415 - slow to import

    with store._make_sync_session() as session:  # noqa: SLF001 - no public way either
        table, collection = store.EmbeddingStore, store.get_collection(session)
        query = select(func.count()).where(table.collection_id == collection.uuid)
        return int(session.scalar(query))


def _pgvectorstore(store: Any) -> int:
    """Return the size of a PGVectorStore, unless it works on the event loop that asks."""
    from sqlalchemy import func, select, table  # noqa: PLC0415

    engine, inside = store._engine, store._PGVectorStore__vs  # noqa: SLF001
    if engine._loop is None or engine._loop is asyncio._get_running_loop():  # noqa: SLF001
        raise TypeError

    async def count() -> int:
        query = select(func.count()).select_from(
            table(inside.table_name, schema=inside.schema_name)
        )
        async with inside.engine.connect() as connection:
            return int(await connection.scalar(query))

    return int(engine._run_as_sync(count()))  # noqa: SLF001


_COUNTS: tuple[Callable[[Any], int], ...] = (
    *(_faiss, _in_memory, _chroma, _qdrant),
    *(_pgvector, _pgvectorstore),
)
