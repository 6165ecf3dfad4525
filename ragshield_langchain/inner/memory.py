"""langchain-core's InMemoryVectorStore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch
from ragshield_langchain.inner.base import InnerStore, Stored


class InMemoryInner(InnerStore):
    """langchain-core's InMemoryVectorStore; its dict is read and changed in single steps."""

    of = ("langchain_core.vectorstores.in_memory", "InMemoryVectorStore")
    searches = frozenset({"similarity_search_with_score_by_vector"})

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        rows = [self._store.store[i] for i in ids if i in self._store.store]
        documents = [
            Document(id=row["id"], page_content=row["text"], metadata=dict(row["metadata"]))
            for row in rows
        ]
        return Stored(documents, np.array([row["vector"] for row in rows], dtype=np.float32))

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries in one step."""
        columns = zip(batch.ids, batch.vectors.tolist(), batch.texts, metadatas, strict=True)
        self._store.store.update(
            {
                entry_id: {"id": entry_id, "vector": vector, "text": text, "metadata": metadata}
                for entry_id, vector, text, metadata in columns
            }
        )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids."""
        self._store.delete(list(ids))

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        return list(self._store.store)
