"""Replacing another document's node is reported, and can be undone."""

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_support import (
    ALL_KINDS,
    KINDS,
    document,
    guarded_over,
    insert,
    node,
    pipeline_over,
    sentences,
    shown,
    splitter,
)
from support import guard_of, slowly

from ragshield_core.model.errors import QuarantineError
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    StableIds,
)

GOOD = node("billing is open at nine", "a", source="a.txt")
INTRUDER = node("billing moved to bay 9", "a", source="x.txt")
NOTE = "of lineage 'x.txt', it replaces a text of lineage 'a.txt'; restore puts that back"


def written(text, source):
    """Return a document whose splitter sees its text alone."""
    made = document("d", text, source=source)
    made.excluded_embed_metadata_keys = made.excluded_llm_metadata_keys = ["label", "source"]
    return made


# Of one document: the first sentence is the same in both.
STANDING = written("billing one two. billing three four.", "a.txt")
TAKEN = written("billing one two. billing moved there.", "x.txt")
LATER = written("billing one two. billing moved again.", "x.txt")


@pytest.fixture(params=KINDS)
def kept(request, make_store, model):
    """Return a guarded index over a store that keeps vectors only, or a guarded store."""
    return guarded_over(make_store(request.param), model, guard=guard_of())


def write(kept, *nodes):
    insert(kept, list(nodes))


# A node under the id of another


def test_nothing_is_restored_where_one_id_was_not_replaced(kept):
    write(kept, GOOD)
    write(kept, INTRUDER)
    with pytest.raises(QuarantineError, match="nobody"):
        kept.restore([GOOD.node_id, "nobody"])
    assert shown(kept) == [INTRUDER.text]


# A document under the id of another


def guarded_index(make_store, kind, model, first):
    context = StorageContext.from_defaults(vector_store=make_store(kind))
    return GuardedVectorStoreIndex.from_documents(
        [first],
        guard=guard_of(),
        storage_context=context,
        embed_model=model,
        transformations=[splitter()],
    )


def plain_index(make_store, kind, model, first):
    store = GuardedVectorStore(make_store(kind), guard=guard_of())
    index = VectorStoreIndex.from_vector_store(
        store, embed_model=model, transformations=[splitter(), StableIds()]
    )
    index.insert(first)
    return index


class Pipeline:
    """An ingestion pipeline, asked as an index is."""

    def __init__(self, make_store, kind, model, first):
        self.pipeline = pipeline_over(make_store(kind), [splitter(), model], guard_of())
        self.update_ref_doc(first)

    def update_ref_doc(self, one):
        self.pipeline.run(documents=[one])


WAYS = [
    (guarded_index, "simple"),
    (plain_index, "chroma"),
    (Pipeline, "chroma"),
    *slowly(*((guarded_index, kind) for kind in ALL_KINDS[1:])),
    *slowly((plain_index, "qdrant"), (Pipeline, "qdrant")),
]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].__name__}-{way[1]}")
def standing(request, make_store, model):
    """Return how a document is updated, and what keeps and restores its nodes."""
    make, kind = request.param
    made = make(make_store, kind, model, STANDING)
    if isinstance(made, Pipeline):
        return made, made.pipeline.vector_store, made.pipeline
    keeps = made if isinstance(made, GuardedVectorStoreIndex) else made.vector_store
    return made, keeps, keeps


def report_of(keeps, restores):
    if isinstance(restores, GuardedIngestionPipeline):
        assert restores.last_result.report is keeps.last_report
    return keeps.last_report


@pytest.mark.slow
def test_replacing_another_document_is_reported(standing):
    index, keeps, restores = standing
    assert shown(keeps) == sentences(STANDING.text)
    index.update_ref_doc(TAKEN)
    assert shown(keeps) == sentences(TAKEN.text)
    assert {d.note for d in report_of(keeps, restores).decisions} == {NOTE}
    assert sorted(h.entry.text for h in keeps.quarantine.list("replaced")) == sentences(
        STANDING.text
    )
    # Their own updates take nothing of that away.
    index.update_ref_doc(LATER)
    assert shown(keeps) == sentences(LATER.text)
    assert {d.note for d in report_of(keeps, restores).decisions} == {None}
    restored = restores.restore(["d"], by="anna")
    assert sorted(one.entry.text for one in restored) == sentences(STANDING.text)
    assert shown(keeps) == sentences(STANDING.text)
    assert sorted(h.entry.text for h in keeps.quarantine.list()) == sentences(LATER.text)
    # Neither does the next run or refresh.
    index.update_ref_doc(LATER)
    assert shown(keeps) == sentences(STANDING.text)
    index.update_ref_doc(STANDING)
    assert shown(keeps) == sentences(STANDING.text)


@pytest.mark.slow
def test_the_version_that_was_replaced_last_comes_back(standing):
    index, keeps, restores = standing
    newest = written("billing one two. billing five six.", "a.txt")
    for one in (TAKEN, newest, LATER):
        index.update_ref_doc(one)
    restores.restore(["d"])
    assert shown(keeps) == sentences(newest.text)


@pytest.mark.slow
def test_an_update_of_its_owner_leaves_nothing_in_quarantine(standing):
    index, keeps, restores = standing
    index.update_ref_doc(written("billing one two. billing five six.", "a.txt"))
    assert {d.note for d in report_of(keeps, restores).decisions} == {None}
    assert keeps.quarantine.count(None) == 0


def test_document_with_unchanged_texts_is_moved_not_replaced(standing):
    index, keeps, restores = standing
    index.update_ref_doc(written(STANDING.text, "moved/a.txt"))
    assert {d.note for d in report_of(keeps, restores).decisions} == {None}
    assert keeps.quarantine.count(None) == 0


@pytest.mark.parametrize("make", [guarded_index, plain_index])
def test_deleting_a_document_deletes_the_one_it_replaced(make, make_store, model):
    index = make(make_store, "chroma", model, STANDING)
    keeps = index if make is guarded_index else index.vector_store
    index.update_ref_doc(TAKEN)
    index.delete_ref_doc("d")
    assert keeps.quarantine.count(None) == 0
    assert shown(keeps) == []


def test_a_refresh_after_a_restoration_looks_again(make_store, model):
    index = guarded_index(make_store, "simple", model, STANDING)
    assert index.refresh_ref_docs([TAKEN]) == [True]
    index.restore(["d"])
    assert index.refresh_ref_docs([TAKEN]) == [True]
    assert shown(index) == sentences(STANDING.text)
    assert index.refresh_ref_docs([STANDING]) == [True]
    assert index.refresh_ref_docs([STANDING]) == [False]
    assert shown(index) == sentences(STANDING.text)


@pytest.mark.slow
def test_restore_removes_the_intruding_text_from_the_docstore(make_store, model):
    one = Pipeline(make_store, "chroma", model, STANDING)
    one.update_ref_doc(TAKEN)
    one.pipeline.restore(["d"])
    assert "d" not in one.pipeline.docstore.docs
    one.update_ref_doc(TAKEN)
    assert one.pipeline.last_result.rejected_updates == ("d",)
    one.update_ref_doc(TAKEN)
    assert one.pipeline.last_result.still_held == ("d",)
    assert shown(one.pipeline.vector_store) == sentences(STANDING.text)
    one.update_ref_doc(STANDING)
    assert one.pipeline.last_result.stored == ("d",)
    assert one.pipeline.docstore.docs["d"].text == STANDING.text


# A copy of a stored node


def bars(kept, value):
    """Have the guard hold what scores above."""
    kept.guard.state.calibrator.thresholds["scripted"] = kept.guard.state.calibrator.thresholds[
        "scripted"
    ]._replace(flag=value, quarantine=value)


def test_confirming_a_copy_from_a_pipeline_leaves_the_node_that_stood_there_before(
    make_store, model
):
    pipeline = GuardedIngestionPipeline(
        transformations=[model],
        guard=guard_of(),
        vector_store=make_store("chroma"),
        disable_cache=True,  # of one text it returns the node that it saw first
    )
    store = pipeline.vector_store
    suspicious, copy = (node("billing score=0.5", name, source="a.txt") for name in ("a", "b"))
    bars(store, 0.9)
    pipeline.run(nodes=[suspicious])
    bars(store, 0.0)
    pipeline.run(nodes=[copy])
    (decision,) = pipeline.last_result.report.quarantined
    assert f"under '{suspicious.node_id}', and stays there" in decision.note
    store.quarantine.confirm([copy.node_id], by="anna")
    store.refresh_quarantine()
    assert suspicious.text in shown(store)
