"""langchain-chroma's Chroma; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch
from ragshield_core.model.entries import unfit as unstorable
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import printable
from ragshield_core.store.inner import chunks
from ragshield_core.store.one_store import folder_of_chroma, name_of
from ragshield_langchain.convert import without_nothing
from ragshield_langchain.inner.base import InnerStore, Stored

# Chroma loses all metadata of an entry with a number that is not finite, and a whole collection if
# such a number is in a list; it rounds integers beyond 64 bits.
LARGEST = 2**63
RESERVED = "#$"  # characters that keys must not begin with
COLUMNS = ["documents", "metadatas", "embeddings"]


class ChromaInner(InnerStore):
    """langchain-chroma's Chroma.

    Its upsert merges new metadata into old, so keys that a new revision lacks are removed.
    """

    of = ("langchain_chroma.vectorstores", "Chroma")
    gated = True
    searches = frozenset(
        {
            "similarity_search_by_vector_with_relevance_scores",
            "similarity_search_with_vectors",
            "similarity_search_by_image",
            "similarity_search_by_image_with_relevance_score",
            "hybrid_search",
        }
    )

    @property
    def name(self) -> str:
        """Class and collection of the store."""
        return name_of(self._store, self._store._collection_name)  # noqa: SLF001 - no other way to it

    @property
    def folder(self) -> str | None:
        """The folder of a collection that is not on a server."""
        return folder_of_chroma(self._store._client)  # noqa: SLF001 - no other way to it

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        wanted = list(dict.fromkeys(ids))
        documents: list[Document] = []
        vectors: list[Any] = []
        for part in chunks(wanted, self._at_once()):
            found = self._store.get(ids=part, include=COLUMNS)
            documents += _documents(found)
            vectors += list(found["embeddings"])
        return Stored(documents, np.array(vectors, dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that Chroma cannot keep."""
        found = {}
        for row, (text, metadata) in enumerate(zip(batch.texts, metadatas, strict=True)):
            reasons = (_unfit(key, value) for key, value in metadata.items())
            reason = next((one for one in reasons if one is not None), None)
            if reason is None and unstorable(text.replace("\0", "")):
                reason = "its text holds a lone surrogate, which Chroma cannot keep."
            if reason is not None:
                found[row] = reason
        return found

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries; Chroma has no transactions, so half a write is undone by hand."""
        metadatas = [without_nothing(metadata) for metadata in metadatas]
        older = self.read(batch.ids)
        try:
            self._put(batch.ids, batch.texts, batch.vectors, metadatas, older)
        except BaseException as error:
            kept = {str(document.id) for document in older.documents}
            self.delete([entry_id for entry_id in batch.ids if entry_id not in kept])
            self._put(
                [str(document.id) for document in older.documents],
                [document.page_content for document in older.documents],
                older.vectors,
                [document.metadata for document in older.documents],
                self.read(sorted(kept)),
            )
            if type(error).__name__ == "InvalidArgumentError":  # e.g. of another dimension
                msg = f"entry {batch.ids[0]!r} and its batch were refused by Chroma: {error}"
                raise InvalidBatchError(msg) from error
            raise

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids; Chroma itself refuses an empty list."""
        for part in chunks(ids, self._at_once()):
            self._store.delete(part)

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        return list(self._store.get(include=[])["ids"])

    def count(self) -> int:
        """Return the number of documents."""
        return int(self._store._collection.count())  # noqa: SLF001 - no public way to it

    def _put(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        vectors: Any,
        metadatas: Sequence[dict[str, Any]],
        present: Stored,
    ) -> None:
        collection = self._store._collection  # noqa: SLF001 - the only way to write vectors
        for rows in chunks(range(len(ids)), self._at_once()):
            collection.upsert(
                ids=[ids[row] for row in rows],
                documents=[texts[row] for row in rows],
                embeddings=vectors[rows],
                metadatas=[metadatas[row] or None for row in rows],
            )
        wanted = dict(zip(ids, metadatas, strict=True))
        stale = {
            str(document.id): dict.fromkeys(document.metadata.keys() - wanted[str(document.id)])
            for document in present.documents
            if document.metadata.keys() - wanted[str(document.id)]
        }
        for part in chunks(list(stale), self._at_once()):
            collection.update(ids=part, metadatas=[stale[i] for i in part])

    def _at_once(self) -> int:
        return int(self._store._client.get_max_batch_size())  # noqa: SLF001


def _documents(found: dict[str, Any]) -> list[Document]:
    return [
        Document(id=entry_id, page_content=text or "", metadata=dict(metadata or {}))
        for entry_id, text, metadata in zip(
            found["ids"], found["documents"], found["metadatas"], strict=True
        )
    ]


def _unfit(key: str, value: Any) -> str | None:
    """Return why Chroma cannot keep a value of metadata, if it cannot."""
    from chromadb.api.types import validate_metadata  # noqa: PLC0415 - only if Chroma is used

    named = printable(repr(key), 60)
    if not isinstance(key, str) or not key or key[0] in RESERVED:
        return f"metadata has the key {named}, which Chroma cannot keep, expected a name."
    if value is None:  # is left out, as Chroma itself does
        return None
    values = value if isinstance(value, list) else [value]
    try:
        validate_metadata({key: value})
        for one in (key, *values):
            if isinstance(one, str):
                one.encode()
    except (ValueError, TypeError):  # their messages quote the value
        return (
            f"metadata[{named}] is of type {type(value).__name__}, or holds what is, which Chroma "
            "cannot keep; langchain_community.vectorstores.utils.filter_complex_metadata helps."
        )
    if not all(isinstance(one, str) or -LARGEST <= one < LARGEST for one in values):
        return f"metadata[{named}] is not finite, or too large, which Chroma cannot keep."
    return None
