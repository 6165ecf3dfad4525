"""Tight groups among retrieved passages, and passages that are naturally alike."""

import numpy as np
import pytest
from support import prose

from ragshield_core import Batch
from ragshield_core.detectors.base.retrieved import RetrievedSet
from ragshield_core.detectors.groups.consensus import MAX_SET, SIZES, ConsensusDetector
from ragshield_core.model.errors import InvalidBatchError

DIM = 48
RULE = ConsensusDetector.default_threshold


def directions(rng, near, n, spread):
    """Return n unit vectors around a direction; spread 1 is about half as long as it."""
    vectors = near + spread * rng.normal(size=(n, DIM)) / np.sqrt(DIM)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def retrieved(n_poisoned, n=10, *, seed=0, spread=0.3, texts=None):
    """Return a set with its poison first, and the query."""
    rng = np.random.default_rng([seed, n_poisoned])
    query = directions(rng, np.zeros(DIM), 1, 1.0)[0]
    clean = directions(rng, query, n - n_poisoned, 1.2)
    claim = directions(rng, query, 1, 0.6)[0]
    vectors = np.concatenate([directions(rng, claim, n_poisoned, spread), clean])
    batch = Batch.of(
        ids=[f"p{i}" for i in range(n)],
        texts=[prose(rng) for _ in range(n)] if texts is None else texts,
        embeddings=vectors,
    )
    return RetrievedSet.of("the question", batch, query)


@pytest.mark.parametrize("n_poisoned", SIZES)
def test_a_group_stands_out_and_the_rest_does_not(n_poisoned):
    found, wrong = [], []
    for seed in range(20):
        scores = ConsensusDetector().score(retrieved(n_poisoned, seed=seed))
        found.append(scores[:n_poisoned] > RULE)
        wrong.append(scores[n_poisoned:] > RULE)
    assert np.mean(found) > 0.9
    assert np.mean(wrong) < 0.01


def test_nothing_stands_out_in_clean_sets():
    scores = [ConsensusDetector().score(retrieved(0, seed=seed)) for seed in range(50)]
    assert np.mean(np.array(scores) > RULE) < 0.01


def test_copies_explain_that_passages_are_alike():
    rng = np.random.default_rng(1)
    own = [prose(rng) for _ in range(10)]
    mirrored = [own[0]] * 3 + own[3:]
    assert (ConsensusDetector().score(retrieved(3, texts=own))[:3] > RULE).all()
    assert (ConsensusDetector().score(retrieved(3, texts=mirrored))[:3] < RULE).all()


def test_words_of_the_query_explain_nothing():
    rng = np.random.default_rng(2)
    query = prose(rng, 20)
    texts = [f"{query} {prose(rng, 3)}" for _ in range(3)] + [prose(rng) for _ in range(7)]
    given = retrieved(3, texts=texts)
    asked = RetrievedSet.of(query, given.passages, given.vector)
    assert (ConsensusDetector().score(asked)[:3] > RULE).all()
    assert (ConsensusDetector().score(given)[:3] < RULE).all()


def test_tight_group_far_from_the_query_scores_lower():
    given = retrieved(3)
    away = given.passages.embeddings[3:].mean(axis=0) - 2.0 * given.passages.embeddings[0]
    near = ConsensusDetector().score(given)[:3]
    far = ConsensusDetector().score(RetrievedSet.of("?", given.passages, away))[:3]
    assert (far < near).all()


def test_the_order_of_the_passages_does_not_matter():
    given = retrieved(3)
    order = np.random.default_rng(0).permutation(10)
    shuffled = RetrievedSet.of("the question", given.passages.take(order), given.vector)
    np.testing.assert_allclose(
        ConsensusDetector().score(shuffled), ConsensusDetector().score(given)[order], atol=1e-5
    )


def test_evidence_names_the_group_and_the_numbers():
    (evidence,) = ConsensusDetector().explain(retrieved(3), [0])
    assert set(evidence.related_ids) <= {"p1", "p2"}
    assert "similarity to each other 0.9" in evidence.sentence


def test_only_the_first_passages_of_large_sets_are_judged():
    scores = ConsensusDetector().score(retrieved(3, 80))
    assert np.isfinite(scores[:MAX_SET]).all()
    assert np.isnan(scores[MAX_SET:]).all()
    assert (scores[:3] > RULE).all()


@pytest.mark.parametrize("n", [0, 1, 3])
def test_too_few_passages_are_skipped(n):
    given = retrieved(0)
    few = RetrievedSet.of("q", given.passages.take(range(n)), given.vector)
    assert "needs 4 passages" in ConsensusDetector().skip_reason(few)


def test_skip_reason_names_the_missing_vectors():
    given = retrieved(0)
    no_query = RetrievedSet.of("q", given.passages)
    assert "vector of the query" in ConsensusDetector().skip_reason(no_query)
    unknown = RetrievedSet.of("q", given.passages, given.vector, has_vectors=False)
    assert "vectors of the passages" in ConsensusDetector().skip_reason(unknown)


@pytest.mark.parametrize("vector", [np.ones(3), np.zeros(DIM), np.full(DIM, np.nan)])
def test_invalid_query_vector_is_refused(vector):
    with pytest.raises(InvalidBatchError, match="query's vector has"):
        RetrievedSet.of("q", retrieved(0).passages, vector)
