"""Access to an index's nodes: in its vector store, or split between that and its docstore."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import BaseNode, NodeRelationship
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from ragshield_llamaindex.convert import embedded, relinked
from ragshield_llamaindex.inner import InnerStore, access_to
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.mask import Mask, MaskedStore

logger = logging.getLogger("ragshield")

_READ_ONLY = (
    "the vector store of a guarded index is written through the index: insert_nodes, "
    "delete_ref_doc. What is done to index.storage_context.vector_store is not guarded."
)


def access_of(
    index: VectorStoreIndex, store: BasePydanticVectorStore, inner_store: InnerStore | None = None
) -> InnerStore:
    """Return access to the nodes of an index and their vectors.

    Raises
    ------
    TypeError
        If its vector store is of an unknown kind.
    """
    if inner_store is not None:
        return inner_store
    return access_to(store) if store.stores_text else HalvedInner(index, store)


class HalvedInner(InnerStore):
    """Access to the nodes of an index that keeps vectors in its store and texts in its docstore."""

    def __init__(self, index: VectorStoreIndex, store: BasePydanticVectorStore) -> None:
        super().__init__(store)
        self._index = index
        self._vectors([])  # raises for a store whose vectors cannot be read

    @property
    def orphans(self) -> int:
        """Number of vectors without a node, which could not be deleted (Faiss)."""
        total = getattr(self._store.client, "ntotal", None)
        return 0 if total is None else int(total) - len(nodes_by_vector(self._index))

    def node(self, vector_id: str) -> BaseNode | None:
        """Return the node of a vector."""
        node_id = nodes_by_vector(self._index).get(vector_id)
        return None if node_id is None else in_docstore(self._index, node_id)

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        vector_ids = vectors_by_node(self._index, ids)
        vectors = self._vectors(list(vector_ids.values()))
        nodes = []
        for entry_id in ids:
            vector = vectors.get(vector_ids.get(entry_id, ""))
            node = None if vector is None else in_docstore(self._index, entry_id)
            if node is not None and vector is not None:
                nodes.append(embedded(node, vector))
        return nodes

    def _vectors(self, ids: Sequence[str]) -> dict[str, list[float]]:
        """Return vectors by vector id."""
        store = self._store
        if isinstance(store, SimpleVectorStore):
            known = store.data.embedding_dict
            return {one: known[one] for one in ids if one in known}
        if "FaissVectorStore" in {kind.__name__ for kind in type(store).__mro__}:
            index = store.client
            there = [one for one in ids if int(one) < index.ntotal]
            return {one: index.reconstruct(int(one)).tolist() for one in there}
        msg = (
            f"vectors of a store of type {type(store).__name__} cannot be read back, expected "
            "SimpleVectorStore or FaissVectorStore, or a store that keeps texts."
        )
        raise TypeError(msg)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return list(nodes_by_vector(self._index).values())

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        info = self._index.docstore.get_ref_doc_info(ref_doc_id)
        return [] if info is None else list(vectors_by_node(self._index, info.node_ids))

    def near(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Return the k nodes nearest to a vector; orphans among them are ignored."""
        if not nodes_by_vector(self._index):  # some stores cannot be queried while empty
            return []
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=k + self.orphans)
        found = (self.node(vector_id) for vector_id in self._store.query(query).ids or ())
        return [node for node in found if node is not None]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete vectors; those that the store cannot delete stay without a node."""
        vector_ids = list(vectors_by_node(self._index, ids).values())
        try:
            self._store.delete_nodes(node_ids=vector_ids)
        except NotImplementedError:
            logger.info("%d vectors stay, of no node any more: they are ignored", len(vector_ids))


# Option of a write after which LlamaIndex itself records the index's ids: a second record of all
# ids would double the time of an insertion.
RECORDED = "ragshield_recorded"


class Writes:
    """Stands for the store of an index that adds nodes: the access writes them."""

    stores_text = True

    def __init__(self, access: InnerStore) -> None:
        self._access = access

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Write nodes, and return their ids."""
        self._access.write(nodes, **kwargs)
        return [node.node_id for node in nodes]


class IndexKeeper(NodeKeeper):
    """Keeps an index's store and a guard in step, and records the index's nodes."""

    index: VectorStoreIndex

    def _put(self, nodes: Sequence[BaseNode], options: dict[str, Any]) -> None:
        recorded = options.get(RECORDED, False)
        options = {name: value for name, value in options.items() if name != RECORDED}
        index = self.index
        if self.access.inner.stores_text:  # some stores add a second revision, or lose keys
            index = copy.copy(index)
            index._vector_store = Writes(self.access)  # type: ignore[assignment]  # noqa: SLF001
        to = index, index.index_struct, list(nodes)
        VectorStoreIndex._add_nodes_to_index(*to, **options)  # noqa: SLF001
        if not recorded:
            self.record()

    def delete_entries(self, ids: Sequence[str], options: dict[str, Any] | None = None) -> None:
        """Delete nodes from the store, the index and, unless told otherwise, the docstore."""
        self.access.delete(list(ids))
        self._forget(ids, **(options or {}))
        self.record()

    def record(self) -> None:
        """Record the index's nodes in the index store."""
        self.index.storage_context.index_store.add_index_struct(self.index.index_struct)

    def _forget(self, ids: Sequence[str], *, from_docstore: bool = True) -> None:
        index = self.index
        for vector_id in vectors_by_node(index, ids).values():
            nodes_by_vector(index).pop(vector_id, None)
        if from_docstore:
            self._relink([node for i in ids if (node := in_docstore(index, i)) is not None])
            for entry_id in ids:
                index.docstore.delete_document(entry_id, raise_error=False)

    def _relink(self, gone: Sequence[BaseNode]) -> None:
        """Let the neighbours of nodes that leave the docstore skip them."""
        related = {
            info.node_id
            for node in gone
            for kind, infos in node.relationships.items()
            if kind is not NodeRelationship.SOURCE
            for info in (infos if isinstance(infos, list) else [infos])
        } - {node.node_id for node in gone}
        near = [node for i in related if (node := in_docstore(self.index, i)) is not None]
        pairs = zip(near, relinked(near, gone), strict=True)
        changed = [after for before, after in pairs if after is not before]
        if changed:
            self.index.docstore.add_documents(changed, allow_update=True)


class IndexView(MaskedStore):
    """The read-only view of the vector store that a guarded index gives its retrievers."""

    def __init__(self, access: InnerStore, mask: Mask) -> None:
        inner = access.inner
        super().__init__(stores_text=inner.stores_text, is_embedding_query=inner.is_embedding_query)
        self._access, self._mask = access, mask

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "GuardedReadView"

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Refuse: the write would bypass the guard."""
        del nodes, kwargs
        raise NotImplementedError(_READ_ONLY)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Refuse: index and vector store would diverge."""
        del ref_doc_id, delete_kwargs
        raise NotImplementedError(_READ_ONLY)

    def _shows(self, entry_id: str | None, node: BaseNode | None) -> bool:
        """Return whether a result is visible; looks its node up if the store keeps vectors only."""
        if node is None and entry_id is not None and isinstance(self._access, HalvedInner):
            node = self._access.node(entry_id)
        return node is not None and not self._mask.hides(node)

    def _orphans(self) -> int:
        return self._access.orphans if isinstance(self._access, HalvedInner) else 0


def nodes_by_vector(index: VectorStoreIndex) -> dict[str, str]:
    """Return node ids by vector id; empty while the index is being constructed."""
    struct = getattr(index, "_index_struct", None)
    return {} if struct is None else struct.nodes_dict


def vectors_by_node(index: VectorStoreIndex, ids: Sequence[str]) -> dict[str, str]:
    """Return the vector ids of the nodes in the index, by node id."""
    known = nodes_by_vector(index)
    same = {entry_id: entry_id for entry_id in ids if known.get(entry_id) == entry_id}
    wanted = set(ids) - same.keys()
    in_simple = isinstance(index.storage_context.vector_store, SimpleVectorStore)
    if not wanted or in_simple:  # its vector ids are node ids
        return same
    return same | {node_id: vector for vector, node_id in known.items() if node_id in wanted}


def in_docstore(index: VectorStoreIndex, node_id: str) -> BaseNode | None:
    """Return a node from the docstore, without its vector."""
    node = index.docstore.get_node(node_id, raise_error=False)
    return node if isinstance(node, BaseNode) else None
