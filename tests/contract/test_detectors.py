"""The contract of every registered detector, in all its configurations."""

import re
from types import SimpleNamespace

import pytest
from cases import all_cases
from cases.entries import KNOWN
from support import Scripted, guard_of, loaded, saved

from ragshield_core.detectors import registry
from ragshield_core.detectors.registry import BUILT_IN, ON_REQUEST, detector_class, kind_of
from ragshield_core.model.errors import StateError
from ragshield_core.model.findings import BESIDE
from ragshield_core.testing import CHECKS

CASES = all_cases()
# Words that only the authors of the detectors know.
LABORATORY = re.compile(
    r"\b(?:bits|clique|cosine|centroid|lineages?|surprisal|edges)\b|known entries"
)
every_detector = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_no_detector_of_the_registry_is_missing_here():
    assert BUILT_IN.keys().isdisjoint(ON_REQUEST)
    registered = BUILT_IN | ON_REQUEST
    assert {kind_of(case.make()) for case in CASES.values()} == set(registered)
    assert all(detector_class(kind) is found for kind, found in registered.items())
    assert all(found.name == kind for kind, found in registered.items())


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(StateError, match=r"'astrology'.*label_centroid"):
        detector_class("astrology")


def test_a_saved_guard_finds_plug_ins_through_entry_points(tmp_path, monkeypatch):
    asked = []

    def points(*, group, name):
        asked.append((group, name))
        return [SimpleNamespace(load=lambda: Scripted)]

    monkeypatch.setattr(registry, "entry_points", points)
    guard_of(Scripted()).fit(KNOWN).save(tmp_path)
    again = loaded(tmp_path)
    assert set(asked) == {("ragshield.detectors", "scripted")}
    assert again.detectors[0].learned == len(KNOWN)


def test_an_entry_point_that_is_no_detector_is_not_taken(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda **_: [SimpleNamespace(load=lambda: dict)])
    with pytest.raises(StateError, match="'scripted'"):
        detector_class("scripted")


@every_detector
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.slow
def test_contract(case, check):
    check(case)


@every_detector
@pytest.mark.slow
def test_evidence_is_a_sentence_without_words_of_the_laboratory(case):
    report = guard_of(case.make()).fit(case.known).screen(case.poison)
    for finding in (finding for one in report.decisions for finding in one.findings):
        said = finding.evidence.removeprefix(f"{BESIDE}: ")
        assert re.match(r"(?:it|its|all|people|flooding:|by its meaning,|\d+ of the) ", said), said
        assert not LABORATORY.search(said), said


@every_detector
@pytest.mark.slow
def test_a_guard_that_screens_changes_nothing(case, tmp_path):
    guard = guard_of(case.make()).fit(case.known)
    before = saved(guard, tmp_path / "before")
    guard.screen(case.poison)
    assert saved(guard, tmp_path / "after") == before
    assert guard.quarantine.count(None) == 0
