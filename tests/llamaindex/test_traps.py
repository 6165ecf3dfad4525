"""Traps of LlamaIndex, into which a guard that only drops nodes would fall."""

import asyncio
import warnings
from itertools import pairwise
from unittest.mock import patch

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import (
    LLMRerank,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import (
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_support import (
    KEYS,
    bad,
    document,
    good,
    guard_of,
    id_of,
    ids_of,
    known,
    live,
    mixed,
    node,
    pipeline_over,
)
from support import Scripted, slowly, vector_of

from ragshield_core import Quarantine
from ragshield_core.model.errors import QuarantineError
from ragshield_core.retrieval import RetrievalGuard
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    PoisonFilter,
    PoisonFilterOrderWarning,
    PoisonGuard,
    StableIds,
    check_order,
)
from ragshield_llamaindex.convert import FLAG_KEY, to_batch
from ragshield_llamaindex.index import access_behind


def trained(**options):
    """Return a guard that knows ``known()``."""
    guard = guard_of(**options)
    return guard.fit(to_batch(known(), KEYS))


# 1. Misaligned ids serve the poison


@pytest.mark.slow
def test_1_a_dropped_node_is_not_served_under_the_vector_of_another(model):
    first, *_ = bad(vector=False)
    nodes = [first, *good(vector=False)]
    index = GuardedVectorStoreIndex(nodes, guard=trained(), embed_model=model)
    found = index.as_retriever(similarity_top_k=5).retrieve("billing new 0")
    assert ids_of(found) == ids_of(good())
    assert [id_of(one.text) for one in found] == ids_of(found)


@pytest.mark.parametrize("kind", ["simple", "faiss"])
def test_1_a_store_of_vectors_alone_is_refused_with_the_way_out(kind, make_store):
    for build in (
        lambda: GuardedVectorStore(make_store(kind), guard=guard_of()),
        lambda: GuardedIngestionPipeline([], guard=guard_of(), vector_store=make_store(kind)),
    ):
        with pytest.raises(TypeError, match="GuardedVectorStoreIndex"):
            build()


# 2. The pipeline's cache skips the guard


def test_2_a_cached_verdict_is_never_out_of_date(tmp_path):
    guard = trained(quarantine=Quarantine(f"sqlite:///{tmp_path / 'q.db'}"))
    step = PoisonGuard(guard)
    pipeline = IngestionPipeline(transformations=[step])
    assert ids_of(pipeline.run(nodes=mixed())) == ids_of(good())
    held = step.policy_version
    assert ids_of(pipeline.run(nodes=mixed())) == ids_of(good())
    latest = step.last_report  # holding them has changed the version
    pipeline.run(nodes=mixed())
    assert step.last_report is latest  # now nothing did: served from the cache
    step.release(ids_of(bad()))
    assert step.policy_version != held
    assert ids_of(pipeline.run(nodes=mixed())) == ids_of(mixed())


def test_2_changes_to_the_guard_change_the_policy_version():
    guard = trained()
    step = PoisonGuard(guard)
    versions = [step.policy_version]
    assert PoisonGuard(trained()).policy_version == versions[0]  # the same in another process
    guard.learn(to_batch(good(), KEYS))
    versions.append(step.policy_version)
    guard.calibrate(fpr=0.2)
    versions.append(step.policy_version)
    guard.quarantine.hold(to_batch(bad(), step.keys))
    versions.append(step.policy_version)
    guard.quarantine.confirm(ids_of(bad()))
    versions.append(step.policy_version)
    versions.append(PoisonGuard(guard, label_key="other").to_dict()["label_key"])
    assert len(set(versions)) == len(versions)
    assert step.to_dict()["policy_version"] == versions[-2]
    with pytest.raises(NotImplementedError, match=r"Guard\.load"):
        PoisonGuard.from_dict(step.to_dict())


# 3. Workers


@pytest.mark.slow
def test_3_a_guard_in_a_worker_is_refused_and_the_guarded_pipeline_judges_in_the_parent(make_store):
    pipeline = IngestionPipeline(transformations=[PoisonGuard(trained())], disable_cache=True)
    with pytest.raises(TypeError, match="GuardedIngestionPipeline, whose workers run the steps"):
        pipeline.run(nodes=mixed(), num_workers=2)
    guard = trained()  # its quarantine is in memory: no worker could use it
    pipeline = GuardedIngestionPipeline(
        [StableIds()], guard=guard, vector_store=make_store("chroma"), disable_cache=True
    )
    assert len(pipeline.run(nodes=mixed(), num_workers=2)) == 2
    assert guard.quarantine.count() == 2
    assert len(pipeline.last_result.report.batch) == 4


# 4. The document store


def documents(*texts):
    return [document(text.split("|")[0], text.split("|")[1]) for text in texts]


FINE = documents("a|billing a", "b|billing b")
POISON = documents("p|shipping bad p")
TURNED = documents("a|shipping bad a")


@pytest.fixture(params=["chroma", *slowly("postgres", "milvus", "lancedb")])
def pipeline(request, make_store, model):
    """Return a guarded pipeline with a document store."""
    return pipeline_over(make_store(request.param), [SentenceSplitter(), model], trained())


def texts_in(pipeline):
    return sorted(one.text for one in live(pipeline.vector_store))


def test_4_pipeline_takes_exactly_one_guard(make_store):
    with pytest.raises(ValueError, match="one of both"):
        GuardedIngestionPipeline([])
    with pytest.raises(ValueError, match="one of both"):
        GuardedIngestionPipeline([PoisonGuard(guard_of())], guard=guard_of())
    with pytest.raises(ValueError, match=r"no vector_store=.*end of an IngestionPipeline"):
        GuardedIngestionPipeline([], guard=guard_of())
    store = GuardedVectorStore(make_store("chroma"), guard=guard_of())
    with pytest.raises(ValueError, match="guard of its own"):
        GuardedIngestionPipeline([], guard=guard_of(), vector_store=store)
    assert GuardedIngestionPipeline([], guard=store.guard, vector_store=store).vector_store is store


def test_4_held_document_is_not_recorded_as_done(pipeline):
    pipeline.run(documents=[*FINE, *POISON])
    assert not pipeline.docstore.document_exists("p")
    assert pipeline.docstore.get_document_hash("p") is None
    assert pipeline.last_result.held == ("p",)
    assert pipeline.last_result.stored == ("a", "b")
    (held,) = pipeline.vector_store.quarantine.list()
    pipeline.release([held.id])
    assert len(texts_in(pipeline)) == 3


def test_4_held_version_stays_held_when_a_clean_one_comes(pipeline):
    pipeline.run(documents=POISON)
    pipeline.run(documents=documents("p|billing p"))
    assert texts_in(pipeline) == ["billing p"]
    assert pipeline.vector_store.quarantine.count() == 1
    pipeline.vector_store.delete("p")
    assert pipeline.vector_store.quarantine.count() == 0


@pytest.mark.slow
def test_4_an_update_never_loses_the_good_version(pipeline):
    pipeline.run(documents=FINE)
    before = texts_in(pipeline)
    pipeline.run(documents=TURNED)
    assert texts_in(pipeline) == before
    assert pipeline.docstore.get_document("a").text == "billing a"
    assert pipeline.last_result.rejected_updates == ("a",)
    pipeline.run(documents=TURNED)  # tried again, and held under the same id
    assert pipeline.vector_store.quarantine.count(None) == 1
    (held,) = pipeline.vector_store.quarantine.list()
    pipeline.release([held.id])
    assert texts_in(pipeline) == ["billing b", "shipping bad a"]  # in place of the version before
    pipeline.run(documents=TURNED)
    assert pipeline.last_result.stored == ("a",)
    assert pipeline.vector_store.quarantine.count("released") == 1  # it stands for the next time
    assert pipeline.docstore.get_document("a").text == "shipping bad a"
    assert len(texts_in(pipeline)) == 2
    assert pipeline.run(documents=TURNED) == []
    assert pipeline.last_result.unchanged == ("a",)


def test_4_an_update_that_cannot_be_written_leaves_the_version_before(pipeline):
    pipeline.run(documents=FINE)
    before, better = texts_in(pipeline), documents("a|billing better a")
    with (
        patch.object(access_behind(pipeline.vector_store), "write", side_effect=OSError),
        pytest.raises(OSError),  # noqa: PT011
    ):
        pipeline.run(documents=better)
    assert texts_in(pipeline) == before
    pipeline.run(documents=better)  # tried again
    assert texts_in(pipeline) == ["billing b", "billing better a"]


def test_4_a_document_held_in_part_leaves_no_text_in_the_document_store(make_store, model):
    splitter = SentenceSplitter(chunk_size=6, chunk_overlap=0)
    parts = "billing one two. shipping bad three. billing four five."
    pipeline = pipeline_over(make_store("chroma"), [splitter, model], trained())
    nodes = pipeline.run(documents=[document("d", parts)])
    assert [one.text for one in nodes] == ["billing one two.", "billing four five."]
    assert pipeline.last_result.partly_held == ("d",)
    assert not pipeline.docstore.document_exists("d")
    assert pipeline.run(documents=[document("d", parts)]) == []  # its hash is known
    assert pipeline.vector_store.quarantine.count() == 1
    pipeline.release(["d"])  # a document: its held nodes
    assert len(texts_in(pipeline)) == 3
    assert pipeline.vector_store.quarantine.count() == 0
    with pytest.raises(QuarantineError, match="'d'"):
        pipeline.release(["d"])  # nothing of it is held any more


@pytest.mark.parametrize(
    "strategy", [DocstoreStrategy.DUPLICATES_ONLY, DocstoreStrategy.UPSERTS_AND_DELETE]
)
async def test_4_other_docstore_strategies_keep_poison_out(strategy, make_store, model):
    pipeline = GuardedIngestionPipeline(
        transformations=[SentenceSplitter(), model],
        guard=trained(),
        vector_store=make_store("chroma"),
        docstore=SimpleDocumentStore(),
        docstore_strategy=strategy,
    )
    await pipeline.arun(documents=[*FINE, *POISON])
    assert texts_in(pipeline) == ["billing a", "billing b"]
    await pipeline.arun(documents=[*TURNED, FINE[1]])
    assert texts_in(pipeline) == ["billing a", "billing b"]
    assert pipeline.last_result.unchanged == ("b",)
    await pipeline.arun(documents=[FINE[0]])
    gone = strategy is DocstoreStrategy.UPSERTS_AND_DELETE
    assert texts_in(pipeline) == (["billing a"] if gone else ["billing a", "billing b"])


# 5. Embeddings by stage


def test_5_nodes_without_vectors_are_judged_without_or_refused():
    nodes = mixed(vector=False)
    assert [one.embedding for one in nodes] == [None] * 4  # VectorStoreIndex embeds later
    with pytest.raises(ValueError, match="in front of the PoisonGuard"):
        PoisonGuard(trained())(nodes)
    step = PoisonGuard(guard_of(Scripted(), *trained().detectors))
    assert ids_of(step([node("x score=5", vector=False), node("y", vector=False)])) == [id_of("y")]
    assert [skipped.detector for skipped in step.last_report.skipped] == ["label_centroid"]


async def test_5_the_filter_embeds_the_query_where_the_async_path_brings_no_vector(model):
    index = VectorStoreIndex(known(vector=False), embed_model=model)
    ours = PoisonFilter(store=index)
    seen = []
    screen = ours.guard.screen
    ours.guard.screen = lambda *args, **kwargs: (seen.append(args), screen(*args, **kwargs))[1]
    engine = RetrieverQueryEngine(
        index.as_retriever(), synthesizer(streaming=False), node_postprocessors=[ours]
    )
    bundle = QueryBundle("billing kb 0")
    await engine.aretrieve(bundle)
    _, passages, vector = seen[0]
    assert vector == pytest.approx(vector_of("billing kb 0").tolist())
    assert passages.vectors[0].tolist() == pytest.approx(vector_of(passages.texts[0]).tolist())
    assert bundle.embedding is None  # the engine's own is left alone


# 6. insert_nodes and the constructor skip transformations


@pytest.mark.parametrize("way", ["constructor", "insert_nodes", "ainsert_nodes", "insert"])
async def test_6_no_way_into_an_index_goes_around_the_guard(way, model):
    guard = trained()
    nodes = mixed(vector=False)
    if way == "constructor":
        index = GuardedVectorStoreIndex(nodes, guard=guard, embed_model=model)
    else:
        index = GuardedVectorStoreIndex([], guard=guard, embed_model=model)
        if way == "insert_nodes":
            index.insert_nodes(nodes)
        elif way == "ainsert_nodes":
            await index.ainsert_nodes(nodes)
        else:
            for one in nodes:
                index.insert(document(one.node_id, one.text))
    assert len(index.index_struct.nodes_dict) == 2
    assert guard.quarantine.count() == 2


# 7. Dangling relationships


def chain(texts):
    nodes = [node(text, label="billing") for text in texts]
    for before, after in pairwise(nodes):
        before.relationships[NodeRelationship.NEXT] = after.as_related_node_info()
        after.relationships[NodeRelationship.PREVIOUS] = before.as_related_node_info()
    return nodes


CHAIN = ("billing 1", "shipping bad 2", "shipping bad 3", "billing 4")


def neighbours(nodes):
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes)
    around = PrevNextNodePostprocessor(docstore=docstore, num_nodes=3, mode="both")
    return ids_of(around.postprocess_nodes([NodeWithScore(node=nodes[0], score=1.0)]))


def test_7_relationships_skip_dropped_nodes():
    nodes = chain(CHAIN)
    survivors = PoisonGuard(trained())(nodes)
    assert neighbours(survivors) == [id_of("billing 1"), id_of("billing 4")]
    assert survivors[1].prev_node.node_id == id_of("billing 1")
    assert nodes[0].next_node.node_id == id_of("shipping bad 2")  # the ones that came in stay
    ends = PoisonGuard(trained())(chain(("shipping bad 1", "billing 2", "shipping bad 3")))
    assert ends[0].prev_node is None
    assert ends[0].next_node is None


def test_7_parents_forget_dropped_children():
    parent, good_child, bad_child = chain(("billing 1", "billing 2", "shipping bad 3"))
    parent.relationships = {
        NodeRelationship.CHILD: [
            good_child.as_related_node_info(),
            bad_child.as_related_node_info(),
        ]
    }
    (parent, _) = PoisonGuard(trained())([parent, good_child, bad_child])
    assert [info.node_id for info in parent.child_nodes] == [good_child.node_id]


def test_7_deleting_a_node_leaves_no_dangling_relationships(model):
    index = GuardedVectorStoreIndex(
        chain(("billing 1", "billing 2", "billing 3")), guard=trained(), embed_model=model
    )
    index.delete_nodes([id_of("billing 2")], delete_from_docstore=True)
    around = PrevNextNodePostprocessor(docstore=index.docstore, num_nodes=2, mode="both")
    found = index.as_retriever(similarity_top_k=1).retrieve("billing 1")
    assert ids_of(around.postprocess_nodes(found)) == [id_of("billing 1"), id_of("billing 3")]


# 8. Text that is swapped or added after the filter


def scored(*nodes):
    return [NodeWithScore(node=one, score=1.0) for one in nodes]


def scripted_filter(**options):
    return PoisonFilter(RetrievalGuard([Scripted()]), **options)


def test_8_filter_reads_the_same_metadata_as_models():
    common = {"metadata": {"title": "score=5"}, "text_template": "{content} {metadata_str}"}
    shown = TextNode(text="fine", **common)
    embedded = TextNode(text="fine too", excluded_llm_metadata_keys=["title"], **common)
    hidden = TextNode(
        text="fine as well",
        excluded_llm_metadata_keys=["title"],
        excluded_embed_metadata_keys=["title"],
        **common,
    )
    found = scored(shown, embedded, hidden)
    kept = scripted_filter().postprocess_nodes(found, query_str="?")
    assert ids_of(kept) == [hidden.node_id]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_8_an_engine_in_which_the_filter_is_not_last_warns_once(asynchronous, model):
    index = VectorStoreIndex(known(vector=False), embed_model=model)
    swap = MetadataReplacementPostProcessor(target_metadata_key="window")
    around = PrevNextNodePostprocessor(docstore=index.docstore)

    def ask(*steps):
        engine = RetrieverQueryEngine(
            index.as_retriever(), synthesizer(streaming=False), node_postprocessors=list(steps)
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                if asynchronous:
                    asyncio.run(engine.aquery("billing"))
                else:
                    engine.query("billing")
        return [str(w.message) for w in caught if w.category is PoisonFilterOrderWarning]

    (warning,) = ask(scripted_filter(), swap, around)
    assert "MetadataReplacementPostProcessor, PrevNextNodePostprocessor" in warning
    assert ask(swap, around, scripted_filter()) == []
    assert check_order([swap, scripted_filter()])
    with pytest.warns(PoisonFilterOrderWarning):
        assert not check_order([scripted_filter(), swap])
    reads = LLMRerank(llm=MockLLM(max_tokens=2))
    assert check_order([scripted_filter(), reads, scripted_filter()])
    with pytest.warns(PoisonFilterOrderWarning, match="LLMRerank runs before the PoisonFilter"):
        assert not check_order([reads, scripted_filter()])


# 9. Annotations


def test_9_an_annotation_leaks_into_no_prompt_and_into_no_given_node(make_store):
    given = node("x score=5")
    before = given.model_copy(deep=True)
    guard = guard_of(Scripted(), flag_at=0.5, quarantine_at=0.01)
    guard.state.calibrator.thresholds = {
        "scripted": type(guard.state.calibrator.thresholds["scripted"])(flag=1.0, quarantine=9.0)
    }
    store = GuardedVectorStore(make_store("chroma"), guard=guard)
    store.add([given, node("y")])
    assert given.to_dict() == before.to_dict()
    (stored,) = store.get_nodes([given.node_id])
    assert stored.metadata[FLAG_KEY] == "scripted"
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert stored.get_content(metadata_mode=mode) == given.get_content(metadata_mode=mode)
    (flagged,) = PoisonGuard(guard)([given])
    assert flagged is not given
    assert FLAG_KEY in flagged.excluded_llm_metadata_keys
    assert FLAG_KEY in flagged.excluded_embed_metadata_keys


def synthesizer(*, streaming):
    return get_response_synthesizer(llm=MockLLM(), streaming=streaming)
