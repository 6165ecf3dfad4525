"""A vector store index that screens nodes before they reach a store of any kind."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Self

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.data_structs import IndexDict
from llama_index.core.ingestion.pipeline import arun_transformations, run_transformations
from llama_index.core.schema import (
    BaseNode,
    Document,
    IndexNode,
    MetadataMode,
    TransformComponent,
)
from llama_index.core.settings import Settings
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragshield_core import Guard, Report
from ragshield_core.neighbors.stored import Where
from ragshield_core.quarantine import HeldEntry
from ragshield_core.store import opening, writing
from ragshield_core.store.guarded import Adoptable, Guarded, NewRows
from ragshield_core.store.malformed import embedded, unusable
from ragshield_core.store.opening import look
from ragshield_core.store.steps import Step, Steps, asked, asynchronous, own, synchronous
from ragshield_llamaindex.convert import (
    check_are_nodes,
    naming,
    nodes_of_rows,
    source_of,
    text_or_none,
    without_path,
)
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.index_nodes import RECORDED, IndexKeeper, IndexView, access_of
from ragshield_llamaindex.inner import InnerStore, access_to
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.running import unsettle
from ragshield_llamaindex.stable_ids import StableIds
from ragshield_llamaindex.transformer import PoisonGuard, check_transformations
from ragshield_llamaindex.vectorstore import GuardedVectorStore

logger = logging.getLogger("ragshield")

# Private arguments of an index.
_SETTINGS = (
    *("embed_model", "callback_manager", "transformations", "use_async"),
    *("store_nodes_override", "insert_batch_size", "show_progress"),
)


class GuardedVectorStoreIndex(Guarded, Adoptable, VectorStoreIndex):
    """Drop-in replacement for a VectorStoreIndex: suspicious nodes stay out of it.

    Nodes are embedded and screened before the vector store gets them, so that positions and ids
    agree even for stores that keep vectors only. Every write is screened: ``from_documents``, the
    constructor, ``insert``, ``insert_nodes``, ``update_ref_doc`` and ``refresh_ref_docs``.

    Key init args:
        nodes: Sequence[BaseNode]
            As of VectorStoreIndex.
        guard: Guard
            A new guard for a new index. For an existing index, see :meth:`adopt`.
        label_key, lineage_key, inner_store, neighbors, name, check
            As of :class:`~ragshield_llamaindex.GuardedVectorStore`, for the vector store inside.
        kwargs
            As of VectorStoreIndex: ``storage_context``, ``embed_model``, ``transformations``, ...
            ``objects`` that stand for nodes are judged with them; the answers of engines and
            retrievers are not, as a warning says: put a GuardedRetriever around the retriever.

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

    Quarantine:
        >>> index.quarantine.count()  # what is held; index.release([...]) puts it back
        0

    Notes
    -----
    If a part of an update (``update_ref_doc``, ``refresh_ref_docs``) is held, the whole previous
    version stays. The whole new version waits in quarantine, and replaces the previous one once its
    suspicious parts are released. The next refresh neither judges nor logs the same version again;
    a later version replaces the stored one or the waiting one.
    """

    _keeper: IndexKeeper
    _made = False

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
        # The constructor writes, so set all attributes that a write needs first.
        self._storage_context = storage_context
        if index_struct is not None:
            self._index_struct = index_struct
        access = access_of(self, store, inner_store)
        self._keeper = IndexKeeper(guard, access, label_key, lineage_key, name, neighbors)
        self._keeper.index = self
        if check and (access.ids_alone or not guard.n_known):
            look(
                self._keeper,
                access.count,
                "index",
                "ragshield_llamaindex.adopt(index, guard=guard)",
            )
        self._reads = IndexView(access, self._keeper.mask)
        kwargs["transformations"] = _stable(kwargs.get("transformations"))
        super().__init__(
            nodes=nodes, storage_context=storage_context, index_struct=index_struct, **kwargs
        )
        self._made = True
        self._offer_embedder()

    def _offer_embedder(self) -> None:
        """Let the guard embed suspicious sentences with the model of the index."""
        self.guard.state.offer_embedder(self._embed_model.get_text_embedding_batch)

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
            As of VectorStoreIndex. If all nodes of a document are held, its hash is not recorded,
            so that a later ``refresh_ref_docs`` tries it again.
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
    def adopt(
        cls,
        index: VectorStoreIndex,
        *,
        guard: Guard | None = None,
        clean_ids: Iterable[str] | None = None,
        inner_store: InnerStore | None = None,
        fit: bool = True,
        progress: bool = True,
        **options: Any,
    ) -> Self:
        """Guard an index that already holds nodes.

        The guard is fitted and calibrated on them, with their stored vectors. It believes them
        without judging them: poison that is already stored stays and counts as knowledge, so look
        for it with :meth:`scan`.

        Parameters
        ----------
        index
            Stays unchanged; use the returned index in its place.
        guard
            Gets fitted anew; default: :meth:`Guard.default`.
        clean_ids
            As of :meth:`GuardedVectorStore.adopt`.
        inner_store, **options
            As for the constructor.
        fit
            False for a guard that has already learned the index: ``Guard.load(folder)``, together
            with ``load_index_from_storage``.
        progress
            Whether to show progress on standard error.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a stored node cannot be judged; names it.
        CalibrationError
            If there are too few ``clean_ids``; states the number needed.

        Examples
        --------
        >>> from llama_index.core import MockEmbedding
        >>> from llama_index.core.schema import TextNode
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> bare = VectorStoreIndex([TextNode(text="foo")], embed_model=MockEmbedding(8))
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> index = GuardedVectorStoreIndex.adopt(bare, guard=guard, progress=False)
        >>> len(index.as_retriever().retrieve("foo"))
        1
        """
        _expect_adoptable(index)
        guard = Guard.default() if guard is None else guard
        if fit:
            access = access_of(index, index.vector_store, inner_store)
            opening.adopt(NodeKeeper(guard, access, **options), clean_ids, progress=progress)
        adopted = cls(
            guard=guard,
            inner_store=inner_store,
            check=not fit,
            storage_context=index.storage_context,
            index_struct=index.index_struct,
            **options,
            **{name: getattr(index, f"_{name}") for name in _SETTINGS},
        )
        adopted._object_map = index._object_map  # noqa: SLF001
        return adopted

    @property
    def vector_store(self) -> BasePydanticVectorStore:
        """A read-only view of the vector store for retrievers, without held nodes."""
        return self._reads

    # Writes

    @synchronous
    def _add_nodes_to_index(
        self,
        index_struct: IndexDict,
        nodes: Sequence[BaseNode],
        show_progress: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **insert_kwargs: Any,
    ) -> Steps[None]:
        self._index_struct = index_struct  # the constructor has not set it yet
        if nodes:
            keeper = self._keeper
            vectors = yield from self._embedding(nodes, show_progress)
            options = {**insert_kwargs, RECORDED: True}
            try:
                if self._made:
                    yield keeper.adding(vectors, options)
                else:  # an error here leaves the caller without an index: refuse all at once
                    yield keeper.step(keeper.add_nodes, vectors, options, at_once=True)
            except Exception:
                if self._made:  # nodes may be stored, and LlamaIndex records nothing on errors
                    yield own(keeper.record)
                raise

    _async_add_nodes_to_index = asynchronous(_add_nodes_to_index)  # type: ignore[arg-type]

    def _embedding(self, nodes: Sequence[BaseNode], progress: bool) -> Steps[list[BaseNode]]:  # noqa: FBT001
        """Return embedded nodes; a node that the model refuses stays bare, unless all are."""
        self._offer_embedder()
        some = _embeddable(nodes)
        found = yield from embedded(some, lambda part: self._vectors(part, progress))
        pairs = zip(some, found, strict=True)
        # By object identity: another node with the same id has its own vector.
        made = {id(given): new for given, new in pairs if new is not None}
        return [made.get(id(node), node) for node in nodes]

    def _vectors(self, nodes: Sequence[BaseNode], progress: bool = False) -> Step:  # noqa: FBT001, FBT002
        """Embed nodes as LlamaIndex does, without the paths of their files."""
        nodes = [without_path(node) for node in nodes]
        return Step(
            partial(self._get_node_with_embedding, nodes, progress),
            partial(self._aget_node_with_embedding, nodes, progress),
        )

    def _write_rows(self, rows: NewRows) -> Report:
        self.insert_nodes(nodes_of_rows(rows))
        return self.last_report

    @synchronous
    def insert(self, document: Document, **insert_kwargs: Any) -> Steps[None]:
        """Cut a document into nodes and index those that are admitted."""
        yield asked(super(), "insert", document, **insert_kwargs)
        if self._unrecord(document.id_):
            yield self._keeper.step(self._keeper.note_whole, [document.id_])

    ainsert = asynchronous(insert)  # type: ignore[arg-type]

    @synchronous
    def refresh_ref_docs(
        self, documents: Sequence[Document], **update_kwargs: Any
    ) -> Steps[list[bool]]:
        """Insert and update documents; unchanged documents that are held whole are skipped."""
        versions = [(one.id_, one.hash) for one in documents]
        _, whole = yield self._keeper.step(self._keeper.waiting, versions)
        left = [one for one in documents if one.id_ not in whole]
        made = iter((yield asked(super(), "refresh_ref_docs", left, **update_kwargs)))
        return [one.id_ not in whole and next(made) for one in documents]

    arefresh_ref_docs = asynchronous(refresh_ref_docs)  # type: ignore[arg-type]

    @dispatcher.span
    @synchronous
    def update_ref_doc(self, document: Document, **update_kwargs: Any) -> Steps[None]:
        """Replace a document if no part of the new version is held; else the whole old one stays.

        A version that already waits in quarantine is not judged again.

        Parameters
        ----------
        document
            The new version, under the same id.
        **update_kwargs
            ``insert_kwargs``, as of LlamaIndex; ``delete_kwargs`` are not needed.
        """
        keeper = self._keeper
        version = [(document.id_, document.hash)]
        served, _ = yield keeper.step(keeper.waiting, version)
        if served:
            return
        insert_kwargs = update_kwargs.get("insert_kwargs", {})
        nodes = yield from self._new_version(document, insert_kwargs)
        if nodes is None:
            return
        with naming(nodes, keeper.keys):
            vectors = yield self._vectors(nodes)
        updated = {document.id_: [node.node_id for node in vectors]}
        how = {"updated": updated, "at_once": True}
        report = yield keeper.step(keeper.add_nodes, vectors, insert_kwargs, **how)
        if report.admitted.all():
            yield asked(self._docstore, "set_document_hash", document.id_, document.hash)

    aupdate_ref_doc = dispatcher.span(asynchronous(update_ref_doc))

    def _new_version(
        self, document: Document, options: dict[str, Any]
    ) -> Steps[Sequence[BaseNode] | None]:
        """Return the nodes of a new version; None if a guard among the steps holds a part of it."""
        keeper = self._keeper
        nodes: Sequence[BaseNode] = [document]
        older = yield keeper.step(keeper.nodes_in, [document.id_])
        before: list[TransformComponent] = []
        for step in self._transformations:
            if not isinstance(step, PoisonGuard):
                before.append(step)
                continue
            nodes = StableIds()((yield _transformed(nodes, before, options)))
            kept, report = yield own(step.screen, nodes, replacing=older)
            if len(kept) < len(nodes):
                parts = {document.id_: [node.node_id for node in nodes]}
                keeper.last_report = yield keeper.step(keeper.judged_before, report, parts)
                return None
            nodes, before = kept, []
        nodes = yield _transformed(nodes, before, options)
        return nodes

    @dispatcher.span
    @synchronous
    def delete_ref_doc(
        self,
        ref_doc_id: str,
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,  # noqa: ARG002 - of LlamaIndex's interface
    ) -> Steps[None]:
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
        options = {"from_docstore": delete_from_docstore}
        yield self._keeper.step(self._keeper.delete_document, ref_doc_id, options)
        if delete_from_docstore:
            yield Step(
                partial(self._delete_from_docstore, ref_doc_id),
                partial(self._adelete_from_docstore, ref_doc_id),
            )

    adelete_ref_doc = dispatcher.span(asynchronous(delete_ref_doc))

    @synchronous
    def delete_nodes(
        self,
        node_ids: list[str],
        delete_from_docstore: bool = False,  # noqa: FBT001, FBT002 - LlamaIndex's own argument
        **delete_kwargs: Any,  # noqa: ARG002 - of LlamaIndex's interface
    ) -> Steps[None]:
        """Delete nodes, from quarantine as well; confirmed poison stays there."""
        options = {"from_docstore": delete_from_docstore}
        yield self._keeper.step(writing.delete, self._keeper, node_ids, options)

    adelete_nodes = asynchronous(delete_nodes)  # type: ignore[arg-type]

    def _embedder(self, model: BaseEmbedding | None) -> BaseEmbedding:
        return self._embed_model if model is None else model

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        unsettle(self._docstore, (source_of(one.entry.metadata) for one in restored))

    def _unrecord(self, ref_doc_id: str) -> bool:
        """Forget a document's hash if the latest write held all its nodes; return whether so."""
        report = self.last_report
        kept = [
            bool(kept)
            for metadata, kept in zip(report.batch.metadatas, report.admitted, strict=True)
            if source_of(metadata) == ref_doc_id
        ]
        if not kept or any(kept):
            return False
        self._docstore.delete_document(ref_doc_id, raise_error=False)
        return True


def _transformed(
    nodes: Sequence[BaseNode], steps: Sequence[TransformComponent], options: dict[str, Any]
) -> Step:
    given = nodes, steps
    return Step(
        partial(run_transformations, *given, **options),
        partial(arun_transformations, *given, **options),
    )


adopt = GuardedVectorStoreIndex.adopt


def _expect_adoptable(index: object) -> None:
    """Check that this is an unguarded index of text vectors.

    Raises
    ------
    TypeError
        Says how to guard the other kinds of indexes.
    """
    kinds = {parent.__name__ for parent in type(index).__mro__}
    if isinstance(index, GuardedVectorStoreIndex):
        why = "this one is guarded already"
    elif "MultiModalVectorStoreIndex" in kinds:
        why = (
            "the guarded index would lose its images; build it over "
            "GuardedVectorStore.adopt(store, guard=guard) in place of its text store"
        )
    elif isinstance(index, VectorStoreIndex):
        return
    else:
        why = (
            "other kinds have no vectors to judge by; build such an index from documents with "
            "transformations=[..., PoisonGuard(guard)]"
        )
    msg = f"the index is of type {type(index).__name__}, expected a bare VectorStoreIndex: {why}."
    raise TypeError(msg)


def _embeddable(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Return the nodes that can be embedded without affecting the others.

    LlamaIndex gives all nodes with one id the vector of the last, and fails on all nodes if the
    metadata of one cannot be rendered.
    """
    check_are_nodes(nodes)
    refused = unusable([node.node_id for node in nodes], [text_or_none(node) for node in nodes])
    some = []
    for row, node in enumerate(nodes):
        if row not in refused:
            try:
                if node.embedding is None:
                    node.get_content(metadata_mode=MetadataMode.EMBED)
                some.append(node)
            except Exception:  # noqa: BLE001, S112 - the node is held, with the reason
                continue
    return some


def _with_objects(
    nodes: Sequence[BaseNode] | None, objects: Sequence[IndexNode] | None
) -> tuple[Sequence[BaseNode] | None, list[IndexNode] | None]:
    """Return nodes with the objects that stand for nodes, and the other objects.

    An index detaches the nodes behind its objects before it adds them, so that a guard would see
    only the summaries.
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
    """Return transformations that give each part of a document the same id at every run.

    Warns if a language model reads nodes before the guard: only once, since the returned list
    contains StableIds when it comes back.
    """
    steps = [*(transformations or Settings.transformations)]
    if any(isinstance(step, StableIds) for step in steps):
        return steps
    check_transformations(steps, guarded_behind=True)
    return [*steps, StableIds()]


def access_behind(source: VectorStoreIndex | BasePydanticVectorStore) -> InnerStore:
    """Return access to the nodes and vectors of an index or a store, guarded or not.

    Raises
    ------
    TypeError
        If its vector store is of an unknown kind.
    """
    if isinstance(source, VectorStoreIndex) and isinstance(source.vector_store, Guarded):
        source = source.vector_store
    if isinstance(source, Guarded):
        access: Any = source._keeper.access  # noqa: SLF001 - one way to read vectors back
        return access  # type: ignore[no-any-return]
    if isinstance(source, VectorStoreIndex):
        return access_of(source, source.vector_store)
    return access_to(source)
