"""Streams into a guarded store: order, memory, back-pressure, and errors that name the batch."""

import asyncio
from contextlib import aclosing
from unittest.mock import patch

import pytest
from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from support import CountingEmbeddings, Scripted, guard_of

from ragshield_core import PoisonedEntryError
from ragshield_core.model.errors import MalformedEntriesError
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.ingestion import aingest, ingest
from ragshield_langchain.inner.memory import InMemoryInner

N = 23


def documents(n=N, bad=(4, 17)):
    return [
        Document(id=f"{i}", page_content=f"billing {i}" + (" score=9" if i in bad else ""))
        for i in range(n)
    ]


def guarded(**policy):
    guard = guard_of(Scripted(), **policy)
    return GuardedVectorStore(InMemoryVectorStore(CountingEmbeddings()), guard=guard)


@pytest.fixture
def store():
    return guarded()


class LazyLoader(BaseLoader):
    def lazy_load(self):
        yield from documents()


class AsyncLoader(BaseLoader):
    async def alazy_load(self):
        for document in documents():
            yield document


class OldLoader(BaseLoader):
    def load(self):
        return documents()


async def agenerate(counter=None, n=N, bad=(4, 17)):
    for document in documents(n, bad):
        if counter is not None:
            counter.append(document.id)
        yield document


SOURCES = {
    "list": documents,
    "generator": lambda: (document for document in documents()),
    "async generator": agenerate,
    "lazy loader": LazyLoader,
    "async loader": AsyncLoader,
    "loader with load() only": OldLoader,
}


def check(store, reports):
    assert [len(report.batch) for report in reports] == [10, 10, 3]
    assert [i for report in reports for i in report.batch.ids] == [str(i) for i in range(N)]
    held = [d.entry_id for report in reports for d in report.quarantined]
    assert held == [item.id for item in store.quarantine.list()] == ["4", "17"]
    assert len(store.inner.store) == N - 2
    assert [len(call) for call in store.embeddings.calls] == [10, 10, 3]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_any_source_gives_a_report_per_batch_in_order(store, source):
    check(store, [report async for report in aingest(source(), store, batch_size=10)])
    assert store.embeddings.native == 3


@pytest.mark.slow
async def test_the_source_is_read_no_further_than_there_is_room(store):
    read, most = [], 0
    stream = aingest(agenerate(read, 400), store, batch_size=10)
    async with aclosing(stream):
        async for written in stream:
            await asyncio.sleep(0.005)  # a slow consumer
            done = int(written.batch.ids[-1]) + 1
            most = max(most, len(read) - done)
            if done == 200:
                break
    assert most == 10  # the batch after the one that the consumer looks at
    assert len(store.inner.store) == 200 - 2


@pytest.mark.slow
async def test_a_slow_store_holds_the_source_back_and_the_model_works_meanwhile(store):
    events = []
    embed, write = store.embeddings.aembed_documents, store.aadd_embeddings

    async def slow_embed(texts):
        events.append("embedding")
        return await embed(texts)

    async def slow_write(*args, **kwargs):
        await asyncio.sleep(0.05)
        events.append("written")
        return await write(*args, **kwargs)

    with (
        patch.object(store.embeddings, "aembed_documents", slow_embed),
        patch.object(store, "aadd_embeddings", slow_write),
    ):
        _ = [report async for report in aingest(agenerate(n=40), store, batch_size=10)]
    overlapping = ["embedding", "embedding", "written"]
    assert events[:3] == overlapping
    for end in range(len(events)):
        seen = events[: end + 1]
        assert seen.count("embedding") - seen.count("written") <= 2


async def failing_source():
    async for document in agenerate(n=25):
        if document.id == "15":
            msg = "connection lost"
            raise OSError(msg)
        yield document


async def test_an_error_of_the_source_comes_after_the_batches_before_it(store):
    stream = aingest(failing_source(), store, batch_size=10)
    assert len((await anext(stream)).batch) == 10
    with pytest.raises(OSError, match="connection lost") as raised:
        await anext(stream)
    assert len(store.inner.store) == 9
    assert "batch 1 (documents 10 to 19" in raised.value.__notes__[0]


async def test_an_error_of_the_store_names_the_batch_and_stops_the_rest(store, monkeypatch):
    def fails(self, batch, metadatas):
        if "13" in batch.ids:
            msg = "no room"
            raise OSError(msg)
        write(self, batch, metadatas)

    write = InMemoryInner.write
    monkeypatch.setattr(InMemoryInner, "write", fails)
    with pytest.raises(OSError, match="no room") as raised:
        _ = [report async for report in aingest(documents(30), store, batch_size=5)]
    with pytest.raises(OSError, match="no room") as raised_too:
        list(ingest(documents(30), store, batch_size=5))
    for error in (raised.value, raised_too.value):
        assert "batch 2 (documents 10 to 14" in error.__notes__[-1]
    assert len(store.inner.store) == 9


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_malformed_documents_stop_no_stream(store, asynchronous):
    bad = documents(30)
    bad[13] = Document(id="13", page_content="x", metadata={"label": ["no", "scalar"]})
    bad[16] = Document(id="15", page_content="x")
    reports = []

    async def run():
        if asynchronous:
            async for report in aingest(bad, store, batch_size=5):
                reports.append(report)  # noqa: PERF401 - those before an error count
        else:
            reports.extend(ingest(bad, store, batch_size=5))

    with pytest.raises(MalformedEntriesError, match="entry 16: id '15'") as raised:
        await run()
    assert set(raised.value.reasons) == {16}
    assert [len(report.batch) for report in reports] == [5, 5, 5, 4, 5, 5]
    assert store.quarantine.show("13").note.startswith("not judged: metadata['label']")
    assert {"12", "14", "15", "17", "29"} <= set(store.inner.store) | store.quarantine.held_ids(
        ["12", "14", "15", "17", "29"]
    )


async def test_on_detect_raise_names_the_batch():
    strict = guarded(on_detect="raise")
    with pytest.raises(PoisonedEntryError) as raised:
        _ = [report async for report in aingest(documents(), strict, batch_size=3)]
    assert "batch 1 (documents 3 to 5" in raised.value.__notes__[0]
    assert set(strict.inner.store) == {"0", "1", "2"}


async def test_sizes_are_checked(store):
    with pytest.raises(ValueError, match="batch_size is 0"):
        _ = [report async for report in aingest([], store, batch_size=0)]


async def test_a_store_without_a_model_says_so():
    store = guarded()
    with (
        patch.object(type(store), "embeddings", None),
        pytest.raises(ValueError, match="no embedding model"),
    ):
        _ = [report async for report in aingest(documents(), store)]


async def test_closing_the_stream_early_leaves_no_task_behind(store):
    stream = aingest(agenerate(n=1000), store, batch_size=10)
    await anext(stream)
    await stream.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(store.inner.store) == 9
