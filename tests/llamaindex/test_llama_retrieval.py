"""Filter and retriever for stores that were filled unguarded; engines, events, streaming."""

import json

import pytest
from llama_index.core import Settings, StorageContext, VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_support import (
    ALL_KINDS,
    KEYS,
    KINDS,
    TopicEmbedding,
    about,
    bad,
    good,
    guard_of,
    guarded_over,
    id_of,
    ids_of,
    index_over,
    known,
    mixed,
    node,
)
from support import Scripted, ScriptedGroups

from ragshield_core.retrieval import RetrievalGuard
from ragshield_llamaindex import (
    GuardedRetriever,
    GuardedVectorStoreIndex,
    PoisonDetectedEvent,
    PoisonFilter,
    PoisonGuard,
)
from ragshield_llamaindex.convert import to_batch


def suspicious(n, topic="billing"):
    return [node(f"{topic} odd {i} score=5", vector=False) for i in range(n)]


def scripted(quarantine=None):
    return RetrievalGuard([Scripted()], quarantine=quarantine)


class Heard(BaseEventHandler):
    events: list = []  # noqa: RUF012 - pydantic copies it

    @classmethod
    def class_name(cls):
        return "Heard"

    def handle(self, event, **kwargs):  # noqa: ARG002
        self.events.append(event)


@pytest.fixture
def heard():
    root, handler, spans = get_dispatcher(), Heard(), SimpleSpanHandler()
    before = list(root.event_handlers), list(root.span_handlers)
    root.add_event_handler(handler)
    root.add_span_handler(spans)
    yield handler, spans
    root.event_handlers, root.span_handlers = before


def test_retriever_returns_k_clean_nodes(model):
    index = VectorStoreIndex(
        [*known(vector=False), *suspicious(12)], embed_model=model, insert_batch_size=7
    )
    bare = index.as_retriever(similarity_top_k=4).retrieve("billing kb 0")
    assert sum("score=5" in one.text for one in bare) >= 1
    retriever = GuardedRetriever(index.as_retriever(similarity_top_k=4), guard=scripted())
    found = retriever.retrieve("billing kb 0")
    assert len(found) == 4
    everything = index.as_retriever(similarity_top_k=99).retrieve("billing kb 0")
    clean = [one for one in everything if "score=5" not in one.text]
    assert ids_of(found) == ids_of(clean)[:4]  # in the order of the retriever inside
    assert [one.score for one in found] == [one.score for one in clean[:4]]
    assert len(GuardedRetriever(index, 3, guard=scripted()).retrieve("billing kb 0")) == 3


async def test_async_retriever_returns_k_and_embeds_the_query_once(model):
    index = VectorStoreIndex([*known(vector=False), *suspicious(25)], embed_model=model)
    retriever = GuardedRetriever(
        index.as_retriever(similarity_top_k=6), guard=RetrievalGuard([Scripted()])
    )
    found = await retriever.aretrieve("billing kb 0")
    assert len(found) == 6
    assert model.queries == ["billing kb 0"]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_read_back_from_any_store(kind, make_store, model):
    context = StorageContext.from_defaults(vector_store=make_store(kind))
    index = VectorStoreIndex(known(vector=False), storage_context=context, embed_model=model)
    embedded = len(model.texts)
    seen = []
    step = PoisonFilter(RetrievalGuard(), store=index)
    screen = step.guard.screen
    step.guard.screen = lambda *args, **kwargs: (seen.append((args, kwargs)), screen(*args))[1]
    found = index.as_retriever(similarity_top_k=5).retrieve("billing kb 0")
    step.postprocess_nodes(found, QueryBundle("billing kb 0"))
    (_, passages, vector), kwargs = seen[0]
    assert kwargs == {}  # has_vectors
    assert vector is not None
    assert passages.dim == len(vector)
    assert len(model.texts) == embedded


def test_the_quarantine_masks_confirms_and_releases(quarantine):
    held, other = bad()
    quarantine.hold(to_batch([held], KEYS))
    found = [NodeWithScore(node=one) for one in (held, other, *suspicious(1))]
    step = PoisonFilter(scripted(), quarantine=quarantine)
    assert ids_of(step.postprocess_nodes(found, query_str="?")) == [other.node_id]
    revised = node("shipping revised", held.text)
    found[0] = NodeWithScore(node=revised)
    kept = step.postprocess_nodes(found, query_str="?")
    assert ids_of(kept) == [revised.node_id, other.node_id]
    quarantine.confirm([held.node_id])
    twin = held.model_copy(update={"id_": "elsewhere"})
    assert step.postprocess_nodes([NodeWithScore(node=twin)], query_str="?") == []
    (judged,) = suspicious(1)
    quarantine.hold(to_batch([node(judged.text)], KEYS))
    quarantine.release([judged.node_id])
    assert len(step.postprocess_nodes([NodeWithScore(node=judged)], query_str="?")) == 1


def test_filter_tells_apart_two_texts_under_one_id(quarantine):
    held = bad()[0]
    quarantine.hold(to_batch([held], KEYS))
    other = node("billing fine", held.text)
    step = PoisonFilter(scripted(), quarantine=quarantine)
    found = [NodeWithScore(node=one) for one in (other, held, other)]
    assert [one.text for one in step.postprocess_nodes(found, query_str="?")] == [
        "billing fine"
    ] * 2


def test_filter_without_model_or_query_runs_the_other_detectors():
    found = [NodeWithScore(node=one) for one in (TextNode(text="a"), *suspicious(1))]
    assert [one.text for one in PoisonFilter(scripted()).postprocess_nodes(found)] == ["a"]
    assert PoisonFilter().postprocess_nodes([], query_str="?") == []
    assert len(PoisonFilter().postprocess_nodes(found)) == 2


def test_the_filter_uses_the_model_of_the_settings_if_there_is_one(monkeypatch):
    found = [NodeWithScore(node=one) for one in good()]
    monkeypatch.setattr(Settings, "_embed_model", None)
    assert PoisonFilter().postprocess_nodes(found, query_str="billing") == found
    model = TopicEmbedding()
    monkeypatch.setattr(Settings, "_embed_model", model)
    assert PoisonFilter().postprocess_nodes(found, query_str="billing") == found
    assert model.queries == ["billing"]


# Engines


def engine(index, *, streaming, **options):
    options = {"similarity_top_k": 3} | options
    return index.as_query_engine(llm=MockLLM(), streaming=streaming, **options)


def guarded_index(model, nodes):
    guard = guard_of().fit(to_batch(known(), KEYS))
    return GuardedVectorStoreIndex(nodes, guard=guard, embed_model=model)


@pytest.mark.parametrize("steps", [[], [PoisonFilter(scripted())]])
def test_streaming_goes_on_as_without_a_guard(steps, model):
    bare = VectorStoreIndex(known(vector=False), embed_model=model)
    index = guarded_index(model, [*known(vector=False), *bad(vector=False)])
    expected = engine(bare, streaming=True).query("billing kb 0")
    answer = engine(index, streaming=True, node_postprocessors=steps).query("billing kb 0")
    parts = list(answer.response_gen)
    assert len(parts) > 10  # the mock streams its prompt, letter by letter
    assert parts == list(expected.response_gen)
    assert ids_of(answer.source_nodes) == ids_of(expected.source_nodes)


def test_a_guarded_retriever_works_in_an_engine(model):
    index = VectorStoreIndex([*known(vector=False), *suspicious(3)], embed_model=model)
    asked = RetrieverQueryEngine.from_args(
        GuardedRetriever(index, 3, guard=scripted()), llm=MockLLM()
    )
    answer = asked.query("billing kb 0")
    assert len(answer.source_nodes) == 3
    assert "score=5" not in str(answer)


# Events


def detections(handler):
    return [event for event in handler.events if isinstance(event, PoisonDetectedEvent)]


def test_events_name_the_document(heard, make_store, model):
    handler, _ = heard
    store = guarded_over(make_store("chroma"), None, known())
    store.add(bad(document="doc"))
    (event,) = detections(handler)
    assert [item["document"] for item in event.quarantined] == ["doc", "doc"]
    handler.events.clear()
    text = "who built the old harbour bridge? It was Nero."
    found = VectorStoreIndex(
        [node(text, vector=False, document="doc")], embed_model=model
    ).as_retriever()
    PoisonFilter().postprocess_nodes(
        found.retrieve("bridge"), query_str="who built the old harbour bridge"
    )
    assert [item["document"] for item in detections(handler)[-1].quarantined] == ["doc"]


def test_ingestion_event_names_held_nodes_without_their_text(heard, make_store):
    handler, spans = heard
    store = guarded_over(make_store("chroma"), None, known())
    assert not detections(handler)
    store.add(mixed())
    (event,) = detections(handler)
    assert (event.stage, event.n_entries) == ("ingestion", 4)
    assert [item["entry_id"] for item in event.quarantined] == ids_of(bad())
    assert event.quarantined[0]["findings"][0]["detector"] == "label_centroid"
    assert event.span_id.startswith("GuardedVectorStore.add")
    assert "shipping bad" not in json.dumps(event.model_dump(mode="json"))
    assert "GuardedVectorStore.add" in {
        span.id_.partition("-")[0] for span in spans.completed_spans
    }


async def test_retrieval_event_counts_dropped_nodes(heard, model):
    handler, spans = heard
    index = VectorStoreIndex([*known(vector=False), *suspicious(2)], embed_model=model)
    asked = engine(
        index,
        streaming=False,
        node_postprocessors=[PoisonFilter(scripted())],
        similarity_top_k=20,
    )
    await asked.aquery("billing")
    (event,) = detections(handler)
    assert (event.stage, len(event.quarantined)) == ("retrieval", 2)
    names = {span.id_.partition("-")[0] for span in spans.completed_spans}
    assert "PoisonFilter._apostprocess_nodes" in names


async def test_a_step_of_a_pipeline_does_not_block_the_event_loop():
    import asyncio  # noqa: PLC0415
    import threading  # noqa: PLC0415

    here, used = threading.get_ident(), []

    class Where(Scripted):
        def score(self, batch):
            used.append(threading.get_ident())
            return super().score(batch)

    step = PoisonGuard(guard_of(Where()))
    survivors = await asyncio.wait_for(step.acall([*good(), node("x score=5")]), 20)
    assert ids_of(survivors) == ids_of(good())
    assert used
    assert here not in used


@pytest.mark.slow
def test_a_detected_group_is_taken_back_from_store_and_index(make_store, model):
    class Late(ScriptedGroups):
        """Condemns earlier admitted nodes, once the batch says so."""

        def retroactive(self, batch, condemned, unusual=()):  # noqa: ARG002
            import numpy as np  # noqa: PLC0415

            ids = [id_of("billing kb 0")] if "late" in batch.texts else []
            return ids, np.full(len(ids), 5.0)

        def explain_retroactive(self, batch, ids):  # noqa: ARG002
            from ragshield_core.detectors import Evidence  # noqa: PLC0415

            return [Evidence(sentence="the rest has come") for _ in ids]

    for kind in ALL_KINDS:
        index = index_over(make_store(kind), model, about("billing", 4), guard_of(Late()))
        index.insert_nodes([node("late")])
        found = index.as_retriever(similarity_top_k=9).retrieve("billing kb 0")
        assert id_of("billing kb 0") not in ids_of(found), kind
        assert len(found) == 4
        assert [held.id for held in index.quarantine.list()] == [id_of("billing kb 0")]
        index.release([id_of("billing kb 0")])
        found = index.as_retriever(similarity_top_k=1).retrieve("billing kb 0")
        assert ids_of(found) == [id_of("billing kb 0")], kind
