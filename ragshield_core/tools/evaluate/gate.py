"""Whether figures are worse than those of a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.figures import Evaluation, Rate

# Settings that give every figure another meaning. Seeds and numbers of targets only draw others,
# and a stream is as long as the corpus allows.
COMPARED = ("fpr", "top_k", "embedder")


def check_comparable(settings: Mapping[str, Any], baseline: Evaluation) -> None:
    """Refuse a baseline that differs in a setting that gives figures another meaning.

    Settings that one of the two does not name are not compared.
    """
    for name in COMPARED:
        now, before = settings.get(name), baseline.settings.get(name)
        if now is not None and before is not None and now != before:
            msg = (
                f"the baseline was measured with {name} {before!r}, this evaluation has {now!r}: "
                "their figures mean different things; use the same, or write a new baseline."
            )
            raise SourceError(msg)


def worse_than(now: Evaluation, baseline: Evaluation) -> list[str]:
    """Return what is worse than it was: a sentence each.

    Parameters
    ----------
    now
        The figures in question.
    baseline
        Earlier ones. A recall is worse if it is below the earlier one's interval, a rate of false
        positives, of questions that poison reaches and of those that miss a clean entry if it is
        above it; so is what is no longer measured.

    Raises
    ------
    SourceError
        If the baseline was measured with other settings.
    """
    check_comparable(now.settings, baseline)
    worse, rates = [], _rates(now)
    for what, (more_is_better, before) in _rates(baseline).items():
        _, rate = rates.get(what, (more_is_better, Rate(0, 0)))
        if not rate.n:
            worse.append(f"{what}: not measured, {before} before")
        elif rate.share < before.low if more_is_better else rate.share > before.high:
            worse.append(f"{what}: {rate}, {before} before")
    return worse


def _rates(figures: Evaluation) -> dict[str, tuple[bool, Rate]]:
    """Return each rate by what it is of, and whether more of it is better."""
    rates = {
        f"{r.attack}, {r.regime}, {r.size} of a target": (True, r.held) for r in figures.recalls
    }
    for regime, rate in figures.false_positives.items():
        rates[f"clean entries held, {regime}"] = (False, rate)
    for each in figures.reached:
        rates[f"questions that {each.attack} reaches"] = (False, each.after)
    rates["questions about clean entries that miss one"] = (False, figures.lost)
    return rates
