"""langchain-milvus's Milvus; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.store.milvus_rows import LONGEST, RESERVED, MilvusRows
from ragshield_core.store.one_store import name_of
from ragshield_langchain.inner.base import InnerStore, Stored, survives_json


class MilvusInner(InnerStore):
    """langchain-milvus's Milvus, on a server or in a file of Milvus Lite.

    Milvus Lite itself refuses a second process, so there is no :attr:`folder` to watch.
    """

    of = ("langchain_milvus.vectorstores.milvus", "Milvus")
    gated = True  # Milvus has no transactions, and the async client needs a loop of its own
    searches = frozenset({"similarity_search_with_score_by_vector"})

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        model = store.embedding_func
        one = model is not None and not isinstance(model, list)
        # The methods of a sparse model return words and weights.
        if not one or store._is_sparse_embedding(model):  # noqa: SLF001 - knows the kinds of models
            msg = "a Milvus needs exactly one model of dense vectors, which detectors judge."
            raise TypeError(msg)
        if store.auto_id or not store.enable_dynamic_field:
            msg = (
                "this Milvus numbers its entries, or keeps only some keys of metadata; make it "
                "with auto_id=False and enable_dynamic_field=True."
            )
            raise TypeError(msg)
        (self._vector,) = store._vector_fields_from_embedding  # noqa: SLF001 - no other way to it
        self._key, self._text = store._primary_field, store._text_field  # noqa: SLF001

    @property
    def name(self) -> str:
        """Class and collection of the store."""
        return name_of(self._store, self._store.collection_name)

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        rows = self._rows.read(ids)
        vectors = np.array([row.pop(self._vector) for row in rows], dtype=np.float32)
        documents = [self._store._parse_document(row) for row in rows]  # noqa: SLF001
        return Stored([self.outward(document) for document in documents], vectors)

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata, texts or ids that Milvus cannot keep."""
        found = {}
        fields = RESERVED | {self._key, self._text, *self._store.vector_fields}
        for row, (entry, metadata) in enumerate(zip(batch, metadatas, strict=True)):
            sizes = [len(one.encode(errors="replace")) for one in (entry.id, entry.text)]
            if max(sizes) > LONGEST:
                found[row] = f"its text or id has more than {LONGEST} bytes; split the document."
            elif taken := fields & metadata.keys():
                found[row] = f"metadata has the keys {sorted(taken)}, which Milvus uses itself."
            elif not survives_json(metadata, entry.text):
                found[row] = (
                    "its text or metadata is nothing that Milvus returns unchanged, expected "
                    "Unicode text, and metadata of JSON's types with finite numbers of 64 bits."
                )
        return found

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries; half a write is undone by hand.

        Milvus Lite merges new metadata into old: a revision that has keys which the new one lacks
        is deleted first.
        """
        store, vectors = self._store, batch.vectors.tolist()
        if not self._rows.there():
            store._init(  # noqa: SLF001 - its `add_embeddings` logs an entry when it fails
                embeddings=[vectors],
                partition_names=store.partition_names,
                replica_number=store.replica_number,
                timeout=store.timeout,
            )
        self._check(batch)
        older = self._rows.read(batch.ids)
        columns = zip(batch.ids, batch.texts, vectors, metadatas, strict=True)
        rows = [
            {**metadata, self._key: entry_id, self._text: text, self._vector: vector}
            for entry_id, text, vector, metadata in columns
        ]
        new = dict(zip(batch.ids, rows, strict=True))
        stale = [row[self._key] for row in older if row.keys() - new[row[self._key]]]
        try:
            self.delete(stale)
            self._rows.put(rows)
        except BaseException:
            self.delete(batch.ids)
            self._rows.put(older)
            raise

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids."""
        self._rows.delete(ids)

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        return self._rows.ids()

    def count(self) -> int:
        """Return the number of documents."""
        return self._rows.count()

    def outward(self, document: Document) -> Document:
        """Return a document under its id, which Milvus places in the metadata."""
        if self._key not in document.metadata:
            return document
        metadata = dict(document.metadata)
        entry_id = str(metadata.pop(self._key))
        return Document(id=entry_id, page_content=document.page_content, metadata=metadata)

    @property
    def _rows(self) -> MilvusRows:
        return MilvusRows(self._store.client, self._store.collection_name, self._key)

    def _check(self, batch: Batch) -> None:
        fields = self._store.client.describe_collection(self._store.collection_name)["fields"]
        dim = next(field["params"]["dim"] for field in fields if field["name"] == self._vector)
        if batch.dim != dim:
            msg = (
                f"vectors of entry {batch.ids[0]!r} and its batch have {batch.dim} dimensions, the "
                f"Milvus collection has {dim}; embed them with the model that it was made with."
            )
            raise InvalidBatchError(msg)
