"""LangChain's stores, retrievers, chains and models, as canaries ask them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from ragshield_core import Batch, Quarantine
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.canary.knowledge_base import (
    Embedder,
    FunctionKnowledgeBase,
    KnowledgeBase,
    Passage,
    Vectors,
)
from ragshield_langchain.inner import size_of
from ragshield_langchain.inner.faiss import FaissInner
from ragshield_langchain.vectorstore import GuardedVectorStore


def knowledge_base(source: Any) -> KnowledgeBase | None:
    """Return what a store, or something that is invoked with a query, asks."""
    if isinstance(source, GuardedVectorStore):
        return GuardedStore(source)
    if isinstance(source, VectorStore):
        return FaissStore(source) if FaissInner.handles(type(source)) else Store(source)
    return Retriever(source) if isinstance(source, Runnable) else None


def passage(item: Any) -> Passage | None:
    """Return a document as a passage."""
    return _passage(item) if isinstance(item, Document) else None


def embedder(model: Any) -> Embedder | None:
    """Return the interface to an embedding model."""
    return _embedder(model) if isinstance(model, Embeddings) else None


def answerer(source: Any) -> Callable[[str], Any] | None:
    """Return a chain's ``invoke``."""
    return source.invoke if isinstance(source, Runnable) else None


class Retriever(FunctionKnowledgeBase):
    """A retriever, or any other step that turns a query into documents."""

    def __init__(self, retriever: Runnable[Any, Any]) -> None:
        super().__init__(lambda query, _k: retriever.invoke(query))
        self._retriever = retriever

    def size(self) -> int | None:
        """Return how many documents the store behind it holds."""
        return size_of(self._retriever)

    @property
    def embedder(self) -> Any:
        """Its model, or that of the store behind it."""
        store = getattr(self._retriever, "vectorstore", None)
        return _model_of(self._retriever) or _model_of(store)

    @property
    def quarantine(self) -> Quarantine | None:
        """That of a GuardedRetriever."""
        found = getattr(self._retriever, "quarantine", None)
        return found if isinstance(found, Quarantine) else None


class _Searched(KnowledgeBase):
    """A store that is searched: by vector, where it can."""

    def __init__(self, store: VectorStore) -> None:
        self._store: Any = store
        self._by_vector = True

    def size(self) -> int | None:
        """Return how many documents there are, where the store can be asked."""
        return size_of(self._store)

    @property
    def embedder(self) -> Any:
        """The store's model."""
        return _model_of(self._store)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest documents of each query."""
        if vectors is None or not vectors.size:
            return [self._by_text(query, k) for query in queries]
        return [self._one(query, vector, k) for query, vector in zip(queries, vectors, strict=True)]

    def _one(self, query: str, vector: Vectors, k: int) -> list[Passage]:
        if self._by_vector:
            try:
                found = self._store.similarity_search_by_vector(vector.tolist(), k=k)
                return [_passage(document) for document in found]
            except (NotImplementedError, AttributeError):
                self._by_vector = False
        return self._by_text(query, k)

    def _by_text(self, query: str, k: int) -> list[Passage]:
        return [_passage(document) for document in self._store.similarity_search(query, k=k)]


class Store(_Searched):
    """A bare store; what is put back into it is embedded again."""

    def texts(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return what is stored under ids, where the store tells."""
        return _texts(self._store, ids)

    def remove(self, ids: Sequence[str]) -> Sequence[str]:
        """Delete documents; where the store cannot, return them."""
        try:
            self._store.delete([*ids])
        except NotImplementedError:
            return ids
        except ValueError:  # FAISS deletes none if it does not know one, which another has deleted
            return [entry_id for entry_id in ids if not self._is_deleted(entry_id)]
        return ()

    def _is_deleted(self, entry_id: str) -> bool:
        try:
            self._store.delete([entry_id])
        except ValueError:
            return False
        return True

    def restore(self, entries: Batch) -> None:
        """Write documents, but those that could not be deleted and are there still."""
        there = self.texts(entries.ids)
        entries = entries.take(
            [row for row, entry in enumerate(entries) if there.get(entry.id) != entry.text]
        )
        if len(entries):
            metadatas = [dict(metadata) for metadata in entries.metadatas]
            self._store.add_texts(list(entries.texts), metadatas, ids=list(entries.ids))


class FaissStore(Store):
    """langchain-community's FAISS, which is asked all queries at once."""

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest documents of each query."""
        if vectors is None or not vectors.size:
            return super().search(queries, vectors, k)
        store, index = self._store, self._store.index
        _, found = index.search(np.ascontiguousarray(vectors), min(k, max(1, index.ntotal)))
        made: dict[int, Passage] = {}
        for number in np.unique(found[found >= 0]).tolist():
            document = store.docstore.search(store.index_to_docstore_id[number])
            made[number] = _passage(document, _reconstructed(index, number))
        return [[made[number] for number in row if number >= 0] for row in found.tolist()]


class GuardedStore(_Searched):
    """A GuardedVectorStore."""

    @property
    def guarded(self) -> Guarded:
        """The store, which holds what it recalls."""
        store: Guarded = self._store
        return store

    def texts(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return what is stored under ids, held or not, where the store inside tells."""
        return _texts(self._store.inner, ids)


def _passage(document: Document, vector: Vectors | None = None) -> Passage:
    return Passage.of(document.id, document.page_content, document.metadata, vector=vector)


def _texts(store: Any, ids: Sequence[str]) -> dict[str, str]:
    try:
        return {document.id: document.page_content for document in store.get_by_ids(list(ids))}
    except (AttributeError, NotImplementedError):
        return {}


def _model_of(holder: Any) -> Embedder | None:
    model = getattr(holder, "embeddings", None)
    return None if model is None else _embedder(model)


def _embedder(model: Any) -> Embedder:
    """Return the interface to a model; what a store carries need not be of LangChain's class."""
    if not (hasattr(model, "embed_query") and hasattr(model, "embed_documents")):
        return Embedder.of(model)
    if hasattr(model, "embed_queries"):  # ours has it: several at once cost less
        return Embedder(model.embed_queries, model.embed_documents)
    return Embedder(
        lambda texts: [model.embed_query(text) for text in texts], model.embed_documents
    )


def _reconstructed(index: Any, number: int) -> Vectors | None:
    try:
        vector = np.asarray(index.reconstruct(number), dtype=np.float32)
    except (RuntimeError, AttributeError):  # an index that keeps no vectors
        return None
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0.0 else None
