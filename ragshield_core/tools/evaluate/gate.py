"""Whether figures have become worse than those of an earlier report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragshield_core.errors import SourceError
from ragshield_core.tools.evaluate.bounds import Bound, broken, check_bounds
from ragshield_core.tools.evaluate.figures import Evaluation

# Settings that give every figure another meaning. Seeds and numbers of targets only draw others,
# and a stream is as long as the corpus allows.
COMPARED = ("fpr", "top_k", "embedder", "wordings")


def check_comparable(settings: Mapping[str, Any], baseline: Evaluation) -> None:
    """Refuse a baseline that was measured otherwise.

    Parameters
    ----------
    settings
        Of the later evaluation, as :class:`~ragshield_core.tools.evaluate.Evaluation` has them;
        those that one of the two does not name are not compared.
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
    now: Evaluation, baseline: Evaluation | None = None, bounds: Sequence[Bound] = ()
) -> list[str]:
    """Return what is worse than it was, or than it may be: a sentence each.

    Parameters
    ----------
    now
        The figures in question.
    baseline
        Earlier ones. A recall is worse if it is below the earlier one's interval, a rate of false
        positives, of questions that poison reaches and of those that miss a clean entry if it is
        above it; so is what is no longer measured. Time is left out: it differs from one run to
        the next.
    bounds
        What figures may be, whatever they were: :func:`~ragshield_core.tools.evaluate.at_least` and
        :func:`~ragshield_core.tools.evaluate.at_most`. Recalls are those that count of each attack
        (:attr:`~ragshield_core.tools.evaluate.Evaluation.main_recalls`).

    Raises
    ------
    SourceError
        If the baseline was measured with other settings (:func:`check_comparable`), or a bound is
        for what was not measured.
    """
    recalls = [r.attack for r in now.main_recalls]
    reached = [each.attack for each in now.reached]
    check_bounds(bounds, recalls, reached, baseline=baseline is not None)
    worse = [] if baseline is None else list(_since(now, baseline))
    return [*worse, *broken(now, bounds, baseline)]


def _since(now: Evaluation, baseline: Evaluation) -> Iterator[str]:
    """Yield what has left its interval for the worse, or is not measured any more."""
    check_comparable(now.settings, baseline)
    recalls = {(r.attack, r.regime, r.size): r.held for r in now.recalls}
    for r in baseline.recalls:
        held = recalls.get((r.attack, r.regime, r.size))
        what = f"{r.attack}, {r.regime}, {r.size} of a target"
        if held is None or not held.n:
            yield f"{what}: not measured, {r.held} before"
        elif held.share < r.held.low:
            yield f"{what}: recall {held}, {r.held} before"
    rates = [
        (f"clean entries held, {regime}", now.false_positives.get(regime), rate)
        for regime, rate in baseline.false_positives.items()
    ]
    reached = {each.attack: each.after for each in now.reached}
    rates += [
        (f"questions that {each.attack} reaches", reached.get(each.attack), each.after)
        for each in baseline.reached
    ]
    rates.append(("questions about clean entries that miss one", now.lost, baseline.lost))
    for what, later, rate in rates:
        if later is None or not later.n:
            yield f"{what}: not measured, {rate} before"
        elif later.share > rate.high:
            yield f"{what}: {later}, {rate} before"
