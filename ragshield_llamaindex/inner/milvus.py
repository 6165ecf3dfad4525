"""llama-index-vector-stores-milvus; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from ragshield_core.model.entries import unfit as unstorable
from ragshield_core.store.milvus_rows import ESCAPES, LONGEST, RESERVED, MilvusRows, literal
from ragshield_llamaindex.convert import text_of
from ragshield_llamaindex.inner.base import node_with
from ragshield_llamaindex.inner.escaping import EscapingInner

KEY = "id"
# Bytes of all metadata of a row as JSON: servers refuse more, and with it all rows of a write.
MOST_METADATA = 65_536


class MilvusInner(EscapingInner):
    """Access to llama-index-vector-stores-milvus, on a server or in a file of Milvus Lite.

    Milvus Lite itself refuses a second process, so there is no :attr:`folder` to watch. Nodes come
    back from their serialised form; the other fields of a row are for filters.
    """

    of = ("llama_index.vector_stores.milvus.base", "MilvusVectorStore")

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        if not store.enable_dense:
            msg = (
                "this MilvusVectorStore has enable_dense=False, but detectors judge dense vectors."
            )
            raise TypeError(msg)

    @property
    def _rows(self) -> MilvusRows:
        return MilvusRows(self._store.client, self._store.collection_name, KEY)

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        text, vector = self._store.text_key, self._store.embedding_field
        return [node_with(row, row[text], row[vector]) for row in self._rows.read(ids)]

    def write(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes, replacing those with the same ids.

        Milvus Lite merges new fields into old ones, so fields that a new revision lacks are set to
        null: no filter finds them.
        """
        older = {row[KEY]: row.keys() for row in self._rows.read([one.node_id for one in nodes])}
        rows = [self._row(node) for node in nodes]
        for row in rows:
            gone = older.get(row[KEY], set()) - row.keys() - {self._store.sparse_embedding_field}
            row.update(dict.fromkeys(gone))
        self._rows.put(rows, partition_name=kwargs.get("milvus_partition_name"))
        if kwargs.get("force_flush"):
            self._store.client.flush(self._store.collection_name)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes."""
        self._rows.delete(ids)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return self._rows.ids()

    def count(self) -> int:
        """Return how many nodes there are."""
        return self._rows.count()

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        return self._rows.ids(f"{self._store.doc_id_field} == {literal(ref_doc_id)}")

    def escaped(self, one: MetadataFilter) -> Any:
        """Return the value of a filter; the store itself escapes single quotes, but in patterns."""
        if not isinstance(one.value, str):
            return one.value  # the store writes lists as Python does
        value = one.value.translate(ESCAPES)
        pattern = one.operator == FilterOperator.TEXT_MATCH
        return value.replace("'", r"\'") if pattern else value

    def unreadable(self, text: str) -> bool:
        """Return whether the text has a lone surrogate."""
        return unstorable(text.replace("\0", ""))

    def _query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        safe = replace(
            query,
            doc_ids=[one.translate(ESCAPES) for one in query.doc_ids or ()],
            node_ids=[one.translate(ESCAPES) for one in query.node_ids or ()],
            output_fields=["*"],  # without all fields, results have random ids, which no mask knows
        )
        return super()._query(safe, **kwargs)

    def _row(self, node: BaseNode) -> dict[str, Any]:
        """Return a row as the store's ``add`` makes it."""
        store, text = self._store, text_of(node)
        row = node_to_metadata_dict(node, remove_text=True, text_field=store.text_key)
        row = {key: value for key, value in row.items() if key not in RESERVED}
        row |= {KEY: node.node_id, store.text_key: text, store.embedding_field: node.embedding}
        row[store.doc_id_field] = node.ref_doc_id or "None"
        if store.enable_sparse and hasattr(store.sparse_embedding_function, "encode_documents"):
            (words,) = store.sparse_embedding_function.encode_documents([text])
            row[store.sparse_embedding_field] = words
        return row

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        import orjson  # noqa: PLC0415 - pymilvus writes metadata by it

        reason = super()._unfit(node, flat=flat)
        if reason is not None:
            return reason
        store = self._store
        texts = {
            KEY: node.node_id,
            store.text_key: text_of(node),
            store.doc_id_field: node.ref_doc_id,
        }
        if max(len((one or "").encode()) for one in texts.values()) > LONGEST:
            return (
                f"its text, its id or its document's has over {LONGEST} bytes; split the document."
            )
        bare = node.model_copy(update={"embedding": None})  # which need not be a list yet
        metadata = node_to_metadata_dict(bare, remove_text=True, text_field=store.text_key)
        try:
            size = len(orjson.dumps(metadata))
        except TypeError:
            return (
                "metadata holds a value that Milvus cannot keep, such as an integer over 64 bits."
            )
        if size > MOST_METADATA:
            return f"its metadata and relationships have over {MOST_METADATA} bytes as JSON."
        return None
