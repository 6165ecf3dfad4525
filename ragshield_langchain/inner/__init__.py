"""What a guard needs of the store inside: to write vectors as they are, and to read them back.

LangChain's interface has neither: ``add_documents`` embeds the texts again, and no method returns
vectors. One small class per kind of store fills the gap.
"""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ragshield_langchain.inner.base import InnerStore, Stored, in_thread, off_loop
from ragshield_langchain.inner.chroma import ChromaInner
from ragshield_langchain.inner.faiss import FaissInner
from ragshield_langchain.inner.memory import InMemoryInner
from ragshield_langchain.inner.pgvectorstore import PGVectorStoreInner
from ragshield_langchain.inner.postgres import PostgresInner
from ragshield_langchain.inner.qdrant import QdrantInner

__all__ = ["InnerStore", "Stored", "access_to", "create_store", "in_thread", "off_loop", "size_of"]

KINDS: tuple[type[InnerStore], ...] = (
    InMemoryInner,
    FaissInner,
    ChromaInner,
    QdrantInner,
    PostgresInner,
    PGVectorStoreInner,
)
EXPECTED = "InMemoryVectorStore, FAISS, Chroma, QdrantVectorStore, PGVector or PGVectorStore"


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
        f"a store of type {type(store).__name__} cannot be guarded yet, expected {EXPECTED}; pass "
        "inner_store=, a subclass of ragshield_langchain.InnerStore that writes and reads its "
        "vectors."
    )
    raise TypeError(msg)


def create_store(
    store_cls: type[VectorStore], embedding: Embeddings, dim: int, options: dict[str, Any]
) -> VectorStore:
    """Return a new, empty store of a known class.

    Raises
    ------
    TypeError
        If the class is of no known kind.
    """
    for kind in KINDS:
        if kind.handles(store_cls):
            return kind.create(store_cls, embedding, dim, options)
    msg = (
        f"vectorstore_cls is {store_cls.__name__}, expected {EXPECTED}; make the empty store "
        "yourself and wrap it: GuardedVectorStore(store, guard=guard)."
    )
    raise TypeError(msg)


def size_of(source: Any) -> int | None:
    """Return how many documents there are; None where nobody can be asked.

    Parameters
    ----------
    source
        A store of a known kind, or a retriever or a guarded store around one.
    """
    try:
        store = getattr(source, "vectorstore", source)
        return access_to(getattr(store, "inner", store)).size()
    except Exception:  # noqa: BLE001 - of whatever kind it is
        return None
