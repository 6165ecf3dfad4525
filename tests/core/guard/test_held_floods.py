"""A flood of held entries neither hides later attacks nor makes clean entries suspicious."""

from unittest.mock import patch

import numpy as np
import pytest
from support import Scripted, group, guard_of, passages, scored

from ragshield_core.detectors import CliqueDetector, TriggerPhraseDetector

KNOWN = passages(300, 1)


def held_of(guard, batch):
    report = guard.hold(guard.screen(batch))
    guard.admit(report)
    return {decision.entry_id for decision in report.quarantined}


def test_a_detector_remembers_the_held_entries_that_it_accused_itself():
    clique = CliqueDetector()
    guard = guard_of(Scripted(), clique, quarantine_at=0.05)
    guard.fit(KNOWN).calibrate()
    bad = group(5, 3)
    with patch.object(clique, "remember_held", wraps=clique.remember_held) as hold:
        assert held_of(guard, bad) == set(bad.ids)
    (entries,) = (call.args[0] for call in hold.call_args_list)
    assert entries.ids == bad.ids


def test_a_detector_hears_of_no_held_entry_that_only_others_accused():
    phrase = TriggerPhraseDetector()
    guard = guard_of(Scripted(), phrase)
    guard.fit(scored([0.0] * 5))
    with patch.object(phrase, "remember_held") as hold:
        assert held_of(guard, scored([5.0, 5.0], prefix="bad"))
    hold.assert_not_called()


@pytest.mark.slow
def test_a_group_is_found_behind_a_flood_of_other_held_groups():
    found = []
    for flood in (0, 40):
        guard = guard_of(CliqueDetector(), quarantine_at=0.05)
        guard.fit(KNOWN).calibrate()
        for seed in range(flood):
            held_of(guard, group(5, 100 + seed, "flood"))
        found.append([])
        for seed in range(8):
            bad = group(5, seed)
            held = set()
            for row in range(5):
                held |= held_of(guard, bad.take([row]))
            found[-1].append(len(held))
    alone, behind = np.array(found)
    assert alone.sum() > 16
    assert behind.sum() >= alone.sum() - 2
