"""langchain-qdrant's QdrantVectorStore; that package is an extra, not imported until needed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from pydantic_core import to_jsonable_python

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.store.inner import chunks
from ragshield_core.store.one_store import name_of
from ragshield_core.store.qdrant_vectors import AT_ONCE, NamedVectors, QdrantVectors, dense_of
from ragshield_langchain.inner.base import InnerStore, Stored

# Qdrant identifies points by a UUID or a number. Other ids become a UUID within this namespace, and
# the id itself is kept in the metadata under a key of its own.
NAMESPACE = uuid.UUID("6f9d2a34-52a8-5d3b-8a3e-3c4c7f2f6f0b")
ID_KEY = "_ragshield_id"
# Keys added to the metadata of documents that QdrantVectorStore returns.
ADDED = ("_id", "_collection_name", ID_KEY)
# The largest number that Qdrant accepts as an id is 2**64 - 1, which has 20 digits.
MAX_DIGITS = 20


class QdrantInner(InnerStore):
    """langchain-qdrant's QdrantVectorStore, with dense vectors or hybrid.

    Ids may be any strings; documents are returned under them, with their original metadata.
    """

    of = ("langchain_qdrant.qdrant", "QdrantVectorStore")
    gated = True  # the local mode is plain Python
    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        if store.retrieval_mode == "sparse":
            msg = (
                "a QdrantVectorStore in sparse mode keeps no dense vectors, which detectors judge; "
                "use RetrievalMode.HYBRID or DENSE."
            )
            raise TypeError(msg)

    @property
    def name(self) -> str:
        """Class and collection of the store."""
        return name_of(self._store, self._store.collection_name)

    @property
    def table(self) -> QdrantVectors:
        """The dense vectors of the collection."""
        return QdrantVectors(
            self.name,
            self._place,
            self._inward,
            lambda point: str(self._document(point).id),
            self.reading,
        )

    def _place(self) -> NamedVectors:
        store = self._store
        return NamedVectors(store.client, store.collection_name, store.vector_name, (self.id_key,))

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        points = self._points(ids, [self._store.vector_name] if self._store.vector_name else True)
        documents = [self._document(point) for point in points]
        vectors = [dense_of(point.vector, self._store.vector_name) for point in points]
        return Stored(documents, np.array(vectors, dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that Qdrant cannot keep as JSON."""
        found = {}
        for row, (text, metadata) in enumerate(zip(batch.texts, metadatas, strict=True)):
            try:
                payload = json.dumps(metadata, default=to_jsonable_python, ensure_ascii=False)
                (text + payload).encode()
            except Exception as error:  # noqa: BLE001 - its message quotes values
                found[row] = (
                    f"Qdrant cannot keep it ({type(error).__name__}), expected Unicode text and "
                    "metadata that JSON can hold."
                )
        return found

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries; half a write is undone by hand."""
        from qdrant_client import models  # noqa: PLC0415 - only if Qdrant is used

        older = self._points(batch.ids, vectors=True)
        points = [
            models.PointStruct(
                id=point_id,
                vector=vector,
                payload={
                    self._store.content_payload_key: text,
                    self._store.metadata_payload_key: (
                        metadata if str(point_id) == entry_id else metadata | {ID_KEY: entry_id}
                    ),
                },
            )
            for entry_id, point_id, text, metadata, vector in zip(
                batch.ids,
                self._inward(batch.ids),
                batch.texts,
                metadatas,
                self._vectors(batch),
                strict=True,
            )
        ]
        try:
            self._put(points)
        except BaseException as error:
            kept = {point.id for point in older}
            self._drop([point.id for point in points if point.id not in kept])
            self._put(
                [models.PointStruct(id=p.id, vector=p.vector, payload=p.payload) for p in older]
            )
            if isinstance(error, ValueError):  # e.g. of another dimension
                msg = f"entry {batch.ids[0]!r} and its batch were refused by Qdrant: {error}"
                raise InvalidBatchError(msg) from error
            raise

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids; Qdrant itself refuses an empty list."""
        self._drop(self._inward(ids))

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        names: list[str] = []
        key, offset = self.id_key, None
        while True:
            points, offset = self._store.client.scroll(
                self._store.collection_name,
                limit=1000,
                offset=offset,
                with_payload=[key],
                with_vectors=False,
            )
            names += [str(self._document(point).id) for point in points]
            if offset is None:
                return names

    def count(self) -> int:
        """Return the number of documents."""
        return int(self._store.client.count(self._store.collection_name).count)

    def outward(self, document: Document) -> Document:
        """Return a document under its own id, without the metadata that was added to it."""
        metadata = document.metadata
        if "_id" not in metadata:
            return document
        return Document(
            id=str(metadata.get(ID_KEY, metadata["_id"])),
            page_content=document.page_content,
            metadata={key: value for key, value in metadata.items() if key not in ADDED},
        )

    def _inward(self, ids: Sequence[str]) -> list[Any]:
        return [_point_id(entry_id) for entry_id in ids]

    def _document(self, point: Any) -> Document:
        payload = point.payload or {}
        metadata = payload.get(self._store.metadata_payload_key) or {}
        return self.outward(
            Document(
                page_content=payload.get(self._store.content_payload_key, ""),
                metadata=metadata | {"_id": point.id},
            )
        )

    def _points(self, ids: Sequence[str], vectors: Any) -> list[Any]:
        wanted = self._inward(list(dict.fromkeys(ids)))
        return [
            point
            for part in chunks(wanted, AT_ONCE)
            for point in self._store.client.retrieve(
                self._store.collection_name,
                part,
                with_payload=True,
                with_vectors=vectors,
            )
        ]

    @property
    def id_key(self) -> str:
        """Payload key of an id that Qdrant does not accept."""
        return f"{self._store.metadata_payload_key}.{ID_KEY}"

    def _vectors(self, batch: Batch) -> list[dict[str, Any]]:
        dense = [{self._store.vector_name: vector} for vector in batch.vectors.tolist()]
        if self._store.retrieval_mode != "hybrid":
            return dense
        from qdrant_client import models  # noqa: PLC0415

        sparse = self._store.sparse_embeddings.embed_documents(list(batch.texts))
        return [
            one
            | {
                self._store.sparse_vector_name: models.SparseVector(
                    indices=other.indices, values=other.values
                )
            }
            for one, other in zip(dense, sparse, strict=True)
        ]

    def _put(self, points: Sequence[Any]) -> None:
        for part in chunks(points, AT_ONCE):
            self._store.client.upsert(self._store.collection_name, points=part)

    def _drop(self, point_ids: Sequence[Any]) -> None:
        for part in chunks(point_ids, AT_ONCE):
            self._store.client.delete(self._store.collection_name, points_selector=part)


def _point_id(entry_id: str) -> str | int:
    """Return the id of a point: the id itself if Qdrant accepts it, else a UUID made of it."""
    if entry_id.isascii() and entry_id.isdigit() and len(entry_id) <= MAX_DIGITS:
        number = int(entry_id)
        if str(number) == entry_id and number < 2**64:
            return number
    try:
        if str(uuid.UUID(entry_id)) == entry_id:
            return entry_id
    except ValueError:
        pass
    return str(uuid.uuid5(NAMESPACE, entry_id))
