"""CleanBase's reference rule against networkx and a naive reimplementation."""

import logging
import re
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import entries

from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups.cleanbase import (
    CLIQUE_CAP,
    clique_members,
    edge_threshold,
    undirected,
)
from ragshield_core.detectors.groups.graph import COSINE_STEPS, Lists, rounded


def at(vectors):
    """Return entries with these vectors."""
    return entries([f"t{i}" for i in range(len(vectors))], embeddings=vectors)


def in_cliques(n, edges):
    graph = nx.Graph()
    graph.add_edges_from(map(tuple, edges))
    members = {v for clique in nx.find_cliques(graph) if len(clique) >= 3 for v in clique}
    return [v in members for v in range(n)]


@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.15, 0.5, 1.0]))
def test_members_are_those_of_maximal_cliques_of_three_or_more(n, seed, density):
    rng = np.random.default_rng(seed)
    edges = np.argwhere(np.triu(rng.random((n, n)) < density, 1))
    flipped = np.where(rng.random(len(edges))[:, None] < 0.5, edges, edges[:, ::-1])
    given_edges = rng.permutation(flipped).astype(np.int64).reshape(-1, 2)
    assert clique_members(n, given_edges).tolist() == in_cliques(n, edges.tolist())


def naive(vectors, alpha=2.5, k=10):
    """Return membership, and the distance of the nearest edge to the threshold."""
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    edges = {}
    for i in range(len(unit)):
        similar = unit @ unit[i]
        others = [j for j in np.argsort(-similar, kind="stable") if j != i][:k]
        edges |= {(min(i, j), max(i, j)): similar[j] for j in others}
    exact = np.array(list(edges.values()))
    # The last bit of a product decides to which step it is rounded.
    values, low, high = (
        rounded(exact + off, COSINE_STEPS).astype(np.float64) for off in (0.0, -3e-7, 3e-7)
    )
    threshold = values.mean() + alpha * values.std()
    if threshold >= 1.0:
        threshold = min(np.quantile(values, 0.99), values.max() - 1e-6)
    kept = [edge for edge, value in zip(edges, values, strict=True) if value > threshold]
    return in_cliques(len(unit), kept), np.abs([low - threshold, high - threshold]).min()


def cloud(seed, n, groups, clones):
    """Return random vectors with tight groups and exact duplicates in it."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(n, 12))]
    parts += [rng.normal(size=12) + rng.normal(scale=0.02, size=(size, 12)) for size in groups]
    parts += [np.repeat(rng.normal(size=(1, 12)), size, axis=0) for size in clones]
    return rng.permutation(np.concatenate(parts))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(12, 120),
    st.lists(st.sampled_from([2, 3, 5, 50]), max_size=3),
    st.lists(st.sampled_from([2, 3, 11, 30]), max_size=2),
    st.sampled_from([2.5, 2.5, 1.0, 4.0]),
)
@pytest.mark.slow
def test_audit_matches_the_reference_rule(seed, n, groups, clones, alpha):
    vectors = cloud(seed, n, groups, clones)
    expected, margin = naive(vectors, alpha)
    detector = CliqueDetector(rule="cleanbase", alpha=alpha, min_entries=2)
    scores = detector.audit(at(vectors))
    if margin > 1e-6:  # nearer ones are decided by the last bit of a product
        assert (scores > detector.audit_threshold(0.01)).tolist() == expected


def test_each_pair_is_one_edge():
    lists = Lists.empty(3, 2)
    lists.slots[:] = [[1, 2], [0, -1], [0, 1]]
    lists.similarities[:] = [[0.9, 0.5], [0.9, -np.inf], [0.5, 0.4]]
    edges, similarities = undirected(np.arange(3), lists)
    assert edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert similarities.tolist() == pytest.approx([0.9, 0.5, 0.4])


@pytest.mark.parametrize(
    ("values", "reachable"),
    [([0.1, 0.2, 0.3] * 30, True), ([0.5] * 50 + [1.0] * 50, False), ([1.0] * 9, False)],
    ids=["reachable", "two heaps", "clones only"],
)
def test_some_edge_always_exceeds_the_threshold(values, reachable):
    values = np.array([*values, max(values) + (0.5 if reachable else 0.0)], dtype=np.float32)
    threshold, said = edge_threshold(values)
    assert said is reachable
    assert threshold < values.max()


@pytest.mark.parametrize("seed", range(6))
def test_a_knowledge_base_of_nothing_but_clones_is_condemned(seed):
    # The product of a unit vector with itself is 1 only up to its last bits, on either side.
    vector = np.random.default_rng(seed).normal(size=(1, 24))
    scores = CliqueDetector(rule="cleanbase", min_entries=2).audit(
        at(np.repeat(vector, 40, axis=0))
    )
    assert scores.tolist() == [1.0] * 40


def heaps(n_clones, dim=16):
    """Return clones among as many loose entries: mean + 2.5 * std of the edges is above 1."""
    rng = np.random.default_rng(0)
    loose = rng.normal(size=(100, dim))
    return at(np.concatenate([np.repeat(rng.normal(size=(1, dim)), n_clones, axis=0), loose]))


def test_unreachable_threshold_falls_back_with_a_warning(caplog):
    store = heaps(60)
    detector = CliqueDetector(rule="cleanbase")
    with caplog.at_level(logging.WARNING, "ragshield"):
        scores = detector.audit(store)
    assert any("2.5 * std" in record.getMessage() for record in caplog.records)
    assert scores[:60].tolist() == [1.0] * 60
    (evidence,) = detector.explain_audit(store, [3])
    assert "99 % quantile" in evidence.sentence
    assert set(evidence.related_ids) <= set(store.ids[:60]) - {"e3"}
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ragshield"):
        CliqueDetector(rule="cleanbase").fit(store)
    assert any("2.5 * std" in record.getMessage() for record in caplog.records)


def test_evidence_names_the_clique_its_size_and_the_threshold():
    rng = np.random.default_rng(5)
    vectors = np.concatenate(
        [rng.normal(size=(300, 24)), rng.normal(size=24) + rng.normal(scale=0.02, size=(4, 24))]
    )
    store = at(vectors)
    detector = CliqueDetector(rule="cleanbase")
    assert detector.audit(store)[-4:].tolist() == [1.0] * 4
    (evidence,) = detector.explain_audit(store, [302])
    assert "one of 4 entries that are all very similar" in evidence.sentence
    assert re.search(r"\b0\.\d{3}\b", evidence.sentence)
    assert "quantile" not in evidence.sentence
    assert set(evidence.related_ids) == {"e300", "e301", "e303"}


@pytest.mark.slow
def test_ten_thousand_clones_are_condemned_at_bounded_cost_and_the_cap_is_said():
    store = heaps(10_000, dim=8)
    detector = CliqueDetector(rule="cleanbase")
    scores = detector.audit(store)
    start = time.process_time()
    said = detector.explain_audit(store, range(20))
    at_the_cap = time.process_time() - start
    assert scores[:10_000].min() == 1.0
    assert any("too many to enumerate" in evidence.sentence for evidence in said)
    assert all("all very similar" in evidence.sentence for evidence in said)
    # Beyond the cap, an explanation costs no more than in proportion to the entries.
    few = heaps(2 * CLIQUE_CAP, dim=8)
    detector.audit(few)
    start = time.process_time()
    detector.explain_audit(few, range(20))
    spent = time.process_time() - start
    assert at_the_cap < 4 * len(store) / len(few) * spent


def test_clones_that_are_all_joined_cost_no_enumeration():
    n = 400  # 3 ** (n / 3) maximal cliques in the worst graph of this size
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    moon_moser = pairs[pairs[:, 0] // 3 != pairs[:, 1] // 3].astype(np.int64)
    assert clique_members(n, moon_moser).all()  # else it would not end
