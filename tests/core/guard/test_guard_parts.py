"""The parts of a guard: wrong types are refused, and saving loses none of them."""

import pytest
from support import Scripted, entries, guard_of, knowledge_base, loaded, saved

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import InstructionDetector, LabelCentroidDetector
from ragshield_core.model.errors import CalibrationError, InvalidBatchError, StateError

KNOWN = knowledge_base(20)


@pytest.mark.parametrize(
    ("detectors", "options", "said"),
    [
        ([LabelCentroidDetector], {}, r"detectors\[0\] is the class LabelCentroidDetector, .*\(\)"),
        (LabelCentroidDetector(), {}, "detectors is a LabelCentroidDetector, expected a list"),
        ("clique", {}, "detectors is a str, expected a list"),
        ([Scripted(), "clique"], {}, r"detectors\[1\] is a str, expected a detector"),
        ([Scripted()], {"quarantine": "sqlite://"}, r"a str, expected a Quarantine: Quarantine\("),
        ([Scripted()], {"quarantine": Quarantine}, "the class Quarantine, expected a Quarantine"),
        ([Scripted()], {"policy": 0.01}, "policy is a float, expected a Policy"),
    ],
)
def test_wrong_types_are_refused_at_once(detectors, options, said):
    with pytest.raises(TypeError, match=said):
        Guard(detectors, **options)


def test_a_detector_that_is_not_registered_is_refused_by_save_unless_it_is_promised(tmp_path):
    guard = guard_of(Scripted(), LabelCentroidDetector()).fit(KNOWN)
    with pytest.raises(StateError, match=r"Scripted is not registered.*detectors=\[Scripted\]"):
        guard.save(tmp_path)
    assert not list(tmp_path.iterdir())
    guard.save(tmp_path, detectors=[Scripted])
    with pytest.raises(StateError, match="no detector of kind 'scripted'"):
        loaded(tmp_path)
    assert loaded(tmp_path, detectors=[Scripted]).detectors[0].learned == len(KNOWN)
    mine = Scripted()
    assert loaded(tmp_path, detectors=[mine]).detectors[0] is mine
    assert mine.learned == len(KNOWN)


def test_detector_without_a_saved_counterpart_is_refused(tmp_path):
    guard_of(LabelCentroidDetector(min_entries=3)).fit(KNOWN).save(tmp_path)
    for other in (Scripted(), LabelCentroidDetector(min_entries=4)):
        with pytest.raises(StateError, match=f"one of kind '{other.name}'"):
            loaded(tmp_path, detectors=[other])
    with pytest.raises(TypeError, match=r"detectors\[0\] is a str"):
        loaded(tmp_path, detectors=["label_centroid"])


def test_subclass_is_not_loaded_as_its_base_class(tmp_path):
    class Mine(LabelCentroidDetector):
        pass

    guard = guard_of(Mine()).fit(KNOWN)
    with pytest.raises(StateError, match="Mine is not registered"):
        guard.save(tmp_path)
    guard.save(tmp_path, detectors=[Mine])
    assert type(loaded(tmp_path, detectors=[Mine]).detectors[0]) is Mine


def test_a_classifier_is_not_dropped_by_a_saved_guard(tmp_path):
    detector = InstructionDetector(classifier=lambda texts: [0.9] * len(texts), classify="all")
    guard = guard_of(detector).fit(KNOWN)
    with pytest.raises(StateError, match="the classifier of detector 'instruction'"):
        guard.save(tmp_path)
    with pytest.raises(StateError, match="the classifier"):
        guard.save(tmp_path, detectors=[InstructionDetector])
    guard.save(tmp_path, detectors=[detector])
    for options in ({}, {"detectors": [InstructionDetector]}):
        with pytest.raises(StateError, match=r"the classifier of a detector .* was not saved"):
            loaded(tmp_path, **options)
    again = loaded(tmp_path, detectors=[detector])
    assert again.detectors[0].classifier is detector.classifier
    report = again.screen(knowledge_base(1, prefix="new"))
    assert all(decision.findings for decision in report.decisions)


def test_a_guard_that_was_saved_without_a_classifier_opens_with_none(tmp_path):
    guard_of(InstructionDetector()).fit(KNOWN).save(tmp_path)
    detector = InstructionDetector(classifier=lambda texts: [0.9] * len(texts))
    assert loaded(tmp_path).detectors[0].classifier is None
    with pytest.raises(StateError, match="saved with none in its detector"):
        loaded(tmp_path, detectors=[detector])


def test_a_guard_shows_itself_in_one_line_without_texts():
    guard = guard_of(Scripted(), LabelCentroidDetector(min_entries=3)).fit(KNOWN)
    assert repr(guard) == (
        f"<Guard {len(KNOWN)} entries known, not calibrated: scripted, label_centroid; "
        "Quarantine('sqlite://', namespace='default')>"
    )
    guard.calibrate(fpr=0.1)
    assert ", calibrated: " in repr(guard)


def test_a_held_entry_shows_itself_without_text_and_vector():
    guard = guard_of(Scripted()).fit(KNOWN)
    batch = knowledge_base(1, prefix="x\x1b[2J").take([0])
    guard.quarantine.hold(batch, by="anna")
    (held,) = guard.quarantine.list()
    shown = repr(held)
    assert shown.startswith("<HeldEntry 'x\\\\u{1b}[2J")
    assert shown.endswith(": held, found by hand>")
    assert batch.texts[0] not in shown
    assert len(shown) < 150


def test_failed_fit_or_calibration_leaves_the_guard_unchanged(tmp_path):
    guard = guard_of(LabelCentroidDetector(min_entries=3)).fit(KNOWN).calibrate(fpr=0.1)
    before = saved(guard, tmp_path / "before")
    with pytest.raises(CalibrationError, match="pass at least"):
        guard.calibrate(knowledge_base(2, prefix="clean"), fpr=0.01)
    with pytest.raises(InvalidBatchError, match="has no vector"):
        guard.fit(entries(["hi"], embeddings=None))
    assert saved(guard, tmp_path / "after") == before
