"""A flood of held entries neither hides later attacks nor makes clean entries suspicious."""

from unittest.mock import patch

import numpy as np
import pytest
from support import Scripted, group, guard_of, passages

from ragshield_core.detectors import CliqueDetector, TriggerPhraseDetector

KNOWN = passages(300, 1)


def held_of(guard, batch):
    report = guard.hold(guard.screen(batch))
    guard.admit(report)
    return {decision.entry_id for decision in report.quarantined}


@pytest.mark.slow
def test_a_detector_remembers_the_held_entries_that_it_accused_itself():
    clique, phrase, bad = CliqueDetector(), TriggerPhraseDetector(), group(5, 3)
    guard = guard_of(Scripted(), clique, phrase, quarantine_at=0.05)
    guard.fit(KNOWN).calibrate()
    with (
        patch.object(clique, "remember_held", wraps=clique.remember_held) as hold,
        patch.object(phrase, "remember_held") as other,
    ):
        assert held_of(guard, bad) == set(bad.ids)
    assert [call.args[0].ids for call in hold.call_args_list] == [bad.ids]
    other.assert_not_called()


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
