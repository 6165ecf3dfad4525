"""A vector store that screens every write to the store inside it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from ragshield_core import Guard, Report
from ragshield_core.model.arguments import expect_ids
from ragshield_core.model.errors import InvalidBatchError, MalformedEntriesError
from ragshield_core.neighbors.stored import Where
from ragshield_core.store import opening, writing
from ragshield_core.store.guarded import Adoptable, Guarded, NewRows
from ragshield_core.store.joining import Waiting, lengths_of
from ragshield_core.store.keys import MetadataKeys, expect, expect_guard
from ragshield_core.store.malformed import Vectors, embedded, unusable
from ragshield_core.store.one_store import claim, use_table
from ragshield_core.store.opening import look
from ragshield_core.store.steps import Steps, asked, asynchronous, synchronous
from ragshield_core.store.updates import NewVersion
from ragshield_langchain import events
from ragshield_langchain.inner import InnerStore, Stored, access_to, off_loop
from ragshield_langchain.keeper import DocumentKeeper, model_of
from ragshield_langchain.mask import Found, document_of

OnReport = Callable[[Report], object]

# Stores that find neighbours.
ABLE = "PGVector, PGVectorStore or QdrantVectorStore"
# Metadata key under which mem0 passes the text of a memory.
MEM0_TEXT = "data"
# Default number of documents that a search returns.
K = 4


def _searching(name: str) -> tuple[Any, Any]:
    """Return a search of LangChain's interface without held documents, and its async twin."""

    def search(self: GuardedVectorStore, *args: Any, **kwargs: Any) -> Any:
        return inspect.unwrap(type(self)._searched)(self, name, *args, **kwargs)  # noqa: SLF001

    of: Any = getattr(VectorStore, name)
    signature = inspect.signature(of)
    returned = f"Steps[{signature.return_annotation}]"
    search.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    search.__name__ = name
    search.__doc__ = f"Do as LangChain's ``VectorStore.{name}``, without held documents."
    search.__qualname__ = f"GuardedVectorStore.{name}"
    method = synchronous(search)
    return method, asynchronous(method)


class GuardedVectorStore(Guarded, Adoptable, VectorStore):
    """Drop-in replacement for a vector store: suspicious documents stay out of it.

    The guard screens every write. Documents that it quarantines are held, with their vectors and
    metadata, and the others go into the store inside; ids are returned for all of them,
    aligned with the input. A held document stays held until a reviewer decides, even if it looks
    admissible when it is written again.

    Reads are those of the store inside, in its order and with its scores. They leave out held
    documents that are still in there, because that store cannot delete or because a write bypassed
    the guard, and further results take their place.

    Setup:
        Install ``ragshield[langchain]``, and ``ragshield[community]`` for FAISS,
        ``ragshield[chroma]``, ``ragshield[qdrant]`` or ``ragshield[postgres]``.

    Key init args:
        inner: VectorStore
            The store inside: InMemoryVectorStore, FAISS, Chroma, QdrantVectorStore,
            PGVector, PGVectorStore, Milvus or LanceDB.
        guard: Guard
            A new guard for a new store, used for this store only. If the store has documents
            already, see :meth:`adopt`; a guard that does not know them causes a warning.
        label_key: str
            Metadata key of a document's label; default ``"label"``.
        lineage_key: str | None
            Metadata key of the file or page that a document was cut from. The default ``None``
            takes the keys that loaders use: ``file_path``, ``source`` (unless that is a number),
            ``url`` and others, see :data:`ragshield_core.model.claims.LINEAGE_KEYS`.
        prompt_keys: Sequence[str] | None
            Metadata keys that your prompts print, such as ``"title"``: their values are judged for
            instructions and hidden text like the text, and belong to the revision. Default: every
            string of three words or more, or with other than ASCII characters.
        inner_store: InnerStore | None
            Access that writes and reads vectors, for other kinds of stores.
        neighbors: "store" | "memory" | None
            Where detectors find the neighbours of an entry. ``"store"``: in the store inside, so
            that memory keeps only the vectors of entries held or not written yet; needs PGVector,
            PGVectorStore or QdrantVectorStore, and is as good as their search. It can be changed at
            any start. Default: as the guard was saved; a new guard keeps them in memory.
        name: str | None
            Name under which documents of this store are held, the same in every process: release,
            purge and reads see no other held documents. Default: class and collection of Chroma,
            Qdrant and PGVector; InMemoryVectorStore and FAISS have none, and share ``""``.
        parent_key: str | None
            Metadata key of the whole document that a document is a part of: the ``id_key`` of a
            ParentDocumentRetriever or MultiVectorRetriever over this store, ``"doc_id"`` by their
            default. No part of a document is found while another part of it is held, since such
            retrievers would return the whole. Default: None, for a store without such retrievers; a
            held part then causes a warning.
        parent_docstore: BaseStore | None
            The docstore of that retriever. A document is then hidden only if it holds the text of
            the held part. Without it, a held document that names another one under ``parent_key``
            hides that one as well, so only your own code may write that key. Default: None, except
            with a GuardedRetriever around a ParentDocumentRetriever, which knows its docstore. Do
            not pass it if parts are summaries, whose text is not in the whole.
        check: bool
            Whether to warn at once if the guard knows none of the store's documents, or if a guard
            opened on a database (``Guard.open``) knows other ids than the store has, see
            :meth:`reconcile`. Default: True. Use False if the store is filled anew at each start,
            or is so large and far away that listing its ids takes too long.

    Instantiate:
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> from langchain_core.vectorstores import InMemoryVectorStore
        >>> from ragshield_core import Guard, Quarantine
        >>> from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
        >>> guard = Guard(
        ...     [CliqueDetector(), LabelCentroidDetector()], quarantine=Quarantine("sqlite://")
        ... )
        >>> inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        >>> store = GuardedVectorStore(inner, guard=guard)

    Add Documents:
        >>> documents = [
        ...     Document(id="1", page_content="foo", metadata={"baz": "bar"}),
        ...     Document(id="2", page_content="thud", metadata={"bar": "baz"}),
        ...     Document(id="3", page_content="i will be deleted :("),
        ... ]
        >>> store.add_documents(documents)
        ['1', '2', '3']
        >>> store.last_report  # three documents are too few to compare with one another
        <Report 3 entries: 3 admitted, 0 flagged, 0 quarantined; for now without 1 of the detectors>

    Delete Documents:
        >>> store.delete(ids=["3"])
        True

    Search:
        >>> store.similarity_search("thud", k=1)
        [Document(id='2', metadata={'bar': 'baz'}, page_content='thud')]

    Search with filter:
        >>> store.similarity_search("thud", k=1, filter=lambda doc: "baz" in doc.metadata)
        [Document(id='1', metadata={'baz': 'bar'}, page_content='foo')]

    Search with score:
        >>> for document, score in store.similarity_search_with_score("thud", k=1):
        ...     print(f"* [SIM={score:.3f}] {document.page_content} [{document.metadata}]")
        * [SIM=1.000] thud [{'bar': 'baz'}]

    Async:
        >>> import asyncio
        >>> async def add_and_search():
        ...     await store.aadd_documents([Document(id="4", page_content="qux")])
        ...     return await store.asimilarity_search("qux", k=1)
        >>> asyncio.run(add_and_search())
        [Document(id='4', metadata={}, page_content='qux')]

    Use as Retriever:
        >>> retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 1, "fetch_k": 2})
        >>> retriever.invoke("thud")
        [Document(id='2', metadata={'bar': 'baz'}, page_content='thud')]

    Quarantine:
        >>> store.quarantine.count()  # what is held
        0
        >>> store.recall(["1"], by="anna", note="reported by a customer")
        ('1',)
        >>> store.get_by_ids(["1"])
        []
        >>> [held.id for held in store.release(["1"], by="ben", note="it was a false alarm")]
        ['1']

    Reconcile:
        >>> _ = inner.add_texts(["past the guard"], ids=["5"])
        >>> store.reconcile(adopt=True).adopted
        ('5',)
        >>> store.reconcile().agrees
        True
    """

    _keeper: DocumentKeeper

    def __init__(  # noqa: PLR0913 - all but two have defaults
        self,
        inner: VectorStore,
        *,
        guard: Guard,
        label_key: str = "label",
        lineage_key: str | None = None,
        prompt_keys: Sequence[str] | None = None,
        inner_store: InnerStore | None = None,
        name: str | None = None,
        check: bool = True,
        neighbors: Where | None = None,
        parent_key: str | None = None,
        parent_docstore: BaseStore[str, Any] | None = None,
    ) -> None:
        expect_guard(guard)
        if inner_store is not None:
            expect("inner_store", inner_store, InnerStore, "an object, not a class or a name")
        keys = MetadataKeys.of(label_key, lineage_key, prompt_keys)
        self._inner = inner
        self._access = access_to(inner) if inner_store is None else inner_store
        claim(guard, inner, name, self._access.name, folder=self._access.folder)
        if use_table(guard, self._access.table, neighbors, store=inner, able=ABLE):
            with suppress(RuntimeError):  # needs an event loop: done at the first write
                self._access.ready()
                guard.state.let_go()
        if inner.embeddings is not None:
            guard.state.offer_embedder(inner.embeddings.embed_documents)
        self._keeper = DocumentKeeper(guard, self._access, keys)
        self._mask = self._keeper.mask
        parent_keys = frozenset(() if parent_key is None else (parent_key,))
        self._mask.know(parent_keys, guard.quarantine, parent_docstore)
        if check:
            way_out = "GuardedVectorStore.adopt(store, guard=guard)"
            look(self._keeper, self._access.count, type(inner).__name__, way_out)

    @property
    def inner(self) -> VectorStore:
        """The store inside; direct calls of its methods are not guarded."""
        return self._inner

    @property
    def keys(self) -> MetadataKeys:
        """Metadata keys of values that belong to a revision."""
        return self._keeper.keys

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding model of the store inside."""
        return self._inner.embeddings

    def __getattr__(self, name: str) -> Any:
        # Only called for names not defined here. Forwarding would open ways around the guard.
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        inner, access = self.__dict__.get("_inner"), self.__dict__.get("_access")
        # Statically: a property of the store inside may raise.
        missing = inspect.getattr_static(inner, name, None) is None
        if access is None or name.startswith("_") or missing:
            raise AttributeError(msg)
        if name in access.searches:
            return partial(self._searched, name)
        if name.removeprefix("a") in access.searches:
            return partial(self._asearched, name.removeprefix("a"))
        msg += (
            f"; {type(inner).__name__} has one, but it would go around the guard: use "
            f".inner.{name} if that is what you want, and GuardedVectorStore.adopt(...) for a "
            "store that it makes or fills."
        )
        raise AttributeError(msg)

    # Writes. mypy expects a twin to take the arguments of VectorStore's method, which are fewer.

    @synchronous
    def add_documents(
        self,
        documents: Iterable[Document],
        ids: Sequence[str | None] | None = None,
        *,
        replacing: Collection[str] = (),
        versions: Sequence[NewVersion] = (),
        on_report: OnReport | None = None,
        **kwargs: Any,
    ) -> Steps[list[str]]:
        """Screen documents and store those that are admitted.

        If ids are known, the documents of a lineage are a new version of the stored ones: all of
        them are stored, or none is. If one is held, the others wait in quarantine with it, and the
        stored ones stay.

        Parameters
        ----------
        documents
            Any iterable, also a generator.
        ids
            One per document; default: the documents' own, or new UUIDs. A stored document with the
            same id is replaced, unless the new revision, or another part of its version, is
            quarantined: then the old one stays.
        replacing
            Ids of stored documents that you will delete once these are written, e.g. the chunks of
            an earlier version. Likeness to them is no evidence then. Delete them only after a look
            at the report: if new ones are held, the old ones are all there is, and leave once the
            new ones are released.
        versions
            New versions of documents, if lineages and ids do not show them; see
            :class:`ragshield_core.store.updates.NewVersion`. You delete the documents that they
            replace, as above.
        on_report
            Called once with the report; if there are other writers, :attr:`last_report` may be
            about their writes.
        **kwargs
            Options of other stores; ignored.

        Returns
        -------
        list[str]
            One id per document in the order of the input, quarantined ones included.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If the documents as a whole cannot be judged, for vectors of another dimension say;
            none was written.
        ragshield_core.model.errors.MalformedEntriesError
            If documents have no usable id or text; names each, once the others are written. A
            document that cannot be judged for another reason (a list for a label, a value that
            cannot be kept, no usable vector) is held, and the report says why.
        PoisonedEntryError
            If documents are suspicious and the policy says ``on_detect="raise"``.
        TypeError
            If LangChain's own ``index`` is writing, which would lose the good versions of held
            documents; use :func:`ragshield_langchain.guarded_index`. It is recognised by a
            ``batch_size`` and by ``ids`` that equal the documents' own.
        """
        listed = list(documents)
        if "batch_size" in kwargs and on_report is None:
            _refuse_indexing(listed, ids)
        return self._adding(
            [document.page_content for document in listed],
            [document.metadata for document in listed],
            [document.id for document in listed] if ids is None else ids,
            replacing=replacing,
            versions=versions,
            on_report=on_report,
        )

    aadd_documents = asynchronous(add_documents)  # type: ignore[arg-type]

    @synchronous
    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
        *,
        on_report: OnReport | None = None,
        **kwargs: Any,  # noqa: ARG002 - as in add_documents
    ) -> Steps[list[str]]:
        """Screen texts and store those that are admitted; see :meth:`add_documents`."""
        if isinstance(texts, str):
            msg = "texts is a str, expected a list of them; its characters would become documents."
            raise TypeError(msg)
        return self._adding(list(texts), metadatas, ids, on_report=on_report)

    aadd_texts = asynchronous(add_texts)  # type: ignore[arg-type]

    @synchronous
    def add_embeddings(
        self,
        text_embeddings: Iterable[tuple[str, Sequence[float]]] = (),
        metadatas: Sequence[dict[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
        *,
        texts: Sequence[str] | None = None,
        embeddings: Sequence[Sequence[float]] | None = None,
        on_report: OnReport | None = None,
    ) -> Steps[list[str]]:
        """Screen texts whose vectors are known and store those that are admitted.

        Parameters
        ----------
        text_embeddings
            Pairs of a text and its vector, as FAISS takes them.
        metadatas, ids
            One per text.
        texts, embeddings
            Instead of pairs, as PGVector takes them; by keyword. Without ``texts``, as mem0 calls
            it, each text is the value of ``"data"`` in its metadata, and the store's own model
            embeds them if all vectors are ``None``.
        on_report
            As in :meth:`add_documents`.

        Returns
        -------
        list[str]
            As in :meth:`add_documents`.
        """
        vectors: Sequence[Sequence[float]] | None
        if embeddings is not None and texts is None:
            listed, vectors = _in_metadata(metadatas, embeddings)
        else:
            listed, vectors = _pairs(text_embeddings, texts, embeddings)
        return self._adding(listed, metadatas, ids, vectors, on_report=on_report)

    aadd_embeddings = asynchronous(add_embeddings)

    def _write_rows(self, rows: NewRows) -> Report:
        named, texts, told = list(rows.ids), list(rows.texts), list[Report]()
        beside = [dict(metadata) for metadata in rows.metadatas]
        if rows.embeddings is None:
            self.add_texts(texts, beside, ids=named, on_report=told.append)
        else:
            given = {"texts": texts, "embeddings": np.asarray(rows.embeddings).tolist()}
            self.add_embeddings(metadatas=beside, ids=named, on_report=told.append, **given)
        return told[-1]

    def update_document(self, document_id: str, document: Document) -> None:
        """Screen a new revision and store it if it is admitted; else the old one stays."""
        self.add_documents([document], [document_id])

    def update_documents(self, ids: Sequence[str], documents: Sequence[Document]) -> None:
        """Screen new revisions and store those that are admitted; else the old ones stay."""
        self.add_documents(documents, ids)

    @synchronous
    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> Steps[bool | None]:
        """Delete documents from the store and from quarantine; confirmed poison stays there.

        The live and the held revision of an id are both deleted; :meth:`purge` keeps the live one.

        Parameters
        ----------
        ids
            Ids of documents; unknown ids are ignored.
        **kwargs
            Part of LangChain's interface; a guarded store deletes by ids alone.

        Returns
        -------
        bool | None
            True.

        Raises
        ------
        NotImplementedError
            If ids are missing, if there are other arguments, or if the store inside cannot delete.
        """
        expect_ids(ids)
        if ids is None or kwargs:
            msg = (
                "a guarded store deletes by ids alone, so that its guard forgets the same "
                "documents; ask the store inside for the ids: store.delete(ids)."
            )
            raise NotImplementedError(msg)
        yield self._keeper.step(writing.delete, self._keeper, ids)
        return True

    adelete = asynchronous(delete)  # type: ignore[arg-type]

    @classmethod
    def adopt(
        cls,
        inner: VectorStore,
        *,
        guard: Guard | None = None,
        clean_ids: Iterable[str] | None = None,
        batch_size: int = 1000,
        progress: bool = True,
        **settings: Any,
    ) -> Self:
        """Guard a store that has documents already.

        The guard is fitted on them, with the stored vectors, and calibrated. They are believed, not
        judged: poison that is in the store already stays and counts as knowledge. Look for it with
        :meth:`scan`, which judges each document by the others, and with ``quarantine=True`` takes
        its findings out and makes the guard forget them. Documents that the guard's quarantine
        holds already are left out, here and in reads.

        Parameters
        ----------
        inner
            The store; it is not changed, and nobody should write to it meanwhile.
        guard
            Fitted anew; default: :meth:`Guard.default`.
        clean_ids
            Documents that are known to be clean: thresholds come from half of them, held out while
            the guard is fitted. Default: from all documents, each held out in turn, except for
            groups far from all others; see :meth:`ragshield_core.Guard.adopt`. If the store
            has too few for the accepted rate, the smallest rate that they justify is taken, up to
            5 %, until it has grown; below 20 or so, the guard starts as on an empty store.
        batch_size
            Number of documents that are read at a time.
        progress
            Whether to show the progress on standard error.
        **settings
            As for the constructor: label_key, lineage_key, prompt_keys, inner_store, name,
            neighbors, parent_key, parent_docstore.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a stored document cannot be judged; names it.
        CalibrationError
            If there are too few ``clean_ids``; says how many would do.

        Examples
        --------
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> from langchain_core.vectorstores import InMemoryVectorStore
        >>> from ragshield_core import Guard, Quarantine
        >>> from ragshield_core.detectors import CliqueDetector
        >>> inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        >>> _ = inner.add_texts([f"text {i}" for i in range(300)])
        >>> guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
        >>> store = GuardedVectorStore.adopt(inner, guard=guard, progress=False)
        >>> store.guard.calibrated
        True
        """
        guard = guard if guard is not None else Guard.default()
        store = cls(inner, guard=guard, **(settings | {"check": False}))
        store._access.ready()
        opening.adopt(store._keeper, clean_ids, batch_size, progress=progress)
        return store

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings,  # noqa: ARG003 - the store has its own
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        inner: VectorStore | None = None,
        guard: Guard | None = None,
        **settings: Any,
    ) -> Self:
        """Guard a store, as the constructor does, and write texts into it.

        Parameters
        ----------
        texts, metadatas, ids
            As for any vector store.
        embedding
            Part of LangChain's interface; the model of the store inside embeds the texts.
        inner, guard, **settings
            As for the constructor.

        Raises
        ------
        TypeError
            If ``inner`` or ``guard`` is missing.
        """
        store = cls(_checked_store(inner, guard), guard=guard, **settings)  # type: ignore[arg-type]
        store.add_texts(list(texts), metadatas, ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings,  # noqa: ARG003 - as above
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        inner: VectorStore | None = None,
        guard: Guard | None = None,
        **settings: Any,
    ) -> Self:
        """Do as :meth:`from_texts` does, without blocking the event loop."""
        store = cls(_checked_store(inner, guard), guard=guard, **settings)  # type: ignore[arg-type]
        await store.aadd_texts(list(texts), metadatas, ids=ids)  # type: ignore[arg-type]
        return store

    # Reads: those of the store inside, without held documents. Relevance scores are inherited: they
    # come from similarity_search_with_score and the store's own function.

    @synchronous
    def get_by_ids(self, ids: Sequence[str], /) -> Steps[list[Document]]:
        """Return stored documents; missing and held ones are ignored."""
        return self._mask.visible((yield off_loop(partial(self._stored, ids))).documents)

    aget_by_ids = asynchronous(get_by_ids)  # type: ignore[arg-type]

    similarity_search, asimilarity_search = _searching("similarity_search")
    similarity_search_with_score, asimilarity_search_with_score = _searching(
        "similarity_search_with_score"
    )
    similarity_search_by_vector, asimilarity_search_by_vector = _searching(
        "similarity_search_by_vector"
    )
    max_marginal_relevance_search, amax_marginal_relevance_search = _searching(
        "max_marginal_relevance_search"
    )
    max_marginal_relevance_search_by_vector, amax_marginal_relevance_search_by_vector = _searching(
        "max_marginal_relevance_search_by_vector"
    )

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return self._inner._select_relevance_score_fn()  # noqa: SLF001 - the scores are its own

    # How reads leave out held documents

    def _found(self, name: str, argument: Any, k: int, options: Mapping[str, Any]) -> Steps[Found]:
        """Return the k visible results of a search, and how many were hidden."""

        def ask(n: int) -> Steps[list[Any]]:
            more = {}
            if n > k and (candidates := self._fetch_k(name)) is not None:
                more["fetch_k"] = options.get("fetch_k", candidates) + n - k
            return self._call(name, argument, k=n, **{**options, **more})

        post_filtered = options.get("filter") is not None
        return self._mask.search(ask, k, post_filtered=post_filtered)

    def _call(self, name: str, argument: Any, **options: Any) -> Steps[list[Any]]:
        """Return results of the store, with their documents as the caller wrote them."""
        results = yield asked(self._access, "call", name, argument, **options)
        outward = self._access.outward
        return [
            (outward(one[0]), *one[1:]) if isinstance(one, tuple) else outward(one)
            for one in results
        ]

    def _diverse(
        self, name: str, argument: Any, k: int, options: Mapping[str, Any]
    ) -> Steps[list[Any]]:
        """Return results of a search for maximal marginal relevance.

        If candidates have to be hidden, the choice is made here: a pick that is hidden afterwards
        would have kept others from being picked.
        """
        self._mask.catch_up()
        if self._mask:
            vector = argument
            if not name.endswith("by_vector"):
                vector = yield asked(model_of(self._inner), "embed_query", argument)
            with_score = "_with_score" if "with_score" in name else ""
            search = f"similarity_search{with_score}_by_vector"
            rest = {key: v for key, v in options.items() if key not in ("fetch_k", "lambda_mult")}
            fetch_k = int(options.get("fetch_k", 20))
            if rest.get("filter") is not None and self._fetch_k(search) is not None:
                rest["fetch_k"] = 2 * fetch_k  # FAISS takes as many, if it filters afterwards
            found = yield from self._found(search, vector, fetch_k, rest)
            if found.hidden:
                picked: list[Any] = yield off_loop(
                    lambda: self._pick(vector, found.results, k, options)
                )
                return picked
        return (yield from self._call(name, argument, k=k, **options))

    def _stored(self, ids: Sequence[str]) -> Stored:
        with self._access.reading():
            return self._access.read(ids)

    def _pick(
        self,
        vector: Sequence[float],
        candidates: list[Any],
        k: int,
        options: Mapping[str, Any],
    ) -> list[Any]:
        stored = self._stored([str(document_of(one).id) for one in candidates])
        vectors = {str(d.id): v for d, v in zip(stored.documents, stored.vectors, strict=True)}
        left = [one for one in candidates if str(document_of(one).id) in vectors]
        chosen = maximal_marginal_relevance(
            np.array(vector, dtype=np.float32),
            [vectors[str(document_of(one).id)] for one in left],
            k=k,
            lambda_mult=float(options.get("lambda_mult", 0.5)),
        )
        return [left[number] for number in chosen]

    @synchronous
    def _searched(self, name: str, *args: Any, **kwargs: Any) -> Steps[list[Any]]:
        """Call a search of the store inside; leave out held documents."""
        bound = inspect.signature(getattr(self._inner, name)).bind(*args, **kwargs)
        known = bound.signature.parameters
        given = dict(bound.arguments)
        for key, parameter in known.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(key, {}))
        argument = given.pop(next(iter(known)))
        if "k" not in known:  # another argument says how many
            return self._mask.visible((yield from self._call(name, argument, **given)))
        k = given.pop("k", known["k"].default)
        k = K if k is None else k
        if name.startswith("max_marginal_relevance"):
            return (yield from self._diverse(name, argument, k, given))
        return (yield from self._found(name, argument, k, given)).results

    _asearched = asynchronous(_searched)

    def _fetch_k(self, name: str) -> int | None:
        """Return the number of candidates that a search filters; None if it filters all."""
        parameter = inspect.signature(getattr(self._inner, name)).parameters.get("fetch_k")
        return None if parameter is None else parameter.default

    # The only way to write

    def _adding(
        self,
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]] | None,
        ids: Sequence[str | None] | None,
        vectors: Vectors | None = None,
        *,
        replacing: Collection[str] = (),
        versions: Sequence[NewVersion] = (),
        on_report: OnReport | None = None,
    ) -> Steps[list[str]]:
        """Embed and write texts; those that can be neither stored nor held are refused by name."""
        if metadatas is None:
            metadatas = [{}] * len(texts)
        names = _aligned(texts, metadatas, ids, vectors)
        refused = unusable(names, texts)
        rows = [row for row in range(len(names)) if row not in refused]
        written = False
        if rows or not refused:
            listed = _taken(texts, rows)
            given = (
                _taken(vectors, rows) if vectors is not None else (yield from self._vectors(listed))
            )
            columns = _taken(names, rows), listed, _taken(metadatas, rows), given
            keeper = self._keeper
            if replacing or versions:
                work = keeper.step(keeper.add_columns, columns, list(replacing), versions)
            else:
                kind = lengths_of(columns[3])
                one = Waiting(keeper.add_joined, columns, frozenset(columns[0]), kind)
                work = keeper.joined(one)
            report, not_kept = yield work
            refused |= {rows[row]: reason for row, reason in not_kept.items()}
            written = len(report.batch) > 0
            if on_report is not None and (written or not refused):
                on_report(report)
            if report.remarkable or report.retroactive:
                yield asked(events, "report_detection", report, stage="ingestion")
        if refused:
            raise MalformedEntriesError(refused, ids=names if written else (), written=written)
        return names

    def _vectors(self, texts: Sequence[str]) -> Steps[list[list[float] | None]]:
        """Return vectors, None for texts that the model refuses; raise if it refuses all."""
        try:
            ask = partial(asked, model_of(self._inner), "embed_documents")
            return (yield from embedded(texts, ask)) if texts else []
        except Exception as error:
            error.add_note(
                f"RAGShield: the embedding model of the {type(self._inner).__name__} failed on "
                f"{len(texts)} texts, and none of them was written or held; write them again once "
                "it answers."
            )
            raise


def _checked_store(inner: VectorStore | None, guard: Guard | None) -> VectorStore:
    """Return the store that texts go into; refuse if it or its guard is missing."""
    if inner is None or guard is None:
        msg = (
            f"{'guard' if guard is None else 'inner'} is missing; call GuardedVectorStore."
            "from_texts(texts, embedding, inner=an empty store, guard=guard)."
        )
        raise TypeError(msg)
    return inner


def _taken(column: Any, rows: Sequence[int]) -> Any:
    """Return rows of a column; for all rows, the column itself, arrays included."""
    return column if len(rows) == len(column) else [column[row] for row in rows]


def _refuse_indexing(documents: Sequence[Document], ids: Sequence[str | None] | None) -> None:
    """Refuse writes of LangChain's own indexing, known by a batch size and the documents' ids."""
    if ids and list(ids) == [document.id for document in documents]:
        msg = (
            "langchain_core.indexing.index over a guarded store records held documents as indexed, "
            "skips them for ever after, and deletes the good versions that they were to replace; "
            "use ragshield_langchain.guarded_index(docs_source, record_manager, store, ...), or "
            "aguarded_index, which takes the same arguments and the same records. This call wrote "
            "nothing. If it was yours: documents that have ids need no ids= beside batch_size=."
        )
        raise TypeError(msg)


def _aligned(
    texts: Sequence[str],
    metadatas: Sequence[Mapping[str, Any]],
    ids: Sequence[str | None] | None,
    vectors: Any,
) -> list[str]:
    """Return one id per text, after a check that there is one of everything."""
    expect_ids(ids)
    ids = [None] * len(texts) if ids is None else ids
    for name, column in (("ids", ids), ("metadatas", metadatas), ("embeddings", vectors)):
        if column is not None and len(column) != len(texts):
            msg = f"{len(column)} {name} for {len(texts)} entries, expected one each."
            raise InvalidBatchError(msg)
    return [str(uuid.uuid4()) if one is None else one for one in ids]


def _in_metadata(
    metadatas: Sequence[Mapping[str, Any]] | None, embeddings: Sequence[Any]
) -> tuple[list[str], Sequence[Sequence[float]] | None]:
    """Return texts that are in the metadata, and their vectors; None if there are no vectors."""
    texts = [one.get(MEM0_TEXT) for one in metadatas or ()]
    if len(texts) != len(embeddings) or None in texts:
        msg = (
            f"{len(embeddings)} embeddings have no texts, expected texts=, or metadata with the "
            f"key {MEM0_TEXT!r} for each, as mem0 passes it."
        )
        raise InvalidBatchError(msg)
    return texts, None if all(one is None for one in embeddings) else embeddings  # type: ignore[return-value]


def _pairs(
    text_embeddings: Iterable[tuple[str, Sequence[float]]],
    texts: Sequence[str] | None,
    embeddings: Sequence[Sequence[float]] | None,
) -> tuple[list[str], list[Sequence[float]]]:
    if texts is not None and embeddings is not None:
        return list(texts), list(embeddings)
    pairs = list(text_embeddings)
    if any(isinstance(pair, str) for pair in pairs):
        msg = (
            "text_embeddings holds a str, expected pairs of a text and its vector; pass columns by "
            "name: add_embeddings(texts=..., embeddings=...)."
        )
        raise TypeError(msg)
    return [text for text, _ in pairs], [vector for _, vector in pairs]
