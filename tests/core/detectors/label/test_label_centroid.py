"""Label centroids against a naive oracle; learning and forgetting."""

import numpy as np
import pytest
from support import join, knowledge_base, topical

from ragshield_core import Batch
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.model.errors import InvalidBatchError

LEVELS = pytest.mark.parametrize("level", ["entry", "batch"])


def random_batch(seed, n, n_labels, *, dim=6, unlabelled=0.0, prefix="r"):
    rng = np.random.default_rng(seed)
    labels = [f"label{code}" for code in rng.integers(n_labels, size=n)]
    missing = rng.random(n) < unlabelled
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[""] * n,
        embeddings=rng.normal(loc=0.3, size=(n, dim)),
        labels=[None if gone else label for gone, label in zip(missing, labels, strict=True)],
    )


def unit(vector):
    return vector / np.linalg.norm(vector)


def oracle(reference, batch, level, min_entries):
    """Return scores by the definition, entry by entry; None where there is no opinion."""

    def centroids(entries, at_least):
        rows = {}
        for entry in entries:
            if entry.label is not None:
                rows.setdefault(entry.label, []).append(unit(entry.embedding.astype(float)))
        return {label: unit(sum(v)) for label, v in rows.items() if len(v) >= at_least}

    known, own = centroids(reference, min_entries), centroids(batch, 1)
    scores = []
    for entry in batch:
        if entry.label not in known or len(known) < 2:
            scores.append(None)
            continue
        vector = unit(entry.embedding.astype(float)) if level == "entry" else own[entry.label]
        others = [vector @ c for label, c in known.items() if label != entry.label]
        scores.append(max(others) - vector @ known[entry.label])
    return scores


@LEVELS
@pytest.mark.parametrize("n_labels", [1, 2, 3, 10])
@pytest.mark.parametrize("min_entries", [1, 4])
def test_scores_are_those_of_the_definition(level, n_labels, min_entries):
    reference = random_batch(n_labels, 50, n_labels, unlabelled=0.2)
    batch = random_batch(100 + n_labels, 30, n_labels + 1, unlabelled=0.2, prefix="new")
    detector = LabelCentroidDetector(level=level, min_entries=min_entries).fit(reference)
    expected = oracle(reference, batch, level, min_entries)
    unjudged = detector.unjudged(batch)
    assert sorted(unjudged) == [row for row, score in enumerate(expected) if score is None]
    judged = [row for row in range(len(batch)) if row not in unjudged]
    assert bool(judged) == (n_labels > 1)
    if judged:
        scores = detector.score(batch.take(judged))
        np.testing.assert_allclose(scores, [expected[row] for row in judged], atol=1e-6)


def test_a_label_that_was_forgotten_altogether_leaves_nothing_behind():
    detector = LabelCentroidDetector().fit(knowledge_base(8))
    detector.forget(topical("refunds", 8))
    reason = detector.unjudged(topical("refunds", 1, prefix="new"))[0]
    assert "has 0 entries" in reason
    anew = topical("billing", 8, label="refunds", prefix="anew")
    detector.learn(anew)
    expected = LabelCentroidDetector().fit(join(knowledge_base(8).take(range(16)), anew))
    batch = knowledge_base(2, prefix="new")
    np.testing.assert_allclose(detector.score(batch), expected.score(batch), atol=1e-12)


def test_entries_are_forgotten_only_as_often_as_they_were_learned():
    detector = LabelCentroidDetector().fit(knowledge_base(5))
    batch = knowledge_base(2, prefix="new")
    before = detector.score(batch)
    detector.forget(topical("billing", 6))
    detector.forget(topical("billing", 1, label="never"))
    np.testing.assert_array_equal(detector.score(batch), before)


def test_forgetting_skips_unknown_entries_of_the_same_batch():
    detector, other = (LabelCentroidDetector().fit(knowledge_base(9)) for _ in range(2))
    batch = knowledge_base(2, prefix="new")
    other.forget(topical("billing", 2))
    detector.forget(join(topical("billing", 2), topical("refunds", 1, label="never", prefix="x")))
    np.testing.assert_allclose(detector.score(batch), other.score(batch))


@LEVELS
def test_unjudged_entries_are_named_with_the_reason(level):
    detector = LabelCentroidDetector(level=level, min_entries=5)
    detector.fit(join(knowledge_base(5).take(range(10)), topical("refunds", 4)))
    batch = join(
        topical("billing", 1, prefix="fine"),
        topical("refunds", 1, prefix="few"),
        topical("billing", 1, prefix="unknown", label="espionage"),
        topical("billing", 1, prefix="missing", labels=[None]),
    )
    reasons = detector.unjudged(batch)
    assert sorted(reasons) == [1, 2, 3]
    assert "'refunds' has 4 entries" in reasons[1]
    assert "5 are needed" in reasons[1]
    assert "'espionage' has 0 entries" in reasons[2]
    assert "no label" in reasons[3]
    for row, words in [(1, "few-refunds-0"), (2, "unknown-billing-0"), (3, "missing-billing-0")]:
        with pytest.raises(InvalidBatchError, match=words):
            detector.score(batch.take([0, row]))
    assert detector.score(batch.take([0])) < 0


def test_single_label_is_not_judged():
    detector = LabelCentroidDetector().fit(topical("billing", 9))
    reasons = detector.unjudged(topical("billing", 2, prefix="new"))
    assert sorted(reasons) == [0, 1]
    assert "two are needed" in reasons[0]


def test_vectors_that_cancel_out_have_no_centroid():
    axes = [[1.0, 0], [-1, 0], [0, 1], [0, 1], [1, 1], [1, 1]]
    labels = ["opposed", "opposed", "up", "up", "slant", "slant"]
    reference = Batch.of(ids=list("abcdef"), texts=[""] * 6, embeddings=axes, labels=labels)
    detector = LabelCentroidDetector(min_entries=2).fit(reference)
    assert "cancel out" in detector.unjudged(reference)[0]
    assert sorted(detector.unjudged(reference)) == [0, 1]
    assert np.isfinite(detector.score(reference.take(range(2, 6)))).all()


def test_a_batch_whose_vectors_cancel_out_is_not_condemned():
    detector = LabelCentroidDetector(level="batch").fit(knowledge_base(5))
    pair = topical("shipping", 1, label="billing", prefix="new").vectors[0]
    opposed = Batch.of(
        ids=["a", "b"], texts=["", ""], embeddings=[pair, -pair], labels=["billing", "billing"]
    )
    np.testing.assert_allclose(detector.score(opposed), 0.0, atol=1e-9)


def test_batch_level_condemns_a_label_as_a_whole_and_says_so():
    detector = LabelCentroidDetector(level="batch").fit(knowledge_base(10))
    batch = join(
        topical("shipping", 3, label="billing", prefix="bad"),
        topical("billing", 1, prefix="good"),
        topical("refunds", 4, prefix="good"),
    )
    scores = detector.score(batch)
    assert len(set(scores[:4].round(12))) == 1
    assert (scores[:4] > 0).all()
    assert (scores[4:] < 0).all()
    sentence = detector.explain(batch, [3])[0].sentence
    assert "judged together, not this one alone" in sentence
    assert "all 4 entries labelled 'billing'" in sentence
    assert "closer to the average entry of 'shipping'" in sentence


def test_entry_level_evidence_names_the_labels_and_both_cosines():
    detector = LabelCentroidDetector().fit(knowledge_base(10))
    batch = join(
        topical("billing", 2, prefix="good"), topical("shipping", 1, label="billing", prefix="bad")
    )
    sentence = detector.explain(batch, [2])[0].sentence
    score = detector.score(batch)[2]
    assert "judged together" not in sentence
    assert sentence.startswith("it is labelled 'billing'")
    assert "'shipping'" in sentence
    other, own = (
        float(part) for part in sentence.rstrip(")").partition("similarity ")[2].split(", ")
    )
    assert other - own == pytest.approx(score, abs=2e-3)


@pytest.mark.parametrize("wrong", [{"level": "label"}, {"min_entries": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LabelCentroidDetector(**wrong)
