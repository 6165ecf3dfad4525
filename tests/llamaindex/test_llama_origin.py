"""Proven origin in guarded indexes and stores: a lower tier takes the place of nothing."""

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_support import (
    TEXT_KINDS,
    TopicEmbedding,
    document,
    guarded_over,
    id_of,
    index_over,
    insert,
    node,
    shown,
    splitter,
)
from support import guard_of

from ragshield_core import RetrievalGuard
from ragshield_core.detectors import InstructionDetector
from ragshield_core.model.claims import ORIGIN_KEY, STAMP_KEY
from ragshield_core.origin import OriginKey, Origins, Tier, Voucher
from ragshield_llamaindex import OriginStamper, PoisonFilter, PoisonGuard, StableIds
from ragshield_llamaindex.convert import context_of

WIKI = OriginKey("wiki", secret=b"a secret of the wiki")
MAIL = OriginKey("mail", secret=b"a secret of the mail")
ORIGINS = Origins(
    {
        "wiki": Voucher(tier="trusted", secrets=(b"a secret of the wiki",)),
        "mail": Voucher(tier="known", secrets=(b"a secret of the mail",)),
    }
)
GOOD, FALSE = "billing takes five days", "billing takes two years"


def stamped(one, key=WIKI, **how):
    return OriginStamper(key, **how)([one])[0]


@pytest.fixture(params=["store", "index"])
def guarded(request, make_store, model):
    guard = guard_of()
    guard.origins = ORIGINS
    over = guarded_over if request.param == "store" else index_over
    made = over(make_store("simple" if request.param == "index" else "chroma"), model, guard=guard)
    insert(made, [stamped(node(GOOD, "page", document="d"))])
    return made


@pytest.mark.parametrize("over", [guarded_over, index_over])
def test_a_guard_can_demand_a_tier_of_all_new_entries(over, make_store, model):
    guard = guard_of()
    vouchers = {"mail": Voucher(tier="known", secrets=(b"a secret of the mail",))}
    guard.origins = Origins(vouchers, least_tier="known")
    made = over(make_store("simple" if over is index_over else "chroma"), model, guard=guard)
    insert(made, [stamped(node(GOOD, "page", document="d"), MAIL)])
    insert(made, [node(FALSE, "other", document="e")])
    assert set(shown(made)) == {GOOD}
    assert "known at least" in made.quarantine.list()[0].note


def test_a_step_demands_the_tier_too():
    guard = guard_of()
    vouchers = {"mail": Voucher(tier="known", secrets=(b"a secret of the mail",))}
    guard.origins = Origins(vouchers, least_tier="known")
    passed = PoisonGuard(guard)([stamped(node(GOOD, "page"), MAIL), node(FALSE, "other")])
    assert [one.text for one in passed] == [GOOD]
    assert guard.quarantine.count() == 1


@pytest.mark.parametrize(
    "new",
    [
        node(FALSE, "page", document="d"),
        node(FALSE, "other", document="d"),  # another part of the same document
        stamped(node(FALSE, "page", document="d"), MAIL),
        stamped(node(FALSE, "page", document="d"), derived_from=[]),
        node(
            FALSE,
            "page",
            document="d",
            **{STAMP_KEY: stamped(node(GOOD, "page")).metadata[STAMP_KEY]},
        ),
    ],
    ids=["unstamped", "another part", "known", "derived", "copied"],
)
def test_a_page_is_not_replaced_by_a_lower_tier(guarded, new, request):
    insert(guarded, [new])
    left = set(shown(guarded))
    assert GOOD in left
    if "another" not in request.node.name:  # which only comes beside it
        assert left == {GOOD}
        assert guarded.quarantine.show(id_of("page")).entry.text == FALSE


def test_the_same_tier_replaces(guarded):
    insert(guarded, [stamped(node(FALSE, "page", document="d"))])
    assert shown(guarded) == [FALSE]


def test_a_page_that_comes_again_without_its_stamp_keeps_it(guarded):
    insert(guarded, [node(GOOD, "page", document="d")])
    assert guarded.origins([id_of("page")])[id_of("page")].tier is Tier.TRUSTED


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_proof_survives_every_store(kind, make_store, model):
    guard = guard_of()
    guard.origins = ORIGINS
    made = guarded_over(make_store(kind), model, guard=guard)
    page = node(GOOD, "page", document="d", section=3, share=2.0, old=False)
    insert(made, [stamped(page)])
    assert made.origins()[id_of("page")].tier is Tier.TRUSTED, made.origins()
    insert(made, [node(FALSE, "page", document="d")])
    assert shown(made) == [GOOD]


def test_a_document_is_not_updated_by_a_lower_tier(make_store):
    guard = guard_of()
    guard.origins = ORIGINS
    index = index_over(make_store("simple"), TopicEmbedding(), guard=guard)
    steps = [splitter(), StableIds(), OriginStamper(WIKI)]
    parts = document("d", "billing one two. billing three four.")
    for step in steps:
        parts = step(parts if isinstance(parts, list) else [parts])
    index.insert_nodes(parts)
    before = sorted(shown(index))
    index.update_ref_doc(document("d", "billing one two. billing nine four."))
    assert sorted(shown(index)) == before
    assert {str(one) for one in index.origins().values()} == {"trusted:wiki"}


def test_no_model_reads_the_stamp():
    one = stamped(node(GOOD, "page"))
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert STAMP_KEY not in one.get_content(metadata_mode=mode)
    assert STAMP_KEY not in (context_of(one) or "")


def test_random_ids_are_not_bound():
    one = node(GOOD)
    one.id_ = "0b0e4be2-7d2c-4b52-9c1b-7b1f3a5d9b10"
    found = stamped(one)
    assert ORIGINS.of(GOOD, found.metadata, "another").tier is Tier.TRUSTED
    assert ORIGINS.of(GOOD, stamped(node(GOOD)).metadata, "another").broken


@pytest.mark.parametrize(("least", "left"), [("unknown", 3), ("known", 2), ("trusted", 1)])
def test_retrieval_shows_origin_and_may_require_a_tier(least, left):
    nodes = [stamped(node(GOOD)), stamped(node("billing news"), MAIL), node(FALSE)]
    nodes[2].metadata[ORIGIN_KEY] = "trusted:wiki"
    guard = RetrievalGuard(origins=ORIGINS, least_tier=least)
    found = PoisonFilter(guard).postprocess_nodes(
        [NodeWithScore(node=one) for one in nodes], QueryBundle("billing")
    )
    told = ["trusted:wiki", "known:mail", "unknown"][:left]
    assert [one.node.metadata[ORIGIN_KEY] for one in found] == told
    assert ORIGIN_KEY not in found[0].node.get_content(metadata_mode=MetadataMode.LLM)


def test_citations_carry_the_origin(make_store):
    guard = guard_of()
    guard.origins = ORIGINS
    index = index_over(make_store("simple"), TopicEmbedding(), guard=guard)
    insert(index, [stamped(node(GOOD, "page")), node("billing news", "other")])
    steps = [PoisonFilter(RetrievalGuard([InstructionDetector()], origins=ORIGINS))]
    engine = CitationQueryEngine.from_args(index, llm=MockLLM(), node_postprocessors=steps)
    sources = engine.query("billing").source_nodes
    assert {str(one.node.metadata[ORIGIN_KEY]) for one in sources} == {"trusted:wiki", "unknown"}
