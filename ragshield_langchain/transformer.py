"""A step between splitter and store that holds suspicious documents."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings

from ragshield_core import Guard, Quarantine, Report
from ragshield_core.detectors.base import Need
from ragshield_core.model.entries import NO_ENTRIES
from ragshield_core.store.held import judged, let_in, sifted_for_step
from ragshield_core.store.keys import MetadataKeys, expect, expect_guard
from ragshield_core.store.malformed import Sifted
from ragshield_core.store.steps import Steps, asked, asynchronous, own, synchronous
from ragshield_langchain.convert import columns_of, to_document
from ragshield_langchain.events import report_detection

# Namespace of the ids given to documents that have none.
NAMESPACE = uuid.UUID("5c1a9a3e-6a5f-4d0c-9d53-5f3e7a1b2c4d")


class PoisonGuard(BaseDocumentTransformer):
    """Pass documents on, without those that the guard quarantines.

    This is for stores that cannot be wrapped in a
    :class:`~ragshield_langchain.GuardedVectorStore`. A guarded store does the same with less work:
    it learns stored documents, recalls those that later documents incriminate, and embeds once. The
    documents passed on are the very objects that came in.

    Parameters
    ----------
    guard
        A guard fitted on the documents of the store.
    embeddings
        The model of the store. ``None`` leaves out the detectors that need vectors; the report
        names them as skipped.
    learn
        Whether the guard learns the documents passed on, each id once. Leave it False in front of a
        guarded store, which learns stored documents itself; the guard would count them twice.
    label_key, lineage_key, prompt_keys
        Metadata keys, as in :class:`~ragshield_langchain.GuardedVectorStore`.

    Raises
    ------
    ValueError
        Without ``embeddings``, if none of the detectors can do without vectors, or with
        ``learn=True``.

    Notes
    -----
    LangChain's stores take texts, not vectors, and so embed the documents again. To embed once,
    give both the same caching model (``CacheBackedEmbeddings``), or let a guarded store do the
    screening.

    Documents without an id are held under an id made of their content, so that the same document
    gets the same id again and passes once it is released.

    Examples
    --------
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    >>> step = PoisonGuard(guard, DeterministicFakeEmbedding(size=8))
    >>> step.transform_documents([Document(page_content="thud", metadata={"source": "a.txt"})])
    [Document(metadata={'source': 'a.txt'}, page_content='thud')]
    >>> step.last_report
    <Report 1 entries: 1 admitted, 0 flagged, 0 quarantined>
    """

    def __init__(
        self,
        guard: Guard,
        embeddings: Embeddings | None = None,
        *,
        learn: bool = False,
        label_key: str = "label",
        lineage_key: str | None = None,
        prompt_keys: Sequence[str] | None = None,
    ) -> None:
        expect_guard(guard)
        if embeddings is not None:
            expect("embeddings", embeddings, Embeddings, "the model of the store")
        if embeddings is None and learn:
            msg = "learn=True needs vectors to learn; pass embeddings=, the model of the store."
            raise ValueError(msg)
        if embeddings is None and all(_needs_vectors(d) for d in guard.detectors):
            names = ", ".join(detector.name for detector in guard.detectors)
            msg = (
                f"none of the guard's detectors ({names}) can judge a document without its vector; "
                "pass embeddings=, the model of the store."
            )
            raise ValueError(msg)
        if embeddings is not None:
            guard.state.offer_embedder(embeddings.embed_documents)
        self._guard = guard
        self._embeddings = embeddings
        self._learn = learn
        self._keys = MetadataKeys.of(label_key, lineage_key, prompt_keys)
        self._last_report = Report(batch=NO_ENTRIES)

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of held documents."""
        return self._guard.quarantine

    @property
    def last_report(self) -> Report:
        """The report of the latest call.

        Its ``retroactive`` names documents admitted earlier that the call found suspicious; only a
        guarded store can recall those.
        """
        return self._last_report

    @synchronous
    def transform_documents(
        self,
        documents: Sequence[Document],
        **kwargs: Any,  # noqa: ARG002 - part of LangChain's interface
    ) -> Steps[Sequence[Document]]:
        """Return the documents that are not quarantined, unchanged and in their order.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a document has no usable id or text, or an id occurs twice; then none is held. A
            document that cannot be judged for another reason is held.
        PoisonedEntryError
            If documents are suspicious and the policy says ``on_detect="raise"``.
        """
        if not documents:
            return []
        vectors = None
        if self._embeddings is not None:
            texts = [document.page_content for document in documents]
            vectors = yield asked(self._embeddings, "embed_documents", texts)
        passed: list[Document] = yield own(self._screen, documents, vectors)
        return passed

    atransform_documents = asynchronous(transform_documents)  # type: ignore[arg-type]

    def release(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> list[Document]:
        """Release held documents, and return them to be added to the store.

        From then on they pass. A guarded store with the same quarantine can do both at once, by
        ``store.release``, which embeds documents that were held without a vector.

        Parameters
        ----------
        ids
            Ids of held documents.
        by, note
            The reviewer and the reason, for the quarantine's log.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If one of them is not held; then none is released.
        """
        held = let_in(self._guard, ids, by, note, learn=self._learn)
        return [to_document(item.entry) for item in held]

    def _screen(self, documents: Sequence[Document], vectors: Any) -> list[Document]:
        sifted = self._sifted(documents, vectors)
        screen = partial(self._guard.screen, sifted.whole)
        report = self._last_report = judged(self._guard, sifted, screen, learn=self._learn)
        report_detection(report, stage="ingestion")
        return [document for document, kept in zip(documents, report.admitted, strict=True) if kept]

    def _sifted(self, documents: Sequence[Document], vectors: Any) -> Sifted:
        """Return documents as entries; documents without an id get one made of their content."""
        named = [document.id or f"document {row}" for row, document in enumerate(documents)]
        columns = columns_of(
            named,
            [document.page_content for document in documents],
            [document.metadata for document in documents],
            vectors,
            self._keys,
        )
        sifted = sifted_for_step(columns, self._guard)
        seen: Counter[str] = Counter()
        ids = []
        for document, entry in zip(documents, sifted.batch, strict=True):
            if document.id:
                ids.append(document.id)
                continue
            revision = entry.fingerprint
            ids.append(str(uuid.uuid5(NAMESPACE, f"{revision} {seen[revision]}")))
            seen[revision] += 1
        return replace(sifted, batch=replace(sifted.batch, ids=tuple(ids)))


def _needs_vectors(detector: Any) -> bool:
    return Need.EMBEDDING in detector.needs
