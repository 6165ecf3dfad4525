"""Rates of detectors, estimated from reviewers' decisions."""

import numpy as np
import pytest
from support import Scripted, scored

from ragshield_core import Guard
from ragshield_core.tools.review.feedback import reviewed


@pytest.mark.slow
def test_rates_are_told_by_detector_and_source_with_their_intervals(any_url):
    guard = Guard.open(any_url, detectors=[Scripted()], fpr=0.05)
    guard.fit(scored(np.linspace(0.0, 1.0, 1000).tolist(), prefix="k")).calibrate()
    scores = np.concatenate([np.linspace(0.0, 0.5, 960), np.linspace(1.1, 2.0, 40)]).tolist()
    sources = ["mails"] * 960 + ["wiki"] * 40
    report = guard.hold(guard.screen(scored(scores, prefix="n", lineages=sources)))
    held = [decision.entry_id for decision in report.quarantined]
    quarantine = guard.quarantine
    quarantine.release(held[:20], by="anna")
    quarantine.confirm(held[20:30], by="anna")
    feedback = reviewed(quarantine, guard)
    (judged,) = feedback.by_detector
    assert (judged.name, judged.held, judged.released, judged.confirmed, judged.waiting) == (
        *("scripted", 40, 20, 10, 10),
    )
    assert judged.screened == 1000
    assert judged.precision.mean == pytest.approx(1 / 3)
    assert judged.precision.low < 1 / 3 < judged.precision.high
    # Two thirds of the reviewed entries are clean; the same share of waiting ones is assumed.
    assert judged.fpr.mean == pytest.approx((20 + 20 / 3) / (1000 - 10 - 10 / 3))
    assert judged.fpr.low < 20 / 980
    assert judged.fpr.high > 30 / 990
    assert [one.name for one in feedback.by_source] == ["wiki"]
    assert reviewed(quarantine).by_detector[0].fpr is None
