"""What reviewers' decisions say of detectors, and what becomes of thresholds by them."""

import numpy as np
import pytest
from sqlalchemy import create_engine, text
from support import Scripted, scored

from ragshield_core import Guard, Quarantine
from ragshield_core.model.errors import CalibrationError, StalePreviewError
from ragshield_core.tools.review.feedback import apply, preview, reviewed

RATE = 0.05


def opened(url, n=2):
    return [Guard.open(url, detectors=[Scripted()], fpr=RATE) for _ in range(n)]


def screened(guard, n_high, n=1000, top=2.0):
    """Screen n entries, n_high of which score above all that is usual."""
    scores = np.concatenate([np.linspace(0.0, 0.5, n - n_high), np.linspace(1.1, top, n_high)])
    sources = ["wiki" if score > 1.0 else "mails" for score in scores]
    batch = scored(scores.tolist(), prefix="n", lineages=sources)
    return guard.hold(guard.screen(batch))


def fitted(guard):
    guard.fit(scored(np.linspace(0.0, 1.0, 1000).tolist(), prefix="k")).calibrate()
    return guard


@pytest.fixture
def guard(url):
    (guard,) = opened(url, 1)
    return fitted(guard)


def test_rates_are_told_by_detector_and_source_with_their_intervals(any_url):
    (guard,) = opened(any_url, 1)
    fitted(guard)
    held = [d.entry_id for d in screened(guard, 40).quarantined]
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
    # Two thirds of what was reviewed is clean, and so much of what waits.
    assert judged.fpr.mean == pytest.approx((20 + 20 / 3) / (1000 - 10 - 10 / 3))
    assert judged.fpr.low < 20 / 980
    assert judged.fpr.high > 30 / 990
    assert [one.name for one in feedback.by_source] == ["wiki"]
    assert reviewed(quarantine).by_detector[0].fpr is None


def test_what_keeps_the_accepted_rate_moves_no_threshold(guard):
    held = [d.entry_id for d in screened(guard, 40).quarantined]  # .04 of .05
    guard.quarantine.release(held, by="anna")
    seen = preview(guard, guard.quarantine)
    assert not seen.changes
    assert len(seen.released) == 40


def test_more_than_was_accepted_moves_thresholds_in_all_workers(any_url):
    one, other = opened(any_url)
    fitted(one)
    held = [d.entry_id for d in screened(one, 300).quarantined]
    quarantine = one.quarantine
    quarantine.release(held[:200], by="anna")
    quarantine.confirm(held[200:210], by="anna")
    before = dict(one.calibration.thresholds)
    seen = preview(one, quarantine)
    (moved,) = seen.detectors
    assert moved.then > moved.now == before["scripted"]
    assert seen.n_waiting == 90
    assert one.calibration.thresholds == before
    apply(seen, by="anna", note="a new source")
    other.writes.catch_up()
    assert (
        one.calibration.thresholds["scripted"]
        == other.calibration.thresholds["scripted"]
        == moved.then
    )
    line = quarantine.log.lines()[-1]
    assert (line.action, line.actor) == ("recalibrate", "anna")
    assert "a new source" in line.note
    (late,) = opened(any_url, 1)
    assert late.calibration.thresholds == one.calibration.thresholds
    assert quarantine.count() == 90  # they wait as before
    quarantine.log.verify()
    with pytest.raises(StalePreviewError):
        apply(seen, by="anna")
    for guard in (one, other, late):
        guard.close()


def test_a_preview_names_what_would_come_in_and_what_would_be_missed(guard):
    held = [d.entry_id for d in screened(guard, 300).quarantined]
    lowest, rest = held[:20], held[20:]
    guard.quarantine.confirm(lowest[:10], by="anna")
    guard.quarantine.release(rest, by="anna")
    seen = preview(guard, guard.quarantine)
    assert set(seen.let_in) == set(lowest[10:])
    assert set(seen.missed) == set(lowest[:10])
    assert seen.n_confirmed == 10


def test_a_stale_preview_is_refused(guard):
    held = [d.entry_id for d in screened(guard, 300).quarantined]
    guard.quarantine.release(held[:200], by="anna")
    seen, before = preview(guard, guard.quarantine), dict(guard.calibration.thresholds)
    guard.quarantine.confirm(held[200:201], by="bert")
    with pytest.raises(StalePreviewError, match="look at a new one"):
        apply(seen, by="anna")
    assert guard.calibration.thresholds == before
    assert "recalibrate" not in {line.action for line in guard.quarantine.log.lines()}


def test_a_release_by_sql_moves_nothing(guard, url):
    screened(guard, 300)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ragshield_quarantine SET status = 'released'"))
    engine.dispose()
    seen = preview(guard, guard.quarantine)
    assert not seen.changes
    assert (len(seen.released), seen.n_left_out) == (0, 300)


def test_a_guard_that_is_not_calibrated_has_no_preview():
    guard = Guard([Scripted()], quarantine=Quarantine("sqlite://"))
    with pytest.raises(CalibrationError, match="not calibrated"):
        preview(guard, guard.quarantine)
