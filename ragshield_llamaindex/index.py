"""A vector store index that screens nodes before they reach the store, whatever the store."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode
from llama_index.core.data_structs import IndexDict
from llama_index.core.ingestion.pipeline import arun_transformations, run_transformations
from llama_index.core.llms.utils import LLMType
from llama_index.core.schema import (
    BaseNode,
    Document,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    TransformComponent,
)
from llama_index.core.settings import Settings
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from ragshield_core import Guard
from ragshield_core.adapters.malformed import unusable
from ragshield_core.adapters.steps import Step, Steps, adone, asked, done
from ragshield_core.errors import MalformedEntriesError
from ragshield_core.neighbors.table import VectorTable, Where
from ragshield_core.quarantine import HeldEntry
from ragshield_llamaindex.convert import (
    MetadataKeys,
    check_are_nodes,
    embedded,
    naming,
    relinked,
    source_of,
    text_or_none,
)
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.guarded import Guarded
from ragshield_llamaindex.held_nodes import Embed, embedding_with
from ragshield_llamaindex.inner import InnerStore, access_to, vectors_of
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.mask import Mask
from ragshield_llamaindex.stable_ids import StableIds
from ragshield_llamaindex.vectorstore import GuardedVectorStore

Engine = TypeVar("Engine", bound=BaseQueryEngine | BaseChatEngine)

logger = logging.getLogger("ragshield")

# Arguments of an index that it keeps to itself.
_SETTINGS = (
    *("embed_model", "callback_manager", "transformations", "use_async"),
    *("store_nodes_override", "insert_batch_size", "show_progress"),
)

# What models raise at texts that they cannot read, rather than when they cannot be reached.
REFUSALS = (ValueError, TypeError)

# What a query engine answers where no passage is left, in place of "Empty Response".
ALL_DROPPED = "No answer: no passage that was found for this question passed the guard."


class GuardedVectorStoreIndex(Guarded, VectorStoreIndex):
    """Drop-in replacement for a VectorStoreIndex: suspicious nodes stay out of it.

    Nodes are embedded, screened, and only then handed to the vector store, so that positions and
    ids agree also for stores that keep vectors only. Every way in is screened: ``from_documents``,
    the constructor, ``insert``, ``insert_nodes``, ``update_ref_doc`` and ``refresh_ref_docs``.

    Setup:
        Install ``ragshield[llamaindex]``.

    Key init args:
        nodes: Sequence[BaseNode]
            As of VectorStoreIndex.
        guard: Guard
            New for a new index. For an index that exists, see :meth:`adopt`.
        label_key: str
            Metadata key of a node's label; default ``"label"``.
        lineage_key: str | None
            Metadata key of what a node was cut from. The default ``None`` looks where readers put
            the file or page: ``file_path``, ``source`` (unless that is a number), ``url`` and
            others, see :data:`ragshield_core.claims.LINEAGE_KEYS`. Where metadata says
            nothing, the node's source document.
        inner_store: InnerStore | None
            How to read nodes of the vector store, for kinds that are not known.
        neighbors: "store" | "memory" | None
            Where detectors find the neighbours of a node. ``"store"``: in the vector store, so
            that no vectors are kept in memory but of what is held, or not written yet; needs
            PGVectorStore or QdrantVectorStore, and is as good as their search. It can be changed
            at any start. Default: as the guard was saved; a new one has them in memory.
        name: str | None
            Under which nodes of this index are held, the same in every process: release and reads
            do not see what is held for others. Default: class and collection or table of the store
            inside; stores in memory have none, and share ``""``.
        check: bool
            Whether ids are compared at once with those that a guard knows which was opened on a
            database (``Guard.open``); a difference is warned of, see :meth:`reconcile`. Default:
            True. False where nodes are brought anew at each start, or are so many and far away
            that listing their ids takes too long.
        kwargs
            As of VectorStoreIndex: ``storage_context``, ``embed_model``, ``transformations``, ...
            ``objects`` that stand for nodes are judged with these; engines and retrievers answer by
            themselves, which a warning says: put a GuardedRetriever around the index's retriever.

    Instantiate:
        >>> from llama_index.core import MockEmbedding
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> index = GuardedVectorStoreIndex.from_documents(
        ...     [Document(id_="1", text="foo"), Document(id_="2", text="thud")],
        ...     guard=guard, embed_model=MockEmbedding(8))
        >>> index.last_report
        <Report 2 entries: 2 admitted, 0 flagged, 0 quarantined>

    Insert and delete:
        >>> index.insert(Document(id_="3", text="qux"))
        >>> index.delete_ref_doc("1", delete_from_docstore=True)

    Use as a retriever:
        >>> sorted(found.text for found in index.as_retriever(similarity_top_k=5).retrieve("thud"))
        ['qux', 'thud']

    Use as a query engine:
        >>> from llama_index.core.llms import MockLLM
        >>> engine = index.as_query_engine(llm=MockLLM(max_tokens=2))
        >>> engine.query("thud").response
        'text text'

        Where no passage is left it answers :data:`ALL_DROPPED`, streaming or not.

    Quarantine:
        >>> index.quarantine.count()  # what is held; index.release([...]) puts it back
        0

    Notes
    -----
    An update (``update_ref_doc``, ``refresh_ref_docs``) of which a part is held is not made: the
    version before stays, whole. All of the new version waits in quarantine, and replaces the one
    before once the suspicious parts are released. The same version is neither judged nor logged
    again at the next refresh; another one takes its place, or that of what waits.
    """

    def __init__(  # noqa: PLR0913 - arguments of the framework's and our own
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        guard: Guard,
        label_key: str = "label",
        lineage_key: str | None = None,
        inner_store: InnerStore | None = None,
        name: str | None = None,
        check: bool = True,
        neighbors: Where | None = None,
        storage_context: StorageContext | None = None,
        index_struct: IndexDict | None = None,
        **kwargs: Any,
    ) -> None:
        nodes, kwargs["objects"] = _with_objects(nodes, kwargs.get("objects"))
        storage_context = storage_context or StorageContext.from_defaults()
        store = storage_context.vector_store
        if isinstance(store, GuardedVectorStore):
            msg = (
                "the vector store is guarded already, expected a bare one; use a VectorStoreIndex "
                "with it."
            )
            raise TypeError(msg)
        # The constructor writes: what a write needs has to be there before.
        self._access = _IndexInner(self, store, inner_store)
        self._access.struct = index_struct
        keys = MetadataKeys(label=label_key, lineage=lineage_key)
        self._keeper = NodeKeeper(guard, self._access, keys, name, neighbors)
        self._keeper.look("index", check=check)
        self._reads = ReadView(store, self._access, self._keeper.mask)
        kwargs["transformations"] = _stable(kwargs.get("transformations"))
        super().__init__(
            nodes=nodes, storage_context=storage_context, index_struct=index_struct, **kwargs
        )
        self._access.struct = self._index_struct
        self._offer_embedder()

    def _offer_embedder(self) -> None:
        """Let the guard embed suspicious sentences with the model of the index."""
        self.guard.offer_embedder(self._embed_model.get_text_embedding_batch)

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Document],
        storage_context: StorageContext | None = None,
        show_progress: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        callback_manager: CallbackManager | None = None,
        transformations: list[TransformComponent] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cut documents into nodes and index those that are admitted.

        Parameters
        ----------
        documents, storage_context, show_progress, callback_manager, transformations
            As of VectorStoreIndex. The hash of a document of which all nodes are held is not
            recorded, so that a later ``refresh_ref_docs`` tries it again.
        **kwargs
            As of the constructor; ``guard`` is needed.
        """
        steps = _stable(transformations)
        index = super().from_documents(
            documents, storage_context, show_progress, callback_manager, steps, **kwargs
        )
        for document in documents:
            index._unrecord(document.id_)  # noqa: SLF001 - of the same class
        return index

    @classmethod
    def from_vector_store(
        cls, vector_store: BasePydanticVectorStore, embed_model: Any = None, **kwargs: Any
    ) -> Self:
        """Return an index over a store that keeps texts; for one that holds nodes, :meth:`adopt`.

        Parameters
        ----------
        vector_store, embed_model
            As of VectorStoreIndex.
        **kwargs
            As of the constructor; ``guard`` is needed.
        """
        index: Self = super().from_vector_store(vector_store, embed_model, **kwargs)  # type: ignore[assignment]
        return index

    @classmethod
    def adopt(  # noqa: PLR0913 - as of the constructor
        cls,
        index: VectorStoreIndex,
        *,
        guard: Guard | None = None,
        clean_ids: Iterable[str] | None = None,
        label_key: str = "label",
        lineage_key: str | None = None,
        inner_store: InnerStore | None = None,
        name: str | None = None,
        fit: bool = True,
        neighbors: Where | None = None,
    ) -> Self:
        """Guard an index that holds nodes already.

        The guard is fitted on them, with the vectors that are stored, and calibrated. They are
        believed, not judged: poison that is in there already stays and counts as knowledge, so look
        for it with :meth:`scan`.

        Parameters
        ----------
        index
            Nothing in it is changed; use the one that is returned in its place.
        guard
            Fitted anew; default: :meth:`Guard.default`.
        clean_ids
            Ids of nodes that are known to be clean: thresholds come from half of them, held out
            while the guard is fitted. Default: from all nodes, each held out in turn. If there are
            too few for the accepted rate, the smallest rate that they justify is taken, up to 5 %;
            below 20 or so, the guard begins as it does with nothing.
        label_key, lineage_key, inner_store, name, neighbors
            As for the constructor.
        fit
            False for a guard that has learned the index already: ``Guard.load(folder)``, beside
            ``load_index_from_storage``.

        Raises
        ------
        ragshield_core.errors.InvalidBatchError
            If a stored node cannot be judged; names it.
        CalibrationError
            If there are too few ``clean_ids``; says how many would do.

        Examples
        --------
        >>> from llama_index.core import MockEmbedding
        >>> from llama_index.core.schema import TextNode
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> bare = VectorStoreIndex([TextNode(text="foo")], embed_model=MockEmbedding(8))
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> index = GuardedVectorStoreIndex.adopt(bare, guard=guard)
        >>> len(index.as_retriever().retrieve("foo"))
        1
        """
        if not isinstance(index, VectorStoreIndex) or isinstance(index, GuardedVectorStoreIndex):
            msg = (
                f"the index is of type {type(index).__name__}, expected a bare VectorStoreIndex: "
                "other kinds have no vectors to judge by, and a guarded one is guarded already."
            )
            raise TypeError(msg)
        guard = Guard.default() if guard is None else guard
        if fit:
            access = _IndexInner(index, index.vector_store, inner_store)
            access.struct = index.index_struct
            keys = MetadataKeys(label=label_key, lineage=lineage_key)
            NodeKeeper(guard, access, keys, name, neighbors).adopt(clean_ids)
        adopted = cls(
            guard=guard,
            label_key=label_key,
            lineage_key=lineage_key,
            inner_store=inner_store,
            name=name,
            check=not fit,
            neighbors=neighbors,
            storage_context=index.storage_context,
            index_struct=index.index_struct,
            **{name: getattr(index, f"_{name}") for name in _SETTINGS},
        )
        adopted._object_map = index._object_map  # noqa: SLF001
        return adopted

    @property
    def vector_store(self) -> BasePydanticVectorStore:
        """What retrievers read: the vector store, without what is held. It cannot be written."""
        return self._reads

    # Writes

    def _add_nodes_to_index(
        self,
        index_struct: IndexDict,
        nodes: Sequence[BaseNode],
        show_progress: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **insert_kwargs: Any,
    ) -> None:
        self._access.struct = index_struct
        if nodes:
            vectors = done(self._embedding(nodes, show_progress))
            with self._recording() as at_once:
                self._keeper.run(self._keeper.add_nodes(vectors, insert_kwargs, at_once=at_once))

    async def _async_add_nodes_to_index(
        self,
        index_struct: IndexDict,
        nodes: Sequence[BaseNode],
        show_progress: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **insert_kwargs: Any,
    ) -> None:
        self._access.struct = index_struct
        if nodes:
            vectors = await adone(self._embedding(nodes, show_progress))
            with self._recording() as at_once:
                await self._keeper.arun(
                    self._keeper.add_nodes(vectors, insert_kwargs, at_once=at_once)
                )

    def _embedding(self, nodes: Sequence[BaseNode], progress: bool) -> Steps[list[BaseNode]]:  # noqa: FBT001
        """Return nodes with vectors; those that the model refuses without, unless it is all."""
        self._offer_embedder()
        rows = _embeddable(nodes)
        some = [nodes[row] for row in rows]
        try:
            found = list((yield self._vectors(some, progress)))
        except REFUSALS:
            found = []
            for node in some:
                with suppress(*REFUSALS):
                    found += yield self._vectors([node], progress)
            if not found:
                raise
            found = _merged(some, _rows_of(some, found), found)
        return _merged(nodes, rows, found)

    def _vectors(self, nodes: Sequence[BaseNode], progress: bool = False) -> Step:  # noqa: FBT001, FBT002
        """Embed nodes as LlamaIndex does."""
        return Step(
            partial(self._get_node_with_embedding, nodes, progress),
            partial(self._aget_node_with_embedding, nodes, progress),
        )

    @contextmanager
    def _recording(self) -> Iterator[bool]:
        """Note what is stored where some nodes could not be; not while the index is being made.

        Who is making it would be left without the index, so that all are refused at once then.
        """
        made = "_index_struct" in self.__dict__
        try:
            yield not made
        except MalformedEntriesError:
            if made:
                self._record()
            raise

    def insert(self, document: Document, **insert_kwargs: Any) -> None:
        """Cut a document into nodes and index those that are admitted."""
        super().insert(document, **insert_kwargs)
        self._unrecord(document.id_)

    async def ainsert(self, document: Document, **insert_kwargs: Any) -> None:
        """Do as :meth:`insert` does, by async methods."""
        await super().ainsert(document, **insert_kwargs)
        self._unrecord(document.id_)

    @dispatcher.span
    def update_ref_doc(self, document: Document, **update_kwargs: Any) -> None:
        """Replace a document, if no part of the new version is held; else the old one stays, whole.

        A version that waits in quarantine as it is, is left there without another look.

        Parameters
        ----------
        document
            The new version, under the same id.
        **update_kwargs
            ``insert_kwargs``, as of LlamaIndex; ``delete_kwargs`` are not needed.
        """
        done(self._updating(document, update_kwargs))

    @dispatcher.span
    async def aupdate_ref_doc(self, document: Document, **update_kwargs: Any) -> None:
        """Do as :meth:`update_ref_doc` does, by async methods."""
        await adone(self._updating(document, update_kwargs))

    def _updating(self, document: Document, update_kwargs: dict[str, Any]) -> Steps[None]:
        keeper = self._keeper
        if (yield keeper.step(self._waits(document))):
            return
        insert_kwargs = update_kwargs.get("insert_kwargs", {})
        transform = [document], self._transformations
        nodes = yield Step(
            partial(run_transformations, *transform, **insert_kwargs),
            partial(arun_transformations, *transform, **insert_kwargs),
        )
        with naming(nodes, keeper.keys):
            vectors = yield self._vectors(nodes)
        if (yield keeper.step(keeper.update(document.id_, vectors, insert_kwargs))):
            yield asked(self._docstore, "set_document_hash", document.id_, document.hash)
        self._record()

    @dispatcher.span
    def delete_ref_doc(
        self,
        ref_doc_id: str,
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,
    ) -> None:
        """Delete a document, from quarantine as well; confirmed poison stays there.

        Parameters
        ----------
        ref_doc_id
            Its id.
        delete_from_docstore
            Whether its nodes leave the docstore as well.
        **delete_kwargs
            Not used.
        """
        del delete_kwargs
        done(self._deleting(ref_doc_id, delete_from_docstore))

    @dispatcher.span
    async def adelete_ref_doc(
        self,
        ref_doc_id: str,
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,
    ) -> None:
        """Do as :meth:`delete_ref_doc` does, by async methods."""
        del delete_kwargs
        await adone(self._deleting(ref_doc_id, delete_from_docstore))

    def _deleting(self, ref_doc_id: str, from_docstore: bool) -> Steps[None]:  # noqa: FBT001
        options = {"from_docstore": from_docstore}
        yield self._keeper.step(self._keeper.delete_document(ref_doc_id, options))
        if from_docstore:
            yield Step(
                partial(self._delete_from_docstore, ref_doc_id),
                partial(self._adelete_from_docstore, ref_doc_id),
            )
        self._record()

    def delete_nodes(
        self,
        node_ids: list[str],
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes, from quarantine as well; confirmed poison stays there."""
        del delete_kwargs
        options = {"from_docstore": delete_from_docstore}
        self._change(self._keeper.delete(node_ids, options))

    async def adelete_nodes(
        self,
        node_ids: list[str],
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,
    ) -> None:
        """Do as :meth:`delete_nodes` does, by async methods."""
        del delete_kwargs
        options = {"from_docstore": delete_from_docstore}
        await self._achange(self._keeper.delete(node_ids, options))

    # Reads

    def as_query_engine(self, llm: LLMType | None = None, **kwargs: Any) -> BaseQueryEngine:
        """Return a query engine that answers :data:`ALL_DROPPED` where no passage is left."""
        return answering(super().as_query_engine(llm, **kwargs))

    def as_chat_engine(
        self, chat_mode: ChatMode = ChatMode.BEST, llm: LLMType | None = None, **kwargs: Any
    ) -> BaseChatEngine:
        """Return a chat engine that answers :data:`ALL_DROPPED` where no passage is left."""
        engine = super().as_chat_engine(chat_mode, llm, **kwargs)
        # Some have no synthesizer: they ask a query engine, or no index at all.
        return answering(engine) if hasattr(engine, "_get_response_synthesizer") else engine

    def _embedder(self, model: BaseEmbedding | None) -> Embed:
        return embedding_with(self._embed_model if model is None else model)

    def _record(self) -> None:
        """Store which nodes the index holds."""
        self._storage_context.index_store.add_index_struct(self._index_struct)

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        unsettle(self._docstore, restored)
        self._record()

    def _waits(self, document: Document) -> Steps[bool]:
        """Return whether this very version of a document waits, and the one before is served."""
        waits = yield from self._keeper.still_held([(document.id_, document.hash)])
        return document.id_ in waits

    def _unrecord(self, ref_doc_id: str) -> None:
        """Forget the hash of a document of which the latest write has held all nodes."""
        report = self.last_report
        kept = [
            bool(kept)
            for metadata, kept in zip(report.batch.metadatas, report.admitted, strict=True)
            if source_of(metadata) == ref_doc_id
        ]
        if kept and not any(kept):
            self._docstore.delete_document(ref_doc_id, raise_error=False)


def guarded_index_from_documents(
    documents: Sequence[Document], *, guard: Guard, **kwargs: Any
) -> GuardedVectorStoreIndex:
    """Return an index of those parts of documents that the guard admits.

    Parameters
    ----------
    documents
        To be cut into nodes, embedded and screened.
    guard
        New for a new index.
    **kwargs
        As of :class:`GuardedVectorStoreIndex` and ``VectorStoreIndex.from_documents``.

    Examples
    --------
    >>> from llama_index.core import MockEmbedding
    >>> from ragshield_core import Quarantine
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    >>> index = guarded_index_from_documents(
    ...     [Document(text="foo")], guard=guard, embed_model=MockEmbedding(8))
    >>> len(index.as_retriever().retrieve("foo"))
    1
    """
    return GuardedVectorStoreIndex.from_documents(documents, guard=guard, **kwargs)


def unsettle(docstore: BaseDocumentStore, restored: Iterable[HeldEntry]) -> None:
    """Have the next refresh or run look at documents again, whichever version it brings.

    On record are text and hash of the version that was taken out; without any hash, the next one
    would be inserted beside what was restored.
    """
    for document in dict.fromkeys(source_of(one.entry.metadata) for one in restored):
        if document is not None and docstore.get_document_hash(document) is not None:
            docstore.delete_document(document, raise_error=False)
            docstore.set_document_hash(document, f"restored {document}")


def adopt(index: VectorStoreIndex, **kwargs: Any) -> GuardedVectorStoreIndex:
    """Guard an index that holds nodes already; see :meth:`GuardedVectorStoreIndex.adopt`."""
    return GuardedVectorStoreIndex.adopt(index, **kwargs)


def _embeddable(nodes: Sequence[BaseNode]) -> list[int]:
    """Return the rows of nodes that can be asked a vector for, without hurting the others.

    LlamaIndex gives nodes under one id the vector of the last, and fails on all where metadata of
    one cannot be written.
    """
    check_are_nodes(nodes)
    refused = unusable([node.node_id for node in nodes], [text_or_none(node) for node in nodes])
    rows = []
    for row, node in enumerate(nodes):
        if row not in refused:
            try:
                if node.embedding is None:
                    node.get_content(metadata_mode=MetadataMode.EMBED)
                rows.append(row)
            except Exception:  # noqa: BLE001, S112 - it is held, with the reason
                continue
    return rows


def _rows_of(nodes: Sequence[BaseNode], some: Sequence[BaseNode]) -> list[int]:
    rows = {node.node_id: row for row, node in enumerate(nodes)}
    return [rows[node.node_id] for node in some]


def _merged(
    nodes: Sequence[BaseNode], rows: Sequence[int], found: Sequence[BaseNode]
) -> list[BaseNode]:
    """Return nodes with those that were found in their places."""
    merged = list(nodes)
    for row, node in zip(rows, found, strict=True):
        merged[row] = node
    return merged


def _with_objects(
    nodes: Sequence[BaseNode] | None, objects: Sequence[IndexNode] | None
) -> tuple[Sequence[BaseNode] | None, list[IndexNode] | None]:
    """Return nodes with the objects that stand for nodes, and the other objects.

    An index takes what stands behind its objects away before it adds them, so that a guard would
    see their summaries alone.
    """
    if not objects:
        return nodes, None
    judged = [one for one in objects if isinstance(one.obj, BaseNode)]
    rest = [one for one in objects if not isinstance(one.obj, BaseNode)]
    unseen = sorted({type(one.obj).__name__ for one in rest if one.obj is not None})
    if unseen:
        msg = (
            f"what objects of type {', '.join(unseen)} answer is not judged by this index; put a "
            "GuardedRetriever around its retriever, or a PoisonFilter among the postprocessors of "
            "its engine."
        )
        warnings.warn(msg, UserWarning, stacklevel=3)
    return [*(nodes or ()), *judged], rest or None


def _stable(transformations: list[TransformComponent] | None) -> list[TransformComponent]:
    """Return transformations after which a part of a document has the same id at each run."""
    steps = [*(transformations or Settings.transformations)]
    return steps if any(isinstance(step, StableIds) for step in steps) else [*steps, StableIds()]


def access_to_index(index: VectorStoreIndex) -> InnerStore:
    """Return access to the nodes of an index and their vectors.

    Raises
    ------
    TypeError
        If its vector store is of no known kind.
    """
    if isinstance(index, GuardedVectorStoreIndex):
        return index._access  # noqa: SLF001 - defined here
    store = index.vector_store
    if isinstance(store, GuardedVectorStore):
        return store._keeper.access  # noqa: SLF001 - one way to read vectors back
    access = _IndexInner(index, store, None)
    access.struct = index.index_struct
    return access


def answering(engine: Engine, answer: str = ALL_DROPPED) -> Engine:
    """Make an engine say something better than "Empty Response" where no passage is left.

    Parameters
    ----------
    engine
        A query or chat engine with a response synthesizer, such as RetrieverQueryEngine or
        CondensePlusContextChatEngine; it is changed and returned.
    answer
        What to say, streaming or not; no language model is asked.

    Raises
    ------
    TypeError
        If the engine has no response synthesizer.
    """
    synthesizer = getattr(engine, "_response_synthesizer", None)
    make = getattr(engine, "_get_response_synthesizer", None)  # chat engines: one per message
    if synthesizer is not None:
        _say(synthesizer, answer)
    elif make is not None:
        made = partial(_made, make, answer)
        setattr(engine, "_get_response_synthesizer", made)  # noqa: B010 - not of the base classes
    else:
        msg = f"{type(engine).__name__} has no response synthesizer, expected one that has."
        raise TypeError(msg)
    return engine


def _made(make: Callable[..., Any], answer: str, *given: Any, **named: Any) -> Any:
    synthesizer = make(*given, **named)
    _say(synthesizer, answer)
    return synthesizer


def _say(synthesizer: Any, answer: str) -> None:
    synthesizer._empty_response = answer  # noqa: SLF001 - an argument of its constructor only


class ReadView(BasePydanticVectorStore):
    """What retrievers of a guarded index see of the vector store."""

    stores_text: bool = False
    is_embedding_query: bool = True

    _inner: BasePydanticVectorStore = PrivateAttr()
    _access: _IndexInner = PrivateAttr()
    _mask: Mask = PrivateAttr()

    def __init__(self, inner: BasePydanticVectorStore, access: _IndexInner, mask: Mask) -> None:
        super().__init__(stores_text=inner.stores_text, is_embedding_query=inner.is_embedding_query)
        self._inner, self._access, self._mask = inner, access, mask

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "GuardedReadView"

    @property
    def client(self) -> Any:
        """Client of the vector store; what is done with it is not guarded."""
        return self._inner.client

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Refuse: it would go around the guard."""
        del nodes, kwargs
        raise NotImplementedError(_READ_ONLY)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Refuse: index and vector store would be out of step."""
        del ref_doc_id, delete_kwargs
        raise NotImplementedError(_READ_ONLY)

    def get_nodes(self, *args: Any, **kwargs: Any) -> list[BaseNode]:
        """Return stored nodes; those that are held are ignored."""
        return self._mask.visible(self._inner.get_nodes(*args, **kwargs))

    async def aget_nodes(self, *args: Any, **kwargs: Any) -> list[BaseNode]:
        """Return stored nodes; those that are held are ignored."""
        return self._mask.visible(await self._inner.aget_nodes(*args, **kwargs))

    @dispatcher.span
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return what the vector store finds, without what is held."""
        return done(self._query(query, kwargs))

    @dispatcher.span
    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Do as :meth:`query` does, by the vector store's async method."""
        return await adone(self._query(query, kwargs))

    def _query(
        self, query: VectorStoreQuery, kwargs: dict[str, Any]
    ) -> Steps[VectorStoreQueryResult]:
        ask = partial(asked, self._inner, "query", **kwargs)
        return self._mask.query(ask, query, self._shows, self._access.orphans)

    def _shows(self, entry_id: str | None, node: BaseNode | None) -> bool:
        """Return whether a result may be seen; of stores that keep vectors only, with its node."""
        if node is None and entry_id is not None:
            node = self._access.node(entry_id)
        return node is not None and not self._mask.hides(node)


_READ_ONLY = (
    "the vector store of a guarded index is written through the index: insert_nodes, "
    "delete_ref_doc. What is done to index.storage_context.vector_store is not guarded."
)


class _IndexInner(InnerStore):
    """The nodes of an index: in its vector store, or half there and half in its docstore."""

    def __init__(
        self,
        index: VectorStoreIndex,
        store: BasePydanticVectorStore,
        inner_store: InnerStore | None,
    ) -> None:
        super().__init__(store)
        self._index = index
        self.struct: IndexDict | None = None
        self._nodes = inner_store
        if inner_store is None and store.stores_text:
            self._nodes = access_to(store)
        elif inner_store is None:
            vectors_of(store, [])  # raises for a store whose vectors cannot be read

    @classmethod
    def handles(cls, store_cls: type[BasePydanticVectorStore]) -> bool:
        """Return False: it is made for an index."""
        del store_cls
        return False

    @property
    def name(self) -> str:
        """That of the store, where it keeps texts; the others are in memory."""
        return "" if self._nodes is None else self._nodes.name

    @property
    def table(self) -> VectorTable | None:
        """That of the store, where it keeps texts; the others are in memory anyway."""
        return None if self._nodes is None else self._nodes.table

    @property
    def replaces(self) -> bool:
        """As of the store, where it keeps texts."""
        return self._nodes is not None and self._nodes.replaces

    def unfit(self, nodes: Sequence[BaseNode]) -> dict[int, str]:
        """Return the rows of nodes that the store cannot keep."""
        return super().unfit(nodes) if self._nodes is None else self._nodes.unfit(nodes)

    @property
    def ids_alone(self) -> bool:
        """Whether asking for all ids costs little."""
        return self._nodes is None or self._nodes.ids_alone

    @property
    def orphans(self) -> int:
        """Vectors that could not be deleted (Faiss) and belong to no node any more."""
        total = getattr(self._store.client, "ntotal", None)
        return 0 if total is None else int(total) - len(self._ids_by_vector())

    def node(self, vector_id: str) -> BaseNode | None:
        """Return the node that a vector belongs to."""
        node_id = self._ids_by_vector().get(vector_id)
        return None if node_id is None else self._from_docstore(node_id)

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        if self._nodes is not None:
            return self._nodes.read(ids)
        vector_ids = self._vector_ids(ids)
        vectors = vectors_of(self._store, list(vector_ids.values()))
        nodes = []
        for entry_id in ids:
            vector = vectors.get(vector_ids.get(entry_id, ""))
            node = None if vector is None else self._from_docstore(entry_id)
            if node is not None and vector is not None:
                nodes.append(embedded(node, vector))
        return nodes

    async def aread(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors, by the store's own async method if it keeps texts."""
        return self.read(ids) if self._nodes is None else await self._nodes.aread(ids)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        if self._nodes is not None:
            return self._nodes.ids()
        # While the index is made, there is nothing yet.
        return [] if self.struct is None else list(self._ids_by_vector().values())

    async def aids(self) -> list[str]:
        """Return the ids of all nodes."""
        return self.ids() if self._nodes is None else await self._nodes.aids()

    def holds(self) -> bool:
        """Return whether there is any node."""
        if self._nodes is not None:
            return self._nodes.holds()
        return self.struct is not None and bool(self._ids_by_vector())

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        if self._nodes is not None:
            return self._nodes.document(ref_doc_id)
        info = self._index.docstore.get_ref_doc_info(ref_doc_id)
        return [] if info is None else list(self._vector_ids(info.node_ids))

    async def adocument(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        if self._nodes is not None:
            return await self._nodes.adocument(ref_doc_id)
        return self.document(ref_doc_id)

    def near(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Return the k nodes nearest to a vector; orphans among them are ignored."""
        if self._nodes is not None:
            return self._nodes.near(vector, k)
        if not self._ids_by_vector():  # some stores cannot be asked before they hold anything
            return []
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=k + self.orphans)
        found = (self.node(vector_id) for vector_id in self._store.query(query).ids or ())
        return [node for node in found if node is not None]

    async def anear(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Do as :meth:`near` does."""
        return self.near(vector, k) if self._nodes is None else await self._nodes.anear(vector, k)

    def write(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes as the index does."""
        VectorStoreIndex._add_nodes_to_index(self._index, self._struct(), nodes, **kwargs)  # noqa: SLF001

    def replace(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes in place of what stands under their ids, and note them as the index does."""
        if self._nodes is not None:
            self._nodes.replace(nodes, **kwargs)
        self.write(nodes, **kwargs)  # which changes nothing in a store that holds them

    async def areplace(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Do as :meth:`replace` does."""
        if self._nodes is not None:
            await self._nodes.areplace(nodes, **kwargs)
        await self.awrite(nodes, **kwargs)

    async def awrite(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes as the index does."""
        await VectorStoreIndex._async_add_nodes_to_index(  # noqa: SLF001
            self._index, self._struct(), nodes, **kwargs
        )

    def delete(self, ids: Sequence[str], *, from_docstore: bool = True) -> None:
        """Delete nodes; a vector that the store cannot delete stays and belongs to no node."""
        if self._nodes is not None:
            self._nodes.delete(ids)
        else:
            self._delete_vectors(list(self._vector_ids(ids).values()))
        self._forget(ids, from_docstore=from_docstore)

    async def adelete(self, ids: Sequence[str], *, from_docstore: bool = True) -> None:
        """Do as :meth:`delete` does."""
        if self._nodes is not None:
            await self._nodes.adelete(ids)
        else:
            self._delete_vectors(list(self._vector_ids(ids).values()))
        self._forget(ids, from_docstore=from_docstore)

    def _delete_vectors(self, vector_ids: list[str]) -> None:
        try:
            self._store.delete_nodes(node_ids=vector_ids)
        except NotImplementedError:
            logger.info("%d vectors stay, of no node any more: they are ignored", len(vector_ids))

    def _forget(self, ids: Sequence[str], *, from_docstore: bool) -> None:
        for vector_id in self._vector_ids(ids).values():
            self._ids_by_vector().pop(vector_id, None)
        if from_docstore:
            self._relink([node for i in ids if (node := self._from_docstore(i)) is not None])
            for entry_id in ids:
                self._index.docstore.delete_document(entry_id, raise_error=False)

    def _relink(self, gone: Sequence[BaseNode]) -> None:
        """Let the neighbours of nodes that leave the docstore skip them."""
        related = {
            info.node_id
            for node in gone
            for kind, infos in node.relationships.items()
            if kind is not NodeRelationship.SOURCE
            for info in (infos if isinstance(infos, list) else [infos])
        } - {node.node_id for node in gone}
        neighbours = [node for i in related if (node := self._from_docstore(i)) is not None]
        changed = [
            after
            for before, after in zip(neighbours, relinked(neighbours, gone), strict=True)
            if after is not before
        ]
        if changed:
            self._index.docstore.add_documents(changed, allow_update=True)

    def _from_docstore(self, node_id: str) -> BaseNode | None:
        node = self._index.docstore.get_node(node_id, raise_error=False)
        return node if isinstance(node, BaseNode) else None

    def _vector_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the vector's id of each node that is there."""
        known = self._ids_by_vector()
        same = {entry_id: entry_id for entry_id in ids if known.get(entry_id) == entry_id}
        wanted = set(ids) - same.keys()
        if not wanted or isinstance(self._store, SimpleVectorStore):  # whose ids are the nodes'
            return same
        return same | {node_id: vector for vector, node_id in known.items() if node_id in wanted}

    def _ids_by_vector(self) -> dict[str, str]:
        return self._struct().nodes_dict

    def _struct(self) -> IndexDict:
        if self.struct is None:
            msg = "the index has no structure yet; nodes are written once it has."
            raise RuntimeError(msg)
        return self.struct
