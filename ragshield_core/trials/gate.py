"""Whether figures have become worse than those of an earlier report."""

from __future__ import annotations

from ragshield_core.trials.figures import Evaluation


def worse_than(
    now: Evaluation,
    baseline: Evaluation | None = None,
    *,
    recall: float | None = None,
    fpr: float | None = None,
) -> list[str]:
    """Return what is worse than it was, or than it may be: a sentence each.

    Parameters
    ----------
    now
        The figures in question.
    baseline
        Earlier ones: a recall is worse if it is below the earlier one's interval, a rate of false
        positives if it is above it, and an attack that is no longer measured is.
    recall
        Every recall of a text alone or in a stream is at least so much; those of batches flatter.
    fpr
        Every rate of false positives is at most so much.
    """
    worse = []
    found = {(r.attack, r.regime): r.held for r in now.recalls}
    for before in baseline.recalls if baseline else ():
        held = found.get((before.attack, before.regime))
        what = f"{before.attack}, {before.regime}"
        if held is None or not held.n:
            worse.append(f"{what}: not measured, {before.held} before")
        elif held.share < before.held.low:
            worse.append(f"{what}: recall {held}, {before.held} before")
    for regime, rate in baseline.false_positives.items() if baseline else ():
        later = now.false_positives.get(regime)
        if later is None or later.share > rate.high:
            worse.append(f"clean entries, {regime}: {later} held, {rate} before")
    for (attack, regime), held in found.items():
        if recall is not None and regime != "batch" and held.share < recall:
            worse.append(f"{attack}, {regime}: recall {held}, at least {recall:g} is asked for")
    for regime, rate in now.false_positives.items():
        if fpr is not None and rate.share > fpr:
            worse.append(f"clean entries, {regime}: {rate} held, at most {fpr:g} is asked for")
    return worse
