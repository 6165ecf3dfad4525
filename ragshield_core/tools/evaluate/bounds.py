"""What figures may be at least, or at most: ``recall.poisonedrag=.9``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ragshield_core.errors import SourceError
from ragshield_core.findings import printable
from ragshield_core.tools.evaluate.figures import Evaluation

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


def broken(now: Evaluation, bounds: Sequence[Bound], before: Evaluation | None) -> Iterator[str]:
    """Yield a sentence for each figure beyond its bound; of several the narrowest one counts."""
    for r in now.main_recalls:
        bound = _narrowest(bounds, "recall", r.attack)
        if bound and r.held.share < bound.value:
            yield (
                f"{r.attack}, {r.regime}: recall {r.held}, at least {bound.value:g} is asked for"
            )
    for each in now.reached:
        bound = _narrowest(bounds, "reached", each.attack)
        if bound and each.after.share > bound.value:
            yield (
                f"{each.attack}: reaches {each.after} of its questions, at most {bound.value:g} "
                "is asked for"
            )
    fpr, lost, time = (_narrowest(bounds, figure, "") for figure in ("fpr", "lost", "time"))
    for regime, rate in now.false_positives.items():
        if fpr and rate.share > fpr.value:
            yield f"clean entries, {regime}: {rate} held, at most {fpr.value:g} is asked for"
    if lost and now.lost.share > lost.value:
        yield (
            f"questions about clean entries: {now.lost} miss one, at most {lost.value:g} is "
            "asked for"
        )
    if time and before and now.milliseconds > time.value * before.milliseconds:
        yield (
            f"time: {now.milliseconds:.2f} ms an entry, {before.milliseconds:.2f} before, at most "
            f"{time.value:g} times as much is asked for"
        )


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


def _narrowest(bounds: Sequence[Bound], figure: str, attack: str) -> Bound | None:
    """Return the bound that counts for an attack; of two alike the later one."""
    fit = [each for each in bounds if each.figure == figure and each.is_for(attack)]
    return max(reversed(fit), key=lambda each: len(each.attack), default=None)
