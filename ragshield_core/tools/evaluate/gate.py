"""Bounds on figures (``recall.poisonedrag=.9``), and comparison of figures with a baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.figures import Evaluation, Rate

# Figures that bounds apply to: high is good for the first, low for the others. Each attack has two
# of them to itself.
FIGURES, OF_ATTACKS = ("recall", "fpr", "reached", "lost"), ("recall", "reached")
# Settings that change the meaning of every figure. Seeds and numbers of targets only change the
# draw, and a stream is as long as the corpus allows.
COMPARED = ("fpr", "top_k", "embedder")


def read_bounds(texts: Iterable[str]) -> dict[str, float]:
    """Parse bounds from the command line; return them by figure.

    Raises
    ------
    SourceError
        If a bound is not of that form.

    Examples
    --------
    >>> read_bounds(["recall.PoisonedRAG=.9", "fpr=.02"])
    {'recall.poisonedrag': 0.9, 'fpr': 0.02}
    """
    bounds = {}
    for text in texts:
        what, _, number = text.partition("=")
        figure, dot, attack = what.strip().partition(".")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        named = bool(attack) == bool(dot) and (not attack or figure in OF_ATTACKS)
        if figure not in FIGURES or not named or not 0.0 <= value <= 1.0:
            forms = [*FIGURES, *(f"{each}.ATTACK" for each in OF_ATTACKS)]
            msg = (
                f"--bound is {printable(text)!r}, expected one of: "
                f"{'; '.join(f'{form}=SHARE' for form in forms)}, a share in [0, 1] each."
            )
            raise SourceError(msg)
        bounds[f"{figure}{dot}{key_of(attack)}"] = value
    return bounds


def key_of(attack: str) -> str:
    """Return the name of an attack in the form that bounds use.

    Examples
    --------
    >>> key_of("PoisonedRAG, question in front")
    'poisonedrag-question-in-front'
    """
    return re.sub(r"[\W_]+", "-", attack.lower()).strip("-")


def check_bounds(
    bounds: Mapping[str, float], recalls: Sequence[str], reached: Sequence[str]
) -> None:
    """Refuse bounds for figures that are not measured: they would check nothing."""
    measured = {"recall": recalls, "reached": reached}
    for what, value in bounds.items():
        figure = what.partition(".")[0]
        names = measured.get(figure)
        if names is not None and not any(_is_for(what, figure, name) for name in names):
            known = "; ".join(printable(key_of(name)) for name in names) or "none at all"
            msg = (
                f"{what} is not measured, so that it cannot be held to {value:g}; expected one of "
                f"these, or how they begin: {known}."
            )
            raise SourceError(msg)


def check_comparable(settings: Mapping[str, Any], baseline: Evaluation) -> None:
    """Refuse a baseline that differs in a setting that changes the meaning of figures.

    Settings that either of the two lacks are not compared.
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
    bounds: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the figures that are worse than the baseline or a bound, a sentence each.

    Parameters
    ----------
    now
        The new figures.
    baseline
        Earlier figures. A recall is worse if it is below the earlier interval. A rate of false
        positives, of questions that poison reaches, or of questions that miss a clean entry is
        worse if it is above that. A figure that is no longer measured is worse, too.
    bounds
        Limits besides the baseline, such as ``{"recall.poisonedrag": 0.9}``: minima of recalls,
        maxima of ``"fpr"``, ``"reached"`` and ``"lost"``. If several match an attack, the longest
        name counts. Recall means the main recall of each attack
        (:attr:`~ragshield_core.tools.evaluate.Evaluation.main_recalls`).

    Raises
    ------
    SourceError
        If the baseline was measured with other settings (:func:`check_comparable`), or a bound is
        for a figure that was not measured.
    """
    bounds = bounds or {}
    check_bounds(
        bounds, [r.attack for r in now.main_recalls], [each.attack for each in now.reached]
    )
    worse, rates = [], _rates(now)
    if baseline is not None:
        check_comparable(now.settings, baseline)
        for what, (figure, _, before, _) in _rates(baseline).items():
            rate = rates[what].rate if what in rates else Rate(0, 0)
            if not rate.n:
                worse.append(f"{what}: not measured, {before} before")
            elif rate.share < before.low if figure == "recall" else rate.share > before.high:
                worse.append(f"{what}: {rate}, {before} before")
    for what, each in rates.items():
        fit = [key for key in bounds if each.counts and _is_for(key, each.figure, each.attack)]
        if fit:
            bound, least = bounds[max(fit, key=len)], each.figure == "recall"
            if each.rate.share < bound if least else each.rate.share > bound:
                limit = "least" if least else "most"
                worse.append(f"{what}: {each.rate}, at {limit} {bound:g} is asked for")
    return worse


def _is_for(bound: str, figure: str, attack: str) -> bool:
    """Return whether a bound is for the figure of an attack, by the beginning of its name."""
    return f"{figure}.{key_of(attack)}-".startswith((f"{bound}.", f"{bound}-"))


class _Figure(NamedTuple):
    """A rate with its kind and its attack, and whether bounds apply to it."""

    figure: str
    attack: str
    rate: Rate
    counts: bool = True


def _rates(figures: Evaluation) -> dict[str, _Figure]:
    """Return each rate by its description."""
    rates = {
        f"{r.attack}, {r.regime}, {r.size} of a target": _Figure(
            "recall", r.attack, r.held, r in figures.main_recalls
        )
        for r in figures.recalls
    }
    for regime, rate in figures.false_positives.items():
        rates[f"clean entries held, {regime}"] = _Figure("fpr", "", rate)
    for each in figures.reached:
        rates[f"questions that {each.attack} reaches"] = _Figure("reached", each.attack, each.after)
    rates["questions about clean entries that miss one"] = _Figure("lost", "", figures.lost)
    return rates
