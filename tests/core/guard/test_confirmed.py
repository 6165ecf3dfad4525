"""Every group detector remembers the entries that a person confirmed as poisoned."""

from unittest.mock import patch

import pytest
from support import group, guard_of, loaded, passages, saved, snapshot, write

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, TriggerPhraseDetector
from ragshield_core.model.errors import QuarantineError
from ragshield_core.quarantine.log import AuditLog

RATE = 0.05
KNOWN = passages(300, 1)
BAD = group(3, 3)
FIRST, THEN = BAD.take([0]), BAD.take([1, 2])
BY = {"by": "anna"}


def calibrated(quarantine=None):
    guard = guard_of(CliqueDetector(), quarantine=quarantine, quarantine_at=RATE)
    return guard.fit(KNOWN).calibrate()


def held_by_hand(guard, batch):
    """Hold entries that no detector accuses."""
    guard.quarantine.hold(batch, **BY)
    return guard


def score(guard, batch):
    return guard.screen(batch).scores["clique"]


@pytest.mark.slow
def test_companions_of_a_confirmed_entry_become_suspicious():
    guard = held_by_hand(calibrated(), FIRST)
    before = score(guard, THEN.take([0]))
    assert write(held_by_hand(calibrated(), FIRST), THEN.take([0])).admitted.all()
    guard.quarantine.confirm(FIRST.ids, **BY)
    assert (score(guard, THEN.take([0])) > before).all()
    assert not write(guard, THEN.take([0])).admitted.any()


def test_a_phrase_that_another_detector_found_is_known_once_it_is_confirmed():
    phrase = TriggerPhraseDetector()
    guard = guard_of(phrase)
    guard.fit(passages(300, 1))
    held_by_hand(guard, FIRST)
    with patch.object(phrase, "remember_held", wraps=phrase.remember_held) as told:
        guard.screen(passages(1, 2, "new"))
        assert not told.called
        guard.quarantine.confirm(FIRST.ids, **BY)
        guard.screen(passages(1, 2, "new"))
    assert told.call_args.args[0].ids == FIRST.ids


@pytest.mark.slow
def test_detector_learns_each_confirmation_once_and_after_reopening_again():
    guard = held_by_hand(calibrated(), BAD)
    (clique,) = guard.detectors
    with patch.object(clique, "remember_held", wraps=clique.remember_held) as hold:
        guard.quarantine.confirm(FIRST.ids, **BY)
        for _ in range(2):
            guard.screen(passages(1, 2, "new"))
        guard.quarantine.confirm(THEN.ids, **BY)
        guard.screen(passages(1, 2, "new"))
        told = [call.args[0].ids for call in hold.call_args_list]
        assert told == [FIRST.ids, THEN.ids]
        guard.quarantine.reopen(FIRST.ids, **BY)
        guard.screen(passages(1, 2, "new"))
        guard.quarantine.confirm(FIRST.ids, **BY)
        guard.screen(passages(1, 2, "new"))
        assert [call.args[0].ids for call in hold.call_args_list] == [*told, FIRST.ids]


@pytest.mark.slow
def test_saved_guard_remembers_confirmed_entries(tmp_path):
    guard = held_by_hand(calibrated(), FIRST)
    guard.quarantine.confirm(FIRST.ids, **BY)
    scores = score(guard, THEN.take([0]))
    saved(guard, tmp_path)
    assert score(loaded(tmp_path), THEN.take([0])) == scores  # without its quarantine
    same = loaded(tmp_path, quarantine=guard.quarantine)
    with patch.object(same.detectors[0], "remember_held") as hold:
        assert score(same, THEN.take([0])) == scores
    hold.assert_not_called()


@pytest.mark.slow
def test_refitted_guard_relearns_confirmed_entries():
    guard = held_by_hand(calibrated(), FIRST)
    guard.quarantine.confirm(FIRST.ids, **BY)
    scores = score(guard, THEN.take([0]))
    guard.fit(KNOWN).calibrate()
    assert score(guard, THEN.take([0])) == scores


@pytest.mark.slow
def test_confirmation_reaches_every_process_of_a_guard(url):
    one, other = (Guard.open(url, detectors=[CliqueDetector()], fpr=RATE) for _ in range(2))
    one.fit(KNOWN).calibrate()
    held_by_hand(one, FIRST)
    other.screen(THEN)
    Quarantine(url).confirm(FIRST.ids, **BY)  # as a review page does
    one.screen(THEN)
    other.screen(THEN)
    position = one.status().position
    assert other.status().position == position  # one has told the other
    assert snapshot(one.detectors[0]) == snapshot(other.detectors[0])
    assert one.state.knowledge.confirmed == other.state.knowledge.confirmed
    assert list(one.state.knowledge.confirmed) == list(FIRST.ids)
    late = Guard.open(url, detectors=[CliqueDetector()])
    late.screen(THEN)
    assert late.status().position == position


def test_confirmed_entries_without_a_vector_or_with_another_are_passed_over():
    guard = calibrated()
    bare = Batch.of(ids=["bare"], texts=["no vector"], embeddings=None)
    other = Batch.of(ids=["other"], texts=["short"], embeddings=[[1.0, 0.0]])
    for batch in (bare, other, FIRST):
        held_by_hand(guard, batch)
        guard.quarantine.confirm(batch.ids, **BY)
    guard.screen(THEN)
    assert set(guard.state.knowledge.confirmed) == {"bare", *FIRST.ids}


def test_unavailable_quarantine_does_not_stop_screening(caplog):
    guard = held_by_hand(calibrated(), FIRST)
    guard.screen(THEN)
    guard.quarantine.confirm(FIRST.ids, **BY)
    away = patch.object(AuditLog, "changed_since", side_effect=QuarantineError("away"))
    with away:
        guard.screen(THEN)
    assert "hear of no new confirmation" in caplog.text


@pytest.mark.slow
def test_many_confirmations_are_told_in_parts():
    guard = calibrated()
    many = passages(300, 9, "bad")
    held_by_hand(guard, many)
    guard.quarantine.confirm(many.ids, **BY)
    guard.screen(THEN)
    assert len(guard.state.knowledge.confirmed) == 300
