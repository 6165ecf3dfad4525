"""Objects that cannot be guarded, or were not, are named when built and in results."""

import warnings

import pytest
from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import ImageNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_support import (
    TEXT_KINDS,
    about,
    bad,
    document,
    good,
    guard_of,
    guarded_over,
    ids_of,
    known,
    mixed,
    pipeline_over,
)
from support import TOPICS

from ragshield_core.detectors import InstructionDetector
from ragshield_core.model.errors import QuarantineError
from ragshield_core.retrieval import RetrievalGuard
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    PoisonGuard,
    UnfittedGuardWarning,
    adopt,
)
from ragshield_llamaindex.index import access_behind

# A guard that knows nothing


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_guard_that_knows_nothing_of_a_full_store_is_warned_of(kind, make_store):
    inner = make_store(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        GuardedVectorStore(inner, guard=guard_of()).add(known())
    with pytest.warns(UnfittedGuardWarning, match=r"GuardedVectorStore\.adopt.*Guard\.load"):
        GuardedVectorStore(inner, guard=guard_of())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        store = GuardedVectorStore.adopt(inner, guard=guard_of())
        GuardedVectorStore(inner, guard=store.guard)


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_an_index_over_a_full_store_warns_of_a_guard_that_knows_nothing(kind, make_store, model):
    inner = make_store(kind)
    inner.add(known())
    with pytest.warns(UnfittedGuardWarning, match=r"ragshield_llamaindex\.adopt"):
        GuardedVectorStoreIndex.from_vector_store(inner, model, guard=guard_of())


def test_uncountable_store_is_logged_and_does_not_fail(make_store, caplog, monkeypatch):
    inner = make_store("chroma")
    monkeypatch.setattr(type(inner), "client", None)
    GuardedVectorStore(inner, guard=guard_of())
    assert "holds entries is not known" in caplog.text


# Wrong types


@pytest.mark.parametrize("wrong", [None, "guard", RetrievalGuard()])
def test_guard_of_a_wrong_type_is_refused(wrong, make_store, model):
    store = make_store("chroma")
    for build in (
        lambda: GuardedVectorStore(store, guard=wrong),
        lambda: GuardedVectorStoreIndex([], guard=wrong, embed_model=model),
        lambda: GuardedVectorStoreIndex.from_documents([], guard=wrong, embed_model=model),
        lambda: PoisonGuard(wrong),
        lambda: GuardedIngestionPipeline([PoisonGuard(wrong)]),
    ):
        with pytest.raises(TypeError, match=r"Guard\.default\(\)"):
            build()
    with pytest.raises((TypeError, ValueError), match="guard"):
        GuardedIngestionPipeline([], guard=wrong)


def test_adopt_refuses_unsupported_and_already_guarded_objects(make_store, model):
    summary = SummaryIndex(known())
    guarded = GuardedVectorStoreIndex(known(vector=False), guard=guard_of(), embed_model=model)
    for index in (summary, guarded, "index", None):
        with pytest.raises(TypeError, match="expected a bare VectorStoreIndex"):
            adopt(index, guard=guard_of())
    for inner in (summary, guarded, "store", None):
        with pytest.raises(TypeError, match="expected a vector store"):
            GuardedVectorStore(inner, guard=guard_of())
        with pytest.raises(TypeError, match="expected a vector store"):
            GuardedVectorStore.adopt(inner, guard=guard_of())
    store = GuardedVectorStore(make_store("chroma"), guard=guard_of())
    with pytest.raises(TypeError, match="already"):
        GuardedVectorStore.adopt(store, guard=guard_of())


def test_a_store_that_cannot_replace_or_recall_is_refused():
    class WriteOnly(SimpleVectorStore):
        stores_text: bool = True
        get_nodes = BasePydanticVectorStore.get_nodes
        delete_nodes = BasePydanticVectorStore.delete_nodes

    with pytest.raises(TypeError, match=r"no get_nodes and no delete_nodes.*inner_store="):
        GuardedVectorStore(WriteOnly(), guard=guard_of())


# Results and representations


@pytest.mark.parametrize("form", ["store", "step"])
def test_an_image_without_text_is_said_not_to_be_judged(form, make_store, caplog):
    image = ImageNode(image="aGVsbG8=", metadata={"label": "billing"}, embedding=[1.0] * 12)
    with_text = ImageNode(
        text="billing shown", image="aGVsbG8=", metadata={"label": "billing"}, embedding=[1.0] * 12
    )
    given = [image, with_text, *good()]
    if form == "store":
        store = GuardedVectorStore(make_store("chroma"), guard=guard_of())
        store.add(given)
        report = store.last_report
    else:
        step = PoisonGuard(guard_of())
        step(given)
        report = step.last_report
    first, *rest = report.decisions
    assert "image without text" in first.note
    assert first.unjudged[-1].detector == "all"
    assert [one.note for one in rest] == [None] * 3
    assert "1 nodes hold an image and no text" in caplog.text


def test_result_does_not_name_unwritten_documents_as_stored(make_store, model, caplog):
    without_model = pipeline_over(
        make_store("chroma"), [SentenceSplitter()], guard_of(InstructionDetector())
    )
    without_model.run(documents=[document("a", "billing a")])
    assert without_model.last_result.stored == ()
    assert without_model.last_result.not_stored == ("a",)
    assert "1 of 1 admitted nodes have no vector" in caplog.text
    whole = GuardedIngestionPipeline(
        [SentenceSplitter(), model], guard=guard_of(), vector_store=make_store("chroma")
    )
    whole.run(documents=[document("a", "billing a")])
    assert whole.last_result.stored == ("a",)
    assert whole.last_result.not_stored == ()


def test_repr_of_store_and_index_shows_no_texts(make_store, model):
    store = guarded_over(make_store("chroma"), None, known())
    store.add(bad())
    index = GuardedVectorStoreIndex(known(vector=False), guard=guard_of(), embed_model=model)
    assert repr(store) == str(store)
    assert repr(store).startswith("<GuardedVectorStore over ChromaVectorStore: 18 ")
    assert "not calibrated" in repr(store)
    assert "Quarantine('sqlite://'" in repr(store)
    assert repr(index).startswith("<GuardedVectorStoreIndex over SimpleVectorStore: ")
    assert "billing" not in repr(store) + repr(index)


# The rest of the interface


@pytest.mark.parametrize("form", ["store", "index"])
async def test_a_document_is_released_as_a_whole(form, make_store, model):
    if form == "store":
        guarded = guarded_over(make_store("chroma"), None, known())
        guarded.add(mixed(document="doc"))
    else:
        guarded = GuardedVectorStoreIndex(known(), guard=guard_of(), embed_model=model)
        guarded.insert_nodes(mixed(document="doc"))
    released = await guarded.arelease(["doc"])
    assert [one.id for one in released] == ids_of(bad())
    assert guarded.quarantine.count() == 0
    with pytest.raises(QuarantineError, match="'doc'"):
        guarded.release(["doc"])


@pytest.mark.parametrize("form", ["store", "index"])
@pytest.mark.slow
async def test_audits_and_adoptions_have_async_twins(form, make_store, model):
    everything = [one for topic in TOPICS for one in about(topic, 40)] + bad()
    if form == "store":
        inner = make_store("chroma")
        inner.add(everything)
        guarded = await GuardedVectorStore.aadopt(inner, guard=guard_of())
    else:
        bare = VectorStoreIndex(everything, embed_model=model)
        guarded = await GuardedVectorStoreIndex.aadopt(bare, guard=guard_of())
    report = await guarded.ascan(fpr=0.02)
    assert {one.entry_id for one in report.found} == set(ids_of(bad()))
    assert guarded.quarantine.count() == 0
    await guarded.ascan(fpr=0.02, quarantine=True)
    assert {held.id for held in guarded.quarantine.list()} == set(ids_of(bad()))
    assert set(access_behind(guarded).ids()) == set(ids_of(everything[:-2]))
