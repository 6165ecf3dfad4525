"""llama-index-vector-stores-qdrant; that package is an extra and not imported until needed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from llama_index.core.schema import BaseNode

from ragshield_core.neighbors.stored import VectorTable
from ragshield_core.store import qdrant_vectors
from ragshield_core.store.inner import CALLERS_LOOP, chunks, on_loop
from ragshield_llamaindex.inner.base import CHUNK, InnerStore


class QdrantInner(InnerStore):
    """Access to llama-index-vector-stores-qdrant.

    Node ids must be UUIDs, as Qdrant requires; it has no nodes under other ids.
    """

    of = ("llama_index.vector_stores.qdrant.base", "QdrantVectorStore")
    text_in_node = True
    replaces = True

    @property
    def table(self) -> VectorTable | None:
        """The collection's dense vectors; None if the store has only an asynchronous client."""
        if self._store.client is None:
            return None
        return qdrant_vectors.QdrantVectors(
            self.name, self._place, _as_qdrant_writes, lambda point: str(point.id)
        )

    def _place(self) -> qdrant_vectors.NamedVectors | None:
        store = self._store
        if not self._there():
            return None
        # Older collections have unnamed vectors.
        return qdrant_vectors.NamedVectors(
            store.client, store.collection_name, store.dense_vector_name
        )

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        if not _uuids([node.node_id]):
            return "its id is no UUID, which Qdrant asks for; name nodes by UUIDs."
        return super()._unfit(node, flat=flat)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes; does nothing before the first write makes the collection."""
        if self._there():
            super().delete(_uuids(ids))

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        nodes: list[BaseNode] = []
        for part in chunks(_uuids(ids), CHUNK) if self._there() else ():
            points = self._ask("retrieve", part, with_payload=True, with_vectors=True)
            nodes += self._store.parse_to_query_result(points).nodes
        return nodes

    def near(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Return the k nodes nearest to a vector."""
        return super().near(vector, k) if self._there() else []

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return self._scroll(None)

    def count(self) -> int:
        """Return how many nodes there are."""
        return int(self._ask("count").count) if self._there() else 0

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        from qdrant_client import models  # noqa: PLC0415 - only where there is such a store

        match = models.MatchValue(value=ref_doc_id)
        return self._scroll(models.Filter(must=[models.FieldCondition(key="doc_id", match=match)]))

    def _scroll(self, condition: Any) -> list[str]:
        found: list[str] = []
        there, offset = self._there(), None
        while there:
            points, offset = self._ask(
                "scroll", scroll_filter=condition, limit=CHUNK, offset=offset, with_payload=False
            )
            found += [str(point.id) for point in points]
            there = offset is not None
        return found

    def _there(self) -> bool:
        """Return whether the collection exists; the store makes it at the first write."""
        return bool(self._ask("collection_exists"))

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client on the collection."""
        store, args = self._store, (self._store.collection_name, *args)
        if store.client is not None:
            return getattr(store.client, method)(*args, **kwargs)
        return _on_callers_loop(getattr(store._aclient, method), *args, **kwargs)  # noqa: SLF001

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store, or its async twin if that is the only kind of client."""
        if self._store.client is not None:
            return super().call(name, *args, **kwargs)
        twin = getattr(self._store, "async_add" if name == "add" else f"a{name}")
        return _on_callers_loop(twin, *args, **kwargs)


def _on_callers_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    loop = CALLERS_LOOP.get()
    if loop is None:
        msg = (
            "a QdrantVectorStore with an asynchronous client only cannot be used by synchronous "
            "methods; use the async ones, such as areconcile, or give it a client."
        )
        raise NotImplementedError(msg)
    return on_loop(loop, partial(method, *args, **kwargs))


def _uuids(ids: Sequence[str]) -> list[str]:
    """Return the ids that are UUIDs."""
    found = []
    for one in ids:
        with suppress(ValueError):
            uuid.UUID(one)
            found.append(one)
    return found


def _as_qdrant_writes(ids: Sequence[str]) -> list[str]:
    """Return the ids that are UUIDs in the form that Qdrant returns.

    Qdrant changes an id in capitals, so detectors keep the vector of such a node.
    """
    return [one for one in _uuids(ids) if str(uuid.UUID(one)) == one]
