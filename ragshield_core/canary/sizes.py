"""How many entries a store, an index or a retriever holds; no framework is imported.

Kinds of stores are known by what they have, as elsewhere in this package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

# Where guarded stores, retrievers and indexes keep what they ask.
INSIDE = ("inner", "vectorstore", "_vector_store", "_index")


def size_of(source: Any) -> int | None:
    """Return how many entries there are; None where nobody can be asked.

    Parameters
    ----------
    source
        A vector store of LangChain or LlamaIndex (in memory, FAISS, Chroma, Qdrant, PGVector,
        PGVectorStore), or a retriever, an index or a guard's wrapper around one.
    """
    waiting, seen = [source], set()
    while waiting:
        holder = waiting.pop(0)
        if holder is None or id(holder) in seen:
            continue
        seen.add(id(holder))
        for count in _COUNTS:
            try:
                return int(count(holder))
            except Exception:  # noqa: BLE001, S112 - it is of another kind, or does not answer
                continue
        waiting += [_attribute(holder, name) for name in INSIDE]
    return None


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a guarded store says what to use instead
        return None


def _faiss(store: Any) -> int:
    index = store.index if hasattr(store, "index_to_docstore_id") else store._faiss_index  # noqa: SLF001
    return int(index.ntotal)


def _in_memory(store: Any) -> int:
    """Of LangChain's InMemoryVectorStore, or of LlamaIndex's SimpleVectorStore."""
    held = store.data.embedding_dict if hasattr(store, "data") else store.store
    if not isinstance(held, dict):
        raise TypeError
    return len(held)


def _chroma(store: Any) -> int:
    return int(store._collection.count())  # noqa: SLF001 - there is no public way to it


def _qdrant(store: Any) -> int:
    return int(store.client.count(collection_name=store.collection_name).count)


def _postgres(store: Any) -> int:
    from sqlalchemy import func, select  # noqa: PLC0415 - slow to import

    if hasattr(store, "_table_class"):  # LlamaIndex's
        query = select(func.count()).select_from(store._table_class)  # noqa: SLF001
        with store._session() as session:  # noqa: SLF001
            return int(session.scalar(query))
    with store._make_sync_session() as session:  # noqa: SLF001
        table, collection = store.EmbeddingStore, store.get_collection(session)
        query = select(func.count()).where(table.collection_id == collection.uuid)
        return int(session.scalar(query))


def _postgres_table(store: Any) -> int:
    """Of LangChain's PGVectorStore, unless it works on the event loop that asks."""
    from sqlalchemy import func, select, table  # noqa: PLC0415

    engine, inside = store._engine, store._PGVectorStore__vs  # noqa: SLF001 - no public way either
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
    *(_postgres, _postgres_table),
)
