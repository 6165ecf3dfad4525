"""What a guard needs of the store inside: to write vectors as they are, and to read them back.

LangChain's interface has neither: ``add_documents`` embeds the texts again, and no method returns
vectors. One small class per kind of store fills the gap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from numpy.typing import NDArray

from ragshield_core import Batch
from ragshield_core.errors import InvalidBatchError


class Stored(NamedTuple):
    """Documents that are in the store, with their vectors in the same order."""

    documents: list[Document]
    vectors: NDArray[np.float32]  # (n_documents, dim)


class InnerStore(ABC):
    """Access to one kind of vector store, below LangChain's interface."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    @abstractmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether this class knows stores of that class."""

    @classmethod
    @abstractmethod
    def create(
        cls, store_cls: type[VectorStore], embedding: Embeddings, dim: int, options: dict[str, Any]
    ) -> VectorStore:
        """Return a new, empty store of that class for vectors of that dimension."""

    @abstractmethod
    def read(self, ids: Sequence[str]) -> Stored:
        """Return what is stored under the ids; missing ones are passed over."""

    @abstractmethod
    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries under their ids, replacing older revisions; all of them or none.

        Parameters
        ----------
        batch
            At least one entry; ``batch.vectors`` are to be stored.
        metadatas
            To be stored, one per entry; they may say more than ``batch.metadatas``.
        """

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete what is stored under the ids; missing ones are passed over."""

    def ids(self) -> list[str]:
        """Return the ids of all that is stored; only an audit of the whole store needs it.

        Raises
        ------
        NotImplementedError
            If this kind of store cannot name them.
        """
        msg = (
            f"{type(self).__name__} does not say which ids its store holds, so the store cannot be "
            "scanned; define ids() in it."
        )
        raise NotImplementedError(msg)


class InMemoryInner(InnerStore):
    """langchain-core's InMemoryVectorStore."""

    @classmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether it is InMemoryVectorStore."""
        return issubclass(store_cls, InMemoryVectorStore)

    @classmethod
    def create(
        cls,
        store_cls: type[VectorStore],
        embedding: Embeddings,
        dim: int,  # noqa: ARG003 - takes vectors of any dimension
        options: dict[str, Any],
    ) -> VectorStore:
        """Return an empty one."""
        return store_cls(embedding, **options)  # type: ignore[call-arg]

    def read(self, ids: Sequence[str]) -> Stored:
        """Return what is stored under the ids."""
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
        """Delete what is stored under the ids."""
        self._store.delete(list(ids))

    def ids(self) -> list[str]:
        """Return the ids of all that is stored."""
        return list(self._store.store)


class FaissInner(InnerStore):
    """langchain-community's FAISS; that package is an extra and not imported until needed."""

    @classmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether it is FAISS, without importing langchain-community."""
        module = "langchain_community.vectorstores.faiss"
        return any(c.__module__ == module and c.__name__ == "FAISS" for c in store_cls.__mro__)

    @classmethod
    def create(
        cls, store_cls: type[VectorStore], embedding: Embeddings, dim: int, options: dict[str, Any]
    ) -> VectorStore:
        """Return an empty one, with the index that FAISS.from_texts would make."""
        import faiss  # noqa: PLC0415 - only where such a store is made
        from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415
        from langchain_community.vectorstores.utils import DistanceStrategy  # noqa: PLC0415

        inner_product = options.get("distance_strategy") == DistanceStrategy.MAX_INNER_PRODUCT
        index = faiss.IndexFlatIP(dim) if inner_product else faiss.IndexFlatL2(dim)
        given = {"docstore": InMemoryDocstore(), "index_to_docstore_id": {}} | options
        return store_cls(embedding, index, **given)  # type: ignore[call-arg]

    def read(self, ids: Sequence[str]) -> Stored:
        """Return what is stored under the ids."""
        documents = self._store.get_by_ids(ids)
        if not documents:
            return Stored([], np.empty((0, self._store.index.d), dtype=np.float32))
        wanted = {document.id for document in documents}
        position = {
            entry_id: number
            for number, entry_id in self._store.index_to_docstore_id.items()
            if entry_id in wanted
        }
        documents = [document for document in documents if document.id in position]
        vectors = [self._store.index.reconstruct(position[document.id]) for document in documents]
        return Stored(documents, np.array(vectors, dtype=np.float32))

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
        self.delete([str(document.id) for document in older.documents])
        try:
            pairs = zip(batch.texts, batch.vectors, strict=True)
            self._store.add_embeddings(pairs, metadatas=metadatas, ids=list(batch.ids))
        except BaseException:
            self._roll_back(batch.ids, older)
            raise

    def delete(self, ids: Sequence[str]) -> None:
        """Delete what is stored under the ids; FAISS itself refuses missing ones."""
        present = [document.id for document in self._store.get_by_ids(ids)]
        if present:
            self._store.delete(present)

    def ids(self) -> list[str]:
        """Return the ids of all that is stored, in the order of the index."""
        mapping = self._store.index_to_docstore_id
        return [mapping[number] for number in sorted(mapping)]

    def _roll_back(self, ids: Sequence[str], older: Stored) -> None:
        """Undo half a write: FAISS fills index, docstore and mapping one after the other."""
        index, docstore = self._store.index, self._store.docstore
        mapping = self._store.index_to_docstore_id
        if index.ntotal > len(mapping):
            index.remove_ids(np.arange(len(mapping), index.ntotal))
        strays = [document.id for document in self._store.get_by_ids(ids)]
        if strays:
            docstore.delete(strays)
        if older.documents:
            index.add(older.vectors)
            docstore.add({document.id: document for document in older.documents})
            numbers = range(len(mapping), index.ntotal)
            mapping.update(zip(numbers, (d.id for d in older.documents), strict=True))


KINDS: tuple[type[InnerStore], ...] = (InMemoryInner, FaissInner)


def access_to(store: VectorStore) -> InnerStore:
    """Return access to a store.

    Raises
    ------
    TypeError
        If the store is of no known kind.
    """
    for kind in KINDS:
        if kind.handles(type(store)):
            return kind(store)
    msg = (
        f"a store of type {type(store).__name__} cannot be guarded yet, expected "
        "InMemoryVectorStore or FAISS; pass inner_store=, a subclass of "
        "ragshield_langchain.InnerStore that writes and reads its vectors."
    )
    raise TypeError(msg)


def create_store(
    store_cls: type[VectorStore], embedding: Embeddings, dim: int, options: dict[str, Any]
) -> VectorStore:
    """Return a new, empty store of a known class.

    Raises
    ------
    TypeError
        If the class is of no known kind.
    """
    for kind in KINDS:
        if kind.handles(store_cls):
            return kind.create(store_cls, embedding, dim, options)
    msg = (
        f"vectorstore_cls is {store_cls.__name__}, expected InMemoryVectorStore or FAISS; make the "
        "empty store yourself and wrap it: GuardedVectorStore(store, guard=guard)."
    )
    raise TypeError(msg)
