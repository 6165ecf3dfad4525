"""What is asked of every detector of the registry, in all its configurations."""

import io
import json
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from support import TOPICS, group, join, knowledge_base, passages, snapshot, topical

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, Detector, LabelCentroidDetector, Need, Scope
from ragshield_core.detectors.registry import BUILT_IN, detector_class
from ragshield_core.errors import NotFittedError, StateError

KNOWN = knowledge_base(12)
CLEAN = knowledge_base(6, prefix="clean")
SWAPPED = dict(zip(TOPICS, TOPICS[1:] + TOPICS[:1], strict=True))
FLIPPED = join(*(topical(t, 4, label=SWAPPED[t], prefix="flip") for t in TOPICS))

NOTHING = Batch.of(ids=[], texts=[], embeddings=[])


class Case(NamedTuple):
    """A configuration, a knowledge base and clean entries to try it on, and poison it must see."""

    make: Callable[[], Detector]
    poison: Batch = FLIPPED
    known: Batch = KNOWN
    clean: Batch = CLEAN


# Without labels, and enough of them to know what is usual.
GROUPS = (join(group(5, 1), group(3, 2)), passages(300, 2), passages(20, 2, "clean"))
CASES = {
    "label_centroid.entry": Case(LabelCentroidDetector),
    "label_centroid.batch": Case(lambda: LabelCentroidDetector(level="batch")),
    "label_centroid.min_entries": Case(lambda: LabelCentroidDetector(min_entries=12)),
    "clique.groups": Case(CliqueDetector, *GROUPS),
    "clique.trusted": Case(lambda: CliqueDetector(trusted_lineages=["a"], min_entries=50), *GROUPS),
    "clique.approximate": Case(lambda: CliqueDetector(exact_up_to=0), *GROUPS),
    "clique.cleanbase": Case(lambda: CliqueDetector(rule="cleanbase", alpha=2.0), *GROUPS),
}
every_detector = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_no_built_in_detector_is_missing_here():
    assert {case.make().kind for case in CASES.values()} == set(BUILT_IN)
    assert all(detector_class(kind) is found for kind, found in BUILT_IN.items())


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(StateError, match=r"'astrology'.*label_centroid"):
        detector_class("astrology")


@every_detector
def test_score_ignores_the_rest_of_the_batch_at_entry_scope(case):
    detector = case.make().fit(case.known)
    batch = join(case.clean, case.poison)
    together = detector.score(batch)
    alone = np.concatenate([detector.score(batch.take([row])) for row in range(len(batch))])
    if detector.scope is Scope.ENTRY:
        np.testing.assert_allclose(alone, together, atol=1e-12)
    else:
        assert np.abs(alone - together).max() > 1e-3


@every_detector
def test_scores_are_one_finite_float64_per_entry(case):
    detector = case.make().fit(case.known)
    for batch in (case.clean, case.poison, case.clean.take([0])):
        scores = detector.score(batch)
        assert scores.shape == (len(batch),)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


@every_detector
@pytest.mark.parametrize(
    "empty", [lambda batch: batch.take([]), lambda _: NOTHING], ids=["dim", "no dim"]
)
def test_an_empty_batch_has_no_scores_and_teaches_nothing(case, empty):
    detector, empty = case.make().fit(case.known), empty(case.known)
    before = snapshot(detector)
    assert detector.score(empty).shape == (0,)
    assert detector.explain(empty, []) == []
    assert detector.unjudged(empty) == {}
    detector.learn(empty)
    detector.forget(empty)
    assert snapshot(detector) == before


@every_detector
def test_judging_changes_no_state(case):
    detector = case.make().fit(case.known)
    before, vectors = snapshot(detector), case.poison.embeddings.copy()
    first = detector.score(case.poison)
    detector.unjudged(case.poison)
    detector.explain(case.poison, range(len(case.poison)))
    detector.judged_scores(case.clean)
    assert snapshot(detector) == before
    np.testing.assert_array_equal(case.poison.embeddings, vectors)
    np.testing.assert_array_equal(detector.score(case.poison), first)


@every_detector
def test_held_out_scores_come_from_a_model_without_the_entry_and_leave_it_as_it_was(case):
    detector = case.make().fit(case.known)
    known = detector.score(case.poison)
    held_out = detector.held_out_scores(case.known, seed=3)
    np.testing.assert_array_equal(held_out, detector.held_out_scores(case.known, seed=3))
    np.testing.assert_allclose(detector.score(case.poison), known, atol=1e-12)
    if detector.exchangeable and detector.config().get("min_entries", 0) < 12:
        # Own entries pull the model towards themselves, so they look cleaner to it than they are.
        assert held_out.shape == (len(case.known),)
        assert held_out.mean() > detector.score(case.known).mean()


@every_detector
def test_planted_poison_ranks_above_clean_entries(case):
    detector = case.make().fit(case.known)
    assert detector.score(case.poison).min() > detector.score(case.clean).max()
    assert (
        detector.score(case.poison).min()
        > detector.rule_threshold
        >= detector.score(case.clean).max()
    )


@every_detector
def test_every_finding_says_why_with_a_number_and_what_it_is_called(case, quarantine):
    detector = case.make()
    report = Guard([detector], quarantine=quarantine).fit(case.known).screen(case.poison)
    assert len(report.quarantined) == len(case.poison)
    for decision in report.decisions:
        (finding,) = decision.findings
        assert re.search(r"\d\.\d", finding.evidence)
        assert "AML.T0070" in finding.taxonomy
        assert finding.detector == detector.name
        assert finding.score > finding.threshold


@every_detector
def test_an_unfitted_detector_refuses_to_score(case):
    with pytest.raises(NotFittedError):
        case.make().score(case.poison)


@every_detector
def test_entries_without_what_it_needs_are_not_judged(case):
    detector = case.make().fit(case.known)
    bare = Batch.of(ids=case.poison.ids, texts=case.poison.texts, embeddings=case.poison.vectors)
    if Need.LABEL in detector.needs:
        assert set(detector.unjudged(bare)) == set(range(len(bare)))
        assert "label" in detector.skip_reason(bare)
    assert detector.skip_reason(case.poison) is None


@every_detector
def test_state_survives_json_and_npz_without_pickle(case):
    detector = case.make().fit(case.known)
    values, arrays = detector.state()
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    again = case.make()
    with np.load(file, allow_pickle=False) as loaded:
        again.restore(json.loads(json.dumps(values)), dict(loaded))
    for batch in (case.clean, case.poison):
        np.testing.assert_array_equal(again.score(batch), detector.score(batch))
    again.learn(case.poison)
    detector.learn(case.poison)
    np.testing.assert_array_equal(again.score(case.clean), detector.score(case.clean))


@every_detector
def test_restored_state_is_not_shared(case):
    detector, again = case.make().fit(case.known), case.make()
    again.restore(*detector.state())
    before, content = detector.score(case.clean), snapshot(detector)
    again.learn(case.poison)
    again.forget(case.known.take([len(case.known) - 1, len(case.known) // 2]))
    np.testing.assert_array_equal(detector.score(case.clean), before)
    assert snapshot(detector) == content


@every_detector
def test_config_is_json_and_builds_the_same_detector(case):
    detector = case.make()
    again = type(detector)(**json.loads(json.dumps(detector.config())))
    assert (again.name, again.scope, again.config()) == (
        detector.name,
        detector.scope,
        detector.config(),
    )
    np.testing.assert_array_equal(
        again.fit(case.known).score(case.poison), detector.fit(case.known).score(case.poison)
    )


@every_detector
def test_fit_replaces_what_was_known(case):
    detector = case.make().fit(case.poison).fit(case.known)
    np.testing.assert_array_equal(
        detector.score(case.clean), case.make().fit(case.known).score(case.clean)
    )


@every_detector
def test_a_guard_that_screens_changes_nothing(case, tmp_path):
    quarantine = Quarantine("sqlite://")
    guard = Guard([case.make()], quarantine=quarantine).fit(case.known)
    guard.save(tmp_path / "before")
    guard.screen(case.poison)
    guard.save(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes()
    assert quarantine.count(None) == 0
