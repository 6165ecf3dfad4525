"""A vector store that screens what is written into the store inside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

from llama_index.core.callbacks.base import global_stack_trace_ids
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
from ragshield_core.store.guarded import Guarded
from ragshield_core.store.opening import look
from ragshield_core.store.steps import Steps, asked, asynchronous, synchronous
from ragshield_llamaindex.convert import Keyed
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.inner import InnerStore, access_to
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.mask import MaskedStore
from ragshield_llamaindex.running import expect_no_docstore, running, watch
from ragshield_llamaindex.transformer import check_transformations

# As VectorStoreIndex names them for callbacks; refreshes are made of updates, updates of a deletion
# and an insertion that know nothing of each other.
UPDATES = frozenset({"update_ref_doc", "aupdate_ref_doc"})


class GuardedVectorStore(Guarded, Keyed, MaskedStore):
    """Drop-in replacement for a vector store: suspicious nodes stay out of it.

    Every write is screened by the guard. Nodes that it quarantines are held, with all that came
    with them, and the others go into the store inside; ids are returned for all of them, aligned
    with the input, since an index pairs nodes and ids by position. Reads are those of the store
    inside, in its order and with its scores. What is held but still in there is left out of them,
    and further results take its place. What is held stays held until a reviewer decides, even if it
    looks admissible when it comes again.

    Key init args:
        inner: BasePydanticVectorStore
            The store inside: ChromaVectorStore, QdrantVectorStore, PGVectorStore, or another that
            keeps texts. SimpleVectorStore and FaissVectorStore keep vectors only: guard their index
            with :class:`~ragshield_llamaindex.GuardedVectorStoreIndex`.
        guard: Guard
            New for a new store. For one that holds nodes already, the guard that was saved
            (``Guard.load``), else see :meth:`adopt`; a guard that knows nothing of them is warned
            of (:class:`~ragshield_llamaindex.UnfittedGuardWarning`).
        label_key: str
            Metadata key of a node's label; default ``"label"``.
        lineage_key: str | None
            Metadata key of what a node was cut from. The default ``None`` looks where readers put
            the file or page: ``file_path``, ``source`` (unless that is a number), ``url`` and
            others, see :data:`ragshield_core.model.claims.LINEAGE_KEYS`. Where metadata says
            nothing, the node's source document.
        inner_store: InnerStore | None
            How to read vectors, for other kinds of stores.
        neighbors: "store" | "memory" | None
            Where detectors find the neighbours of a node. ``"store"``: in the store inside, so
            that no vectors are kept in memory but of what is held, or not written yet; needs
            PGVectorStore or QdrantVectorStore, and is as good as their search. It can be changed
            at any start. Default: as the guard was saved; a new one has them in memory.
        name: str | None
            Under which nodes of this store are held, the same in every process: release and reads
            do not see what is held for others. Default: class and collection or table of the store
            inside; stores in memory have none, and share ``""``.
        check: bool
            Whether to warn at once of a guard that knows nothing of the store's nodes, and of ids
            that differ from those that a guard knows which was opened on a database
            (``Guard.open``), see :meth:`reconcile`. Default: True. False where nodes are brought
            anew at each start, or are so many and far away that listing their ids takes too long.

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
        Every method has its asynchronous twin, which uses that of the store inside.

    Quarantine:
        >>> store.quarantine.count()  # what is held; store.release([...]) puts it back
        0
    """

    _keeper: NodeKeeper = PrivateAttr()
    _checked: set[int] = PrivateAttr(default_factory=set)  # pipelines whose order was looked at

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
        self._inner, self._mask = inner, self._keeper.mask

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "GuardedVectorStore"

    @property
    def inner(self) -> BasePydanticVectorStore:
        """The store inside; what is done to it directly is not guarded."""
        return self._inner

    # Writes

    @dispatcher.span
    @synchronous
    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Steps[list[str]]:
        """Screen nodes and store those that are admitted.

        Parameters
        ----------
        nodes
            With embeddings. An id that exists is replaced, unless the new revision is quarantined:
            then the old one stays.
        **kwargs
            For the store inside.

        Returns
        -------
        list[str]
            One id per node in the order of the input, quarantined ones included.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If something is no node, or no node has a vector; nothing was written.
        ragshield_core.model.errors.MalformedEntriesError
            If nodes have no usable id or cannot be put into a prompt, or all vectors are of another
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
            If a step of a plain pipeline has a language model read nodes before they come here.
        """
        pipeline = self._pipeline()
        report: Report = yield self._keeper.step(self._keeper.add_nodes, nodes, kwargs)
        held = [node for node, kept in zip(nodes, report.admitted, strict=True) if not kept]
        _warn_of_held(pipeline, held)
        return [node.node_id for node in nodes]

    async_add = dispatcher.span(asynchronous(add, "async_add"))

    @dispatcher.span
    @synchronous
    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> Steps[None]:
        """Delete the nodes of a document, from quarantine as well; confirmed poison stays there.

        Where an index calls it to make room for a new version (``update_ref_doc``,
        ``refresh_ref_docs``), nothing is deleted before that is in: if a part of it is held, the
        version before stays, whole.

        Raises
        ------
        TypeError
            If a plain IngestionPipeline with a document store calls it; says what to use.
        """
        self._pipeline()  # refuses one
        if _in_trace(UPDATES):
            self._keeper.make_room(ref_doc_id)
            return
        yield self._keeper.step(self._keeper.delete_document, ref_doc_id)
        if delete_kwargs:  # shard keys and the like: the store inside knows what to make of them
            yield asked(self._inner, "delete", ref_doc_id, **delete_kwargs)

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
            Those that are neither here nor there are ignored.
        filters
            Of those, or of all nodes, the ones to delete.
        **delete_kwargs
            Not used.
        """
        yield self._keeper.step(self._keeper.delete_nodes, node_ids, filters)

    adelete_nodes = asynchronous(delete_nodes)  # type: ignore[arg-type]

    @synchronous
    def clear(self) -> Steps[None]:
        """Delete all nodes; what is held stays in quarantine."""
        yield self._keeper.step(self._keeper.clear)

    aclear = asynchronous(clear)  # type: ignore[arg-type]

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Save the store inside; save the guard with ``guard.save(folder)``."""
        self._inner.persist(persist_path, fs)

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
        """Guard a store that holds nodes already.

        The guard is fitted on them, with the vectors that are stored, and calibrated. They are
        believed, not judged: poison that is in there already stays and counts as knowledge, so look
        for it with :meth:`scan`.

        Parameters
        ----------
        inner
            The store; nothing in it is changed, and nobody should write to it meanwhile.
        guard
            Fitted anew; default: :meth:`Guard.default`.
        clean_ids
            Nodes that are known to be clean: thresholds come from half of them, held out while the
            guard is fitted. Default: from all nodes, each held out in turn. If the store holds too
            few for the accepted rate, the smallest rate that they justify is taken, up to 5 %;
            below 20 or so, the guard begins as it does with nothing.
        batch_size
            How many nodes are read at a time.
        progress
            Whether to show on standard error how far it is.
        inner_store, **options
            As for the constructor.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a stored node cannot be judged; names it.
        CalibrationError
            If there are too few ``clean_ids``; says how many would do.
        """
        guard = Guard.default() if guard is None else guard
        store = cls(inner, guard=guard, inner_store=inner_store, **{**options, "check": False})
        opening.adopt(store._keeper, clean_ids, batch_size, progress=progress)
        return store

    def _pipeline(self) -> IngestionPipeline | None:
        """Return the pipeline that writes into this store now, if one does.

        It warns once if a language model reads nodes in the pipeline, before they come here.

        Raises
        ------
        TypeError
            If it has a document store as well; says what to use.
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
    """Return access to a bare store."""
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


def _in_trace(names: frozenset[str]) -> bool:
    """Return whether an index does one of these things, as its callback manager calls them."""
    return not names.isdisjoint(global_stack_trace_ids.get())


def _warn_of_held(pipeline: IngestionPipeline | None, held: Sequence[BaseNode]) -> None:
    """Warn of a pipeline that returns nodes which are held here."""
    if held and pipeline is not None:
        msg = (
            f"what {type(pipeline).__name__}.run() returns contains {len(held)} nodes that its "
            f"vector store holds in quarantine ({printable(held[0].node_id)}, ...); do not pass it "
            "on, or use GuardedIngestionPipeline, which returns what went in."
        )
        warnings.warn(msg, HeldTextElsewhereWarning, stacklevel=5)
