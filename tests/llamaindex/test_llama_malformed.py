"""One odd value costs its node, not those that came with it."""

import datetime as dt
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import Document, MediaResource
from llama_support import (
    TopicEmbedding,
    document,
    good,
    guard_of,
    guarded_over,
    ids_of,
    insert,
    known,
    live,
    node,
    pipeline_over,
)
from support import DIM

from ragshield_core.model.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    QuarantineError,
)
from ragshield_llamaindex import (
    GuardedVectorStoreIndex,
    PoisonGuard,
)
from ragshield_llamaindex.convert import to_batch


def loop():
    metadata = {}
    metadata["odd"] = metadata
    return metadata


def odd(**metadata):
    return node("billing odd", label="billing", **metadata)


def with_field(field, value):
    """Return a node with a field that LlamaIndex could not have made."""
    made = odd(page=1)
    made.__dict__[field] = value
    return made


def with_vector(vector):
    made = odd()
    made.embedding = vector
    return made


# The odd value, and the word that the reason names.
ODD = {
    "a list for a label": (lambda: _labelled(["x"]), "'label'"),
    "a label with a NUL": (lambda: _labelled("a\0b"), "NUL"),
    "an object": (lambda: odd(thing=object(), page=1), r"metadata['thing']"),
    "an array": (lambda: odd(thing=np.ones(3)), r"metadata['thing']"),
    "itself": (lambda: odd(thing=loop()), r"metadata['thing']"),
    "NaN": (lambda: with_vector([float("nan")] * DIM), "NaN"),
    "zero": (lambda: with_vector([0.0] * DIM), "zero vector"),
    "another dimension": (lambda: with_vector([1.0] * 3), "3 dimensions"),
    "no vector": (lambda: with_vector(None), "no vector"),
    "a key that is no str": (
        lambda: with_field("metadata", {7: "x", "page": 1}),
        "can be kept neither",
    ),
    "no metadata": (lambda: with_field("metadata", None), "can be kept neither"),
    "no relationships": (lambda: with_field("relationships", {7: 7}), "can be kept neither"),
    "keys of a wrong type": (
        lambda: with_field("excluded_llm_metadata_keys", [3]),
        "can be kept neither",
    ),
}


def _labelled(label):
    made = odd()
    made.metadata["label"] = label
    return made


@pytest.fixture(params=["chroma", "simple"])
def kind(request):
    return request.param


@pytest.fixture
def make(kind, make_store):
    """Return a function that makes a guarded store or index, and a way to add nodes."""

    def made(**policy):
        guarded = guarded_over(make_store(kind), TopicEmbedding(), known(), guard_of(**policy))
        return guarded, partial(insert, guarded)

    return made


@pytest.mark.parametrize(("build", "word"), ODD.values(), ids=ODD)
@pytest.mark.slow
def test_an_odd_node_among_others_is_held_and_put_back_when_released(make, kind, build, word):
    guarded, add = make()
    culprit = build()
    first, second = good()
    if culprit.embedding is None and kind == "simple":  # an index embeds nodes without a vector
        culprit.embedding = [0.0] * DIM
        word = "zero vector"
    add([first, culprit, second])
    assert set(ids_of(live(guarded))) == set(ids_of([*known(), first, second]))
    held = guarded.quarantine.show(culprit.node_id)
    assert held.entry.text == "billing odd"
    assert word in held.note
    kept = isinstance(culprit.metadata, dict) and "page" in culprit.metadata
    assert held.entry.metadata.get("page") == (1 if kept else None)
    assert 7 not in held.entry.metadata
    assert guarded.last_report.admitted.tolist() == [True, False, True]
    if kind == "chroma" and word == "'label'":
        with pytest.raises(QuarantineError, match=r"nothing was released: metadata\['label'\]"):
            guarded.release([culprit.node_id])
        return
    released = guarded.release([culprit.node_id], embed_model=TopicEmbedding())
    assert [one.id for one in released] == [culprit.node_id]
    assert culprit.node_id in set(ids_of(live(guarded)))
    assert guarded.recall([culprit.node_id]) == (culprit.node_id,)


def test_nodes_that_cannot_be_held_are_named(make):
    guarded, add = make()
    first, second = good()
    twin = node("billing twin", label="billing")
    twin.id_ = first.node_id
    nameless = node("billing nameless", label="billing")
    nameless.id_ = ""
    with pytest.raises(MalformedEntriesError, match="others were written") as raised:
        add([first, twin, nameless, second])
    assert set(raised.value.reasons) == {1, 2}
    assert set(ids_of(live(guarded))) == set(ids_of([*known(), first, second]))
    if isinstance(guarded, VectorStoreIndex):  # stored nodes are recorded
        structs = guarded.storage_context.index_store.index_structs()
        assert set(structs[0].nodes_dict.values()) == set(ids_of(live(guarded)))


def test_an_index_that_is_being_made_is_made_whole_or_not_at_all(quarantine):
    first, second = good()
    second.id_ = first.node_id
    with pytest.raises(MalformedEntriesError, match="nothing was written or held"):
        GuardedVectorStoreIndex(
            [first, second, *known()],
            guard=guard_of(quarantine=quarantine),
            embed_model=TopicEmbedding(),
        )
    assert quarantine.count(None) == 0


def named_page_7():
    made = odd()
    made.id_ = "page 7"
    return made


def picture():
    made = Document(id_=odd().node_id, image_resource=MediaResource(data=b"eA=="))
    made.embedding = odd().embedding
    return made


@pytest.mark.parametrize(
    ("kind", "build", "word"),
    [
        ("chroma", lambda: odd(source=["x"]), "metadata['source'] is of type list"),
        ("chroma", lambda: odd(share=float("nan")), "metadata['share']"),
        ("chroma", lambda: odd(share=float("inf")), "metadata['share']"),
        ("chroma", lambda: odd(share=2**70), "metadata['share']"),
        ("qdrant", named_page_7, "its id is no UUID"),
        ("qdrant", picture, "read it back"),
    ],
)
@pytest.mark.slow
def test_unstorable_node_is_held_and_the_others_are_written(kind, build, word, make_store):
    store = guarded_over(make_store(kind), None, known())
    culprit = build()
    first, second = good()
    store.add([first, culprit, second])
    assert set(ids_of(live(store))) == set(ids_of([*known(), first, second]))
    assert word in store.quarantine.show(culprit.node_id).note
    if build is not picture:  # without its odd data, it can be stored
        with pytest.raises(QuarantineError, match="nothing was released: ") as refused:
            store.release([culprit.node_id])
        assert word in str(refused.value)
    store.delete_nodes([culprit.node_id])
    assert not store.quarantine.held_ids([culprit.node_id])


def test_a_pipeline_holds_the_odd_one_and_stores_the_others(make_store):
    pipeline = pipeline_over(make_store("chroma"), [TopicEmbedding()], guard_of())
    pipeline.run(nodes=known())
    documents = [
        document("a", "billing new 0"),
        document("b", "billing odd", source=["x"]),
        document("c", "billing odd", label=["x"]),
        document("d", "billing new 1"),
    ]
    stored = pipeline.run(documents=documents)
    assert {one.node_id for one in stored} == {"a", "d"}
    assert pipeline.last_result.held == ("b", "c")
    assert pipeline.last_result.stored == ("a", "d")
    assert pipeline.poison_guard.quarantine.held_ids(["b", "c"]) == {"b", "c"}
    pipeline.run(documents=documents)  # held documents are not recorded as done
    assert pipeline.last_result.unchanged == ("a", "d")
    assert pipeline.last_result.held == ("b", "c")


def test_an_update_with_an_odd_part_leaves_the_version_before():
    index = GuardedVectorStoreIndex(known(), guard=guard_of(), embed_model=TopicEmbedding())
    index.insert(document("d", "billing fine"))
    before = set(ids_of(live(index)))
    index.update_ref_doc(document("d", "billing better", label=["x"]))
    assert set(ids_of(live(index))) == before
    assert index.quarantine.count() == 1


def test_a_plain_step_passes_the_others_on():
    guard = guard_of()
    guard.fit(to_batch(known(), PoisonGuard(guard).keys))
    step = PoisonGuard(guard)
    pipeline = IngestionPipeline(transformations=[step])
    first, second = good()
    passed = pipeline.run(nodes=[first, _labelled(["x"]), second])
    assert ids_of(passed) == ids_of([first, second])
    assert step.quarantine.held_ids([odd().node_id])
    second.id_ = first.node_id
    with pytest.raises(MalformedEntriesError, match="nothing was written or held"):
        pipeline.run(nodes=[first, second])


class StrictEmbedding(TopicEmbedding):
    def _get_text_embedding(self, text):
        text.encode()
        return super()._get_text_embedding(text)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_text_that_the_model_refuses_costs_that_node(asynchronous):
    index = GuardedVectorStoreIndex(known(), guard=guard_of(), embed_model=StrictEmbedding())
    first, second = good(vector=False)
    refused = node("billing half \ud83d", "refused", label="billing", vector=False)
    nodes = [first, refused, second]
    await index.ainsert_nodes(nodes) if asynchronous else index.insert_nodes(nodes)
    assert set(ids_of(live(index))) == set(ids_of([*known(), first, second]))
    assert "no vector" in index.quarantine.show(refused.node_id).note
    with pytest.raises(UnicodeEncodeError):
        index.insert_nodes([refused])


def test_a_second_node_under_an_id_does_not_give_the_first_its_vector():
    index = GuardedVectorStoreIndex(known(), guard=guard_of(), embed_model=TopicEmbedding())
    first, second = good()
    twin = with_vector([float("nan")] * DIM)
    twin.id_ = first.node_id
    with pytest.raises(MalformedEntriesError) as raised:
        index.insert_nodes([first, twin, second])
    assert set(raised.value.reasons) == {1}
    assert set(ids_of(live(index))) == set(ids_of([*known(), first, second]))
    assert index.quarantine.count() == 0


def test_a_template_that_cannot_be_filled_in_costs_that_node(make):
    guarded, add = make()
    first, second = good()
    broken = odd(page=1)
    broken.text_template = "{secret} {metadata_str}"
    with pytest.raises(MalformedEntriesError, match="cannot be put into a prompt") as raised:
        add([first, broken, second])
    assert set(raised.value.reasons) == {1}
    assert set(ids_of(live(guarded))) == set(ids_of([*known(), first, second]))


def test_non_node_is_refused_before_anything_is_written(make):
    guarded, add = make()
    with pytest.raises(InvalidBatchError, match=r"nodes\[1\] is of type str"):
        add([*good()[:1], "billing", *good()[1:]])
    assert set(ids_of(live(guarded))) == set(ids_of(known()))


def test_dates_and_paths_are_kept_as_stores_keep_them(make):
    guarded, add = make()
    add([*good(), odd(day=dt.date(2026, 1, 1), path=Path("a.txt"))])
    assert guarded.last_report.admitted.all()
    assert odd().node_id in set(ids_of(live(guarded)))


def test_a_lost_connection_is_not_blamed_on_an_odd_node(make_store):
    class Offline(TopicEmbedding):
        def _get_text_embedding(self, text):  # noqa: ARG002 - as the base has it
            raise ConnectionError

    nodes = [_labelled(["x"]), node("billing bare", vector=False)]
    with pytest.raises(ConnectionError):
        pipeline_over(make_store("chroma"), [Offline()]).run(nodes=nodes)


@pytest.mark.slow
def test_unstorable_node_is_not_released_but_can_be_purged(make_store):
    guarded = guarded_over(make_store("postgres"), TopicEmbedding(), guard=guard_of())
    nul = node("billing \0", "odd")
    insert(guarded, [nul, good()[0]])
    message = r"cannot be stored.*nothing was released.*purge\(\[id\]\)"
    with pytest.raises(QuarantineError, match=message):
        guarded.release([nul.node_id], by="anna")
    insert(guarded, [node("billing", "odd")])
    guarded.purge([nul.node_id], by="anna")
    assert guarded.quarantine.count() == 0
    assert set(ids_of(live(guarded))) == {nul.node_id, good()[0].node_id}
