"""The figures of a check, against figures computed by hand."""

import math

import numpy as np
import pytest
from canary_world import batch, questions, watched
from effort import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core.tools.canary import Passage
from ragshield_core.tools.canary.compare import Coverages, _siblings, coverage_p_value
from ragshield_core.tools.canary.drift import AnomalyWeights
from ragshield_core.tools.canary.figures import (
    combined_p_value,
    coverage,
    jaccard,
    overlap_at_k,
    says,
    takeover,
    word_weights,
)
from ragshield_core.tools.canary.storage import Baseline, Observation

IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


def test_the_score_by_hand():
    # 5 places taken, 2 of them as before
    now, before = ["p1", "a", "b", "p2", "p3"], ["a", "b"]
    assert jaccard(now, before) == pytest.approx(0.4)
    assert overlap_at_k(now, before, 6) == pytest.approx(0.4)
    weights = AnomalyWeights()
    figures = {"jaccard": 0.4, "overlap": 1 / 3, "suspicion_delta": 0.0}
    # min(.6, .75 * .4) + .2 * .6 + .15 * 2/3 = .3 + .12 + .1
    assert weights.score(answer_drift=0.4, **figures) == pytest.approx(0.52)
    # .75 * .9 = .675 is cut to .6
    assert weights.score(answer_drift=0.9, **figures) == pytest.approx(0.82)
    # .8 * .6 = .48 is cut to .1; .8 * .05 = .04
    figures["suspicion_delta"] = 0.6
    assert weights.score(answer_drift=0.4, **figures) == pytest.approx(0.62)
    figures["suspicion_delta"] = 0.05
    assert weights.score(answer_drift=0.4, **figures) == pytest.approx(0.56)
    figures["suspicion_delta"] = -0.5  # a fall is no merit
    assert weights.score(answer_drift=0.4, **figures) == pytest.approx(0.52)
    assert weights.score(answer_drift=2, jaccard=0, overlap=0, suspicion_delta=1) == 1


@given(IDS, IDS)
def test_similarities_are_bounded_and_symmetric(one, other):
    for measure in (jaccard, lambda a, b: overlap_at_k(a, b, 6)):
        assert 0.0 <= measure(one, other) <= 1.0 + 1e-12
        assert measure(one, other) == pytest.approx(measure(other, one))
        assert measure(one, one) == pytest.approx(1.0)


def test_takeover_by_hand():
    # weights 1, .8 over 1.8. Both new: p = rate^2; the second alone: at least 4/9 of the weight
    # is held unless none is new.
    assert takeover([True, True], 0.1) == pytest.approx((1.0, 0.01))
    assert takeover([False, True], 0.1) == pytest.approx((4 / 9, 0.19))
    assert takeover([True, False], 0.1) == pytest.approx((5 / 9, 0.1))
    assert takeover([], 0.1) == (0.0, 1.0)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.floats(0.01, 0.9))
def test_takeover_is_a_probability_and_falls_with_the_share(new, rate):
    share, p = takeover(new, rate)
    assert 0.0 <= share <= 1.0 + 1e-12
    assert 0.0 < p <= 1.0
    assert takeover([False, *new[1:]], rate)[1] >= takeover([True, *new[1:]], rate)[1] - 1e-12


def test_p_value_is_valid_under_growth():
    rng = np.random.default_rng(0)
    p = [takeover(rng.random(6) < 0.2, 0.2)[1] for _ in range(4000)]
    assert np.mean(np.array(p) <= 0.05) <= 0.06


def test_two_p_values_together():
    rng = np.random.default_rng(0)
    p = [combined_p_value(*rng.random(2)) for _ in range(4000)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.015)
    assert combined_p_value(1.0, 1.0) == 1.0
    assert combined_p_value(0.0, 0.5) == 0.0


def test_weights_out_of_range_are_refused():
    with pytest.raises(ValueError, match="threshold"):
        AnomalyWeights(threshold=1.5)
    with pytest.raises(ValueError, match="extra"):
        AnomalyWeights(overlaps=0.5)


QUERY = "who built the harbour bridge"
EVEN = dict.fromkeys(QUERY.split(), 1.0)


def test_rare_query_words_weigh_more():
    weights = word_weights(("Who built it?", "who owns it, who sold it"))
    assert weights["who"] == pytest.approx(math.log(3 / 2.5))  # twice in a query counts once
    assert weights["built"] == pytest.approx(math.log(3 / 1.5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (QUERY, 1.0),
        ("The BRIDGE, the harbour: built by who?", 1.0),  # in any order
        ("bridge bridge bridge bridge bridge", 0.2),  # each word once
        (f"harbour {'x ' * 5}bridge", 0.4),  # seven words, 1.25 times five of them
        (f"harbour {'x ' * 6}bridge", 0.2),  # not in one place
        (f"built the {'x ' * 9}who built harbour", 0.6),  # the best place, after leaving another
        ("", 0.0),
    ],
)
def test_coverage_by_hand(text, expected):
    assert coverage(QUERY, text, EVEN) == pytest.approx(expected)


def test_coverage_of_short_queries_and_of_languages_without_spaces():
    assert coverage("harbour bridge", "harbour bridge", EVEN) == 0.0
    assert coverage("the harbour bridge", "the harbour bridge", EVEN) == pytest.approx(0.6)
    query = "中国的首都是哪个城市"
    weights = word_weights((query, "日本的货币是什么"))
    assert coverage(query, "资料记载：中国的首都是上海。", weights) > 0.5
    assert coverage(query, "上海港是世界上最繁忙的港口。", weights) < 0.1


@given(st.text(max_size=60), st.text(max_size=200))
def test_coverage_is_a_share(query, passage):
    weights = word_weights((query, QUERY))
    found = coverage(query, passage, weights)
    assert 0.0 <= found <= 1.0
    assert coverage(query, query, weights) >= found - 1e-9


def test_coverage_of_hostile_text_costs_no_more_than_its_length():
    assert_linear(lambda text: coverage(QUERY, text, EVEN), "bridge ", 1_000_000)


def held(coverages):
    """Return the coverages of a baseline whose canaries all ask the same question."""
    seen = {
        str(number): Observation(
            query=QUERY, ids=("a", "b"), revisions=("a", "b"), suspicions=(0.0, 0.0), coverages=row
        )
        for number, row in enumerate(coverages)
    }
    k = max(map(len, coverages), default=0) or 2
    return Coverages.of(Baseline(suite="s", k=k, size=None, observations=seen))


def test_coverage_is_compared_with_the_same_ranks_of_the_baseline():
    usual = held([(0.9, 0.1), (0.8, 0.3), (0.2,), ()])
    passages = [Passage(id="n", text="the harbour bridge"), Passage(id="m", text="who built it")]
    # .6 at rank 1: .9 and .8 of three show as much; at rank 2: none of two.
    assert coverage_p_value(usual, QUERY, passages, [0]) == pytest.approx(3 / 4)
    assert coverage_p_value(usual, QUERY, passages[:1] * 2, [1]) == pytest.approx(1 / 3)
    # .6 and .4 are .5 on average: one of three shows as much.
    usual = held([(0.9, 0.1), (0.8, 0.1), (0.2, 0.2)])
    assert coverage_p_value(usual, QUERY, passages, [0, 1]) == pytest.approx(2 / 4)
    # A baseline without coverage is no evidence.
    assert coverage_p_value(held([(), ()]), QUERY, [Passage(id="n", text=QUERY)], [0]) == 1.0


def test_coverage_p_value_is_valid_under_growth():
    # Coverage falls with the rank and differs by query; whichever passages are new, few are rare.
    rng = np.random.default_rng(0)
    table = rng.beta(2, 3, size=(400, 6)) * 0.9 ** np.arange(6)
    usual = held([tuple(row) for row in table[:200]])
    p = []
    for row in table[200:]:
        rows = np.flatnonzero(rng.random(6) < 0.3)
        if rows.size:
            means = usual.usual(rows.tolist())
            p.append((1 + np.sum(means >= row[rows].mean())) / (len(means) + 1))
    assert np.mean(np.array(p) <= 0.1) <= 0.15


def test_only_further_chunks_of_a_new_document_are_siblings():
    east, west = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    chunks = [
        Passage(id="a", text="", lineage="old", vector=east),
        Passage(id="b", text="", lineage="new", vector=east),
        Passage(id="c", text="", lineage="new", vector=west),
        Passage(id="d", text="", lineage="new", vector=east),  # a copy
        Passage(id="e", text="", lineage="other", vector=west),
        Passage(id="f", text="", lineage="old", vector=west),
    ]
    assert _siblings(chunks, [False, True, True, True, True, False]) == {2}


def test_only_an_entry_that_repeats_the_query_is_flagged():
    query = questions()[0]
    for entry, flagged in (
        (f"{query.removeprefix('What of ')} of what: false", True),
        (f"{query.split()[-1]} is at one end, so many w1 w2 w3 w4 harbour things", False),
    ):
        world = watched()
        world.add(batch([("new", entry), *((f"far-{n}", f"zebra v{n}") for n in range(4))]))
        report = world.monitor.check()
        assert report[query].newcomers[:1] == ("new",)
        assert report[query].flagged is flagged


@pytest.mark.parametrize(
    "passage", ["visit evi\u200bl.example", "visit evi\xadl.example", "Visit \uff45vil.\n example"]
)
def test_says_compares_text_as_a_person_reads_it(passage):
    part = "visit evil. example" if "\n" in passage else "visit evil.example"
    assert says(passage, part)
    assert not says(passage, "evil-example")
    assert not says(passage, "\u200b")  # which is nothing


def test_a_report_is_read_by_name_and_one_by_one():
    world = watched(questions()[:2])
    report = world.monitor.check()
    assert [drift.name for drift in report] == questions()[:2]
    with pytest.raises(KeyError, match="no canary 'absent'"):
        report["absent"]
