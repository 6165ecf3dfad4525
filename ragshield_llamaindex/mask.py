"""Held nodes that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from ragshield_core.store.steps import Step, Steps, asked, asynchronous, synchronous
from ragshield_llamaindex.convert import context_of, text_of
from ragshield_llamaindex.events import dispatcher

# Whether a result may be seen, by its id and its node, as far as the store gives them.
Shows = Callable[[str | None, BaseNode | None], bool]


class Mask(CoreMask[BaseNode]):
    """Knows which revisions are held, and searches for more where results are hidden.

    Parameters
    ----------
    keys
        Where metadata says what belongs to a revision.
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
        """Return nodes without those that are held."""
        self.catch_up()
        return [node for node in nodes if not self.hides(node)]

    def query(
        self,
        ask: Callable[[VectorStoreQuery], Step],
        query: VectorStoreQuery,
        shows: Shows,
        others: int = 0,
    ) -> Steps[VectorStoreQueryResult]:
        """Return the visible results of a query, in the order of the store.

        Parameters
        ----------
        ask
            The store's own query.
        query
            How many are wanted, and of what.
        shows
            Whether a result may be seen.
        others
            How many may be hidden beside those that are held.
        """
        self.catch_up()
        # Some stores keep several revisions under one id, hence the page.
        search = Search(self, query.similarity_top_k, others=others + PAGE)
        while True:
            result = yield ask(asking_for(query, search.asked))
            if search.enough(size_of(result), seen(result, shows)):
                return cut(result, search.rows)


class MaskedStore(BasePydanticVectorStore):
    """A vector store whose reads are those of the store inside, without what is held."""

    stores_text: bool = True
    is_embedding_query: bool = True

    _inner: BasePydanticVectorStore = PrivateAttr()
    _mask: Mask = PrivateAttr()

    @property
    def client(self) -> Any:
        """Client of the store inside; what is done with it is not guarded."""
        return self._inner.client

    @dispatcher.span
    @synchronous
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> Steps[VectorStoreQueryResult]:
        """Return the nodes most similar to a query; nodes, similarities and ids are parallel."""
        ask = partial(asked, self._inner, "query", **kwargs)
        return (yield from self._mask.query(ask, query, self._shows, self._orphans()))

    aquery = dispatcher.span(asynchronous(query))

    @synchronous
    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> Steps[list[BaseNode]]:
        """Return stored nodes; those that are missing or held are ignored."""
        return self._mask.visible((yield asked(self._inner, "get_nodes", node_ids, filters)))

    aget_nodes = asynchronous(get_nodes)  # type: ignore[arg-type]

    def _shows(self, _entry_id: str | None, node: BaseNode | None) -> bool:
        """Return whether a result may be seen, by its id and its node."""
        return node is None or not self._mask.hides(node)

    def _orphans(self) -> int:
        """Return how many vectors belong to no node any more."""
        return 0


def size_of(result: VectorStoreQueryResult) -> int:
    """Return how many results there are."""
    return len(result.ids if result.ids is not None else result.nodes or ())


def seen(result: VectorStoreQueryResult, shows: Shows) -> Iterator[bool]:
    """Yield whether each of the results may be seen."""
    ids, nodes = result.ids, result.nodes
    return (
        shows(None if ids is None else ids[row], nodes[row] if nodes else None)
        for row in range(size_of(result))
    )


def cut(result: VectorStoreQueryResult, rows: Sequence[int]) -> VectorStoreQueryResult:
    """Return those rows of a result; nodes, similarities and ids stay parallel."""
    if len(rows) == size_of(result):
        return result

    def chosen(column: Any) -> Any:
        return [column[row] for row in rows] if column else column

    return VectorStoreQueryResult(
        nodes=chosen(result.nodes),
        similarities=chosen(result.similarities),
        ids=chosen(result.ids),
    )


def asking_for(query: VectorStoreQuery, asked: int) -> VectorStoreQuery:
    """Return a query for more results, in every part that limits them."""
    extra = asked - query.similarity_top_k
    if not extra:
        return query
    return replace(
        query,
        similarity_top_k=asked,
        sparse_top_k=None if query.sparse_top_k is None else query.sparse_top_k + extra,
        hybrid_top_k=None if query.hybrid_top_k is None else query.hybrid_top_k + extra,
    )
