"""Access to the kinds of stores that can be guarded, one file per kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.vectorstores import VectorStore

from ragshield_core import Batch
from ragshield_core.store import inner
from ragshield_core.store.inner import DIM, in_thread
from ragshield_langchain.inner.base import InnerStore, Stored, off_loop
from ragshield_langchain.inner.chroma import ChromaInner
from ragshield_langchain.inner.faiss import FaissInner
from ragshield_langchain.inner.lancedb import LanceInner
from ragshield_langchain.inner.memory import InMemoryInner
from ragshield_langchain.inner.milvus import MilvusInner
from ragshield_langchain.inner.pgvectorstore import PGVectorStoreInner
from ragshield_langchain.inner.postgres import PostgresInner
from ragshield_langchain.inner.qdrant import QdrantInner

__all__ = [
    "InnerStore",
    "Stored",
    "access_to",
    "check_inner_store",
    "count_of",
    "in_thread",
    "off_loop",
]

KINDS: tuple[type[InnerStore], ...] = (
    InMemoryInner,
    FaissInner,
    ChromaInner,
    QdrantInner,
    PostgresInner,
    PGVectorStoreInner,
    MilvusInner,
    LanceInner,
)


def access_to(store: VectorStore) -> InnerStore:
    """Return access to a store.

    Raises
    ------
    TypeError
        If the store is of no known kind.
    """
    for kind in KINDS:
        if kind.handles(type(store)):
            return kind(store)
    msg = (
        f"a store of type {type(store).__name__} cannot be guarded yet, expected "
        "InMemoryVectorStore, FAISS, Chroma, QdrantVectorStore, PGVector, PGVectorStore, Milvus "
        "or LanceDB; pass inner_store=, a subclass of ragshield_langchain.InnerStore that writes "
        "and reads its vectors."
    )
    raise TypeError(msg)


def count_of(source: Any) -> int | None:
    """Return the number of documents; None if the store cannot be asked.

    Parameters
    ----------
    source
        A store of a known kind, or a retriever or a guarded store around one.
    """
    try:
        store = getattr(source, "vectorstore", source)
        return access_to(getattr(store, "inner", store)).count()
    except Exception:  # noqa: BLE001 - any error of the store
        return None


def check_inner_store(access: InnerStore, dim: int = DIM) -> None:
    """Check the access to an empty store of your own, as its tests should.

    Raises
    ------
    AssertionError
        If the store does not behave as expected; the message says how.
    """

    def write(batch: Batch) -> None:
        access.write(batch, [dict(metadata) for metadata in batch.metadatas])

    def read(ids: Sequence[str]) -> dict[str, Any]:
        documents, vectors = access.read(ids)
        pairs = zip(documents, vectors, strict=True)
        return {str(d.id): (d.page_content, d.metadata, vector) for d, vector in pairs}

    inner.check_inner_store(access, write, read, dim)
