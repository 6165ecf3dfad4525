"""The step between splitter and store: documents it passes, documents it holds, and its cost."""

from unittest.mock import patch

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from support import CountingEmbeddings, Scripted, group, knowledge_base, passages
from test_events import Heard

from ragshield_core import Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.errors import QuarantineError
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.events import EVENT
from ragshield_langchain.transformer import PoisonGuard

CENTROIDS = {"min_entries": 3}


def guard_of(*detectors, **policy):
    detectors = detectors or (Scripted(), LabelCentroidDetector(**CENTROIDS))
    guard = Guard(detectors, policy=Policy(**policy), quarantine=Quarantine("sqlite://"))
    return guard.fit(knowledge_base(6))


def chunk(text, label="billing", **fields):
    return Document(page_content=text, metadata={"label": label, "source": "a.txt"}, **fields)


# One that says so, one whose label does not fit its vector, and two that are fine.
PLAIN, SAYS, FLIPPED, NAMED = (
    chunk("billing new 1"),
    chunk("billing new 2 score=9"),
    chunk("shipping new 3"),
    chunk("billing new 4", id="own"),
)
CHUNKS = [PLAIN, SAYS, FLIPPED, NAMED]


@pytest.fixture
def embeddings():
    return CountingEmbeddings()


@pytest.fixture
def step(embeddings):
    return PoisonGuard(guard_of(), embeddings)


async def test_admitted_documents_pass_unchanged_and_in_order(step, embeddings):
    before = [document.model_copy(deep=True) for document in CHUNKS]
    passed = step.transform_documents(CHUNKS)
    assert [document is same for document, same in zip(passed, [PLAIN, NAMED], strict=True)]
    assert all(a is b for a, b in zip(passed, (PLAIN, NAMED), strict=True))
    assert before == CHUNKS
    assert [document.id for document in CHUNKS] == [None, None, None, "own"]
    held = step.quarantine.list()
    assert [item.entry.text for item in held] == [SAYS.page_content, FLIPPED.page_content]
    assert held[0].entry.metadata == SAYS.metadata
    assert embeddings.calls == [[document.page_content for document in CHUNKS]]
    again = await step.atransform_documents(CHUNKS)
    assert [document.page_content for document in again] == ["billing new 1", "billing new 4"]
    assert embeddings.native == 1
    assert step.quarantine.count(None) == 2, "the same documents are held once"


def test_ids_are_made_of_the_content_and_repeated_content_gets_another(step):
    twice = [chunk("billing 1 score=9"), chunk("billing 1 score=9"), chunk("billing 2 score=9")]
    step.transform_documents(twice)
    ids = {item.id for item in step.quarantine.list()}
    assert len(ids) == 3
    step.transform_documents(twice[::-1])
    assert {item.id for item in step.quarantine.list(None)} == ids


def test_release_returns_documents_that_pass_from_then_on(step):
    step.transform_documents(CHUNKS)
    ids = [item.id for item in step.quarantine.list()]
    documents = step.release(ids, by="alice", note="looked at it")
    assert [document.page_content for document in documents] == [
        SAYS.page_content,
        FLIPPED.page_content,
    ]
    assert [document.metadata for document in documents] == [SAYS.metadata, FLIPPED.metadata]
    assert [document.id for document in documents] == ids
    assert step.transform_documents(CHUNKS) == CHUNKS
    assert step.transform_documents(documents) == documents
    with pytest.raises(QuarantineError, match="not held"):
        step.release(ids)


@pytest.mark.slow
def test_released_members_of_a_group_count_no_more():
    known, poison = passages(300, 1), group(3, 3)
    guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
    guard.fit(known).calibrate(fpr=0.01)
    vectors = dict(zip(poison.texts, poison.vectors.tolist(), strict=True))
    model = CountingEmbeddings()
    with patch.object(model, "embed_documents", lambda texts: [vectors[text] for text in texts]):
        step = PoisonGuard(guard, model)
        documents = [
            Document(page_content=entry.text, metadata={"source": entry.lineage})
            for entry in poison
        ]
        assert step.transform_documents(documents[:2]) == []
        with patch.object(guard, "trust", wraps=guard.trust) as trust:
            step.release([item.id for item in step.quarantine.list()])
        assert len(trust.call_args.args[0]) == 2
        assert step.transform_documents(documents[2:]) == documents[2:]


def test_repeated_documents_are_learned_once(embeddings):
    guard = guard_of()
    step = PoisonGuard(guard, embeddings, learn=True)
    step.transform_documents(CHUNKS)
    step.transform_documents(CHUNKS)
    assert guard.detectors[0].learned == len(knowledge_base(6)) + 2
    step.release([item.id for item in step.quarantine.list()])
    step.transform_documents(CHUNKS)
    assert guard.detectors[0].learned == len(knowledge_base(6)) + 4


def test_in_front_of_a_guarded_store_every_document_is_learned_once(embeddings):
    guard = guard_of()
    step = PoisonGuard(guard, embeddings)
    store = GuardedVectorStore(InMemoryVectorStore(embeddings), guard=guard)
    ids = store.add_documents(step.transform_documents(CHUNKS))
    assert guard.detectors[0].learned == len(knowledge_base(6)) + 2
    held = [item.id for item in step.quarantine.list()]
    store.release(held)
    assert set(store.inner.store) == {*ids, *held}
    assert store.inner.store[held[0]]["vector"] == pytest.approx(
        embeddings.embed_query(SAYS.page_content)
    )


# Without an embedding model


def test_without_vectors_the_other_detectors_judge_and_the_report_names_the_skipped():
    guard = guard_of()
    step = PoisonGuard(guard)
    passed = step.transform_documents(CHUNKS)
    assert [document.page_content for document in passed] == [
        PLAIN.page_content,
        FLIPPED.page_content,
        NAMED.page_content,
    ]
    (skipped,) = step.last_report.skipped
    assert skipped.detector == "label_centroid"
    assert "vector" in skipped.reason
    assert len(guard.detectors) == 2, "the guard itself is as it was"
    (held,) = step.quarantine.list()
    assert held.vector.size == 0
    (document,) = step.release([held.id])
    assert document.page_content == SAYS.page_content
    assert step.transform_documents(CHUNKS) == CHUNKS


def test_impossible_configuration_is_refused():
    guard = guard_of(LabelCentroidDetector(**CENTROIDS))
    with pytest.raises(ValueError, match="label_centroid"):
        PoisonGuard(guard)
    with pytest.raises(ValueError, match="learn=True"):
        PoisonGuard(guard_of(), learn=True)


# Decisions and events


async def test_run_receives_detection_events(step):
    heard = Heard()
    config = {"callbacks": [heard]}
    RunnableLambda(step.transform_documents).invoke(CHUNKS, config)
    await RunnableLambda(step.atransform_documents).ainvoke(CHUNKS, config)
    heard = [(name, told["stage"], len(told["quarantined"])) for name, told in heard.events]
    assert heard == [(EVENT, "ingestion", 2)] * 2
