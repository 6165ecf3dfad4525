"""Streams of documents into a guarded store: bounded memory, and a report per batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from ragshield_core import Report
from ragshield_core.adapters.steps import adone
from ragshield_core.errors import MalformedEntriesError
from ragshield_langchain.checks import expect
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
        Where they go.
    batch_size
        Documents that are embedded, screened and written together.

    Yields
    ------
    Report
        One per batch, in order; ``report.batch.ids`` are the ids of its documents.

    Raises
    ------
    ragshield_core.errors.MalformedEntriesError
        At the end, if entries could not be taken in; names each by its place in the source.
    Exception
        Whatever the source, the model or the store raises, with a note that names the batch; the
        batches before it are written.
    """
    _expect_guarded(store)
    _check(batch_size=batch_size)
    source = iter(documents.lazy_load() if isinstance(documents, BaseLoader) else documents)
    refused = _Refused(store, batch_size)
    number = 0
    while True:
        reports: list[Report] = []
        try:
            batch = list(islice(source, batch_size))
            if not batch:
                break
            with refused.in_batch(number):
                store.add_documents(batch, on_report=reports.append)
        except Exception as error:
            error.add_note(_where(number, batch_size))
            raise
        yield from reports
        number += 1
    refused.name()


async def aingest(
    documents: Documents,
    store: GuardedVectorStore,
    *,
    batch_size: int = 100,
    max_pending: int = 2,
) -> AsyncIterator[Report]:
    """Write documents batch by batch, embedding the next while one is written.

    It is an asynchronous generator: nothing is written until it is iterated. The source is asked
    for more only when there is room, so that a slow store or a slow consumer holds it back. Batches
    are screened and written in the order of the source.

    Parameters
    ----------
    documents
        A loader, or any iterable, asynchronous or not. Synchronous ones are read in a thread.
    store
        Where they go; its embedding model is called natively asynchronous, if it has that.
    batch_size
        Documents that are embedded, screened and written together.
    max_pending
        Batches that have been read and are not yet written, at most; 1 does one thing at a time,
        2, the default, is enough to keep model and store both busy.

    Yields
    ------
    Report
        One per batch, in order; ``report.batch.ids`` are the ids of its documents.

    Raises
    ------
    ragshield_core.errors.MalformedEntriesError
        At the end, if entries could not be taken in; names each by its place in the source.
    Exception
        Whatever the source, the model or the store raises, with a note that names the batch; the
        batches before it are written, and those after it are not.

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
    _expect_guarded(store)
    _check(batch_size=batch_size, max_pending=max_pending)
    if store.embeddings is None:
        msg = (
            f"{type(store.inner).__name__} has no embedding model to embed documents with; use "
            "store.add_embeddings with vectors of your own."
        )
        raise ValueError(msg)
    room = asyncio.Semaphore(max_pending)
    # Bounded by the semaphore. An exception waits for its turn: batches before it are written.
    ready: asyncio.Queue[_Embedded | Exception | None] = asyncio.Queue()
    embedding = asyncio.create_task(_embed(_Source(documents), store, batch_size, room, ready))
    refused = _Refused(store, batch_size)
    number = 0
    try:
        while (item := await ready.get()) is not None:
            reports: list[Report] = []
            try:
                with refused.in_batch(number):
                    await _write(store, item, reports)
            except Exception as error:
                error.add_note(_where(number, batch_size))
                raise
            del item
            room.release()
            for report in reports:
                yield report
            number += 1
    finally:
        embedding.cancel()
        await asyncio.gather(embedding, return_exceptions=True)
    refused.name()


class _Refused:
    """Entries of a stream that could not be taken in, named when all others are written."""

    def __init__(self, store: GuardedVectorStore, batch_size: int) -> None:
        self._strict = store.guard.policy.on_detect == "raise"
        self._batch_size = batch_size
        self._reasons: dict[int, str] = {}

    @contextmanager
    def in_batch(self, number: int) -> Iterator[None]:
        """Go on after malformed entries, unless the policy raises."""
        try:
            yield
        except MalformedEntriesError as error:
            if self._strict:
                raise
            first = number * self._batch_size
            self._reasons |= {first + row: reason for row, reason in error.reasons.items()}

    def name(self) -> None:
        """Raise if there were any."""
        if self._reasons:
            raise MalformedEntriesError(self._reasons)


class _Embedded(NamedTuple):
    """A batch that is ready to be written."""

    documents: list[Document]
    vectors: list[Any]  # None where the model refuses a text


class _Source:
    """Batches out of whatever documents come in."""

    def __init__(self, documents: Documents) -> None:
        self._async: AsyncIterator[Document] | None = None
        self._sync: Iterator[Document] = iter(())
        if isinstance(documents, BaseLoader):
            # Its own asynchronous way, if it has one; the inherited one hops threads per document.
            native = type(documents).alazy_load is not BaseLoader.alazy_load
            documents = documents.alazy_load() if native else documents.lazy_load()
        if isinstance(documents, AsyncIterable):
            self._async = aiter(documents)
        else:
            self._sync = iter(documents)

    async def take(self, n: int) -> list[Document]:
        """Return the next n documents, fewer at the end."""
        if self._async is None:
            return await run_in_executor(None, lambda: list(islice(self._sync, n)))
        batch: list[Document] = []
        while len(batch) < n:
            try:
                batch.append(await anext(self._async))
            except StopAsyncIteration:
                break
        return batch


async def _embed(
    source: _Source,
    store: GuardedVectorStore,
    batch_size: int,
    room: asyncio.Semaphore,
    ready: asyncio.Queue[_Embedded | Exception | None],
) -> None:
    """Read and embed batches while there is room for them."""
    try:
        while True:
            await room.acquire()
            documents = await source.take(batch_size)
            if not documents:
                break
            texts = [document.page_content for document in documents]
            vectors = await adone(store._embedded(texts))  # noqa: SLF001 - None where it refuses one
            ready.put_nowait(_Embedded(documents, vectors))
    except Exception as error:  # noqa: BLE001 - raised in its turn, by the generator
        ready.put_nowait(error)
    else:
        ready.put_nowait(None)


async def _write(
    store: GuardedVectorStore, batch: _Embedded | Exception, reports: list[Report]
) -> None:
    if isinstance(batch, Exception):
        raise batch
    documents, vectors = batch
    await store.aadd_embeddings(
        zip([document.page_content for document in documents], vectors, strict=True),
        [document.metadata for document in documents],
        [document.id for document in documents],
        on_report=reports.append,
    )


def _expect_guarded(store: object) -> None:
    way_out = "wrap it, GuardedVectorStore(store, guard=guard); what is not guarded needs no ingest"
    expect("store", store, GuardedVectorStore, way_out)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            msg = f"{name} is {size}, expected at least 1."
            raise ValueError(msg)


def _where(number: int, batch_size: int) -> str:
    first = number * batch_size
    return (
        f"in batch {number} (documents {first} to {first + batch_size - 1} of the source, counted "
        "from 0); the batches before it are written."
    )
