"""Streams of documents into a guarded store: bounded memory, and a report per batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from ragshield_core import Report
from ragshield_core.model.errors import MalformedEntriesError
from ragshield_core.store.keys import expect
from ragshield_core.store.steps import adone
from ragshield_langchain.vectorstore import GuardedVectorStore

Documents = BaseLoader | Iterable[Document] | AsyncIterable[Document]


def ingest(
    documents: BaseLoader | Iterable[Document],
    store: GuardedVectorStore,
    *,
    batch_size: int = 100,
) -> Iterator[Report]:
    """Write documents batch by batch; yield the report of each.

    It is a generator: nothing is written until it is iterated, and no more than one batch is in
    memory.

    Parameters
    ----------
    documents
        A loader, which is read lazily, or any iterable.
    store
        The store to write to.
    batch_size
        Documents that are embedded, screened and written together.

    Yields
    ------
    Report
        One per batch, in order; ``report.batch.ids`` are the ids of its documents.

    Raises
    ------
    ragshield_core.model.errors.MalformedEntriesError
        At the end, if entries were refused; names each by its place in the source.
    Exception
        Any error of the source, the model or the store, with a note that names the batch; earlier
        batches are written.
    """
    _check(store, batch_size)
    source = iter(documents.lazy_load() if isinstance(documents, BaseLoader) else documents)
    refused: dict[int, str] = {}
    for number in itertools.count():
        reports: list[Report] = []
        with _in_batch(number, batch_size, store, refused):
            batch = list(islice(source, batch_size))
            if not batch:
                break
            store.add_documents(batch, on_report=reports.append)
        yield from reports
    if refused:
        raise MalformedEntriesError(refused)


async def aingest(
    documents: Documents,
    store: GuardedVectorStore,
    *,
    batch_size: int = 100,
) -> AsyncIterator[Report]:
    """Write documents batch by batch, embedding the next while one is written.

    It is an asynchronous generator: nothing is written until it is iterated. No more than two
    batches are in memory: a slow store or a slow consumer holds the source back. Batches are
    screened and written in the order of the source.

    Parameters
    ----------
    documents
        A loader, or any iterable, asynchronous or not. Synchronous ones are read in a thread.
    store
        The store to write to; its embedding model's native asynchronous methods are used, if any.
    batch_size
        As in :func:`ingest`.

    Yields
    ------
    Report
        As in :func:`ingest`, which also names the errors.

    Examples
    --------
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from langchain_core.vectorstores import InMemoryVectorStore
    >>> from ragshield_core import Guard, Quarantine
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    >>> inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    >>> store = GuardedVectorStore(inner, guard=guard)
    >>> async def main():
    ...     documents = (Document(page_content=f"page {n}") for n in range(5))
    ...     async for report in aingest(documents, store, batch_size=2):
    ...         print(report.summary())
    >>> asyncio.run(main())
    2 entries: 2 admitted, 0 flagged, 0 quarantined
    2 entries: 2 admitted, 0 flagged, 0 quarantined
    1 entries: 1 admitted, 0 flagged, 0 quarantined
    """
    _check(store, batch_size)
    if store.embeddings is None:
        msg = (
            f"{type(store.inner).__name__} has no embedding model to embed documents with; use "
            "store.add_embeddings with vectors of your own."
        )
        raise ValueError(msg)
    source = _batches(documents, batch_size)

    async def embedded() -> tuple[list[Document], list[Any]]:
        batch: list[Document] = await anext(source, [])
        texts = [document.page_content for document in batch]
        return batch, await adone(store._vectors(texts))  # noqa: SLF001

    refused: dict[int, str] = {}
    ahead = asyncio.create_task(embedded())
    try:
        for number in itertools.count():
            reports: list[Report] = []
            with _in_batch(number, batch_size, store, refused):
                batch, vectors = await ahead
                if not batch:
                    break
                ahead = asyncio.create_task(embedded())
                await store.aadd_embeddings(
                    zip([document.page_content for document in batch], vectors, strict=True),
                    [document.metadata for document in batch],
                    [document.id for document in batch],
                    on_report=reports.append,
                )
            del batch, vectors
            for report in reports:
                yield report
    finally:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)
    if refused:
        raise MalformedEntriesError(refused)


@contextmanager
def _in_batch(
    number: int, size: int, store: GuardedVectorStore, refused: dict[int, str]
) -> Iterator[None]:
    """Go on after malformed entries, unless the policy raises; name the batch in errors."""
    first = number * size
    try:
        yield
    except Exception as error:
        strict = store.guard.policy.on_detect == "raise"
        if isinstance(error, MalformedEntriesError) and not strict:
            refused |= {first + row: reason for row, reason in error.reasons.items()}
            return
        error.add_note(
            f"in batch {number} (documents {first} to {first + size - 1} of the source, counted "
            "from 0); the batches before it are written."
        )
        raise


async def _batches(documents: Documents, size: int) -> AsyncIterator[list[Document]]:
    """Yield documents of any kind of source in batches."""
    if isinstance(documents, BaseLoader):
        # Its own asynchronous method, if any; the inherited one changes threads per document.
        native = type(documents).alazy_load is not BaseLoader.alazy_load
        documents = documents.alazy_load() if native else documents.lazy_load()
    if isinstance(documents, AsyncIterable):
        batch: list[Document] = []
        async for document in documents:
            batch.append(document)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch
        return
    source = iter(documents)
    while some := await run_in_executor(None, lambda: list(islice(source, size))):
        yield some


def _check(store: object, batch_size: int) -> None:
    way_out = "wrap it, GuardedVectorStore(store, guard=guard); an unguarded store needs no ingest"
    expect("store", store, GuardedVectorStore, way_out)
    if batch_size < 1:
        msg = f"batch_size is {batch_size}, expected at least 1."
        raise ValueError(msg)
