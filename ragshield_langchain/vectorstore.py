"""A vector store that screens what is written into the store inside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore
from numpy.typing import ArrayLike

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.findings import Decision
from ragshield_core.quarantine import HeldEntry
from ragshield_core.scan import ScanReport, scan
from ragshield_langchain.audit import read_back, take_out
from ragshield_langchain.convert import MetadataKeys, complete_ids, stored_metadatas, to_batch
from ragshield_langchain.inner import InnerStore, access_to, create_store

NO_ENTRIES = Batch.of(ids=[], texts=[], embeddings=[])


class GuardedVectorStore(VectorStore):
    """Drop-in replacement for a vector store: suspicious documents stay out of it.

    Every write is screened by the guard. Documents that it quarantines are held, with all that
    came with them, and the others go into the store inside; ids are returned for all of them,
    aligned with the input. Reads are those of the store inside, which holds nothing that is
    quarantined, so that k is exact.

    Setup:
        Install ``ragshield[langchain]``, and ``ragshield[community]`` for FAISS.

    Key init args:
        inner: VectorStore
            The store inside: InMemoryVectorStore or FAISS.
        guard: Guard
            Fitted on what the store holds, or new for a new store.
        label_key: str
            Metadata key of a document's label; default ``"label"``.
        lineage_key: str
            Metadata key of what a document was cut from; default ``"source"``, which loaders set.
        inner_store: InnerStore | None
            How to write and read vectors, for other kinds of stores.

    Instantiate:
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> from langchain_core.vectorstores import InMemoryVectorStore
        >>> from ragshield_core import Guard, Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        >>> store = GuardedVectorStore(inner, guard=guard)

    Add Documents:
        >>> store.add_documents([Document(id="1", page_content="thud", metadata={"bar": "baz"})])
        ['1']
        >>> store.last_report
        <Report 1 entries: 1 admitted, 0 flagged, 0 quarantined>

    Search:
        >>> store.similarity_search("thud", k=1)
        [Document(id='1', metadata={'bar': 'baz'}, page_content='thud')]

    Search with filter:
        >>> store.similarity_search("thud", k=1, filter=lambda doc: doc.metadata["bar"] == "no")
        []

    Search with score:
        >>> [(document.id, round(score, 3)) for document, score
        ...  in store.similarity_search_with_score("thud", k=1)]
        [('1', 1.0)]

    Use as Retriever:
        >>> [document.id for document in store.as_retriever().invoke("thud")]
        ['1']

    Delete Documents:
        >>> store.delete(["1"])
        True

    Async:
        Every method has its async twin: ``await store.aadd_documents(...)``,
        ``await store.asimilarity_search(...)``.
    """

    def __init__(
        self,
        inner: VectorStore,
        *,
        guard: Guard,
        label_key: str = "label",
        lineage_key: str = "source",
        inner_store: InnerStore | None = None,
    ) -> None:
        self._inner = inner
        self._access = access_to(inner) if inner_store is None else inner_store
        self._guard = guard
        self._keys = MetadataKeys(label=label_key, lineage=lineage_key)
        self._last_report = Report(batch=NO_ENTRIES)
        # One write at a time: a batch is judged by what the one before it left behind.
        self._lock = threading.RLock()

    @property
    def inner(self) -> VectorStore:
        """The store inside; what is done to it directly is not guarded."""
        return self._inner

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._guard

    @property
    def quarantine(self) -> Quarantine:
        """Where held documents are."""
        return self._guard.quarantine

    @property
    def last_report(self) -> Report:
        """What was decided at the latest write."""
        return self._last_report

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding model of the store inside."""
        return self._inner.embeddings

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not defined here. Forwarding would open ways around the guard.
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("_") and hasattr(self._inner, name):
            msg += (
                f"; {type(self._inner).__name__} has one, but it would go around the guard: use "
                f".inner.{name} if that is what you want."
            )
        raise AttributeError(msg)

    # Writes

    def add_documents(
        self,
        documents: Iterable[Document],
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,  # noqa: ARG002 - e.g. batch_size of the indexing API; screened as one
    ) -> list[str]:
        """Screen documents and store those that are admitted.

        Parameters
        ----------
        documents
            May be a generator.
        ids
            One per document; default: the documents' own, or new UUIDs. An id that exists is
            replaced, unless the new revision is quarantined: then the old one stays.

        Returns
        -------
        list[str]
            One id per document in the order of the input, quarantined ones included.

        Raises
        ------
        ragshield_core.errors.InvalidBatchError
            If a document cannot be judged or stored; names it, and nothing was written.
        PoisonedEntryError
            If documents are suspicious and the policy says ``on_detect="raise"``.
        """
        texts, metadatas, ids = _columns(documents, ids)
        return self._write(texts, metadatas, ids, self._embed(texts))

    async def aadd_documents(
        self,
        documents: Iterable[Document],
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,  # noqa: ARG002 - as in add_documents
    ) -> list[str]:
        """Do as :meth:`add_documents` does, with the model's own async embedding."""
        texts, metadatas, ids = _columns(documents, ids)
        vectors = await self._aembed(texts)
        return await run_in_executor(None, self._write, texts, metadatas, ids, vectors)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,  # noqa: ARG002 - as in add_documents
    ) -> list[str]:
        """Screen texts and store those that are admitted; see :meth:`add_documents`."""
        listed = list(texts)
        return self._write(listed, _each(metadatas, listed), ids, self._embed(listed))

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,  # noqa: ARG002 - as in add_documents
    ) -> list[str]:
        """Do as :meth:`add_texts` does, with the model's own async embedding."""
        listed = list(texts)
        vectors = await self._aembed(listed)
        metadatas = _each(metadatas, listed)
        return await run_in_executor(None, self._write, listed, metadatas, ids, vectors)

    def add_embeddings(
        self,
        text_embeddings: Iterable[tuple[str, Sequence[float]]],
        metadatas: Sequence[dict[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Screen texts whose vectors are known and store those that are admitted.

        Parameters
        ----------
        text_embeddings
            Pairs of a text and its vector.
        metadatas, ids
            One per text.

        Returns
        -------
        list[str]
            As of :meth:`add_documents`.
        """
        pairs = list(text_embeddings)
        texts = [text for text, _ in pairs]
        return self._write(texts, _each(metadatas, texts), ids, [vector for _, vector in pairs])

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents from the store and from quarantine; confirmed poison stays there.

        Parameters
        ----------
        ids
            Those that are neither here nor there are passed over.

        Returns
        -------
        bool | None
            True; with ``ids=None``, what the store inside makes of that.
        """
        if ids is None:
            return self._inner.delete(None, **kwargs)
        with self._lock:
            older = self._stored(ids)
            self._access.delete(ids)
            self._guard.forget(older)
            self._guard.unhold(ids)
            self.quarantine.purge(ids, note="deleted through the store", evidence=False)
        return True

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool | None:
        """Do as :meth:`delete` does, off the event loop."""
        return await run_in_executor(None, lambda: self.delete(ids, **kwargs))

    def release(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put held documents into the store, under their own ids and with their stored vectors.

        Parameters
        ----------
        ids
            Of held documents; they replace what is live under the same ids.
        by, note
            Who decided, and why; kept in the quarantine's log.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If one of them is not held; nothing is released then.
        """
        with self._lock:
            return self.quarantine.release(ids, self._put_back, by=by, note=note)

    def scan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        seed: int = 0,
    ) -> ScanReport:
        """Audit all that the store holds, each document judged against the others.

        The guard's detectors are built anew for it, so that what the guard has learned stays as it
        is. Writes may go on while the audit runs.

        Parameters
        ----------
        fpr, clean_ids, seed
            As of :func:`ragshield_core.scan.scan`.
        quarantine
            Whether findings leave the store and are held, durably before they are deleted;
            :meth:`release` puts them back. By default the store stays as it is.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, those that stayed, because a person
            has released them before or they changed meanwhile, are admitted with a note.
        """
        with self._lock:
            batch = read_back(self._access, self._access.ids(), self._keys)
        fresh = [type(detector)(**detector.config()) for detector in self._guard.detectors]
        report = scan(batch, fresh, fpr=fpr, clean_ids=clean_ids, seed=seed)
        if quarantine and report.found:
            with self._lock:
                report = take_out(report, self._access, self._keys, self._guard)
        return report

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings,
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        vectorstore_cls: type[VectorStore] | None = None,
        guard: Guard | None = None,
        label_key: str = "label",
        lineage_key: str = "source",
        **kwargs: Any,
    ) -> Self:
        """Make a new guarded store and write texts into it.

        Parameters
        ----------
        texts, embedding, metadatas, ids
            As for any vector store.
        vectorstore_cls
            Class of the store inside.
        guard, label_key, lineage_key
            As for the constructor.
        **kwargs
            For the constructor of the store inside, e.g. ``distance_strategy`` of FAISS.

        Raises
        ------
        TypeError
            If ``vectorstore_cls`` or ``guard`` is missing.
        """
        listed = list(texts)
        inner_cls, guard = _required(vectorstore_cls, guard)
        settings = {"guard": guard, "label_key": label_key, "lineage_key": lineage_key}
        vectors = embedding.embed_documents(listed) if listed else []
        store = cls._empty(inner_cls, embedding, vectors, kwargs, **settings)
        store.add_embeddings(zip(listed, vectors, strict=True), metadatas, ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings,
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        vectorstore_cls: type[VectorStore] | None = None,
        guard: Guard | None = None,
        label_key: str = "label",
        lineage_key: str = "source",
        **kwargs: Any,
    ) -> Self:
        """Do as :meth:`from_texts` does, with the model's own async embedding."""
        listed = list(texts)
        inner_cls, guard = _required(vectorstore_cls, guard)
        settings = {"guard": guard, "label_key": label_key, "lineage_key": lineage_key}
        vectors = await embedding.aembed_documents(listed) if listed else []
        store = cls._empty(inner_cls, embedding, vectors, kwargs, **settings)
        pairs = zip(listed, vectors, strict=True)
        await run_in_executor(None, store.add_embeddings, pairs, metadatas, ids)
        return store

    # Reads, all of them those of the store inside

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return stored documents; those that are missing or held are passed over."""
        return self._inner.get_by_ids(ids)

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return stored documents; those that are missing or held are passed over."""
        return await self._inner.aget_by_ids(ids)

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the k documents most similar to a query."""
        return self._inner.similarity_search(query, k=k, **kwargs)

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the k documents most similar to a query."""
        return await self._inner.asimilarity_search(query, k=k, **kwargs)

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return documents and scores; whether a high one is good, the store inside knows."""
        return self._inner.similarity_search_with_score(query, k=k, **kwargs)

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return documents and scores; whether a high one is good, the store inside knows."""
        return await self._inner.asimilarity_search_with_score(query, k=k, **kwargs)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Return the k documents most similar to a vector."""
        return self._inner.similarity_search_by_vector(embedding, k=k, **kwargs)

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Return the k documents most similar to a vector."""
        return await self._inner.asimilarity_search_by_vector(embedding, k=k, **kwargs)

    def similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return documents and relevance scores in [0, 1]; higher is more relevant."""
        return self._inner.similarity_search_with_relevance_scores(query, k=k, **kwargs)

    async def asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return documents and relevance scores in [0, 1]; higher is more relevant."""
        return await self._inner.asimilarity_search_with_relevance_scores(query, k=k, **kwargs)

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k documents that are similar to a query and unlike each other."""
        return self._inner.max_marginal_relevance_search(
            query, k=k, fetch_k=fetch_k, lambda_mult=lambda_mult, **kwargs
        )

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k documents that are similar to a query and unlike each other."""
        return await self._inner.amax_marginal_relevance_search(
            query, k=k, fetch_k=fetch_k, lambda_mult=lambda_mult, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k documents that are similar to a vector and unlike each other."""
        return self._inner.max_marginal_relevance_search_by_vector(
            embedding, k=k, fetch_k=fetch_k, lambda_mult=lambda_mult, **kwargs
        )

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k documents that are similar to a vector and unlike each other."""
        return await self._inner.amax_marginal_relevance_search_by_vector(
            embedding, k=k, fetch_k=fetch_k, lambda_mult=lambda_mult, **kwargs
        )

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return self._inner._select_relevance_score_fn()  # noqa: SLF001 - the scores are its own

    # The one way in

    def _write(
        self,
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]],
        ids: Sequence[str | None] | None,
        vectors: ArrayLike,
    ) -> list[str]:
        """Screen, hold (durably), write, learn: in this order, so that nothing gets lost."""
        entry_ids = complete_ids(ids, len(texts))
        batch = to_batch(entry_ids, texts, metadatas, vectors, self._keys)
        with self._lock:
            report = self._guard.hold(self._guard.screen(batch))
            if report.retroactive:
                self._recall(report.retroactive)
            admitted = batch if report.kept.all() else batch.take(report.kept)
            if len(admitted):
                self._put(admitted, report.flagged)
            self._last_report = report
        return entry_ids

    def _recall(self, decisions: Sequence[Decision]) -> None:
        """Take entries that were admitted earlier out of the store and into quarantine."""
        because = {decision.entry_id: decision for decision in decisions}
        entries = read_back(self._access, list(because), self._keys)
        self._guard.recall(entries, [because[i] for i in entries.ids], self._access.delete)

    def _put_back(self, batch: Batch) -> None:
        self._put(batch)  # first: what fails here is still held, and detectors must know
        self._guard.unhold(batch.ids)
        self._guard.trust(batch.ids)

    def _put(self, batch: Batch, flagged: Sequence[Decision] = ()) -> None:
        """Write entries in place of older revisions, and learn them in their place."""
        older = self._stored(batch.ids)
        self._access.write(batch, stored_metadatas(batch, flagged))
        self._guard.forget(older)
        self._guard.learn(batch)

    def _stored(self, ids: Sequence[str]) -> Batch:
        """Return what the guard has learned and the store inside holds under the ids."""
        known = self._guard.known(ids)
        if not known:
            return NO_ENTRIES
        documents, vectors = self._access.read(known)
        return Batch.of(
            ids=[str(document.id) for document in documents],
            texts=[document.page_content for document in documents],
            embeddings=vectors,
        )

    def _embed(self, texts: list[str]) -> list[list[float]]:
        return self._model().embed_documents(texts) if texts else []

    async def _aembed(self, texts: list[str]) -> list[list[float]]:
        return await self._model().aembed_documents(texts) if texts else []

    def _model(self) -> Embeddings:
        model = self._inner.embeddings
        if model is None:
            msg = (
                f"{type(self._inner).__name__} has no embedding model to embed texts with; use "
                "add_embeddings with vectors of your own."
            )
            raise ValueError(msg)
        return model

    @classmethod
    def _empty(
        cls,
        inner_cls: type[VectorStore],
        embedding: Embeddings,
        vectors: Sequence[Sequence[float]],
        options: dict[str, Any],
        **settings: Any,
    ) -> Self:
        """Return a guarded store around a new, empty one."""
        # Without a vector at hand, the model is asked for the dimension that an index needs.
        dim = len(vectors[0]) if vectors else len(embedding.embed_query("dimension"))
        return cls(create_store(inner_cls, embedding, dim, options), **settings)


def _required(
    vectorstore_cls: type[VectorStore] | None, guard: Guard | None
) -> tuple[type[VectorStore], Guard]:
    if vectorstore_cls is None or guard is None:
        msg = (
            f"{'guard' if guard is None else 'vectorstore_cls'} is missing; call "
            "GuardedVectorStore.from_texts(texts, embedding, vectorstore_cls=FAISS, guard=guard)."
        )
        raise TypeError(msg)
    return vectorstore_cls, guard


def _columns(
    documents: Iterable[Document], ids: Sequence[str | None] | None
) -> tuple[list[str], list[dict[str, Any]], Sequence[str | None]]:
    """Return texts, metadatas and ids; without ids, the documents' own."""
    listed = list(documents)
    return (
        [document.page_content for document in listed],
        [document.metadata for document in listed],
        [document.id for document in listed] if ids is None else ids,
    )


def _each(
    metadatas: Sequence[dict[str, Any]] | None, texts: Sequence[str]
) -> Sequence[dict[str, Any]]:
    return [{}] * len(texts) if metadatas is None else metadatas
