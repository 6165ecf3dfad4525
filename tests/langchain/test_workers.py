"""Workers of one store whose guards were opened on one database are as one."""

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from support import (
    DIM,
    CountingEmbeddings,
    Scripted,
    group,
    held_by_one,
    meanwhile,
    passages,
    vector_of,
)
from test_behind_its_store import text

from ragshield_core import Batch, Guard
from ragshield_core.detectors import CliqueDetector
from ragshield_langchain import GuardedVectorStore, PoisonGuardTransformer


@pytest.fixture(params=["memory", "faiss", "chroma"])
def workers(request, make_store, tmp_path):
    """Return two stores, as two processes have them, around the same one."""
    inner = make_store(request.param, CountingEmbeddings(), DIM)
    url = f"sqlite:///{tmp_path}/guard.db"
    return [
        GuardedVectorStore(inner, guard=Guard.open(url, detectors=[Scripted()])) for _ in range(2)
    ]


def add(store, **documents):
    store.add_documents([Document(id=i, page_content=t) for i, t in documents.items()])


def live(store):
    return {document.id for document in store.get_by_ids(["a", "b", "c", "d"])}


def known(workers):
    for store in workers:
        store.guard.writes.catch_up()
    first, second = (set(store.guard.writes.known(["a", "b", "c", "d"])) for store in workers)
    assert first == second
    assert workers[0].guard.status().pending == 0
    return first


def test_what_one_holds_releases_and_recalls_readers_of_the_other_see_so(workers):
    first, second = workers
    add(first, a=text(1), b="score=5 or more")
    assert live(second) == known(workers) == {"a"}
    second.release(["b"], by="anna")
    assert live(first) == known(workers) == {"a", "b"}
    first.recall(["a"], by="anna")
    assert live(second) == known(workers) == {"b"}
    found = second.similarity_search(text(1), k=4)
    assert [document.id for document in found] == ["b"]
    first.purge(["a"])
    assert known(workers) == {"b"}


def test_what_a_worker_could_not_end_another_recovers(workers):
    first, second = workers
    add(first, a=text(1))
    there = Batch.of(ids=["a"], texts=[text(1)], embeddings=[vector_of(text(1))])
    first.guard.writes.intend(there.take([]), there)  # to be deleted, and never was
    second.guard.writes.catch_up()
    assert second.guard.writes.known(["a"]) == []
    assert second.recover() == 0  # the first is alive
    first.guard.close()
    assert asyncio.run(second.arecover()) == 1
    assert known(workers) == live(second) == {"a"}


# A step of a pipeline


class Table(Embeddings):
    """Vectors that were computed before, by text."""

    def __init__(self, *batches):
        self.vectors = {t: v for b in batches for t, v in zip(b.texts, b.vectors, strict=True)}

    def embed_documents(self, texts):
        return [self.vectors[text].tolist() for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


def documents(batch):
    rows = zip(batch.ids, batch.texts, batch.lineages, strict=True)
    return [Document(id=i, page_content=t, metadata={"source": s}) for i, t, s in rows]


def test_steps_that_judge_a_group_at_the_same_instant_find_it_as_one_does(tmp_path):
    url, bad = f"sqlite:///{tmp_path}/guard.db", group(4, 3)
    guards = [Guard.open(url, detectors=[CliqueDetector()], fpr=0.05) for _ in range(2)]
    guards[0].fit(passages(300, 1)).calibrate()
    one, other = (PoisonGuardTransformer(guard, Table(bad), learn=True) for guard in guards)
    for row in (0, 2):
        with meanwhile(
            guards[0],
            [lambda row=row: other.transform_documents(documents(bad.take([row + 1])))],
        ):
            one.transform_documents(documents(bad.take([row])))
    for guard in guards:
        guard.writes.catch_up()
    held = {entry.id for entry in guards[0].quarantine.list()}
    assert held == held_by_one(passages(300, 1), bad, 0.05) >= {"bad3-1", "bad3-2"}
    for guard in guards[:2]:
        assert set(guard.writes.known(bad.ids)) == set(bad.ids) - held


def test_others_wait_until_a_step_has_learned_what_it_lets_in(tmp_path):
    url, new = f"sqlite:///{tmp_path}/guard.db", passages(5, 2, "new")
    one, other = (Guard.open(url, detectors=[CliqueDetector()]) for _ in range(2))
    step = PoisonGuardTransformer(one, Table(new), learn=True)
    known = []
    other.writes.on_learned.append(lambda _: known.extend(other.writes.known(new.ids)))
    with meanwhile(one, [lambda: other.learn(passages(1, 9, "other"))]):
        step.transform_documents(documents(new))
    assert known == list(new.ids)
