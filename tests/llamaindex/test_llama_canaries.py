"""Canaries over indexes, retrievers, engines and models of LlamaIndex."""

import pytest
from canary_llama import LlamaWords
from canary_world import embed, knowledge, poison, questions
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_support import KINDS
from support import DIM

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.tools.canary import CanaryError, CanaryMonitor, Embedder
from ragshield_core.tools.canary.knowledge_base import as_answerer, as_knowledge_base, as_passage
from ragshield_llamaindex import GuardedVectorStoreIndex

TARGET = questions()[5]
ASKED = questions()[1::2]


def nodes(batch):
    return [TextNode(id_=entry.id, text=entry.text) for entry in batch]


@pytest.mark.slow
def test_a_llamaindex_index():
    index = VectorStoreIndex(nodes(knowledge()), embed_model=LlamaWords())
    monitor = CanaryMonitor(ASKED, index, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    assert not monitor.check().flagged
    bad = poison(TARGET, 4)
    index.insert_nodes(nodes(bad))
    report = monitor.check()
    assert {d.query for d in report.flagged} == {TARGET}
    outcome = monitor.remediate()
    assert set(outcome.quarantined) == set(bad.ids)
    # The index still serves them.
    assert set(bad.ids) & {n.node_id for n in index.as_retriever().retrieve(TARGET)}
    assert not outcome.after.flagged
    assert set(outcome.after.still_served) == set(bad.ids)
    assert not outcome.clean
    index.delete_nodes(list(bad.ids))
    assert monitor.remediate().clean


@pytest.mark.parametrize("kind", ["retriever", "query engine"])
def test_a_llamaindex_retriever_or_engine(kind):
    index = VectorStoreIndex(nodes(knowledge()), embed_model=LlamaWords())
    if kind == "retriever":
        source = index.as_retriever(similarity_top_k=9)
    else:
        source = index.as_query_engine(llm=MockLLM(), similarity_top_k=9)
    found = as_knowledge_base(source).search([TARGET], None, 6)[0]
    assert found[0].id == "orchard-1"
    assert len(found) == 6


@pytest.mark.slow
def test_a_guarded_index_takes_out_and_puts_back():
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    index = GuardedVectorStoreIndex(nodes(knowledge()), guard=guard, embed_model=LlamaWords())
    monitor = CanaryMonitor(ASKED, index)
    assert monitor.quarantine_store is index.quarantine
    monitor.record_baseline()
    bad = poison(TARGET, 4)
    index.insert_nodes(nodes(bad))
    outcome = monitor.remediate()
    assert outcome.clean
    assert set(outcome.quarantined) == set(bad.ids)
    assert as_knowledge_base(index).size() == len(knowledge())
    monitor.restore(bad.ids)
    assert as_knowledge_base(index).size() == len(knowledge()) + len(bad)
    assert monitor.check().flagged


# How the adapter converts LlamaIndex's objects


@pytest.mark.parametrize("scored", [True, False])
def test_a_node_becomes_a_passage(scored):
    node = TextNode(id_="n", text="text", metadata={"page": 1, "file_path": "f.txt"})
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc")
    passage = as_passage(NodeWithScore(node=node, score=0.5) if scored else node)
    assert (passage.id, passage.text, passage.lineage) == ("n", "text", "doc")
    assert passage.metadata["page"] == 1


def test_a_model_embeds_queries_and_texts():
    embedder = Embedder.of(LlamaWords())
    assert embedder.queries(["tea", "bar"], unit=False).tolist() == embed(["tea", "bar"]).tolist()
    assert embedder.documents(["tea"]).tolist() == embedder.queries(["tea"]).tolist()


def test_the_embedder_is_found_where_an_index_or_retriever_carries_it():
    index = VectorStoreIndex([TextNode(text="x")], embed_model=LlamaWords())
    for source in (index, index.as_retriever()):
        carried = Embedder.of(as_knowledge_base(source).embedder)
        assert carried.queries(["tea"], unit=False).tolist() == embed(["tea"]).tolist()


def test_a_query_engine_answers():
    index = VectorStoreIndex([TextNode(text="x")], embed_model=LlamaWords())
    engine = index.as_query_engine(llm=MockLLM(max_tokens=2))
    assert as_answerer(engine)("tea", ["t"]) == "text text"
    assert as_answerer(engine.query)("tea", []) == "text text"


def test_unsuitable_retriever_or_answerer_is_refused():
    index = VectorStoreIndex([TextNode(text="x")], embed_model=LlamaWords())
    with pytest.raises(CanaryError, match="retriever is a SimpleVectorStore"):
        as_knowledge_base(index.vector_store)
    with pytest.raises(CanaryError, match="answerer is a VectorStoreIndex"):
        as_answerer(index)


IDS = [f"0d706099-6dd9-412a-9df6-a71043e020d{n}" for n in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_an_index_is_known(kind, make_store, model):
    context = StorageContext.from_defaults(vector_store=make_store(kind, DIM))
    some = [TextNode(id_=i, text=f"billing {n}") for n, i in enumerate(IDS)]
    index = VectorStoreIndex(some, storage_context=context, embed_model=model)
    assert as_knowledge_base(index).size() == 3
    assert as_knowledge_base(index.as_retriever()).size() == 3
    index.insert_nodes([TextNode(text="delivery")])
    assert as_knowledge_base(index).size() == 4


@pytest.mark.slow
def test_index_is_flagged_if_all_canaries_are_attacked():
    index = VectorStoreIndex(nodes(knowledge()), embed_model=LlamaWords())
    asked = questions()[::3]
    monitor = CanaryMonitor(asked, index, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    for number, query in enumerate(asked):
        index.insert_nodes(nodes(poison(query, 3, prefix=f"bad{number}")))
    report = monitor.check()
    assert {drift.query for drift in report.flagged} == set(asked)
    added = 3 * len(asked)
    assert report.growth == pytest.approx(added / (200 + added))
