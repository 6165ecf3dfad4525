"""Votes of the nearest known entries, with scikit-learn's k-NN classifier as the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from support import gaussian, join, knowledge_base, topical

from ragshield_core import Batch
from ragshield_core.detectors.base import judged_scores
from ragshield_core.detectors.label.neighbors import DOUBT, WIDTHS, LabelNeighborDetector
from ragshield_core.model.errors import InvalidBatchError, NotFittedError

votes = pytest.mark.parametrize("vote", ["majority", "distance", "threshold"])


def three_labels(n, seed, prefix="g"):
    return gaussian(n, seed, labels=("a", "b", "c"), prefix=prefix)


@pytest.mark.parametrize("k", [1, 5, 16])
@votes
def test_the_vote_goes_where_that_of_scikit_learn_goes(vote, k):
    known, new = three_labels(300, 1), three_labels(200, 2)
    detector = LabelNeighborDetector(vote=vote, k=k, min_similarity=0.2).fit(known)
    weights = {
        "majority": "uniform",
        "distance": lambda d: np.exp(-d * WIDTHS / detector.state()[0]["usual"]),
        "threshold": lambda d: np.where(d <= 0.8, 1.0, 1e-9),
    }[vote]
    oracle = KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute")
    oracle.fit(known.embeddings, known.labels)
    shares = oracle.predict_proba(new.embeddings)
    own = np.searchsorted(oracle.classes_, new.labels)
    rows = np.arange(len(new))
    mine = shares[rows, own]
    shares[rows, own] = -1.0
    others = shares.max(axis=1)
    unjudged = detector.unjudged(new)
    scores = judged_scores(detector, new)
    clear = np.abs(others - mine) > 1e-6  # of ties, scikit-learn takes the first label
    if vote == "distance":  # neighbours that are all far away leave it to how frequent labels are
        total = weights(oracle.kneighbors(new.embeddings)[0]).sum(axis=1)
        clear &= np.abs(others - mine) * total > DOUBT * np.exp(-WIDTHS)
    clear[list(unjudged)] = False
    assert clear.sum() > 100
    np.testing.assert_array_equal(scores[clear] > 0, (others > mine)[clear])
    if vote == "majority":  # the number of heads can be read off the score
        share = known.labels.count("a") / 300
        only = (mine > 0.999) & (np.array(new.labels) == "a")
        expected = -np.log(k + DOUBT * share)
        assert (scores[only] < expected + np.log(DOUBT) + 0.1).all()


def test_an_exact_score_by_hand():
    known = Batch.of(
        ids=["a1", "a2", "b1", "c1"],
        texts=[""] * 4,
        labels=["a", "a", "b", "c"],
        embeddings=[[1, 0, 0], [0.6, 0.8, 0], [0, 1, 0], [0, 0, 1]],
    )
    new = Batch.of(ids=["x"], texts=[""], labels=["b"], embeddings=[[1, 0, 0]])
    detector = LabelNeighborDetector(vote="majority", k=3, min_entries=1).fit(known)
    # Neighbours: a1 (cosine 1), a2 (.6), and one of b1 and c1 (0): the first by name is b1.
    votes_for_a = 1 + 0.25 / 3 + 1 + 0.25 * 0.6 / 3 + DOUBT * 2 / 4
    expected = np.log(votes_for_a) - np.log(1 + DOUBT / 4)
    assert detector.score(new) == pytest.approx([expected])
    (evidence,) = detector.explain(new, [0])
    assert evidence.sentence == (
        "it is labelled 'b', but of the 3 most similar labelled entries 1 are, and 2 are 'a' "
        "(similarity up to 1.000)"
    )
    assert evidence.related_ids == ("a1", "a2")


@votes
def test_among_equal_counts_nearer_neighbours_convince_more(vote):
    known = knowledge_base(20)
    detector = LabelNeighborDetector(vote=vote, k=5).fit(known)
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


def test_held_out_is_as_if_the_entry_had_never_been_learned():
    known = gaussian(80, 4)
    for vote in ("majority", "distance"):
        detector = LabelNeighborDetector(vote=vote).fit(known)
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
    detector = LabelNeighborDetector(vote="majority", k=5).fit(known)
    revised = replace(known.take([0]), labels=("refunds",))
    detector.learn(revised)
    fresh = LabelNeighborDetector(vote="majority", k=5).fit(
        join(revised, known.take(range(1, len(known))))
    )
    new = knowledge_base(8, prefix="new")
    np.testing.assert_allclose(detector.score(new), fresh.score(new))


def test_entries_without_a_label_cast_no_vote():
    known = knowledge_base(8)
    bare = topical("billing", 30, prefix="bare", labels=[None] * 30)
    detector = LabelNeighborDetector(vote="majority", k=100).fit(join(known, bare))
    alone = LabelNeighborDetector(vote="majority", k=100).fit(known)
    flipped = topical("billing", 3, label="refunds", prefix="new")
    np.testing.assert_allclose(detector.score(flipped), alone.score(flipped))


def test_what_cannot_be_judged_is_named_with_the_reason():
    known = join(knowledge_base(8), topical("rare", 4))
    detector = LabelNeighborDetector(vote="threshold", min_similarity=0.99).fit(known)
    new = Batch.of(
        ids=["none", "rare", "unknown", "far"],
        texts=[""] * 4,
        embeddings=np.eye(4, 12) - 0.5,
        labels=[None, "rare", "unheard", "billing"],
    )
    assert detector.unjudged(new) == {
        0: "it has no label",
        1: "label 'rare' has 4 entries in the knowledge base, 5 are needed",
        2: "label 'unheard' has 0 entries in the knowledge base, 5 are needed",
        3: "no labelled entry among its 16 neighbours has a cosine of 0.99 or more",
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
        ({"vote": "loudest"}, "'loudest'.*majority"),
        ({"k": 0}, "k is 0"),
        ({"min_entries": 0}, "min_entries is 0"),
        ({"min_similarity": 1.5}, "cosine"),
    ],
)
def test_a_wrong_parameter_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        LabelNeighborDetector(**wrong)


def test_unlabelled_knowledge_is_no_knowledge():
    bare = Batch.of(ids=["a"], texts=[""], embeddings=[[1.0, 0.0]])
    labelled = Batch.of(ids=["b"], texts=[""], embeddings=[[1.0, 0.0]], labels=["x"])
    with pytest.raises(NotFittedError):
        LabelNeighborDetector().fit(bare).score(labelled)
