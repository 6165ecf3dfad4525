"""Any other store that has ``get_nodes`` and ``delete_nodes``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from ragshield_core.store.steps import Step
from ragshield_llamaindex.inner.base import InnerStore

# Characters that end or escape a literal in the languages of filters.
ENDINGS = frozenset("'\"`\\")


class GenericInner(InnerStore):
    """Access to any other store that keeps texts and has ``get_nodes`` and ``delete_nodes``.

    If the store returns nodes without vectors, the guard cannot forget nodes that are replaced or
    deleted; write a subclass of :class:`InnerStore` that reads the vectors.

    Some stores paste ids into their filters, where a hostile one may stand for all nodes. So nodes
    with such ids are held, and the store is never asked about them.
    """

    USED = ("get_nodes", "delete_nodes")
    ids_alone = False

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        if not ENDINGS.isdisjoint(node.node_id):
            return (
                f"its id holds a quote or backslash, which a {type(self._store).__name__} may take "
                "for the end of an id in its filters; rename it, or pass an InnerStore of your own."
            )
        return super()._unfit(node, flat=flat)

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes, with their vectors if the store returns them."""
        wanted = _without_endings(ids)
        return list(self._store.get_nodes(node_ids=wanted)) if wanted else []

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes; missing ones are ignored."""
        if wanted := _without_endings(ids):
            super().delete(wanted)

    def asking(self, name: str, *args: Any, **kwargs: Any) -> Step:
        """Return a step that calls a method of the store, which is not told of such ids."""
        if name == "get_nodes" and args[0] is not None:
            wanted, *others = _without_endings(args[0]), *args[1:]
            if not wanted:
                return Step(list)
            args = wanted, *others
        return super().asking(name, *args, **kwargs)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return [node.node_id for node in self._store.get_nodes(filters=MetadataFilters(filters=[]))]

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        only = MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value=ref_doc_id)])
        found = self._store.get_nodes(filters=only)
        return [node.node_id for node in found if node.ref_doc_id == ref_doc_id]


def _without_endings(ids: Sequence[str]) -> list[str]:
    return [one for one in ids if ENDINGS.isdisjoint(one)]
