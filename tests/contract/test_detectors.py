"""What is asked of every detector of the registry, in all its configurations."""

import io
import json
import re

import numpy as np
import pytest
from support import TOPICS, join, knowledge_base, snapshot, topical

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector, Need, Scope
from ragshield_core.detectors.registry import BUILT_IN, detector_class
from ragshield_core.errors import NotFittedError, StateError

KNOWN = knowledge_base(12)
CLEAN = knowledge_base(6, prefix="clean")
SWAPPED = dict(zip(TOPICS, TOPICS[1:] + TOPICS[:1], strict=True))
FLIPPED = join(*(topical(t, 4, label=SWAPPED[t], prefix="flip") for t in TOPICS))

# One line per configuration: how to make it, and poison that it must see.
CASES = {
    "label_centroid.entry": (LabelCentroidDetector, FLIPPED),
    "label_centroid.batch": (lambda: LabelCentroidDetector(level="batch"), FLIPPED),
    "label_centroid.min_entries": (lambda: LabelCentroidDetector(min_entries=12), FLIPPED),
}
every_detector = pytest.mark.parametrize(("make", "poison"), CASES.values(), ids=CASES)


def test_no_built_in_detector_is_missing_here():
    assert {make().kind for make, _ in CASES.values()} == set(BUILT_IN)
    assert all(detector_class(kind) is found for kind, found in BUILT_IN.items())


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(StateError, match=r"'astrology'.*label_centroid"):
        detector_class("astrology")


@every_detector
def test_score_ignores_the_rest_of_the_batch_at_entry_scope(make, poison):
    detector = make().fit(KNOWN)
    batch = join(CLEAN, poison)
    together = detector.score(batch)
    alone = np.concatenate([detector.score(batch.take([row])) for row in range(len(batch))])
    if detector.scope is Scope.ENTRY:
        np.testing.assert_allclose(alone, together, atol=1e-12)
    else:
        assert np.abs(alone - together).max() > 1e-3


@every_detector
def test_scores_are_one_finite_float64_per_entry(make, poison):
    detector = make().fit(KNOWN)
    for batch in (CLEAN, poison, CLEAN.take([0])):
        scores = detector.score(batch)
        assert scores.shape == (len(batch),)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


@every_detector
@pytest.mark.parametrize(
    "empty", [CLEAN.take([]), Batch.of(ids=[], texts=[], embeddings=[])], ids=["dim", "no dim"]
)
def test_an_empty_batch_has_no_scores_and_teaches_nothing(make, poison, empty):  # noqa: ARG001
    detector = make().fit(KNOWN)
    before = snapshot(detector)
    assert detector.score(empty).shape == (0,)
    assert detector.explain(empty, []) == []
    assert detector.unjudged(empty) == {}
    detector.learn(empty)
    detector.forget(empty)
    assert snapshot(detector) == before


@every_detector
def test_judging_changes_no_state(make, poison):
    detector = make().fit(KNOWN)
    before, vectors = snapshot(detector), poison.embeddings.copy()
    first = detector.score(poison)
    detector.unjudged(poison)
    detector.explain(poison, range(len(poison)))
    detector.judged_scores(CLEAN)
    assert snapshot(detector) == before
    np.testing.assert_array_equal(poison.embeddings, vectors)
    np.testing.assert_array_equal(detector.score(poison), first)


@every_detector
def test_held_out_scores_come_from_a_model_without_the_entry_and_leave_it_as_it_was(make, poison):
    detector = make().fit(KNOWN)
    known = detector.score(poison)
    held_out = detector.held_out_scores(KNOWN, seed=3)
    np.testing.assert_array_equal(held_out, detector.held_out_scores(KNOWN, seed=3))
    np.testing.assert_allclose(detector.score(poison), known, atol=1e-12)
    if detector.exchangeable and detector.config().get("min_entries", 0) < 12:
        # Own entries pull the model towards themselves, so they look cleaner to it than they are.
        assert held_out.shape == (len(KNOWN),)
        assert held_out.mean() > detector.score(KNOWN).mean()


@every_detector
def test_planted_poison_ranks_above_clean_entries(make, poison):
    detector = make().fit(KNOWN)
    assert detector.score(poison).min() > detector.score(CLEAN).max()
    assert detector.score(poison).min() > detector.rule_threshold >= detector.score(CLEAN).max()


@every_detector
def test_every_finding_says_why_with_a_number_and_what_it_is_called(make, poison, quarantine):
    detector = make()
    report = Guard([detector], quarantine=quarantine).fit(KNOWN).screen(poison)
    assert len(report.quarantined) == len(poison)
    for decision in report.decisions:
        (finding,) = decision.findings
        assert re.search(r"\d\.\d", finding.evidence)
        assert "AML.T0070" in finding.taxonomy
        assert finding.detector == detector.name
        assert finding.score > finding.threshold


@every_detector
def test_an_unfitted_detector_refuses_to_score(make, poison):
    with pytest.raises(NotFittedError):
        make().score(poison)


@every_detector
def test_entries_without_what_it_needs_are_not_judged(make, poison):
    detector = make().fit(KNOWN)
    bare = Batch.of(ids=poison.ids, texts=poison.texts, embeddings=poison.vectors)
    if Need.LABEL in detector.needs:
        assert set(detector.unjudged(bare)) == set(range(len(bare)))
        assert "label" in detector.skip_reason(bare)
    assert detector.skip_reason(poison) is None


@every_detector
def test_state_survives_json_and_npz_without_pickle(make, poison):
    detector = make().fit(KNOWN)
    values, arrays = detector.state()
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    again = make()
    with np.load(file, allow_pickle=False) as loaded:
        again.restore(json.loads(json.dumps(values)), dict(loaded))
    for batch in (CLEAN, poison):
        np.testing.assert_array_equal(again.score(batch), detector.score(batch))
    again.learn(poison)
    detector.learn(poison)
    np.testing.assert_array_equal(again.score(CLEAN), detector.score(CLEAN))


@every_detector
def test_restored_state_is_not_shared(make, poison):
    detector, again = make().fit(KNOWN), make()
    again.restore(*detector.state())
    before = detector.score(CLEAN)
    again.learn(poison)
    np.testing.assert_array_equal(detector.score(CLEAN), before)


@every_detector
def test_config_is_json_and_builds_the_same_detector(make, poison):
    detector = make()
    again = type(detector)(**json.loads(json.dumps(detector.config())))
    assert (again.name, again.scope, again.config()) == (
        detector.name,
        detector.scope,
        detector.config(),
    )
    np.testing.assert_array_equal(again.fit(KNOWN).score(poison), detector.fit(KNOWN).score(poison))


@every_detector
def test_fit_replaces_what_was_known(make, poison):
    detector = make().fit(poison).fit(KNOWN)
    np.testing.assert_array_equal(detector.score(CLEAN), make().fit(KNOWN).score(CLEAN))


@every_detector
def test_a_guard_that_screens_changes_nothing(make, poison, tmp_path):
    quarantine = Quarantine("sqlite://")
    guard = Guard([make()], quarantine=quarantine).fit(KNOWN)
    guard.save(tmp_path / "before")
    guard.screen(poison)
    guard.save(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes()
    assert quarantine.count(None) == 0
