"""The mask that hides held nodes of the store inside from reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.mask import PAGE, Claims, Search
from ragshield_core.store.mask import Mask as CoreMask
from ragshield_core.store.steps import Steps, asynchronous, synchronous
from ragshield_llamaindex.convert import context_of, text_of
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.inner import InnerStore

# Fields of a query that limit the number of results.
LIMITS = ("similarity_top_k", "sparse_top_k", "hybrid_top_k")


class Mask(CoreMask[BaseNode]):
    """Tells which revisions are held.

    Parameters
    ----------
    keys
        The metadata keys of a revision's claims.
    """

    def __init__(self, keys: MetadataKeys) -> None:
        super().__init__()
        self._keys = keys

    def id_of(self, item: BaseNode) -> str:
        """Return the id of a node."""
        return item.node_id

    def claims_of(self, item: BaseNode) -> Claims:
        """Return text, label, lineage and context of a node."""
        label, lineage = self._keys.claims(item.metadata, item.node_id, item.ref_doc_id)
        return Claims(text_of(item), label, lineage, context_of(item))

    def visible(self, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        """Return the nodes that are not held."""
        self.catch_up()
        return [node for node in nodes if not self.hides(node)]


class MaskedStore(BasePydanticVectorStore):
    """A vector store whose reads return those of the store inside, without held nodes."""

    stores_text: bool = True
    is_embedding_query: bool = True

    _access: InnerStore = PrivateAttr()
    _mask: Mask = PrivateAttr()

    @property
    def client(self) -> Any:
        """Client of the store inside; the guard does not see calls made on it."""
        return self._access.inner.client

    @dispatcher.span
    @synchronous
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> Steps[VectorStoreQueryResult]:
        """Return the nodes most similar to a query; nodes, similarities and ids are parallel."""
        self._mask.catch_up()
        # Some stores keep several revisions under one id, hence the page.
        search = Search(self._mask, query.similarity_top_k, others=self._orphans() + PAGE)
        while True:
            extra = search.asked - query.similarity_top_k
            limits = {name: getattr(query, name) for name in LIMITS}
            more = {name: k + extra for name, k in limits.items() if k is not None}
            wider = replace(query, **more) if extra else query
            result: VectorStoreQueryResult = yield self._access.asking("query", wider, **kwargs)
            ids, nodes = result.ids, result.nodes
            n = len(ids if ids is not None else nodes or ())
            seen = (
                self._shows(None if ids is None else ids[row], nodes[row] if nodes else None)
                for row in range(n)
            )
            if search.enough(n, seen):
                break
        if len(search.rows) == n:
            return result

        def chosen(column: Any) -> Any:
            return [column[row] for row in search.rows] if column else column

        columns = map(chosen, (nodes, result.similarities, ids))
        return VectorStoreQueryResult(*columns)

    aquery = dispatcher.span(asynchronous(query))

    @synchronous
    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> Steps[list[BaseNode]]:
        """Return stored nodes; missing and held ones are ignored."""
        return self._mask.visible((yield self._access.asking("get_nodes", node_ids, filters)))

    aget_nodes = asynchronous(get_nodes)  # type: ignore[arg-type]

    def _shows(self, _entry_id: str | None, node: BaseNode | None) -> bool:
        """Return whether a result is visible, by its id and its node."""
        return node is None or not self._mask.hides(node)

    def _orphans(self) -> int:
        """Return the number of vectors without a node."""
        return 0
