"""Held nodes that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from ragshield_core.adapters.mask import PAGE, Claims, Search
from ragshield_core.adapters.mask import Mask as CoreMask
from ragshield_core.adapters.steps import Step, Steps
from ragshield_llamaindex.convert import MetadataKeys, claims_of, context_of, text_of

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
        label, lineage = claims_of(item, self._keys)
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
        search = self._search(query, others)
        while True:
            result = yield ask(asking_for(query, search.asked))
            if search.enough(size_of(result), seen(result, shows)):
                return cut(result, search.rows)

    def _search(self, query: VectorStoreQuery, others: int) -> Search:
        self.catch_up()
        # Other modes choose among candidates, and of more candidates they choose others. Some
        # stores keep several revisions under one id, hence the page.
        plain = query.mode == VectorStoreQueryMode.DEFAULT
        return Search(self, query.similarity_top_k, others=others + PAGE, nested=plain)


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
    return VectorStoreQueryResult(
        nodes=[result.nodes[row] for row in rows] if result.nodes else result.nodes,
        similarities=(
            [result.similarities[row] for row in rows]
            if result.similarities
            else result.similarities
        ),
        ids=[result.ids[row] for row in rows] if result.ids else result.ids,
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
