"""Access to stores that paste ids and values into their conditions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from ragshield_core.store.steps import Step
from ragshield_llamaindex.inner.base import InnerStore


class EscapingInner(InnerStore):
    """Access to a store whose own methods paste ids and values of filters into conditions.

    This class answers calls with ids, and escapes the values of filters before the store pastes
    them. The store's asynchronous methods paste as well, so its synchronous ones run in threads.
    """

    replaces = True

    @abstractmethod
    def escaped(self, one: MetadataFilter) -> Any:
        """Return the value of a filter in the form that the store may paste."""

    def asking(self, name: str, *args: Any, **kwargs: Any) -> Step:
        """Return a step that calls a method of the store."""
        return Step(partial(self.call, name, *args, **kwargs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store, or the one that replaces it here."""
        own: dict[str, Callable[..., Any]] = {
            "clear": self._clear,
            "delete": self._deleted,
            "get_nodes": self._get_nodes,
            "query": self._query,
        }
        return own.get(name, partial(super().call, name))(*args, **kwargs)

    def _query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        safe = replace(query, filters=query.filters and self._safe(query.filters))
        result: VectorStoreQueryResult = self._store.query(safe, **kwargs)
        return result

    def _get_nodes(
        self, node_ids: Sequence[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        if not (filters and filters.filters):
            return self.read(self.ids() if node_ids is None else node_ids)
        found: list[BaseNode] = self._store.get_nodes(filters=self._safe(filters))
        return [one for one in found if node_ids is None or one.node_id in node_ids]

    def _deleted(self, ref_doc_id: str, **options: Any) -> None:
        """Do nothing: the guard has deleted the nodes, in all partitions."""

    def _clear(self) -> None:
        self.delete(self.ids())

    def _safe(self, filters: MetadataFilters) -> MetadataFilters:
        return filters.model_copy(
            update={
                "filters": [
                    self._safe(one)
                    if isinstance(one, MetadataFilters)
                    else one.model_copy(update={"value": self.escaped(one)})
                    for one in filters.filters
                ]
            }
        )
