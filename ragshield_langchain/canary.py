"""LangChain's stores, retrievers, chains and models behind the interfaces of canaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
from ragshield_langchain.inner import count_of
from ragshield_langchain.vectorstore import GuardedVectorStore


def knowledge_base(source: Any) -> KnowledgeBase | None:
    """Return a store, or a runnable that is invoked with a query, as a knowledge base."""
    if isinstance(source, VectorStore):
        return Store(source)
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
        """Return the number of documents in the store behind it."""
        return count_of(self._retriever)

    @property
    def embedder(self) -> Any:
        """The retriever's model, or that of the store behind it."""
        store = getattr(self._retriever, "vectorstore", None)
        return _model_of(self._retriever) or _model_of(store)

    @property
    def quarantine(self) -> Quarantine | None:
        """The quarantine of a GuardedRetriever."""
        found = getattr(self._retriever, "quarantine", None)
        return found if isinstance(found, Quarantine) else None


class Store(KnowledgeBase):
    """A store, guarded or bare; a bare one embeds restored documents again."""

    def __init__(self, store: VectorStore) -> None:
        self._store: Any = store
        self._inner: Any = store.inner if isinstance(store, GuardedVectorStore) else store
        self._by_vector = True

    @property
    def guarded(self) -> Guarded | None:
        """The store, if it is guarded: it holds the entries that it recalls."""
        return self._store if isinstance(self._store, Guarded) else None

    @property
    def embedder(self) -> Any:
        """The store's model."""
        return _model_of(self._store)

    def size(self) -> int | None:
        """Return the number of documents, if the store can be asked."""
        return count_of(self._store)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest documents of each query, by vector if the store can."""
        found: list[list[Passage]] = []
        for row, query in enumerate(queries):
            documents = None
            if self._by_vector and vectors is not None and vectors.size:
                try:
                    vector = vectors[row].tolist()
                    documents = self._store.similarity_search_by_vector(vector, k=k)
                except (NotImplementedError, AttributeError):
                    self._by_vector = False
            if documents is None:
                documents = self._store.similarity_search(query, k=k)
            found.append([_passage(document) for document in documents])
        return found

    def texts(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the stored texts under ids, held or not, if the store inside can return them."""
        try:
            return {one.id: one.page_content for one in self._inner.get_by_ids(list(ids))}
        except (AttributeError, NotImplementedError):
            return {}

    def remove(self, ids: Sequence[str]) -> Sequence[str]:
        """Delete documents; return their ids if the store cannot."""
        try:
            self._store.delete([*ids])
        except NotImplementedError:
            return ids
        except ValueError:  # FAISS deletes none if one is missing, deleted by another user say
            self._store.delete([*self.texts(ids)])
        return ()

    def restore(self, entries: Batch) -> None:
        """Write documents, except those that could not be deleted and are still stored."""
        there = self.texts(entries.ids)
        entries = entries.take(
            [row for row, entry in enumerate(entries) if there.get(entry.id) != entry.text]
        )
        if len(entries):
            metadatas = [dict(metadata) for metadata in entries.metadatas]
            self._store.add_texts(list(entries.texts), metadatas, ids=list(entries.ids))


def _passage(document: Document) -> Passage:
    return Passage.of(document.id, document.page_content, document.metadata)


def _model_of(holder: Any) -> Embedder | None:
    model = getattr(holder, "embeddings", None)
    return None if model is None else _embedder(model)


def _embedder(model: Any) -> Embedder:
    """Return the interface to a model; a store's model need not be of LangChain's class."""
    if not (hasattr(model, "embed_query") and hasattr(model, "embed_documents")):
        return Embedder.of(model)
    if hasattr(model, "embed_queries"):  # our model has it: several at once cost less
        return Embedder(model.embed_queries, model.embed_documents)
    return Embedder(
        lambda texts: [model.embed_query(text) for text in texts], model.embed_documents
    )
