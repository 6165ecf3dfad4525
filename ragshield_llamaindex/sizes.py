"""How many nodes a store holds; packages of stores are not imported until needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragshield_core.adapters.sizes import size_by

# Where guarded stores, indexes and retrievers keep what they ask.
INSIDE = ("inner", "_vector_store", "_index")


def size_of(source: Any) -> int | None:
    """Return how many nodes there are; None where nobody can be asked.

    Parameters
    ----------
    source
        A SimpleVectorStore, FaissVectorStore, ChromaVectorStore, QdrantVectorStore or
        PGVectorStore, or a retriever, an index or a guarded store around one.
    """
    return size_by(source, _COUNTS, INSIDE)


def _simple(store: Any) -> int:
    return len(store.data.embedding_dict)


def _faiss(store: Any) -> int:
    return int(store._faiss_index.ntotal)  # noqa: SLF001 - there is no public way to it


def _chroma(store: Any) -> int:
    return int(store._collection.count())  # noqa: SLF001 - as above


def _qdrant(store: Any) -> int:
    return int(store.client.count(collection_name=store.collection_name).count)


def _postgres(store: Any) -> int:
    from sqlalchemy import func, select  # noqa: PLC0415 - slow to import

    query = select(func.count()).select_from(store._table_class)  # noqa: SLF001
    with store._session() as session:  # noqa: SLF001
        return int(session.scalar(query))


_COUNTS: tuple[Callable[[Any], int], ...] = (_simple, _faiss, _chroma, _qdrant, _postgres)
