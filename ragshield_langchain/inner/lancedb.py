"""langchain-community's LanceDB; that package is an extra and not imported until needed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.store import lance_columns as lance
from ragshield_core.store.lance_columns import METADATA, types_of
from ragshield_core.store.one_store import name_of
from ragshield_langchain.inner.base import InnerStore, Stored, survives_json

# The store's own ``add_texts`` writes this key if there is no metadata, and needs its column.
OWN = {"id": ""}


class LanceInner(InnerStore):
    """langchain-community's LanceDB.

    Its documents come without their ids, so a copy of the store is asked that adds these. Its
    own writes replace the whole table by default (``mode="overwrite"``); a guard's never do. Any
    number of processes may write a folder, so there is no :attr:`folder` to watch.
    """

    of = ("langchain_community.vectorstores.lancedb", "LanceDB")
    gated = True  # so that async methods ask the copy as well
    searches = frozenset({"similarity_search_by_vector_with_relevance_scores"})

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._asked = copy.copy(store)
        self._asked.results_to_docs = self._documents

    @property
    def name(self) -> str:
        """Class and table of the store."""
        return name_of(self._store, self._store._table_name)  # noqa: SLF001 - no other way to it

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a search; there is none before the first write makes the table."""
        if self._store.get_table() is None:
            return []
        with self.reading():
            return getattr(self._asked, name)(*args, **kwargs)

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        documents: list[Document] = []
        vectors: list[Any] = []
        key = self._store._id_key  # noqa: SLF001
        for found in lance.rows_of(self._store.get_table(), key, ids):
            documents += self._documents(found)
            vectors += found[self._store._vector_key].to_pylist()  # noqa: SLF001
        return Stored(documents, np.array(vectors, dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with texts or metadata that the table cannot keep."""
        odd = {
            row: "its text or metadata holds what LanceDB cannot keep unchanged."
            for row, (entry, metadata) in enumerate(zip(batch, metadatas, strict=True))
            if not survives_json(metadata, entry.id, entry.text)
        }
        return odd | lance.unfit(self._store.get_table(), metadatas)

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries in one commit, after their new keys became columns."""
        import pyarrow as pa  # noqa: PLC0415 - LanceDB needs it

        store, table = self._store, self._store.get_table()
        key, text, vector = store._id_key, store._text_key, store._vector_key  # noqa: SLF001
        if table is None:
            columns = {
                vector: pa.list_(pa.float32(), batch.dim),
                key: pa.string(),
                text: pa.string(),
                METADATA: pa.struct(types_of(OWN) | types_of(*metadatas)),
            }
            table = store._connection.create_table(  # noqa: SLF001
                store._table_name,  # noqa: SLF001
                schema=pa.schema(columns),
            )
        dim = table.schema.field(vector).type.list_size
        if dim != batch.dim:
            msg = (
                f"vectors of entry {batch.ids[0]!r} and its batch have {batch.dim} dimensions, the "
                f"LanceDB table has {dim}; embed them with the model that it was made with."
            )
            raise InvalidBatchError(msg)
        entries = zip(batch.ids, batch.texts, batch.vectors.tolist(), metadatas, strict=True)
        rows = [dict(zip((key, text, vector, METADATA), entry, strict=True)) for entry in entries]
        lance.put(table, key, rows)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids."""
        lance.delete(self._store.get_table(), self._store._id_key, ids)  # noqa: SLF001

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        return lance.ids_in(self._store.get_table(), self._store._id_key)  # noqa: SLF001

    def count(self) -> int:
        """Return the number of documents."""
        table = self._store.get_table()
        return 0 if table is None else int(table.count_rows())

    def _documents(self, found: Any, score: bool = False) -> list[Any]:  # noqa: FBT001, FBT002
        """Do as the store's ``results_to_docs``, with ids and without keys of other documents."""
        store = self._store
        columns = [found[name].to_pylist() for name in (store._id_key, store._text_key, METADATA)]  # noqa: SLF001
        documents = [
            Document(
                id=str(entry_id),
                page_content=text,
                metadata={key: value for key, value in metadata.items() if value is not None},
            )
            for entry_id, text, metadata in zip(*columns, strict=True)
        ]
        scores = [name for name in ("_distance", "_relevance_score") if name in found.column_names]
        if not score or not scores:
            return documents
        return list(zip(documents, found[scores[0]].to_pylist(), strict=True))
