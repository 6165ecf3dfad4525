"""An ingestion pipeline whose document store records only admitted documents."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.ingestion.pipeline import arun_transformations, run_transformations
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import BaseNode, Document, TransformComponent
from pydantic import PrivateAttr

from ragshield_core import Guard, Report
from ragshield_core.model.entries import NO_ENTRIES
from ragshield_core.quarantine import HeldEntry
from ragshield_core.store.guarded import Guarded
from ragshield_core.store.keys import expect_guard
from ragshield_core.store.steps import Step, Steps, asked, asynchronous, own, synchronous
from ragshield_llamaindex.convert import in_stages, naming, passed, source_of
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.inner import InnerStore
from ragshield_llamaindex.keeper import NodeKeeper
from ragshield_llamaindex.running import read_by_model, unsettle
from ragshield_llamaindex.stable_ids import StableIds
from ragshield_llamaindex.transformer import (
    PoisonGuard,
    check_transformations,
    judges_text,
)
from ragshield_llamaindex.vectorstore import GuardedVectorStore

logger = logging.getLogger("ragshield")

UPSERTS = (DocstoreStrategy.UPSERTS, DocstoreStrategy.UPSERTS_AND_DELETE)
# Possible outcomes for a document that a run processes.
FATES = ("stored", "partly_held", "held", "not_stored", "rejected_updates")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """Outcomes of one run by document; the report covers their nodes.

    If a guard in front of another has held nodes, these come first in the report, and its batch has
    no vectors.
    """

    report: Report
    stored: tuple[str, ...] = ()  # all of their nodes were stored
    partly_held: tuple[str, ...] = ()  # new documents: only the admitted nodes were stored
    held: tuple[str, ...] = ()  # new documents with all nodes held
    not_stored: tuple[str, ...] = ()  # admitted, but nodes have no vectors
    rejected_updates: tuple[str, ...] = ()  # held new versions: the previous version stays
    still_held: tuple[str, ...] = ()  # held earlier in the same version: skipped
    unchanged: tuple[str, ...] = ()  # same version in the document store


@dataclass(slots=True)
class _Plan:
    """Documents to process in a run, and their state in the document store."""

    run: list[BaseNode] = field(default_factory=list)
    updates: set[str] = field(default_factory=set)
    unchanged: list[str] = field(default_factory=list)
    still_held: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    rejected: set[str] = field(default_factory=set)  # updates with a held part

    @property
    def leaving(self) -> list[str]:
        """Documents whose stored nodes are deleted if the new versions are admitted."""
        return [*sorted(self.updates), *self.missing]

    def rejected_by(self, report: Report) -> set[str]:
        """Return the updates that are rejected since the report holds a part of them."""
        rejected = self.updates & _documents_held(report)
        self.rejected |= rejected
        return rejected


class GuardedIngestionPipeline(Guarded, IngestionPipeline):
    """Drop-in replacement for an IngestionPipeline that stores and records no suspicious nodes.

    A plain pipeline stores its input documents even if their nodes are held, and deletes the old
    version of a document before it processes the new one. This pipeline

    - stores and records an admitted document as usual;
    - stores the admitted nodes of a new document with some held nodes, and gives the document store
      only its hash, not its text;
    - does not record a new document with all nodes held;
    - rejects an update with a held node: the whole previous version stays, and the whole new one
      waits in quarantine. Once its suspicious nodes are released, it replaces the previous version;
    - neither judges nor logs a waiting version again when it arrives unchanged.

    Nodes are judged together and in this process, even with ``num_workers > 1``: the steps before a
    guard run in the workers. A metadata extractor in front of every guard lets a language model
    read unjudged nodes: the constructor warns
    (:class:`~ragshield_llamaindex.PoisonGuardOrderWarning`). Two PoisonGuards of the same guard,
    one before the extractor and one after the embedding model, judge texts before a model reads
    them, and vectors once they exist. The vector store does the judgement of a guard at the end,
    when it writes; if steps follow the last guard, the store judges their output as well. Nodes
    with random ids from node parsers get ids that are the same at each run
    (:class:`~ragshield_llamaindex.StableIds`).

    Key init args:
        transformations: list[TransformComponent]
            As of IngestionPipeline; PoisonGuards among them, which must share one guard, are used
            where they stand.
        guard: Guard | None
            If the transformations have no PoisonGuard: one is added at the end, and one before the
            first step after the node parser that lets a language model read nodes, if the guard has
            detectors that need no vectors.
        vector_store: BasePydanticVectorStore
            A store that keeps texts; it is wrapped in a
            :class:`~ragshield_llamaindex.GuardedVectorStore`, which is ``pipeline.vector_store``.
        inner_store: InnerStore | None
            Access to the store's vectors, for other kinds of stores.
        kwargs
            As of IngestionPipeline: ``docstore``, ``docstore_strategy``, ``cache``, ...

    Instantiate:
        >>> import chromadb
        >>> from llama_index.core import MockEmbedding
        >>> from llama_index.core.node_parser import SentenceSplitter
        >>> from llama_index.core.storage.docstore import SimpleDocumentStore
        >>> from llama_index.vector_stores.chroma import ChromaVectorStore
        >>> from ragshield_core import Quarantine
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> collection = chromadb.EphemeralClient().create_collection("pipeline-example")
        >>> pipeline = GuardedIngestionPipeline(
        ...     transformations=[SentenceSplitter(), MockEmbedding(8)], guard=guard,
        ...     vector_store=ChromaVectorStore(collection), docstore=SimpleDocumentStore())

    Run:
        >>> nodes = pipeline.run(documents=[Document(id_="a", text="thud")])
        >>> pipeline.last_result.stored
        ('a',)
        >>> pipeline.run(documents=[Document(id_="a", text="thud")])
        []
        >>> pipeline.last_result.unchanged
        ('a',)

    Async:
        ``await pipeline.arun(documents=...)``

    Release:
        ``pipeline.release(ids)`` puts held nodes into the vector store; the steps after the first
        guard embed those without a vector.
    """

    _result: PipelineResult = PrivateAttr(
        default_factory=lambda: PipelineResult(report=Report(batch=NO_ENTRIES))
    )

    def __init__(
        self,
        transformations: list[TransformComponent] | None = None,
        *,
        guard: Guard | None = None,
        inner_store: InnerStore | None = None,
        **kwargs: Any,
    ) -> None:
        steps = (
            self._get_default_transformations() if transformations is None else [*transformations]
        )
        if guard is not None:
            expect_guard(guard)
            steps = _guarded(steps, guard)
        poison_guard = _last_of([step for step in steps if isinstance(step, PoisonGuard)])
        store = kwargs.get("vector_store")
        if store is None:
            msg = (
                "there is no vector_store=, expected one that keeps texts; for nodes alone, put "
                "PoisonGuard(guard) at the end of an IngestionPipeline without a docstore."
            )
            raise ValueError(msg)
        if isinstance(store, GuardedVectorStore):
            if store.guard is not poison_guard.guard:
                msg = "the vector store has a guard of its own, expected the same; use store.guard."
                raise ValueError(msg)
            if inner_store is not None:
                msg = (
                    "inner_store= belongs to a bare vector_store, expected one; a "
                    "GuardedVectorStore takes it itself."
                )
                raise ValueError(msg)
        else:
            kwargs["vector_store"] = GuardedVectorStore(
                store,
                guard=poison_guard.guard,
                inner_store=inner_store,
                label_key=poison_guard.label_key,
                lineage_key=poison_guard.lineage_key,
            )
        super().__init__(transformations=steps, **kwargs)
        check_transformations(steps)

    @property
    def poison_guard(self) -> PoisonGuard:
        """The screening step; the last of several."""
        return [step for step in self.transformations if isinstance(step, PoisonGuard)][-1]

    @property
    def last_result(self) -> PipelineResult:
        """Outcomes of the latest run."""
        return self._result

    @dispatcher.span
    @synchronous
    def run(
        self,
        show_progress: bool = False,  # noqa: FBT001, FBT002
        documents: list[Document] | None = None,
        nodes: Sequence[BaseNode] | None = None,
        cache_collection: str | None = None,
        in_place: bool = True,  # noqa: FBT001, FBT002
        store_doc_text: bool = True,  # noqa: FBT001, FBT002
        num_workers: int | None = None,
        **kwargs: Any,
    ) -> Steps[Sequence[BaseNode]]:
        """Transform documents, screen their nodes, and store and record the admitted ones.

        Parameters are those of IngestionPipeline.

        Returns
        -------
        Sequence[BaseNode]
            The stored nodes; :attr:`last_result` covers the others.
        """
        options = {
            "show_progress": show_progress,
            "cache_collection": cache_collection,
            "in_place": in_place,
            "num_workers": num_workers,
            **kwargs,
        }
        keeper = self._keeper
        inputs = self._prepare_inputs(documents, nodes)
        with naming(inputs, self.poison_guard.keys):
            plan = yield from self._plan(inputs)
        older = yield keeper.step(keeper.nodes_in, plan.leaving)
        stages, after = self._stages()
        left: Sequence[BaseNode] = plan.run
        reports = []
        for number, (before, guard) in enumerate(stages, 1):
            with naming(left, guard.keys):
                left = yield asked(before, "run", nodes=left, **options)
            with naming(left, guard.keys):
                left = StableIds()(left)
            at_the_end = number == len(stages) and not after
            if at_the_end and all(one.embedding is not None for one in left):
                break  # the vector store judges and writes them in one step
            made = left
            left, report = yield own(guard.screen, made, replacing=older)
            parts = _ids_by_document(made, plan.rejected_by(report))
            reports.append((yield keeper.step(keeper.judged_before, report, parts)))
            left = [node for node in left if _document(node) not in plan.rejected]
        made = list((yield _transformed(left, after, options)))
        left = _with_vectors(made)
        leaving = [one for one in plan.leaving if one not in plan.rejected]
        if left or leaving or not reports:
            updated = _ids_by_document(left, leaving)
            report = yield keeper.step(keeper.add_nodes, left, updated=updated, at_once=True)
            plan.rejected_by(report)
            left = [n for n in passed(left, report) if _document(n) not in plan.rejected]
            reports.append(report)
            if len(reports) == len(stages):  # the store has judged in place of the last guard
                self.poison_guard._last_report = report  # noqa: SLF001 - its own
        self._result = result = _result(plan, in_stages(reports), made, left)
        keeper.last_report = result.report
        if result.held and self.docstore is not None:
            yield keeper.step(keeper.note_whole, result.held)
        yield own(self._record, plan, result, store_doc_text=store_doc_text)
        return left

    arun = dispatcher.span(asynchronous(run))

    @property
    def _keeper(self) -> NodeKeeper:  # type: ignore[override]
        """The keeper of the vector store and the guard."""
        keeper: NodeKeeper = self.vector_store._keeper  # type: ignore[union-attr]  # noqa: SLF001
        return keeper

    def _embedder(self, model: Any) -> Any:
        """Return a function that embeds held nodes by the steps after the first guard."""
        stages, after = self._stages()
        after = [*(step for before, _ in stages[1:] for step in before.transformations), *after]
        return (lambda nodes: run_transformations(list(nodes), after)) if model is None else model

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        if self.docstore is not None:
            unsettle(self.docstore, (source_of(one.entry.metadata) for one in restored))

    def _stages(
        self,
    ) -> tuple[list[tuple[IngestionPipeline, PoisonGuard]], list[TransformComponent]]:
        """Return each guard with a pipeline of the steps before it, and the steps after the last.

        The steps before a guard start after the previous guard.
        """
        stages: list[tuple[IngestionPipeline, PoisonGuard]] = []
        steps: list[TransformComponent] = []
        for step in self.transformations:
            if isinstance(step, PoisonGuard):
                before = IngestionPipeline(
                    transformations=steps, cache=self.cache, disable_cache=self.disable_cache
                )
                stages.append((before, step))
                steps = []
            else:
                steps.append(step)
        return stages, steps

    def _plan(self, inputs: Sequence[BaseNode]) -> Steps[_Plan]:
        """Sort inputs; a known version runs again only if its nodes were released since."""
        keeper, docstore, plan = self._keeper, self.docstore, _Plan()
        if docstore is None:
            plan.run = list(inputs)
            return plan
        # A node cut elsewhere is only a part of a document.
        versions = [(node.node_id, node.hash) for node in inputs if node.ref_doc_id is None]
        arrived = yield keeper.step(keeper.arrived)
        waiting, whole = yield keeper.step(keeper.waiting, versions)
        upserts = self.docstore_strategy in UPSERTS
        hashes = set((yield own(docstore.get_all_document_hashes)))
        for node in inputs:
            document = _document(node)
            this = (document, node.hash)
            recorded = docstore.get_document_hash(document) if upserts else None
            same = recorded == node.hash or (not upserts and node.hash in hashes)
            if same and this in arrived:
                arrived -= {this}
            elif same:
                plan.unchanged.append(document)
                continue
            elif document in (whole if recorded is None else waiting):
                plan.still_held.append(document)
                continue
            else:
                hashes.add(node.hash)
                if recorded is not None:
                    plan.updates.add(document)
            plan.run.append(node)
        if self.docstore_strategy is DocstoreStrategy.UPSERTS_AND_DELETE:
            there = dict.fromkeys((yield own(docstore.get_all_document_hashes)).values())
            plan.missing = [one for one in there if one not in set(map(_document, inputs))]
        return plan

    def _record(self, plan: _Plan, result: PipelineResult, *, store_doc_text: bool) -> None:
        """Record admitted documents in the document store, after the vector store has them."""
        if self.docstore is None:
            return
        for ref_doc_id in sorted(plan.updates - plan.rejected):
            self.docstore.delete_ref_doc(ref_doc_id, raise_error=False)
        for ref_doc_id in plan.missing:
            self.docstore.delete_document(ref_doc_id, raise_error=False)
        admitted = {*result.stored, *result.not_stored}
        whole = [node for node in plan.run if _document(node) in admitted]
        self.docstore.set_document_hashes({node.id_: node.hash for node in whole})
        self.docstore.add_documents(whole, store_text=store_doc_text)
        # No text of a partly held document: it would include the held parts.
        in_part = frozenset(result.partly_held)
        partly = [node for node in plan.run if _document(node) in in_part]
        self.docstore.set_document_hashes({node.id_: node.hash for node in partly})


def _result(
    plan: _Plan, report: Report, made: Sequence[BaseNode], left: Sequence[BaseNode]
) -> PipelineResult:
    """Return the outcomes of a run by document.

    Parameters
    ----------
    plan, report
        The processed documents, and the decisions.
    made
        Nodes that reached the end of the steps.
    left
        The admitted ones among them, which are in the vector store.
    """
    held = _documents_held(report)
    made_of, left_of = (Counter(map(_document, nodes)) for nodes in (made, left))
    fates: dict[str, list[str]] = {name: [] for name in FATES}
    for document in dict.fromkeys(map(_document, plan.run)):
        if document not in held:
            whole = 0 < made_of[document] == left_of[document]
            fates["stored" if whole else "not_stored"].append(document)
        elif document in plan.updates:
            fates["rejected_updates"].append(document)
        else:
            fates["partly_held" if left_of[document] else "held"].append(document)
    return PipelineResult(
        report=report,
        unchanged=tuple(plan.unchanged),
        still_held=tuple(dict.fromkeys(plan.still_held)),
        **{name: tuple(documents) for name, documents in fates.items()},
    )


def _documents_held(report: Report) -> set[str]:
    """Return the documents with a held part."""
    batch = report.batch.take(~report.admitted)
    return {source_of(one.metadata) or one.id for one in batch}


def _ids_by_document(nodes: Sequence[BaseNode], documents: Iterable[str]) -> dict[str, list[str]]:
    """Return the node ids of each of these documents."""
    ids: dict[str, list[str]] = {one: [] for one in documents}
    for node in nodes:
        if (document := _document(node)) in ids:
            ids[document].append(node.node_id)
    return ids


def _transformed(
    nodes: Sequence[BaseNode], steps: Sequence[TransformComponent], options: dict[str, Any]
) -> Step:
    """Run the steps after the last guard, which have neither a cache nor workers."""
    of_pipelines = ("show_progress", "cache_collection", "num_workers")
    rest = {name: value for name, value in options.items() if name not in of_pipelines}
    return Step(
        partial(run_transformations, nodes, steps, **rest),
        partial(arun_transformations, nodes, steps, **rest),
    )


def _guarded(steps: list[TransformComponent], guard: Guard) -> list[TransformComponent]:
    """Return steps with a guard at the end, and one before a step that lets a model read nodes."""
    if any(isinstance(step, PoisonGuard) for step in steps):
        msg = "there is a PoisonGuard among the transformations and guard=, expected one of both."
        raise ValueError(msg)
    parsed = False
    for place, step in enumerate(steps):
        if parsed and read_by_model(step) and judges_text(guard):
            steps = [*steps[:place], PoisonGuard(guard), *steps[place:]]
            break
        parsed = parsed or isinstance(step, NodeParser)  # hold nodes, not whole documents
    return [*steps, PoisonGuard(guard)]


def _last_of(guards: Sequence[PoisonGuard]) -> PoisonGuard:
    """Return the last of a pipeline's guards.

    Raises
    ------
    ValueError
        If there are none, or they cannot work together.
    """
    if not guards:
        msg = (
            "there is neither guard= nor a PoisonGuard among the transformations, expected one of "
            "both."
        )
        raise ValueError(msg)
    different = {id(one.guard) for one in guards}
    if len(different) > 1:
        msg = (
            f"the PoisonGuards among the transformations have {len(different)} different guards, "
            "expected one: the vector store is kept in step with one, and each has to know what "
            "the others hold; pass the same Guard to each PoisonGuard."
        )
        raise ValueError(msg)
    if any(one.learn for one in guards):
        msg = "learn=True is for pipelines without a vector store; this one learns by itself."
        raise ValueError(msg)
    return guards[-1]


def _document(node: BaseNode) -> str:
    """Return the id of a node's document, or the node's own; the repr of a malformed id."""
    document: object = node.ref_doc_id or node.node_id
    return document if isinstance(document, str) else repr(document)


def _with_vectors(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    known = [node for node in nodes if node.embedding is not None]
    if len(known) < len(nodes):
        logger.warning(
            "%d of %d admitted nodes have no vector, without which no vector store takes them: put "
            "the embedding model among the transformations",
            *(len(nodes) - len(known), len(nodes)),
        )
    return known
