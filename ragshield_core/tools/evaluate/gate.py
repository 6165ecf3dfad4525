"""Bounds on figures (``recall.poisonedrag=.9``), and whether figures are worse than a baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.figures import Evaluation, Rate

LEAST = ("recall",)
MOST = ("fpr", "reached", "lost", "time")
# Figures that each attack has its own of.
OF_ATTACKS = ("recall", "reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a figure may be.

    Attributes
    ----------
    figure
        ``"recall"``, which is at least so much; or one that is at most: ``"fpr"``, clean entries
        that are held; ``"reached"``, questions that poison reaches with the guard; ``"lost"``,
        questions about clean entries that miss one; ``"time"``, milliseconds for an entry, as a
        multiple of the baseline's.
    value
        A share, [0, 1]; of ``"time"`` a factor above 1.
    attack
        How the names of the attacks begin that it is for, in letters, digits and hyphens, such as
        ``"poisonedrag"``; empty for all.
    """

    figure: str
    value: float
    attack: str = ""

    def is_for(self, attack: str) -> bool:
        """Return whether an attack of that name is meant."""
        return not self.attack or f"{key_of(attack)}-".startswith(f"{self.attack}-")


def at_least(text: str) -> Bound:
    """Return a lower bound: ``"recall=.8"``, ``"recall.poisonedrag=.9"``, or ``".8"`` for short.

    Raises
    ------
    SourceError
        If it is not of that form.

    Examples
    --------
    >>> at_least("recall.poisonedrag=.9")
    Bound(figure='recall', value=0.9, attack='poisonedrag')
    """
    return _bound(text, LEAST, "--fail-below")


def at_most(text: str) -> Bound:
    """Return an upper bound: ``"fpr=.02"``, ``"reached.clones=.1"``, or ``".02"`` for short.

    Raises
    ------
    SourceError
        If it is not of that form.

    Examples
    --------
    >>> at_most(".02")
    Bound(figure='fpr', value=0.02, attack='')
    """
    return _bound(text, MOST, "--fail-above")


def key_of(attack: str) -> str:
    """Return the name of an attack as bounds have it.

    Examples
    --------
    >>> key_of("PoisonedRAG, question in front")
    'poisonedrag-question-in-front'
    """
    return re.sub(r"[\W_]+", "-", attack.lower()).strip("-")


def check_bounds(
    bounds: Sequence[Bound], recalls: Sequence[str], reached: Sequence[str], *, baseline: bool
) -> None:
    """Refuse bounds that hold nothing.

    Parameters
    ----------
    bounds
        What figures may be.
    recalls, reached
        Names of the attacks that have such figures.
    baseline
        Whether there is one.

    Raises
    ------
    SourceError
        If one is for an attack that is not measured, or for time without a baseline.
    """
    measured = {"recall": recalls, "reached": reached}
    for bound in bounds:
        names = measured.get(bound.figure)
        if names is not None and not any(map(bound.is_for, names)):
            known = "; ".join(printable(key_of(name)) for name in names) or "none at all"
            what = f"{bound.figure}.{bound.attack}".rstrip(".")
            msg = (
                f"{what} is not measured, so that it cannot be held to {bound.value:g}; expected "
                f"one of these, or how they begin: {known}."
            )
            raise SourceError(msg)
        if bound.figure == "time" and not baseline:
            msg = "--fail-above time=... is a multiple of an earlier time, expected --baseline too."
            raise SourceError(msg)


def _bound(text: str, figures: Sequence[str], option: str) -> Bound:
    what, equals, number = text.rpartition("=")
    figure, dot, attack = (what if equals else figures[0]).strip().partition(".")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    most = math.inf if figure == "time" else 1.0
    least = 1.0 if figure == "time" else 0.0
    named = bool(attack) == bool(dot) and (not attack or figure in OF_ATTACKS)
    if figure not in figures or not named or not least <= value <= most or math.isinf(value):
        share = [f"{each}=SHARE" for each in figures if each != "time"]
        share += [f"{each}.ATTACK=SHARE" for each in figures if each in OF_ATTACKS]
        share += ["time=FACTOR, 1 or more"] if "time" in figures else []
        msg = (
            f"{option} is {printable(text)!r}, expected a share in [0, 1] for {figures[0]}, or "
            f"one of: {'; '.join(share)}."
        )
        raise SourceError(msg)
    return Bound(figure=figure, value=value, attack=key_of(attack))


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
    return [*worse, *_broken(now, bounds, baseline)]


def _rates(figures: Evaluation) -> dict[str, tuple[Rate, bool]]:
    """Return each rate by what it is of, and whether more of it is better."""
    rates = {
        f"{r.attack}, {r.regime}, {r.size} of a target": (r.held, True) for r in figures.recalls
    }
    for regime, rate in figures.false_positives.items():
        rates[f"clean entries held, {regime}"] = rate, False
    for each in figures.reached:
        rates[f"questions that {each.attack} reaches"] = each.after, False
    rates["questions about clean entries that miss one"] = figures.lost, False
    return rates


def _since(now: Evaluation, baseline: Evaluation) -> Iterator[str]:
    """Yield what has left its interval for the worse, or is not measured any more."""
    check_comparable(now.settings, baseline)
    rates = _rates(now)
    for what, (before, more_is_better) in _rates(baseline).items():
        rate, _ = rates.get(what, (Rate(0, 0), more_is_better))
        if not rate.n:
            yield f"{what}: not measured, {before} before"
        elif more_is_better and rate.share < before.low:
            yield f"{what}: recall {rate}, {before} before"
        elif not more_is_better and rate.share > before.high:
            yield f"{what}: {rate}, {before} before"


def _measured(now: Evaluation, before: Evaluation | None) -> Iterator[tuple[str, str, float, str]]:
    """Yield each figure that has bounds: its kind, its attack, its value, and a sentence."""
    for r in now.main_recalls:
        yield "recall", r.attack, r.held.share, f"{r.attack}, {r.regime}: recall {r.held}"
    for each in now.reached:
        said = f"{each.attack}: reaches {each.after} of its questions"
        yield "reached", each.attack, each.after.share, said
    for regime, rate in now.false_positives.items():
        yield "fpr", "", rate.share, f"clean entries, {regime}: {rate} held"
    yield "lost", "", now.lost.share, f"questions about clean entries: {now.lost} miss one"
    if before is not None:
        said = f"time: {now.milliseconds:.2f} ms an entry, {before.milliseconds:.2f} before"
        yield "time", "", now.milliseconds / before.milliseconds, said


def _broken(now: Evaluation, bounds: Sequence[Bound], before: Evaluation | None) -> Iterator[str]:
    """Yield a sentence for each figure beyond its bound; of several the narrowest one counts."""
    for figure, attack, value, said in _measured(now, before):
        bound = _narrowest(bounds, figure, attack)
        if bound is None:
            continue
        if figure in LEAST and value < bound.value:
            yield f"{said}, at least {bound.value:g} is asked for"
        elif figure in MOST and value > bound.value:
            yield f"{said}, at most {bound.value:g} is asked for"


def _narrowest(bounds: Sequence[Bound], figure: str, attack: str) -> Bound | None:
    """Return the bound that counts for an attack; of two alike the later one."""
    fit = [each for each in bounds if each.figure == figure and each.is_for(attack)]
    return max(reversed(fit), key=lambda each: len(each.attack), default=None)
