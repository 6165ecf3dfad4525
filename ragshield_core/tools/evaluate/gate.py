"""Bounds on figures (``recall.poisonedrag=.9``), and whether figures are worse than a baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.figures import Evaluation, Rate

# Figures that bounds are for; more of the first is better, less of the others.
FIGURES = ("recall", "fpr", "reached", "lost", "time")
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

    @classmethod
    def of(cls, text: str) -> Self:
        """Return a bound as people write it.

        Raises
        ------
        SourceError
            If it is not of that form.

        Examples
        --------
        >>> Bound.of("recall.poisonedrag=.9")
        Bound(figure='recall', value=0.9, attack='poisonedrag')
        """
        what, _, number = text.partition("=")
        figure, dot, attack = what.strip().partition(".")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        least, most = (1.0, math.inf) if figure == "time" else (0.0, 1.0)
        named = bool(attack) == bool(dot) and (not attack or figure in OF_ATTACKS)
        if figure not in FIGURES or not named or not least <= value <= most or math.isinf(value):
            shares = [f"{each}=SHARE" for each in FIGURES if each != "time"]
            shares += [f"{each}.ATTACK=SHARE" for each in OF_ATTACKS]
            msg = (
                f"--bound is {printable(text)!r}, expected one of: {'; '.join(shares)}, a share in "
                "[0, 1] each; or time=FACTOR, 1 or more."
            )
            raise SourceError(msg)
        return cls(figure=figure, value=value, attack=key_of(attack))

    def is_for(self, attack: str) -> bool:
        """Return whether an attack of that name is meant."""
        return not self.attack or f"{key_of(attack)}-".startswith(f"{self.attack}-")


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
            msg = "--bound time=... is a multiple of an earlier time, expected --baseline too."
            raise SourceError(msg)


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
        What figures may be, whatever they were. Recalls are those that count of each attack
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


class _Figure(NamedTuple):
    """A rate, its kind, the attack that it is of, and whether bounds are for it."""

    figure: str
    attack: str
    rate: Rate
    bounded: bool = True


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


def _since(now: Evaluation, baseline: Evaluation) -> Iterator[str]:
    """Yield what has left its interval for the worse, or is not measured any more."""
    check_comparable(now.settings, baseline)
    rates = _rates(now)
    for what, (figure, _, before, _) in _rates(baseline).items():
        rate = rates[what].rate if what in rates else Rate(0, 0)
        if not rate.n:
            yield f"{what}: not measured, {before} before"
        elif rate.share < before.low if figure == "recall" else rate.share > before.high:
            yield f"{what}: {rate}, {before} before"


def _broken(now: Evaluation, bounds: Sequence[Bound], before: Evaluation | None) -> Iterator[str]:
    """Yield a sentence for each figure beyond its bound; of several the narrowest one counts."""
    for what, each in _rates(now).items():
        bound = _narrowest(bounds, each.figure, each.attack) if each.bounded else None
        if bound is None:
            continue
        if each.figure == "recall":
            if each.rate.share < bound.value:
                yield f"{what}: {each.rate}, at least {bound.value:g} is asked for"
        elif each.rate.share > bound.value:
            yield f"{what}: {each.rate}, at most {bound.value:g} is asked for"
    bound = _narrowest(bounds, "time", "")
    if bound and before and now.milliseconds > bound.value * before.milliseconds:
        yield (
            f"time: {now.milliseconds:.2f} ms an entry, {before.milliseconds:.2f} before, at most "
            f"{bound.value:g} times as much is asked for"
        )


def _narrowest(bounds: Sequence[Bound], figure: str, attack: str) -> Bound | None:
    """Return the bound that counts for an attack; of two alike the later one."""
    fit = [each for each in bounds if each.figure == figure and each.is_for(attack)]
    return max(reversed(fit), key=lambda each: len(each.attack), default=None)
