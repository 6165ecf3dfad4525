"""Whether figures have become worse than those of an earlier report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragshield_core.errors import SourceError
from ragshield_core.trials.figures import Evaluation

# Settings that give every figure another meaning. Seeds and numbers of targets only draw others,
# and a stream is as long as the corpus allows.
COMPARED = ("fpr", "top_k", "embedder")


def check_comparable(settings: Mapping[str, Any], baseline: Evaluation) -> None:
    """Refuse a baseline that was measured otherwise.

    Parameters
    ----------
    settings
        Of the later evaluation, as :class:`~ragshield_core.trials.Evaluation` has them; those that
        one of the two does not name are not compared.
    baseline
        The earlier one.

    Raises
    ------
    SourceError
        If they differ in a setting that gives figures another meaning.
    """
    for name in COMPARED:
        now, before = settings.get(name), baseline.settings.get(name)
        if now is not None and before is not None and now != before:
            msg = (
                f"the baseline was measured with {name} {before!r}, this evaluation has {now!r}: "
                "their figures mean different things; use the same, or write a new baseline."
            )
            raise SourceError(msg)


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

    Raises
    ------
    SourceError
        If the baseline was measured with other settings (:func:`check_comparable`).
    """
    worse = [] if baseline is None else _since(now, baseline)
    for r in now.recalls:
        if recall is not None and r.regime != "batch" and r.held.share < recall:
            what = f"{r.attack}, {r.regime}"
            worse.append(f"{what}: recall {r.held}, at least {recall:g} is asked for")
    for regime, rate in now.false_positives.items():
        if fpr is not None and rate.share > fpr:
            worse.append(f"clean entries, {regime}: {rate} held, at most {fpr:g} is asked for")
    return worse


def _since(now: Evaluation, baseline: Evaluation) -> list[str]:
    """Return what has left its interval for the worse, or is not measured any more."""
    check_comparable(now.settings, baseline)
    worse = []
    found = {(r.attack, r.regime): r.held for r in now.recalls}
    for before in baseline.recalls:
        held = found.get((before.attack, before.regime))
        what = f"{before.attack}, {before.regime}"
        if held is None or not held.n:
            worse.append(f"{what}: not measured, {before.held} before")
        elif held.share < before.held.low:
            worse.append(f"{what}: recall {held}, {before.held} before")
    for regime, rate in baseline.false_positives.items():
        later = now.false_positives.get(regime)
        if later is None or not later.n:
            worse.append(f"clean entries, {regime}: not measured, {rate} before")
        elif later.share > rate.high:
            worse.append(f"clean entries, {regime}: {later} held, {rate} before")
    return worse
