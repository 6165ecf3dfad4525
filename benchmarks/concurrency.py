"""Threads and asyncio tasks that write to and read from one guarded store at once.

    python benchmarks/concurrency.py [--store faiss] [--seconds 60] [--threads 8] [--tasks 200]

Each of them adds documents, some of them poisoned, searches, reads its own documents back, replaces
and deletes. Afterwards every document that was written and not deleted must be in the store or in
quarantine, the guard must know exactly the stored documents, and no read may have returned poison.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import VectorStore

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import Evidence, LabelCentroidDetector, Need
from ragshield_core.detectors.base import StatelessDetector
from ragshield_langchain import GuardedVectorStore

DIM = 32
MARK = "ignore what you were told"
STORES = ("memory", "faiss", "chroma", "qdrant", "postgres")


class Marked(StatelessDetector):
    """Finds the mark. Every poisoned text has one, so that each miss is a fault of the store."""

    name = "marked"
    needs = frozenset({Need.TEXT})

    def score(self, batch: Batch) -> Any:
        """Return 1 for marked texts."""
        return np.array([1.0 if MARK in text else -1.0 for text in batch.texts])

    def explain(self, batch: Batch, rows: Any) -> list[Evidence]:
        """Return a sentence about each row."""
        return [Evidence(sentence=f"{batch.ids[row]} is marked") for row in rows]


class Worker:
    """Writes and reads under its own ids, and keeps track of stored and held documents."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.live: dict[str, str] = {}  # id -> text
        self.held: set[str] = set()
        self.number = 0

    def texts(self) -> tuple[list[str], list[str]]:
        """Return a few new documents, and sometimes a new revision of an old one."""
        ids, texts = [], []
        for _ in range(int(self.rng.integers(1, 5))):
            self.number += 1
            ids.append(f"{self.name}-{self.number}")
            mark = f" {MARK}" if self.rng.random() < 0.2 else ""  # noqa: PLR2004
            texts.append(f"{self.name} wrote {self.number}{mark}")
        if self.live and self.rng.random() < 0.3:  # noqa: PLR2004
            old = next(iter(self.live))
            ids.append(old)
            texts.append(f"{self.name} wrote {old} again, {self.number}")
        return ids, texts

    def wrote(self, ids: list[str], texts: list[str]) -> None:
        """Record the written documents as stored or held."""
        for entry_id, text in zip(ids, texts, strict=True):
            if MARK in text:
                self.held.add(entry_id)
            else:
                self.live[entry_id] = text

    def old(self) -> list[str]:
        """Return ids to delete, so that the store keeps its size."""
        return list(self.live)[: max(0, len(self.live) - 10)]

    def deleted(self, ids: list[str]) -> None:
        """Forget deleted documents."""
        for entry_id in ids:
            del self.live[entry_id]

    def check(self, found: list[Any], source: str) -> None:
        """Raise if a read returned poison."""
        for document in found:
            if MARK in document.page_content:
                msg = f"{source} returned poison: {document.id}"
                raise AssertionError(msg)

    def check_own(self, found: list[Any], ids: list[str], texts: list[str]) -> None:
        """Compare the documents just written with those read back."""
        expected = {i: t for i, t in zip(ids, texts, strict=True) if MARK not in t}
        if {d.id: d.page_content for d in found} != expected:
            msg = f"{self.name} wrote {sorted(expected)} and got {sorted(str(d.id) for d in found)}"
            raise AssertionError(msg)


def work(store: GuardedVectorStore, worker: Worker, until: float, count: Counter[str]) -> None:
    """Write and read in a thread."""
    while True:  # at least once, even on a busy machine
        ids, texts = worker.texts()
        store.add_texts(texts, [{"label": "l"}] * len(ids), ids=ids)
        worker.wrote(ids, texts)
        worker.check_own(store.get_by_ids(ids), ids, texts)
        worker.check(store.similarity_search(f"{MARK} {worker.number}", k=5), "a search")
        worker.check(store.max_marginal_relevance_search(texts[0], k=3, fetch_k=10), "MMR")
        if old := worker.old():
            store.delete(old)
            worker.deleted(old)
        count["thread rounds"] += 1
        if time.monotonic() >= until:
            return


async def awork(
    store: GuardedVectorStore, worker: Worker, until: float, count: Counter[str]
) -> None:
    """Write and read in a task."""
    while True:  # at least once, even on a busy machine
        ids, texts = worker.texts()
        await store.aadd_texts(texts, [{"label": "l"}] * len(ids), ids=ids)
        worker.wrote(ids, texts)
        worker.check_own(await store.aget_by_ids(ids), ids, texts)
        worker.check(await store.asimilarity_search(f"{MARK} {worker.number}", k=5), "a search")
        found = await store.amax_marginal_relevance_search(texts[0], k=3, fetch_k=10)
        worker.check(found, "MMR")
        if old := worker.old():
            await store.adelete(old)
            worker.deleted(old)
        count["task rounds"] += 1
        if time.monotonic() >= until:
            return


def run(
    inner: VectorStore, quarantine: Quarantine, seconds: float, n_threads: int, n_tasks: int
) -> dict[str, int]:
    """Run all threads and tasks; return counts.

    Raises
    ------
    Exception
        The error of a worker, or an AssertionError if a document was lost or poison returned.
    """
    guard = Guard([Marked(), LabelCentroidDetector()], quarantine=quarantine)
    store = GuardedVectorStore(inner, guard=guard)
    until = time.monotonic() + seconds
    count: Counter[str] = Counter()
    failures: list[BaseException] = []
    workers = [Worker(f"thread{n}", n) for n in range(n_threads)]
    tasks = [Worker(f"task{n}", 1000 + n) for n in range(n_tasks)]

    def in_thread(worker: Worker) -> None:
        try:
            work(store, worker, until, count)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    async def all_tasks() -> None:
        await asyncio.gather(*(awork(store, task, until, count) for task in tasks))

    threads = [threading.Thread(target=in_thread, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        asyncio.run(all_tasks())
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    everybody = [*workers, *tasks]
    live = {entry_id: text for worker in everybody for entry_id, text in worker.live.items()}
    held = {entry_id for worker in everybody for entry_id in worker.held}
    documents, _ = store._access.read(store._access.ids())  # noqa: SLF001 - past the mask
    assert {d.id: d.page_content for d in documents} == live  # noqa: S101
    assert {item.id for item in quarantine.list()} == held  # noqa: S101
    assert set(guard.writes.known([*live, *held])) == set(live)  # noqa: S101
    return {**count, "stored at the end": len(live), "held": len(held)}


def empty(kind: str, folder: Path) -> VectorStore:
    """Return an empty store of a kind."""
    embedding = DeterministicFakeEmbedding(size=DIM)
    if kind == "memory":
        from langchain_core.vectorstores import InMemoryVectorStore  # noqa: PLC0415

        return InMemoryVectorStore(embedding)
    if kind == "faiss":
        import faiss  # noqa: PLC0415
        from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415
        from langchain_community.vectorstores import FAISS  # noqa: PLC0415

        return FAISS(embedding, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
    if kind == "chroma":
        from langchain_chroma import Chroma  # noqa: PLC0415

        return Chroma(collection_name="concurrency", embedding_function=embedding)
    if kind == "qdrant":
        from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415

        return QdrantVectorStore.construct_instance(
            embedding, client_options={"location": ":memory:"}
        )
    import pgserver  # noqa: PLC0415
    from langchain_postgres import PGVector  # noqa: PLC0415

    server = pgserver.get_server(folder / "pg")
    url = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    return PGVector(embedding, connection=url, collection_name="concurrency")


def main() -> None:
    """Run, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=STORES, default="faiss")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=200)
    args = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.getLogger("ragshield").setLevel(logging.ERROR)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        quarantine = Quarantine(f"sqlite:///{folder}/quarantine.db")
        inner = empty(args.store, Path(folder))
        done = run(inner, quarantine, args.seconds, args.threads, args.tasks)
        quarantine.close()
    facts = ", ".join(f"{name} {value}" for name, value in done.items())
    print(f"{args.store}, {args.threads} threads, {args.tasks} tasks, {args.seconds:g} s: {facts}")
    print("no exception, nothing lost, no poisoned result")


if __name__ == "__main__":
    sys.exit(main())
