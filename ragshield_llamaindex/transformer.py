"""A pipeline step that holds suspicious nodes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import numpy as np
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, TransformComponent
from pydantic import Field, PrivateAttr, computed_field

from ragshield_core import Guard, Quarantine, Report
from ragshield_core.detectors.base import Detector, Need
from ragshield_core.detectors.registry import kind_of
from ragshield_core.model.entries import NO_ENTRIES
from ragshield_core.model.errors import PoisonGuardOrderWarning, UpdateHeldError
from ragshield_core.model.findings import printable
from ragshield_core.store.held import judged, let_in, sifted_for_step
from ragshield_core.store.keys import expect_guard
from ragshield_llamaindex.convert import (
    Keyed,
    check_are_nodes,
    columns_of,
    noting_images,
    passed,
    to_node,
    warn_of_paths,
)
from ragshield_llamaindex.events import dispatcher, report_detection
from ragshield_llamaindex.family import with_family
from ragshield_llamaindex.keeper import nodes_of
from ragshield_llamaindex.running import (
    expect_no_docstore,
    read_by_model,
    running,
    unsettle,
    updating,
    watch,
)


class PoisonGuard(Keyed, TransformComponent):
    """Pass nodes on, except those that the guard quarantines.

    For pipelines: ``[splitter, embed_model, PoisonGuard(guard)]``. Metadata extractors let a
    language model read every node, so put one PoisonGuard before them, which judges the text, and
    one after the embedding model: ``[splitter, PoisonGuard(guard), extractor, embed_model,
    PoisonGuard(guard)]``. It warns (:class:`PoisonGuardOrderWarning`) at the first run if a step
    before it uses a language model; :func:`check_transformations` checks a list of your own. Held
    nodes are durably in quarantine before the others are passed on, with relationships that skip
    held nodes. Unchanged nodes are passed on as the same objects, changed ones as copies.

    A :class:`~ragshield_llamaindex.GuardedVectorStore` is simpler: it learns the nodes that it
    stores, and recalls those that later nodes make suspicious. In a plain pipeline with a document
    store, a PoisonGuard raises a TypeError: such a pipeline records held documents as done, and
    deletes the good version of a document before it processes the new one. Use
    :class:`~ragshield_llamaindex.GuardedIngestionPipeline` there.

    Key init args:
        guard: Guard
            A guard fitted on the stored nodes. If nodes have no vectors, only its detectors that
            need none judge them, and the report names the others as skipped.
        learn: bool
            Whether the guard learns the nodes passed on. Leave it False in front of a guarded
            store, which learns the nodes that it stores.
        label_key, lineage_key: str
            Metadata keys, as of :class:`~ragshield_llamaindex.GuardedVectorStore`.

    Instantiate:
        >>> from ragshield_core.detectors import LabelCentroidDetector
        >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
        >>> poison_guard = PoisonGuard(guard)

    Use in a pipeline:
        >>> from llama_index.core import Document, MockEmbedding
        >>> from llama_index.core.ingestion import IngestionPipeline
        >>> from llama_index.core.node_parser import SentenceSplitter
        >>> pipeline = IngestionPipeline(
        ...     transformations=[SentenceSplitter(), MockEmbedding(8), poison_guard])
        >>> [node.text for node in pipeline.run(documents=[Document(text="thud")])]
        ['thud']
        >>> poison_guard.last_report
        <Report 1 entries: 1 admitted, 0 flagged, 0 quarantined>

    Async:
        ``await pipeline.arun(documents=...)``; the guard runs in a thread.

    Several processes:
        ``pipeline.run(documents=..., num_workers=4)`` is refused, since a guard judges all nodes
        together. A GuardedIngestionPipeline runs the steps before the guard in workers.

    Cache:
        ``policy_version`` is part of the pipeline's cache key. It changes with the configuration,
        the learned state and every decision in the quarantine, so that a cached verdict is never
        out of date. The cache ignores vectors: use one cache per embedding model.
    """

    learn: bool = Field(default=False, description="Whether the guard learns what is passed on.")

    _guard: Guard = PrivateAttr()
    _last_report: Report = PrivateAttr()
    _checked: set[tuple[int, ...]] = PrivateAttr(default_factory=set)
    _lock: Any = PrivateAttr()

    def __init__(
        self,
        guard: Guard,
        *,
        learn: bool = False,
        label_key: str = "label",
        lineage_key: str | None = None,
    ) -> None:
        super().__init__(learn=learn, label_key=label_key, lineage_key=lineage_key)  # type: ignore[call-arg]
        watch()
        expect_guard(guard)
        self._guard = guard
        self._last_report = Report(batch=NO_ENTRIES)
        self._lock = threading.RLock()

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "PoisonGuard"

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> NoReturn:
        """Raise NotImplementedError: the dict does not contain the guard's learned state."""
        del data, kwargs
        msg = "a PoisonGuard cannot be made from a dict; use PoisonGuard(Guard.load(folder))."
        raise NotImplementedError(msg)

    @computed_field(description="Changes with whatever changes a verdict.")  # type: ignore[prop-decorator]
    @property
    def policy_version(self) -> str:
        """A hash of the configuration, the learned state and the reviewers' decisions."""
        self._guard.writes.catch_up()
        digest = hashlib.blake2b(digest_size=16)
        for detector in self._guard.detectors:
            values, arrays = detector.state()
            described = [kind_of(detector), detector.name, detector.config(), values]
            digest.update(json.dumps(described, sort_keys=True, default=str).encode())
            for key in sorted(arrays):
                array = np.ascontiguousarray(arrays[key])
                digest.update(f"{key} {array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
        policy = self._guard.policy.model_dump(mode="json")
        rest = [policy, sorted(self._guard.calibration.thresholds.items()), self._decisions()]
        digest.update(json.dumps(rest, sort_keys=True).encode())
        return digest.hexdigest()

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._guard

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of held nodes."""
        return self._guard.quarantine

    @property
    def last_report(self) -> Report:
        """The report of the latest call in this process."""
        return self._last_report

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return the nodes that are not quarantined, in their order.

        Parameters
        ----------
        nodes
            With vectors or without.
        **kwargs
            Not used.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If an item is not a node, a node has no usable id or cannot be put into a prompt, or an
            id is repeated; no node is held then. A node that cannot be judged for another reason
            is held.
        PoisonedEntryError
            If nodes are suspicious and the policy says ``on_detect="raise"``.
        TypeError
            If a plain IngestionPipeline with a document store calls it; says what to use.
        ragshield_core.model.errors.UpdateHeldError
            If a plain index updates a document, and a part of the new version is held.
        ValueError
            If a node has no vector and every detector needs one, or ``learn`` is true.
        """
        del kwargs
        check_are_nodes(nodes)
        self._look_around(nodes)
        warn_of_paths(nodes)
        kept, report = self.screen(nodes)
        if updating() and len(kept) < len(nodes):
            _expect_whole(nodes, report)
        return kept

    @dispatcher.span
    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Run the call in a thread."""
        return await asyncio.to_thread(self, nodes, **kwargs)

    def screen(
        self, nodes: Sequence[BaseNode], *, replacing: Collection[str] = ()
    ) -> tuple[list[BaseNode], Report]:
        """Return the nodes that are not quarantined, and the report.

        Parameters
        ----------
        nodes
            As of the call.
        replacing
            Ids of known nodes that these nodes will replace: earlier versions of their documents,
            which are no evidence against them.
        """
        if not nodes:
            return [], Report(batch=NO_ENTRIES)
        check_are_nodes(nodes)
        with self._lock:
            report = self._last_report = self._judge(nodes, replacing)
        report_detection(report, stage="ingestion")
        return passed(nodes, report), report

    def _look_around(self, nodes: Sequence[BaseNode]) -> None:
        """Warn if the running pipeline lets a language model read nodes before this step.

        A refused pipeline may have deleted the stored versions of the documents, so their records
        are taken back.

        Raises
        ------
        TypeError
            If it has a document store, which would record held nodes; says what to use.
        """
        for pipeline in running(IngestionPipeline):
            if pipeline.docstore is not None:
                unsettle(pipeline.docstore, map(_document, nodes))
            expect_no_docstore(pipeline, "[..., PoisonGuard(guard)], vector_store=...")
            steps = pipeline.transformations
            seen = tuple(id(step) for step in steps)  # check each list once
            if any(step is self for step in steps) and seen not in self._checked:
                self._checked.add(seen)
                check_transformations(steps)

    def release(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> list[BaseNode]:
        """Judge held nodes good, and return them with their vectors, to be stored.

        The guard admits them from then on.

        Parameters
        ----------
        ids
            Ids of held nodes, or of documents, for all their held nodes.
        by, note
            The reviewer and the reason, for the quarantine's log.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If one of them is not held; no node is released then.
        """
        ids = nodes_of(self.quarantine, ids)
        return [to_node(one) for one in let_in(self._guard, ids, by, note)]

    def _judge(self, nodes: Sequence[BaseNode], replacing: Collection[str]) -> Report:
        """Screen nodes; if one lacks a vector, only with the detectors that need none."""
        with_vectors = all(node.embedding is not None for node in nodes)
        if not with_vectors:
            self._check_able(nodes)
        guard = self._guard
        sifted = sifted_for_step(columns_of(nodes, self.keys, with_vectors=with_vectors), guard)

        def screen() -> Report:
            return with_family(guard.screen(sifted.whole, replacing=replacing), guard)

        return judged(guard, sifted, screen, learn=self.learn, remarks=noting_images)

    def _check_able(self, nodes: Sequence[BaseNode]) -> None:
        """Refuse nodes without vectors if every detector, or learning, needs vectors."""
        able = tuple(d for d in self._guard.detectors if not _needs_vectors(d))
        if not able or self.learn:
            bare = next(node for node in nodes if node.embedding is None)
            names = ", ".join(detector.name for detector in self._guard.detectors)
            msg = (
                f"node {bare.node_id!r} has no embedding, which "
                f"{'learn=True' if self.learn else f'every detector ({names})'} needs; put the "
                "embedding model in front of the PoisonGuard."
            )
            raise ValueError(msg)

    def _decisions(self) -> list[Any]:
        """Return values that change with every decision of a reviewer, and every hold."""
        quarantine = self.quarantine
        log = quarantine.log.lines() if quarantine.exists() else ()
        return [quarantine.namespace, len(log), log[-1].at.isoformat() if log else ""]

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: guards in several processes would learn and judge apart."""
        msg = (
            "a PoisonGuard judges in the process that made it, expected no num_workers; use a "
            "GuardedIngestionPipeline, whose workers run the steps before its guard."
        )
        raise TypeError(msg)


def check_transformations(
    transformations: Sequence[TransformComponent], *, guarded_behind: bool = False
) -> bool:
    """Warn if a step before the guard lets a language model read nodes.

    Parameters
    ----------
    transformations
        In the order in which they run.
    guarded_behind
        Whether a guarded index or store receives the nodes, as a guard after the last step.

    Returns
    -------
    bool
        Whether the order is good.

    Examples
    --------
    >>> from llama_index.core.node_parser import SentenceSplitter
    >>> check_transformations([SentenceSplitter()])
    True
    """
    guards = [n for n, step in enumerate(transformations) if isinstance(step, PoisonGuard)]
    end = len(transformations) if guarded_behind else 0
    names = [
        type(step).__name__
        for step in transformations[: guards[0] if guards else end]
        if read_by_model(step)
    ]
    if names:
        behind = "the index or store" if guarded_behind else "one behind the embedding model"
        msg = (
            f"{', '.join(names)} runs before the guard, and a language model reads unjudged "
            "texts there; put a PoisonGuard(guard) in front of it, where it judges the text, and "
            f"leave {behind}, which judges the vectors."
        )
        warnings.warn(msg, PoisonGuardOrderWarning, stacklevel=2)
    return not names


def _document(node: BaseNode) -> str:
    return node.ref_doc_id or node.node_id


def _expect_whole(nodes: Sequence[BaseNode], report: Report) -> None:
    """Refuse an update by a plain index if a part of the new version is held.

    Raises
    ------
    UpdateHeldError
        Names the first document, and says what to do.
    """
    held = (_document(n) for n, kept in zip(nodes, report.admitted, strict=True) if not kept)
    msg = (
        f"a part of document {printable(next(held))!r} is held, and nothing of the new version is "
        "inserted; unless its store is guarded, the index has deleted its previous version: insert "
        "that again. A GuardedVectorStoreIndex keeps it."
    )
    raise UpdateHeldError(msg)


def judges_text(guard: Guard) -> bool:
    """Return whether a guard has detectors that need no vectors."""
    return any(not _needs_vectors(detector) for detector in guard.detectors)


def _needs_vectors(detector: Detector) -> bool:
    return Need.EMBEDDING in detector.needs
