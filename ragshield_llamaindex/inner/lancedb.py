"""llama-index-vector-stores-lancedb; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    MetadataFilter,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from ragshield_core.store import lance_columns as lance
from ragshield_core.store.lance_columns import METADATA, types_of
from ragshield_core.store.one_store import name_of
from ragshield_llamaindex.convert import metadata_as_stored, text_of
from ragshield_llamaindex.inner.base import node_with
from ragshield_llamaindex.inner.escaping import EscapingInner

KEY = "id"


class LanceInner(EscapingInner):
    """Access to llama-index-vector-stores-lancedb.

    Its deletions take ids for names of columns, and its writes fail on a new key of metadata, or
    replace a table that another process has made; a guard's do neither. Nodes come back from their
    serialised form; the other columns of metadata are for filters.
    """

    of = ("llama_index.vector_stores.lancedb.base", "LanceDBVectorStore")
    text_in_node = True

    @property
    def name(self) -> str:
        """Class and table of the store."""
        return name_of(self._store, self._store._table_name)  # noqa: SLF001 - no other way to it

    def _table(self) -> Any:
        """Return the table as it is now, which other processes may write; None before the first."""
        store = self._store
        if store._table is None and store._table_exists():  # noqa: SLF001
            store._table = store.client.open_table(store._table_name)  # noqa: SLF001
        if store._table is not None:  # noqa: SLF001
            store._table.checkout_latest()  # noqa: SLF001
        return store._table  # noqa: SLF001

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        columns = (METADATA, self._store.text_key, self._store.vector_column_name)
        return [
            node_with(*row)
            for found in lance.rows_of(self._table(), KEY, ids)
            for row in zip(*(found[name].to_pylist() for name in columns), strict=True)
        ]

    def write(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes in one commit, after their new keys became columns."""
        del kwargs  # the store's ``add`` uses none
        import pyarrow as pa  # noqa: PLC0415 - LanceDB needs it

        store, table = self._store, self._table()
        key, vector, text = store.doc_id_key, store.vector_column_name, store.text_key
        rows: list[dict[str, Any]] = [
            {
                KEY: node.node_id,
                key: node.ref_doc_id,
                vector: node.get_embedding(),
                text: text_of(node),
                METADATA: node_to_metadata_dict(node, flat_metadata=True),
            }
            for node in nodes
        ]
        if table is None:
            columns = {
                KEY: pa.string(),
                key: pa.string(),
                vector: pa.list_(pa.float32(), len(rows[0][vector])),
                text: pa.string(),
                METADATA: pa.struct(types_of(*(row[METADATA] for row in rows))),
            }
            table = store.client.create_table(store._table_name, schema=pa.schema(columns))  # noqa: SLF001
            store._table = table  # noqa: SLF001
        if table.schema.field(key).type == pa.null():  # so far, no node has had a document
            table.drop_columns([key])
            table.add_columns(pa.field(key, pa.string()))
        lance.put(table, KEY, rows)
        store._fts_index_ready = False  # noqa: SLF001 - as its ``add`` does
        store._metadata_keys = None  # noqa: SLF001 - else its filters know keys of the first node

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes."""
        lance.delete(self._table(), KEY, ids)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return lance.ids_in(self._table(), KEY)

    def count(self) -> int:
        """Return how many nodes there are."""
        table = self._table()
        return 0 if table is None else int(table.count_rows())

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        return lance.ids_in(self._table(), KEY, lance.among(self._store.doc_id_key, [ref_doc_id]))

    def escaped(self, one: MetadataFilter) -> Any:
        """Return the value of a filter; the store itself escapes those in lists."""
        return one.value.replace("'", "''") if isinstance(one.value, str) else one.value

    def unfit(self, nodes: Sequence[BaseNode]) -> dict[int, str]:
        """Return the rows of nodes that the table cannot keep, each with the reason."""
        odd = super().unfit(nodes)
        fit = [row for row in range(len(nodes)) if row not in odd]
        metadatas = [metadata_as_stored(nodes[row].metadata) for row in fit]
        found = lance.unfit(self._table(), metadatas)
        return odd | {fit[row]: reason for row, reason in found.items()}

    def _query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Ask the store, which raises a Warning where nothing is found."""
        nothing = VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        if self._table() is None:
            return nothing
        try:
            return super()._query(query, **kwargs)
        except Warning as warning:
            if type(warning) is not Warning:
                raise
            return nothing
