"""llama-index-vector-stores-postgres; that package is an extra and not imported until needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.schema import BaseNode

from ragshield_core.model.entries import unfit as unstorable
from ragshield_core.neighbors.stored import VectorTable
from ragshield_core.store import postgres_vectors
from ragshield_core.store.inner import chunks
from ragshield_core.store.one_store import name_of
from ragshield_llamaindex.inner.base import CHUNK, InnerStore, node_with


class PostgresInner(InnerStore):
    """Access to llama-index-vector-stores-postgres.

    Its filters paste values into SQL text, so the table is queried directly, with parameters.
    """

    of = ("llama_index.vector_stores.postgres.base", "PGVectorStore")

    @property
    def name(self) -> str:
        """The store's class, schema and table."""
        return name_of(self._store, f"{self._store.schema_name}.{self._store.table_name}")

    @property
    def table(self) -> VectorTable | None:
        """The vectors of the table."""
        return postgres_vectors.PostgresVectors(self.name, self._in_transaction, self._place)

    def _in_transaction(self, work: Callable[[Any], Any]) -> Any:
        self._store._initialize()  # noqa: SLF001 - makes the table, as its own methods do
        with self._store._session() as session, session.begin():  # noqa: SLF001
            return work(session)

    def _place(self, session: Any) -> postgres_vectors.VectorColumns:
        quoted = session.get_bind().dialect.identifier_preparer
        return postgres_vectors.VectorColumns(
            table=quoted.format_table(self._table().__table__),
            key_column="id",
            id_column="node_id",  # not always unique: `add` keeps existing rows with the same id
            vector_column="embedding",
            condition="e.node_id IS NOT NULL AND e.embedding IS NOT NULL",
            values={},
        )

    def unreadable(self, text: str) -> bool:
        """Return whether the text has a NUL or a lone surrogate."""
        return unstorable(text)

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        reason = super()._unfit(node, flat=flat)
        if reason is not None:
            return reason
        metadata = node.model_dump(mode="json", include={"metadata"})
        try:
            written = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        except ValueError:
            written = "\0"
        if "\\u0000" in written or unstorable(written):
            return "metadata holds a NUL, a lone surrogate or NaN, which PostgreSQL cannot keep."
        return None

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        table = self._table()
        columns = (table.metadata_, table.text, table.embedding)
        return [
            node_with(metadata, text, vector)
            for part in chunks(ids, CHUNK)
            for metadata, text, vector in self._select(columns, table.node_id.in_(part))
        ]

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return [node_id for (node_id,) in self._select((self._table().node_id,))]

    def count(self) -> int:
        """Return how many nodes there are."""
        from sqlalchemy import func  # noqa: PLC0415 - only where there is such a store

        ((n_nodes,),) = self._select((func.count(self._table().node_id),), order=False)
        return int(n_nodes)

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        table = self._table()
        condition = table.metadata_["ref_doc_id"].astext == ref_doc_id
        return [node_id for (node_id,) in self._select((table.node_id,), condition)]

    def _table(self) -> Any:
        return self._store._table_class  # noqa: SLF001 - there is no public way to it

    def _select(self, columns: Sequence[Any], *conditions: Any, order: bool = True) -> list[Any]:
        from sqlalchemy import select  # noqa: PLC0415 - only where there is such a store

        self._store._initialize()  # noqa: SLF001 - makes the table, as its own methods do
        query = select(*columns).where(*conditions)
        query = query.order_by(self._table().id) if order else query
        with self._store._session() as session:  # noqa: SLF001
            return list(session.execute(query))
