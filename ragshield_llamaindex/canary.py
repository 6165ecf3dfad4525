"""Canary access to LlamaIndex's indexes, retrievers, engines and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, NodeWithScore

from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.canary.knowledge_base import (
    Embedder,
    FunctionKnowledgeBase,
    KnowledgeBase,
    Passage,
)
from ragshield_llamaindex.index import GuardedVectorStoreIndex, access_behind


def knowledge_base(source: Any) -> KnowledgeBase | None:
    """Return the knowledge base behind an index, a retriever or an engine."""
    if isinstance(source, BaseIndex):
        # A new retriever for each query: older ones do not see nodes inserted later.
        kind = GuardedIndex if isinstance(source, GuardedVectorStoreIndex) else Asked
        return kind(source, lambda text, k: source.as_retriever(similarity_top_k=k).retrieve(text))
    if isinstance(source, BaseRetriever | BaseQueryEngine):
        ask: Any = source.retrieve  # engines pass a text on to their retriever
        return Asked(source, lambda text, _k: ask(text))  # they choose the number of results
    return None


def passage(item: Any) -> Passage | None:
    """Return a node as a passage."""
    node = item.node if isinstance(item, NodeWithScore) else item
    if not isinstance(node, BaseNode):
        return None
    return Passage.of(node.node_id, node.get_content(), node.metadata, node.ref_doc_id)


def embedder(model: Any) -> Embedder | None:
    """Return the interface to an embedding model."""
    if not isinstance(model, BaseEmbedding):
        return None
    return Embedder(
        lambda texts: [model.get_query_embedding(text) for text in texts],
        model.get_text_embedding_batch,
    )


def answerer(source: Any) -> Callable[[str], Any] | None:
    """Return a query engine's ``query``."""
    return source.query if isinstance(source, BaseQueryEngine) else None


class Asked(FunctionKnowledgeBase):
    """A knowledge base with a model and a store inside, or an index with one."""

    def __init__(self, source: Any, find: Callable[[str, int], Any]) -> None:
        super().__init__(find)
        self._source = source

    def size(self) -> int | None:
        """Return the number of nodes in the index behind it; None if it cannot be counted."""
        index = getattr(self._source, "_index", self._source)
        if not isinstance(index, VectorStoreIndex):
            return None
        try:
            return access_behind(index).count()
        except Exception:  # noqa: BLE001 - a store of another kind, or one that does not answer
            return None

    @property
    def embedder(self) -> Any:
        """The source's embedding model."""
        return getattr(self._source, "_embed_model", None)


class GuardedIndex(Asked):
    """A GuardedVectorStoreIndex."""

    @property
    def guarded(self) -> Guarded:
        """The index, which holds the nodes that it recalls."""
        index: Guarded = self._source
        return index
