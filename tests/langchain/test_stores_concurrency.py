"""Threads and tasks that write and read at once: the benchmark, for a second a store."""

import asyncio

import concurrency
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from store_kinds import KINDS

from ragshield_core import Guard, Quarantine
from ragshield_langchain import GuardedVectorStore


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_writes_and_reads_lose_nothing(make_store, on_file, kind):
    embedding = DeterministicFakeEmbedding(size=concurrency.DIM)
    inner = make_store(kind, embedding, concurrency.DIM)
    done = concurrency.run(inner, Quarantine(on_file), 1.0, 8, 200)
    assert done["thread rounds"] >= 8
    assert done["task rounds"] >= 200
    assert done["held"] > 0


@pytest.mark.slow
async def test_tasks_begin_at_once_on_a_postgres_in_async_mode(make_store, on_file):
    inner = make_store("postgres", DeterministicFakeEmbedding(size=8), 8, async_mode=True)
    guard = Guard([concurrency.Marked()], quarantine=Quarantine(on_file))
    store = GuardedVectorStore(inner, guard=guard)

    async def one(number):
        mark = concurrency.MARK if number % 4 == 0 else ""
        await store.aadd_texts([f"text {number} {mark}"], ids=[str(number)])
        return await store.asimilarity_search(f"text {number}", k=5)

    found = await asyncio.gather(*(one(number) for number in range(40)))
    assert all(concurrency.MARK not in d.page_content for documents in found for d in documents)
    assert len(await store.asimilarity_search("text", k=100)) == 30
    assert guard.quarantine.count() == 10
