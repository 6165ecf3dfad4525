"""langchain-community's FAISS; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_langchain.inner.base import InnerStore, Stored

# Searches for a text are searches for its vector, which the model's async method computes.
BY_VECTOR = {
    "similarity_search": "similarity_search_by_vector",
    "similarity_search_with_score": "similarity_search_with_score_by_vector",
    "max_marginal_relevance_search": "max_marginal_relevance_search_by_vector",
}


class FaissInner(InnerStore):
    """langchain-community's FAISS.

    Index, docstore and the mapping between them change one after the other, and the index moves in
    memory as it grows: reads and writes take turns.
    """

    of = ("langchain_community.vectorstores.faiss", "FAISS")
    gated = True
    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        # id -> position of its vector in the index, as last seen: FAISS maps positions to ids only,
        # and going through that whole map at each read would cost more than the search.
        self._positions: dict[str, int] = {}
        # Folders written by older versions have documents without their own ids.
        for entry_id in store.index_to_docstore_id.values():
            document = store.docstore.search(entry_id)
            if isinstance(document, Document) and document.id is None:
                document.id = entry_id

    async def acall(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a reading method; texts are embedded by the async method."""
        if name in BY_VECTOR:
            given = {"query": args[0]} if args else {}
            query = (given | kwargs)["query"]
            rest = {key: value for key, value in kwargs.items() if key != "query"}
            vector = await self._store._aembed_query(query)  # noqa: SLF001 - knows its model
            return await run_in_executor(
                None, self.call, BY_VECTOR[name], vector, *args[1:], **rest
            )
        return await super().acall(name, *args, **kwargs)

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        documents = self._store.get_by_ids(ids)
        index = self._store.index
        if not documents:
            return Stored([], np.empty((0, index.d), dtype=np.float32))
        mapping, position = self._store.index_to_docstore_id, self._positions
        if any(mapping.get(position.get(d.id, -1)) != d.id for d in documents):
            # Replaced, never changed during other reads: deletions have moved later vectors.
            position = {entry_id: number for number, entry_id in mapping.items()}
            self._positions = position
        documents = [document for document in documents if document.id in position]
        vectors = [self._vector(position[document.id]) for document in documents]
        return Stored(documents, np.array(vectors, dtype=np.float32).reshape(-1, index.d))

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries; FAISS itself cannot replace, so older revisions are deleted first."""
        if batch.dim != self._store.index.d:
            msg = (
                f"vectors of entry {batch.ids[0]!r} and its batch have {batch.dim} dimensions, the "
                f"FAISS index has {self._store.index.d}; embed them with the model that the index "
                "was built with."
            )
            raise InvalidBatchError(msg)
        older = self.read(batch.ids)
        try:
            self.delete([str(document.id) for document in older.documents])
        except NotImplementedError as error:
            msg = (
                f"entry {older.documents[0].id!r} cannot be replaced, nothing was written: {error}"
            )
            raise InvalidBatchError(msg) from error
        try:
            pairs = zip(batch.texts, batch.vectors, strict=True)
            self._store.add_embeddings(pairs, metadatas=metadatas, ids=list(batch.ids))
        except BaseException:
            self._roll_back(batch.ids, older)
            raise
        if self._positions:  # else no vectors have been read yet
            start = len(self._store.index_to_docstore_id) - len(batch)
            self._positions.update({i: start + row for row, i in enumerate(batch.ids)})

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids; FAISS itself refuses missing ids."""
        present = [document.id for document in self._store.get_by_ids(ids)]
        if not present:
            return
        if self._inverted() is not None:
            mapping, gone = self._store.index_to_docstore_id, set(present)
            left = [number for number in sorted(mapping) if mapping[number] not in gone]
            self._keep(left)
            self._store.docstore.delete(present)
            self._store.index_to_docstore_id = {n: mapping[at] for n, at in enumerate(left)}
            return
        try:
            self._store.delete(present)
        except RuntimeError as error:  # from the index, which deletes first
            if "not implemented" not in str(error):
                raise
            kind = type(self._store.index).__name__
            msg = f"a FAISS index of type {kind} cannot delete; rebuild it as one that can."
            raise NotImplementedError(msg) from error

    def ids(self) -> list[str]:
        """Return the ids of all documents, in the order of the index."""
        mapping = self._store.index_to_docstore_id
        return [mapping[number] for number in sorted(mapping)]

    def _inverted(self) -> Any:
        """Return the inverted file that the index is, or contains; None if there is none."""
        import faiss  # noqa: PLC0415 - there is an index, so it is loaded already

        return faiss.try_extract_index_ivf(self._store.index)

    def _keep(self, positions: Sequence[int]) -> None:
        """Leave only some vectors in an inverted file, and number them anew.

        Other indexes do so by themselves when vectors are removed. An inverted file goes on with
        the old numbers, by which FAISS would look up other documents, or none at all (KeyError).
        """
        index = self._store.index
        vectors = [self._vector(position) for position in positions]
        index.reset()
        if vectors:
            index.add(np.array(vectors, dtype=np.float32))

    def _vector(self, position: int) -> Any:
        index = self._store.index
        try:
            return index.reconstruct(position)
        except RuntimeError:  # an inverted file that has not been asked for vectors before
            self._inverted().make_direct_map()
            return index.reconstruct(position)

    def _roll_back(self, ids: Sequence[str], older: Stored) -> None:
        """Undo half a write: FAISS fills index, docstore and mapping one after the other."""
        index, docstore = self._store.index, self._store.docstore
        mapping = self._store.index_to_docstore_id
        if index.ntotal > len(mapping) and self._inverted() is not None:
            self._keep(range(len(mapping)))
        elif index.ntotal > len(mapping):
            index.remove_ids(np.arange(len(mapping), index.ntotal))
        strays = [document.id for document in self._store.get_by_ids(ids)]
        if strays:
            docstore.delete(strays)
        if older.documents:
            index.add(older.vectors)
            docstore.add({document.id: document for document in older.documents})
            numbers = range(len(mapping), index.ntotal)
            mapping.update(zip(numbers, (d.id for d in older.documents), strict=True))
