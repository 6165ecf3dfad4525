"""LlamaIndex's indexes, retrievers, engines and models, as canaries ask them."""

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
    """Return what an index, a retriever or an engine asks."""
    if isinstance(source, BaseIndex):
        # By a new retriever each time: older ones do not see what is inserted.
        kind = GuardedIndex if isinstance(source, GuardedVectorStoreIndex) else Asked
        return kind(source, lambda text, k: source.as_retriever(similarity_top_k=k).retrieve(text))
    if isinstance(source, BaseRetriever | BaseQueryEngine):
        ask: Any = source.retrieve  # engines pass a text on to their retriever
        return Asked(source, lambda text, _k: ask(text))  # how many is their own affair
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
    """What has a model and a store, or an index with one, inside."""

    def __init__(self, source: Any, find: Callable[[str, int], Any]) -> None:
        super().__init__(find)
        self._source = source

    def size(self) -> int | None:
        """Return how many nodes the index behind it holds; None where nobody can be asked."""
        index = getattr(self._source, "_index", self._source)
        if not isinstance(index, VectorStoreIndex):
            return None
        try:
            return access_behind(index).count()
        except Exception:  # noqa: BLE001 - a store of another kind, or one that does not answer
            return None

    @property
    def embedder(self) -> Any:
        """Its model."""
        return getattr(self._source, "_embed_model", None)


class GuardedIndex(Asked):
    """A GuardedVectorStoreIndex."""

    @property
    def guarded(self) -> Guarded:
        """The index, which holds what it recalls."""
        index: Guarded = self._source
        return index
