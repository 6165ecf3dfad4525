"""A vector store that screens all writes into the store inside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
)
from pydantic import PrivateAttr

from ragshield_core import Guard, Report
from ragshield_core.model.errors import HeldTextElsewhereWarning
from ragshield_core.model.findings import printable
from ragshield_core.neighbors.stored import Where
from ragshield_core.store import opening
from ragshield_core.store.guarded import Adoptable, Guarded, NewRows
from ragshield_core.store.opening import look
from ragshield_core.store.steps import Steps, asynchronous, synchronous
from ragshield_llamaindex.convert import Keyed, nodes_of_rows
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.inner import InnerStore, access_to
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.mask import MaskedStore
from ragshield_llamaindex.running import expect_no_docstore, running, updating, watch
from ragshield_llamaindex.transformer import check_transformations


class GuardedVectorStore(Guarded, Adoptable, Keyed, MaskedStore):
    """Drop-in replacement for a vector store: suspicious nodes stay out of it.

    The guard screens every write. Suspicious nodes are held, with all their fields, and the others
    go into the store inside; writes return the ids of all nodes, aligned with the input, since an
    index pairs nodes and ids by position. Reads return the results of the store inside, in its
    order and with its scores. They omit held nodes that are still stored, and further results take
    their place. A node stays held until a reviewer decides, even if it looks admissible when it
    arrives again.

    Key init args:
        inner: BasePydanticVectorStore
            The store inside: ChromaVectorStore, QdrantVectorStore, PGVectorStore,
            MilvusVectorStore, LanceDBVectorStore, or another that keeps texts. SimpleVectorStore
            and FaissVectorStore keep vectors only: guard their index with
            :class:`~ragshield_llamaindex.GuardedVectorStoreIndex`.
        guard: Guard
            A new guard for a new store. For a store with nodes, the saved guard (``Guard.load``),
            or see :meth:`adopt`; a guard that has not learned the nodes causes a warning
            (:class:`~ragshield_llamaindex.UnfittedGuardWarning`).
        label_key: str
            Metadata key of a node's label; default ``"label"``.
        lineage_key: str | None
            Metadata key of a node's document. The default ``None`` tries the keys under which
            readers put the file or page: ``file_path``, ``source`` (unless that is a number),
            ``url`` and others, see :data:`ragshield_core.model.claims.LINEAGE_KEYS`. If the
            metadata has none, the document is the node's source document.
        inner_store: InnerStore | None
            Access to the vectors, for other kinds of stores.
        neighbors: "store" | "memory" | None
            Where detectors find the neighbours of a node. ``"store"``: in the store inside, so
            that memory keeps only vectors of held or unwritten nodes; needs PGVectorStore or
            QdrantVectorStore, and is as good as their search. It can be changed at any start.
            Default: as the guard was saved; a new guard uses memory.
        name: str | None
            Name under which this store's nodes are held, the same in every process: releases and
            reads ignore nodes held for other stores. Default: class and collection or table of the
            store inside; stores in memory have none, and share ``""``.
        check: bool
            Whether to warn at once if the guard has not learned the store's nodes, or if the ids
            known to a guard opened on a database (``Guard.open``) differ from the stored ones, see
            :meth:`reconcile`. Default: True. Pass False if nodes are added anew at each start, or
            if the store is so large or remote that listing its ids takes too long.

    Instantiate:
        >>> import chromadb
        >>> from llama_index.vector_stores.chroma import ChromaVectorStore
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> collection = chromadb.EphemeralClient().create_collection("guarded-example")
        >>> store = GuardedVectorStore(ChromaVectorStore(collection), guard=guard)

    Use with an index:
        >>> from llama_index.core import MockEmbedding, VectorStoreIndex
        >>> from llama_index.core.schema import TextNode
        >>> index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(8))
        >>> index.insert_nodes([TextNode(id_="1", text="foo"), TextNode(id_="2", text="thud")])
        >>> store.last_report
        <Report 2 entries: 2 admitted, 0 flagged, 0 quarantined>
        >>> len(index.as_retriever(similarity_top_k=5).retrieve("thud"))
        2

    Use with a pipeline:
        ``IngestionPipeline(transformations=[splitter, embed_model], vector_store=store)``; where
        documents are updated, :class:`~ragshield_llamaindex.GuardedIngestionPipeline`.

    Delete:
        >>> store.delete_nodes(["1"])

    Async:
        Every method has an asynchronous twin, which uses that of the store inside.

    Quarantine:
        >>> store.quarantine.count()  # what is held; store.release([...]) puts it back
        0
    """

    _keeper: NodeKeeper = PrivateAttr()
    _checked: set[int] = PrivateAttr(default_factory=set)  # pipelines whose order was checked

    def __init__(
        self,
        inner: BasePydanticVectorStore,
        *,
        guard: Guard,
        label_key: str = "label",
        lineage_key: str | None = None,
        inner_store: InnerStore | None = None,
        name: str | None = None,
        check: bool = True,
        neighbors: Where | None = None,
    ) -> None:
        access = _access(inner, inner_store)
        super().__init__(
            is_embedding_query=inner.is_embedding_query,
            label_key=label_key,  # type: ignore[call-arg]
            lineage_key=lineage_key,
        )
        watch()
        self._keeper = NodeKeeper(guard, access, label_key, lineage_key, name, neighbors)
        if check and (access.ids_alone or not guard.n_known):
            way_out = "GuardedVectorStore.adopt(store, guard=guard)"
            look(self._keeper, access.count, type(inner).__name__, way_out)
        self._access, self._mask = access, self._keeper.mask

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "GuardedVectorStore"

    @property
    def inner(self) -> BasePydanticVectorStore:
        """The store inside; direct writes to it are not guarded."""
        store: BasePydanticVectorStore = self._access.inner
        return store

    # Writes

    @dispatcher.span
    @synchronous
    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Steps[list[str]]:
        """Screen nodes and store those that are admitted.

        Parameters
        ----------
        nodes
            With embeddings. A node with an existing id replaces the old revision, unless it is
            quarantined: then the old one stays.
        **kwargs
            For the store inside.

        Returns
        -------
        list[str]
            One id per node in the order of the input, quarantined ones included.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If an item is not a node, or no node has a vector; no node was written.
        ragshield_core.model.errors.MalformedEntriesError
            If nodes have no usable id or cannot be put into a prompt, or all vectors have another
            dimension; names each, once the others are written. A node that cannot be judged for
            another reason (a list for a label, a value that cannot be kept, no usable vector) is
            held, and the report says why.
        PoisonedEntryError
            If nodes are suspicious and the policy says ``on_detect="raise"``.
        TypeError
            If a plain IngestionPipeline with a document store calls it; says what to use.

        Warns
        -----
        HeldTextElsewhereWarning
            If a plain pipeline returns held nodes as well.
        PoisonGuardOrderWarning
            If a step of a plain pipeline lets a language model read nodes before the store.
        """
        pipeline = self._pipeline()
        report: Report = yield self._keeper.adding(nodes, kwargs)
        held = [node for node, kept in zip(nodes, report.admitted, strict=True) if not kept]
        _warn_of_held(pipeline, held)
        return [node.node_id for node in nodes]

    async_add = dispatcher.span(asynchronous(add, "async_add"))

    def _write_rows(self, rows: NewRows) -> Report:
        self.add(nodes_of_rows(rows))
        return self.last_report

    @dispatcher.span
    @synchronous
    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> Steps[None]:
        """Delete the nodes of a document, from quarantine as well; confirmed poison stays there.

        If an index calls it to make room for a new version (``update_ref_doc``,
        ``refresh_ref_docs``), the old nodes are deleted once that is stored: if a part of it is
        held, the whole previous version stays.

        Raises
        ------
        TypeError
            If a plain IngestionPipeline with a document store calls it; says what to use.
        """
        self._pipeline()  # refuses one
        if updating():
            self._keeper.make_room(ref_doc_id)
            return
        yield self._keeper.step(self._keeper.delete_document, ref_doc_id)
        if delete_kwargs:  # shard keys and other options of the store inside
            yield self._access.asking("delete", ref_doc_id, **delete_kwargs)

    adelete = dispatcher.span(asynchronous(delete))

    @synchronous
    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,  # noqa: ARG002 - of LlamaIndex's interface
    ) -> Steps[None]:
        """Delete nodes, from quarantine as well; confirmed poison stays there.

        Parameters
        ----------
        node_ids
            Ids to delete; those neither stored nor held are ignored.
        filters
            Select the nodes to delete, among the ids or among all nodes.
        **delete_kwargs
            Not used.
        """
        yield self._keeper.step(self._keeper.delete_nodes, node_ids, filters)

    adelete_nodes = asynchronous(delete_nodes)  # type: ignore[arg-type]

    @synchronous
    def clear(self) -> Steps[None]:
        """Delete all nodes; held nodes stay in quarantine."""
        yield self._keeper.step(self._keeper.clear)

    aclear = asynchronous(clear)  # type: ignore[arg-type]

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Save the store inside; save the guard with ``guard.save(folder)``."""
        self.inner.persist(persist_path, fs)

    @classmethod
    def adopt(
        cls,
        inner: BasePydanticVectorStore,
        *,
        guard: Guard | None = None,
        clean_ids: Iterable[str] | None = None,
        batch_size: int = 1000,
        progress: bool = True,
        inner_store: InnerStore | None = None,
        **options: Any,
    ) -> Self:
        """Guard a store that already holds nodes.

        The guard is fitted and calibrated on them, with their stored vectors. It believes them
        without judging them: poison that is already stored stays and counts as knowledge, so look
        for it with :meth:`scan`.

        Parameters
        ----------
        inner
            The store; it stays unchanged, and nobody should write to it meanwhile.
        guard
            Gets fitted anew; default: :meth:`Guard.default`.
        clean_ids
            Nodes known to be clean: thresholds come from half of them, held out while the guard is
            fitted. Default: from all nodes, each held out in turn. If the store has too few nodes
            for the accepted rate, the guard uses the smallest rate that they justify, up to 5 %;
            below about 20 nodes, it starts as with an empty store.
        batch_size
            Number of nodes to read at a time.
        progress
            Whether to show progress on standard error.
        inner_store, **options
            As for the constructor.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a stored node cannot be judged; names it.
        CalibrationError
            If there are too few ``clean_ids``; states the number needed.
        """
        guard = Guard.default() if guard is None else guard
        store = cls(inner, guard=guard, inner_store=inner_store, **{**options, "check": False})
        opening.adopt(store._keeper, clean_ids, batch_size, progress=progress)
        return store

    def _pipeline(self) -> IngestionPipeline | None:
        """Return the pipeline that is writing into this store, if any.

        Warns once if a language model in the pipeline reads nodes before the store.

        Raises
        ------
        TypeError
            If the pipeline has a document store as well; says what to use.
        """
        for pipeline in running(IngestionPipeline):
            if pipeline.vector_store is self:
                arguments = "transformations, guard=store.guard, vector_store=store"
                expect_no_docstore(pipeline, arguments)
                if id(pipeline) not in self._checked:
                    self._checked.add(id(pipeline))
                    check_transformations(pipeline.transformations, guarded_behind=True)
                return pipeline
        return None


def _access(inner: object, inner_store: InnerStore | None) -> InnerStore:
    """Return access to an unguarded store."""
    if isinstance(inner, GuardedVectorStore):
        msg = "the store inside is a GuardedVectorStore already, expected a bare one; use it."
        raise TypeError(msg)
    if not isinstance(inner, BasePydanticVectorStore):
        msg = (
            f"the store inside is of type {type(inner).__name__}, expected a vector store of "
            "LlamaIndex, such as ChromaVectorStore; guard an index with GuardedVectorStoreIndex."
        )
        raise TypeError(msg)
    return access_to(inner) if inner_store is None else inner_store


def _warn_of_held(pipeline: IngestionPipeline | None, held: Sequence[BaseNode]) -> None:
    """Warn that a pipeline returns nodes that are held here."""
    if held and pipeline is not None:
        msg = (
            f"what {type(pipeline).__name__}.run() returns contains {len(held)} nodes that its "
            f"vector store holds in quarantine ({printable(held[0].node_id)}, ...); do not pass it "
            "on, or use GuardedIngestionPipeline, which returns what went in."
        )
        warnings.warn(msg, HeldTextElsewhereWarning, stacklevel=5)
