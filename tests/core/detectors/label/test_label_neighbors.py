"""Votes of the nearest known entries, with scikit-learn's k-NN classifier as the oracle."""

import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from support import gaussian, join, knowledge_base, topical

from ragshield_core import Batch
from ragshield_core.detectors.base import judged_scores
from ragshield_core.detectors.label.neighbors import DOUBT, WIDTHS, LabelNeighborDetector
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.neighbors.known import LabelledEntries


def three_labels(n, seed, prefix="g"):
    return gaussian(n, seed, labels=("a", "b", "c"), prefix=prefix)


@pytest.mark.parametrize("k", [1, 5, 16])
def test_vote_matches_scikit_learn(k):
    known, new = three_labels(300, 1), three_labels(200, 2)
    detector = LabelNeighborDetector(k=k).fit(known)
    usual = detector.state()[0]["usual"]

    def weights(distances):
        return np.exp(-distances * WIDTHS / usual)

    oracle = KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute")
    oracle.fit(known.embeddings, known.labels)
    shares = oracle.predict_proba(new.embeddings)
    own = np.searchsorted(oracle.classes_, new.labels)
    rows = np.arange(len(new))
    mine = shares[rows, own]
    shares[rows, own] = -1.0
    others = shares.max(axis=1)
    # Neighbours that are all far away leave it to how frequent labels are.
    total = weights(oracle.kneighbors(new.embeddings)[0]).sum(axis=1)
    clear = np.abs(others - mine) * total > DOUBT
    assert clear.sum() > 100
    np.testing.assert_array_equal(detector.score(new)[clear] > 0, (others > mine)[clear])


def test_an_exact_score_by_hand():
    known = Batch.of(
        ids=["a1", "a2", "b1", "c1"],
        texts=[""] * 4,
        labels=["a", "a", "b", "c"],
        embeddings=[[1, 0, 0], [0.6, 0.8, 0], [0, 1, 0], [0, 0, 1]],
    )
    new = Batch.of(ids=["x"], texts=[""], labels=["b"], embeddings=[[1, 0, 0]])
    detector = LabelNeighborDetector(k=3, min_entries=1).fit(known)
    usual = detector.state()[0]["usual"]
    # Neighbours: a1 (cosine 1), a2 (.6), and one of b1 and c1 (0): the first by name is b1.
    votes_for_a = 1 + math.exp(-0.4 * WIDTHS / usual) + DOUBT * 2 / 4
    votes_for_b = math.exp(-WIDTHS / usual) + DOUBT / 4
    expected = np.log(votes_for_a) - np.log(votes_for_b)
    assert detector.score(new) == pytest.approx([expected])
    (evidence,) = detector.explain(new, [0])
    assert evidence.sentence == (
        "it is labelled 'b', but of the 3 most similar labelled entries 1 are, and 2 are 'a' "
        "(similarity up to 1.000)"
    )
    assert evidence.related_ids == ("a1", "a2")


def test_nearer_neighbours_convince_more():
    known = knowledge_base(20)
    detector = LabelNeighborDetector(k=5).fit(known)
    near = known.take([0])
    rng = np.random.default_rng(0)
    far = near.embeddings + rng.normal(scale=0.15, size=near.embeddings.shape)
    pair = Batch.of(
        ids=["near", "far"],
        texts=["", ""],
        labels=["refunds"] * 2,
        embeddings=np.concatenate([near.embeddings, far]),
    )
    one, other = detector.score(pair)
    assert one > other > 0.0


def test_held_out_score_equals_the_score_without_the_entry():
    known = gaussian(80, 4)
    detector = LabelNeighborDetector().fit(known)
    held_out = detector.held_out_scores(known, 0)
    for row in (0, 17, 79):
        detector.forget(known.take([row]))
        assert detector.score(known.take([row]))[0] == pytest.approx(held_out[row])
        detector.learn(known.take([row]))


def test_an_older_revision_has_no_vote_on_the_new_one_but_on_others():
    known = knowledge_base(8)
    detector = LabelNeighborDetector(k=3).fit(known)
    again = known.take([0])
    assert detector.score(again) > detector.score(replace(again, ids=("new",)))


def test_a_label_that_changes_with_a_revision_counts_once():
    known = knowledge_base(8)
    detector = LabelNeighborDetector(k=5).fit(known)
    revised = replace(known.take([0]), labels=("refunds",))
    detector.learn(revised)
    fresh = LabelNeighborDetector(k=5).fit(join(revised, known.take(range(1, len(known)))))
    new = knowledge_base(8, prefix="new")
    np.testing.assert_allclose(detector.score(new), fresh.score(new))


def test_entries_without_a_label_cast_no_vote():
    known = knowledge_base(8)
    bare = topical("billing", 30, prefix="bare", labels=[None] * 30)
    detector = LabelNeighborDetector(k=100).fit(join(known, bare))
    (evidence,) = detector.explain(topical("billing", 1, label="refunds", prefix="new"), [0])
    assert "of the 24 most similar labelled entries 8 are, and 8 are" in evidence.sentence
    assert not any(name.startswith("bare") for name in evidence.related_ids)


def test_unjudged_entries_are_named_with_the_reason():
    known = join(knowledge_base(8), topical("rare", 4))
    detector = LabelNeighborDetector().fit(known)
    new = Batch.of(
        ids=["none", "rare", "unknown"],
        texts=[""] * 3,
        embeddings=np.eye(3, 12) - 0.5,
        labels=[None, "rare", "unheard"],
    )
    assert detector.unjudged(new) == {
        0: "it has no label",
        1: "label 'rare' has 4 entries in the knowledge base, 5 are needed",
        2: "label 'unheard' has 0 entries in the knowledge base, 5 are needed",
    }
    with pytest.raises(InvalidBatchError, match="'none' cannot be judged"):
        detector.score(new)
    assert np.isnan(judged_scores(detector, new)).all()
    lonely = LabelNeighborDetector().fit(topical("billing", 9))
    assert "two are needed" in lonely.unjudged(topical("billing", 1, prefix="x"))[0]


def test_hostile_labels_are_shown_escaped():
    known = join(topical("billing", 9, label="a\x1b[2J\u202e" + "x" * 500), topical("refunds", 9))
    detector = LabelNeighborDetector().fit(known)
    flipped = topical("billing", 1, label="refunds", prefix="new")
    sentence = detector.explain(flipped, [0])[0].sentence
    assert "\x1b" not in sentence
    assert "\u202e" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": 0}, "k is 0"),
        ({"min_entries": 0}, "min_entries is 0"),
    ],
)
def test_a_wrong_parameter_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        LabelNeighborDetector(**wrong)


def test_unlabelled_entries_do_not_count_as_known():
    bare = Batch.of(ids=["a"], texts=[""], embeddings=[[1.0, 0.0]])
    labelled = Batch.of(ids=["b"], texts=[""], embeddings=[[1.0, 0.0]], labels=["x"])
    with pytest.raises(NotFittedError):
        LabelNeighborDetector().fit(bare).score(labelled)


def test_no_distance_is_measured_before_there_are_labels(monkeypatch):
    measured = Mock(return_value=1.0)
    monkeypatch.setattr(LabelledEntries, "usual_distance", measured)
    vectors = np.eye(4)
    plain = Batch.of(ids=list("abcd"), texts=[""] * 4, embeddings=vectors)
    detector = LabelNeighborDetector(k=1, min_entries=1).fit(plain)
    detector.refresh(plain)
    assert not measured.called
    detector.learn(Batch.of(ids=["e"], texts=[""], labels=["spam"], embeddings=vectors[:1]))
    assert measured.called
