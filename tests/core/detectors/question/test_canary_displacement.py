"""Entries that would take over known queries."""

import numpy as np
import pytest
from canary_world import batch, embed, joined, knowledge, poison, questions
from displaced_queries import CLEAN, KNOWN, crafted, make
from support import passages

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors.base.retrieved import RetrievedSet
from ragshield_core.detectors.question import canary_displacement
from ragshield_core.detectors.question.canary_displacement import CanaryDisplacementDetector
from ragshield_core.detectors.question.query_echo import QueryEchoDetector


def test_groups_are_found_by_the_rule_and_clean_entries_are_not():
    detector = make().fit(KNOWN)
    assert (detector.score(crafted()) > detector.default_threshold).all()
    assert (detector.score(CLEAN) <= detector.default_threshold).all()


def test_one_entry_at_the_head_of_one_query_scores_its_share():
    detector = CanaryDisplacementDetector(["q"], [[1.0, 0.0]], k=2)
    known = Batch.of(ids=["a", "b"], texts=["", ""], embeddings=[[0.9, 0.44], [0.8, 0.6]])
    new = Batch.of(
        ids=["first", "second", "third"],
        texts=["", "", ""],
        embeddings=[[1.0, 0.0], [0.85, -0.53], [0.5, 0.87]],
    )
    alone = [detector.fit(known).score(new.take([row]))[0] for row in range(3)]
    # ranks weigh 1 and .8, over 1.8; b comes next where another one is before
    assert alone == pytest.approx([1 / 1.8, 0.8 / 1.8, 0.0])
    # the first two are alike (cosine .85): together they hold the first place, and a the second
    assert detector.score(new) == pytest.approx([1 / 1.8, 1 / 1.8, 0.0])


def test_one_entry_at_the_head_of_several_queries_adds_up():
    queries = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.0, 0.1]]
    detector = CanaryDisplacementDetector(["q", "r", "s"], queries, k=2)
    known = Batch.of(ids=["a"], texts=[""], embeddings=[[0.7, 0.7, 0.0]])
    new = Batch.of(ids=["x"], texts=[""], embeddings=[[1.0, 0.0, 0.0]])
    assert detector.fit(known).score(new) == pytest.approx([3 / 1.8])


def test_a_lone_text_that_repeats_the_query_is_found():
    detector = CanaryDisplacementDetector(questions(), embed(questions()))
    detector.fit(knowledge())
    lone = poison(questions()[0], size=1)
    assert detector.score(lone)[0] > detector.default_threshold
    sentence = detector.explain(lone, [0])[0].sentence
    assert "at rank 1" in sentence
    assert "repeats 84% of a query" in sentence


def test_the_explanation_names_the_companions():
    detector = make().fit(KNOWN)
    evidence = detector.explain(crafted(), [0])[0]
    assert set(evidence.related_ids) == {"bad-1", "bad-2", "bad-3", "bad-4"}
    assert "together with 4 more of its batch" in evidence.sentence


def test_known_entries_displace_nothing():
    detector = make().fit(KNOWN)
    assert (detector.score(KNOWN) == 0.0).all()


@pytest.mark.slow
def test_heads_stay_bounded_and_correct_after_many_entries():
    detector = make().fit(joined(KNOWN, passages(6000, seed=9, prefix="more")))
    assert all(len(head) <= 70 for head in detector._heads)
    everything = joined(KNOWN, passages(6000, seed=9, prefix="more"))
    similarity = detector.vectors @ everything.embeddings.T
    best = np.sort(similarity, axis=1)[:, ::-1][:, : detector.k]
    np.testing.assert_allclose(detector._best(), best, atol=1e-6)
    parts = make()
    for start in range(0, len(everything), 500):
        parts.learn(everything.take(np.arange(start, min(start + 500, len(everything)))))
    np.testing.assert_allclose(parts._best(), best, atol=1e-6)


def test_forgetting_the_head_promotes_the_next_entries():
    detector = make().fit(KNOWN)
    similarity = detector.vectors @ KNOWN.embeddings.T
    gone = np.unique(np.argsort(-similarity, axis=1)[:, :3])
    detector.forget(KNOWN.take(gone))
    kept = np.setdiff1d(np.arange(len(KNOWN)), gone)
    best = np.sort(similarity[:, kept], axis=1)[:, ::-1][:, : detector.k]
    np.testing.assert_allclose(detector._best(), best, atol=1e-6)


def test_a_guard_holds_the_takeover():
    detector = CanaryDisplacementDetector(questions(), embed(questions()))
    guard = Guard([detector], quarantine=Quarantine("sqlite://")).fit(knowledge())
    report = guard.screen(joined(poison(questions()[3]), batch([("fine", "some other text")])))
    assert report.admitted.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("queries", "vectors", "k", "said"),
    [
        ([], [], 6, "queries is empty"),
        (["a"], [[1.0], [2.0]], 6, "shape"),
        (["a"], [[0.0, 0.0]], 6, "zero"),
        (["a"], [[1.0, 0.0]], 0, "k is 0"),
    ],
)
def test_invalid_arguments_are_refused(queries, vectors, k, said):
    with pytest.raises(ValueError, match=said):
        CanaryDisplacementDetector(queries, vectors, k=k)


@pytest.mark.slow
def test_only_texts_sharing_words_with_a_query_are_compared(monkeypatch):
    """In a knowledge base of one entry, every arrival displaces something for each query."""
    queries = [*questions(), "?", "of the of the of the"]
    detector = CanaryDisplacementDetector(queries, embed(queries)).fit(knowledge().take([0]))
    new = joined(knowledge(seed=1).take(range(1, 41)), poison(questions()[5]))
    compared, repeated = [], QueryEchoDetector.repeated

    def counting(self, retrieved):
        compared.append(retrieved.query)
        return repeated(self, retrieved)

    monkeypatch.setattr(QueryEchoDetector, "repeated", counting)
    scores = detector.score(new)
    assert len(compared) < len(new) * len(queries) / 10
    assert max(scores[-3:]) > max(scores[:40])
    # No echo is missed.
    monkeypatch.setattr(canary_displacement, "ECHO_FROM", 0.0)
    monkeypatch.setattr(canary_displacement, "ECHO_FULL", 1.0)
    shares = detector.score(new)  # plus the largest repeated share of any query
    echoes = [
        max(
            repeated(QueryEchoDetector(), RetrievedSet.of(query, new.take([row])))[0]
            for query in queries
        )
        for row in range(len(new))
    ]
    shares -= echoes
    above = np.maximum(0.0, np.array(echoes) - 0.6) / 0.2
    np.testing.assert_allclose(scores, shares + above)


@pytest.mark.parametrize("lineages", [["doc", "doc", "other"], [None, None, None]])
def test_chunks_of_a_document_are_held_out_together(lineages):
    detector = CanaryDisplacementDetector(["q"], [[1.0, 0.0]], k=3)
    known = Batch.of(
        ids=["a", "b", *(f"far{i}" for i in range(9)), "c"],
        texts=[""] * 12,
        embeddings=[[0.9, 0.44], [0.8, 0.6], *[[0.0, 1.0]] * 9, [0.7, 0.71]],
        lineages=[*lineages[:2], *[None] * 9, lineages[2]],
    )
    scores = detector.fit(known).held_out_scores(known, 0)
    weights = np.array([1.0, 0.8, 0.64]) / 2.44
    assert scores[[0, 1, 11]] == pytest.approx([*[weights[:2].sum()] * 2, weights[2]])
    assert not scores[2:11].any()
    # As they would score, had they come as one batch.
    rest = detector.fit(known.take(range(2, 12)))
    assert rest.score(known.take([0, 1])) == pytest.approx(scores[:2])
