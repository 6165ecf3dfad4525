"""The label model: learning, refitting, and held-out scores without leaks."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support import gaussian, join, knowledge_base, topical

from ragshield_core import Batch
from ragshield_core.detectors.label import model as label_model
from ragshield_core.detectors.label.model import LabelModelDetector
from ragshield_core.model.errors import NotFittedError


def rings(n, seed, prefix="r"):
    """Return entries that no line separates: one label lies around the other."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 8)) * 0.05
    outer = rng.random(n) < 0.5
    angle = rng.uniform(0, 2 * np.pi, n)
    vectors[:, 0] += 1.0
    vectors[:, 1] += np.where(outer, np.cos(angle), 0.0)
    vectors[:, 2] += np.where(outer, np.sin(angle), 0.0)
    return Batch.of(
        ids=[f"{prefix}{seed}-{i}" for i in range(n)],
        texts=[""] * n,
        embeddings=vectors,
        labels=["outer" if out else "inner" for out in outer],
    )


def swapped(batch):
    """Return a batch of two labels with every label replaced by the other."""
    first, second = sorted(set(batch.labels))
    return replace(batch, labels=tuple(second if one == first else first for one in batch.labels))


def test_model_separates_nonlinear_classes():
    detector = LabelModelDetector().fit(rings(400, 1))
    new = rings(200, 2, "new")
    assert (detector.score(new) < 0).mean() > 0.97
    assert (detector.score(swapped(new)) > 0).mean() > 0.97


def test_score_of_two_labels_changes_sign_with_the_label():
    detector = LabelModelDetector().fit(gaussian(300, 1))
    new = gaussian(100, 2)
    np.testing.assert_allclose(detector.score(swapped(new)), -detector.score(new), atol=1e-9)


@pytest.mark.slow
def test_probabilities_are_calibrated():
    known, new = gaussian(1_500, 1), gaussian(3_000, 2)
    scores = LabelModelDetector().fit(known).score(new)
    right = 1 / (1 + np.exp(scores))  # of the label that is there
    sure = np.maximum(right, 1 - right)
    for low, high in ((0.5, 0.7), (0.7, 0.9), (0.9, 1.0)):
        of_these = (sure >= low) & (sure < high)
        assert of_these.sum() > 100
        assert np.mean(right[of_these] > 0.5) == pytest.approx(sure[of_these].mean(), abs=0.06)


@pytest.mark.slow
def test_held_out_scores_are_distributed_like_those_of_new_entries():
    known, new = gaussian(1_500, 1), gaussian(3_000, 2)
    detector = LabelModelDetector().fit(known)
    held_out, fresh = detector.held_out_scores(known, 0), detector.score(new)
    for share in (0.5, 0.9, 0.95):
        assert np.mean(fresh > np.quantile(held_out, share)) == pytest.approx(1 - share, abs=0.02)


@pytest.mark.slow
def test_held_out_scores_do_not_know_the_entry():
    clean = gaussian(300, 1)
    row = int(LabelModelDetector().audit(clean).argmin())  # its label is beyond doubt
    labels = list(clean.labels)
    labels[row] = swapped(clean).labels[row]
    known = replace(clean, labels=tuple(labels))
    held_out = LabelModelDetector().fit(known).held_out_scores(known, 0)
    others = known.take([other for other in range(300) if other != row])
    score = LabelModelDetector().fit(others).score(known.take([row]))[0]
    assert held_out[row] == pytest.approx(score, rel=0.2)
    assert held_out[row] > 3.0


@pytest.mark.slow
def test_held_out_scores_after_a_restart_are_as_good():
    known = gaussian(600, 1)
    detector, again = LabelModelDetector().fit(known), LabelModelDetector()
    again.restore(*detector.state())
    first, second = detector.held_out_scores(known, 0), again.held_out_scores(known, 0)
    np.testing.assert_allclose(first, second, atol=0.05)


@pytest.mark.slow
def test_a_few_wrong_labels_in_the_knowledge_base_do_not_hide_new_ones():
    clean, new = gaussian(1_000, 1, spread=0.5), gaussian(200, 2, spread=0.5)
    labels = list(clean.labels)
    for row in range(0, 1_000, 20):
        labels[row] = swapped(clean).labels[row]
    dirty = replace(clean, labels=tuple(labels))
    detector = LabelModelDetector().fit(dirty)
    assert (detector.score(swapped(new)) > 0).mean() > 0.97
    wrong = np.arange(1_000) % 20 == 0
    audit = LabelModelDetector().audit(dirty)
    assert audit[wrong].min() > np.quantile(audit[~wrong], 0.95)


class CountedFits:
    """Records the sizes that the regression is fitted on."""

    def __init__(self, monkeypatch):
        self.sizes = []
        fit = label_model._regression

        def counted(features, *rest):
            self.sizes.append(len(features))
            return fit(features, *rest)

        monkeypatch.setattr(label_model, "_regression", counted)


@pytest.mark.slow
def test_model_refits_after_ten_percent_and_rebuilds_when_doubled(monkeypatch):
    known = gaussian(1_000, 1)
    detector = LabelModelDetector().fit(known)
    fits = CountedFits(monkeypatch)
    detector.learn(gaussian(100, 2, prefix="a"))
    assert fits.sizes == []
    detector.learn(gaussian(1, 3, prefix="b"))
    assert fits.sizes == [1_101]
    detector.forget(known.take(range(111)))
    assert fits.sizes == [1_101, 990]
    detector.learn(gaussian(1_010, 4, prefix="c"))
    assert fits.sizes[2] == 2_000
    assert len(fits.sizes) == 2 + 1 + 5
    detector.forget(gaussian(500, 99, prefix="never learned"))
    assert len(fits.sizes) == 8


def test_a_sample_bounds_the_work_and_keeps_rare_labels(monkeypatch):
    fits = CountedFits(monkeypatch)
    rare = topical("refunds", 6)
    monkeypatch.setattr(label_model, "MAX_ENTRIES", 100)
    detector = LabelModelDetector()
    detector.fit(join(topical("billing", 400), topical("shipping", 200), rare))
    assert 95 <= max(fits.sizes) <= 106
    assert not detector.unjudged(topical("refunds", 1, prefix="new"))


def test_a_new_label_is_not_judged_until_it_is_learned():
    detector = LabelModelDetector().fit(knowledge_base(100))
    detector.learn(topical("newcomer", 20))
    new = topical("newcomer", 2, prefix="n")
    reasons = detector.unjudged(new)
    assert reasons[0] == (
        "label 'newcomer' is new; the model is learned again when 31 more entries have come or gone"
    )
    assert np.isfinite(detector.score(topical("billing", 3, prefix="n"))).all()
    detector.learn(topical("newcomer", 31, prefix="more"))
    assert detector.unjudged(new) == {}
    assert (detector.score(new) < 0).all()
    assert (detector.score(topical("newcomer", 5, label="billing", prefix="f")) > 0).all()


def test_forgotten_label_is_neither_suggested_nor_judged():
    known = knowledge_base(30)
    detector = LabelModelDetector().fit(known)
    gone = [row for row, label in enumerate(known.labels) if label == "refunds"]
    detector.forget(known.take(gone))
    new = topical("refunds", 3, label="billing", prefix="new")
    sentence = detector.explain(new, [0])[0].sentence
    assert "'shipping'" in sentence
    assert "'refunds'" not in sentence
    assert "0 entries" in detector.unjudged(topical("refunds", 1, prefix="x"))[0]


def test_the_sentence_has_both_probabilities_and_the_votes():
    detector = LabelModelDetector().fit(knowledge_base(30))
    flipped = topical("billing", 1, label="refunds", prefix="flip")
    (evidence,) = detector.explain(flipped, [0])
    assert "(probability of 'refunds' 0.0" in evidence.sentence
    assert "of 'billing' 0.9" in evidence.sentence
    assert evidence.sentence.startswith(
        "it is labelled 'refunds', but reads like 'billing': "
        "of the 16 most similar labelled entries 0 are 'refunds' and 16 'billing'"
    )
    assert len(evidence.related_ids) == 5


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(label_model, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"ragshield\[labels\]"):
        LabelModelDetector()


def test_judging_needs_no_scikit_learn(monkeypatch):
    known, new = knowledge_base(12), knowledge_base(2, prefix="new")
    state = LabelModelDetector().fit(known).state()
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    again = LabelModelDetector()
    again.restore(*state)
    assert (again.score(new) < 0).all()


def test_single_label_is_not_judged():
    detector = LabelModelDetector()
    with pytest.raises(NotFittedError):
        detector.score(topical("billing", 1))
    detector.fit(topical("billing", 30))
    assert "two are needed" in detector.unjudged(topical("billing", 1, prefix="new"))[0]
    assert np.isnan(detector.held_out_scores(topical("billing", 30), 0)).all()


LEARN = """
import hashlib
import numpy as np
from ragshield_core import Batch
from ragshield_core.detectors import LabelModelDetector

rng = np.random.default_rng(0)
codes = rng.integers(6, size=1_200)
vectors = rng.normal(size=(6, 384))[codes] + 3 * rng.normal(size=(1_200, 384))
known = Batch.of(
    ids=[str(i) for i in range(1_200)],
    texts=[""] * 1_200,
    embeddings=vectors,
    labels=[f"label {code}" for code in codes],
)
detector = LabelModelDetector().fit(known.take(np.arange(1_000)))
detector.learn(known.take(np.arange(1_000, 1_150)))
again = LabelModelDetector()
again.restore(*detector.state())
scores = [
    *again.score(known.take(np.arange(1_150, 1_200))),
    *detector.held_out_scores(known.take(np.arange(1_150)), 0),
]
print(hashlib.sha256(np.round(scores, 9).tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_learned_model_does_not_depend_on_the_thread_count():
    said = []
    for n in ("1", "2"):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), n)
        command = [sys.executable, "-c", LEARN]
        run = subprocess.run(
            command, env=os.environ | threads, capture_output=True, text=True, check=True
        )
        said.append(run.stdout)
    assert said[0] == said[1] != ""
