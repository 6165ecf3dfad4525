"""Bounds on figures (``recall.poisonedrag=.9``), and whether figures are worse than a baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.figures import Evaluation, Rate

# Figures that bounds are for; more of the first is better, less of the others. Each attack has its
# own of two of them.
FIGURES, OF_ATTACKS = ("recall", "fpr", "reached", "lost"), ("recall", "reached")
# Settings that give every figure another meaning. Seeds and numbers of targets only draw others,
# and a stream is as long as the corpus allows.
COMPARED = ("fpr", "top_k", "embedder")


def read_bounds(texts: Iterable[str]) -> dict[str, float]:
    """Return bounds as people write them, by what they are for.

    Raises
    ------
    SourceError
        If one is not of that form.

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
    """Return the name of an attack as bounds have it.

    Examples
    --------
    >>> key_of("PoisonedRAG, question in front")
    'poisonedrag-question-in-front'
    """
    return re.sub(r"[\W_]+", "-", attack.lower()).strip("-")


def check_bounds(
    bounds: Mapping[str, float], recalls: Sequence[str], reached: Sequence[str]
) -> None:
    """Refuse bounds for attacks that have no such figure: they would hold nothing."""
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


def worse_than(
    now: Evaluation,
    baseline: Evaluation | None = None,
    bounds: Mapping[str, float] | None = None,
) -> list[str]:
    """Return what is worse than it was, or than it may be: a sentence each.

    Parameters
    ----------
    now
        The figures in question.
    baseline
        Earlier ones. A recall is worse if it is below the earlier one's interval, a rate of false
        positives, of questions that poison reaches and of those that miss a clean entry if it is
        above it; so is what is no longer measured.
    bounds
        What figures may be, whatever they were, such as ``{"recall.poisonedrag": 0.9}``: recalls at
        least so much, ``"fpr"``, ``"reached"`` and ``"lost"`` at most. Of several for an attack the
        longest name counts. Recalls are those that count of each attack
        (:attr:`~ragshield_core.tools.evaluate.Evaluation.main_recalls`).

    Raises
    ------
    SourceError
        If the baseline was measured with other settings (:func:`check_comparable`), or a bound is
        for what was not measured.
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
    """Return whether a bound is for the figure of an attack, by how its name begins."""
    return f"{figure}.{key_of(attack)}-".startswith((f"{bound}.", f"{bound}-"))


class _Figure(NamedTuple):
    """A rate, its kind, the attack that it is of, and whether bounds are for it."""

    figure: str
    attack: str
    rate: Rate
    counts: bool = True


def _rates(figures: Evaluation) -> dict[str, _Figure]:
    """Return each rate by what it is of."""
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
