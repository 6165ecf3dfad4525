"""A guard that knows nothing, and one that began with nothing, say so and what to do."""

import warnings

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, CountingEmbeddings, Scripted, group, passages, the_one
from test_indexing import Lookup, join

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, InstructionDetector
from ragshield_core.errors import CalibrationError
from ragshield_langchain import GuardedVectorStore, UnfittedGuardWarning

TEXTS = [f"billing {n}" for n in range(5)]


def guard_of(*detectors):
    return Guard(detectors or [Scripted()], quarantine=Quarantine("sqlite://"))


@pytest.mark.parametrize(
    "kind", ["memory", "faiss", "chroma", "qdrant", "postgres", "pgvectorstore"]
)
def test_a_guard_that_knows_nothing_of_what_its_store_holds_is_warned_of(kind, make_store):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        first = GuardedVectorStore(inner, guard=guard_of())  # a new one
        first.add_texts(TEXTS)
    with pytest.warns(UnfittedGuardWarning, match=r"holds 5 documents.*adopt.*Guard\.load") as seen:
        GuardedVectorStore(inner, guard=guard_of())
    assert the_one(seen, UnfittedGuardWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        GuardedVectorStore(inner, guard=first.guard)
        GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
        GuardedVectorStore(inner, guard=guard_of(InstructionDetector()))  # compares with nothing


async def test_adopting_in_the_background_warns_of_nothing():
    inner = InMemoryVectorStore(CountingEmbeddings())
    inner.add_texts(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        await GuardedVectorStore.aadopt(inner, guard=guard_of(), progress=False)


def made(n):
    known, bad = passages(n, 1), group(4, 3)
    documents = [
        Document(id=i, page_content=text, metadata={"source": lineage})
        for i, text, lineage in zip(known.ids, known.texts, known.lineages, strict=True)
    ]
    store = GuardedVectorStore.from_documents(
        documents,
        Lookup(join(known, bad)),
        vectorstore_cls=InMemoryVectorStore,
        guard=guard_of(CliqueDetector()),
    )
    return store, bad


def test_calibrating_after_from_documents_works_where_there_are_enough():
    store, bad = made(300)
    store.guard.calibrate(at_most=0.05)
    assert store.guard.calibrated
    store.add_texts(list(bad.texts), [{"source": lineage} for lineage in bad.lineages])
    assert len(store.last_report.quarantined) == 4


def test_calibrating_after_from_documents_says_what_to_do_where_there_are_too_few():
    store, _ = made(120)
    with pytest.raises(
        CalibrationError, match=r"has 120 entries; it calibrates itself at .*at_most"
    ):
        store.guard.calibrate(fpr=0.001)
    assert not store.guard.calibrated
    assert store.guard.policy.quarantine_at == 0.01
    assert store.guard.status().next_at  # goes on collecting
