"""Access to the nodes of each kind of store that can be guarded, one file per kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragshield_core.model.entries import Batch
from ragshield_core.store import inner
from ragshield_llamaindex.convert import node_of, text_of
from ragshield_llamaindex.inner.base import InnerStore
from ragshield_llamaindex.inner.chroma import ChromaInner
from ragshield_llamaindex.inner.generic import GenericInner
from ragshield_llamaindex.inner.lancedb import LanceInner
from ragshield_llamaindex.inner.milvus import MilvusInner
from ragshield_llamaindex.inner.postgres import PostgresInner
from ragshield_llamaindex.inner.qdrant import QdrantInner

__all__ = ["InnerStore", "access_to", "check_inner_store"]

KINDS = (ChromaInner, QdrantInner, PostgresInner, MilvusInner, LanceInner)


def access_to(store: BasePydanticVectorStore) -> InnerStore:
    """Return access to a store that keeps texts.

    Raises
    ------
    TypeError
        If the store keeps vectors only, or has no methods to read and delete nodes by id.
    """
    if not store.stores_text:
        msg = (
            f"{type(store).__name__} keeps vectors only (stores_text=False), and an index maps its "
            "ids to nodes by position: leaving a node out would serve its text under the vector of "
            "another. Guard the index: GuardedVectorStoreIndex(nodes, guard=guard, "
            "storage_context=...), or its from_documents(documents, guard=guard)."
        )
        raise TypeError(msg)
    for kind in KINDS:
        if kind.handles(type(store)):
            return kind(store)
    missing = [name for name in GenericInner.USED if _inherits(store, name)]
    if missing:
        msg = (
            f"{type(store).__name__} has no {' and no '.join(missing)}, without which nothing in "
            "it can be replaced or recalled; pass inner_store=, an InnerStore that knows how."
        )
        raise TypeError(msg)
    return GenericInner(store)


def _inherits(store: BasePydanticVectorStore, name: str) -> bool:
    """Return whether a store inherits a method of the base class, which only raises."""
    return getattr(type(store), name) is getattr(BasePydanticVectorStore, name)


def check_inner_store(access: InnerStore, dim: int = inner.DIM) -> None:
    """Check your own access class on an empty store; call this in its tests.

    Raises
    ------
    AssertionError
        Describes how the store behaves differently.
    """

    def write(batch: Batch) -> None:
        pairs = zip(batch, batch.vectors, strict=True)
        access.write([node_of(entry, vector.tolist()) for entry, vector in pairs])

    def read(ids: Sequence[str]) -> dict[str, Any]:
        nodes = access.read(ids)
        return {one.node_id: (text_of(one), one.metadata, one.get_embedding()) for one in nodes}

    inner.check_inner_store(access, write, read, dim)
