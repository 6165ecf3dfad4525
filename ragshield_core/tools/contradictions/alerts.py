"""Alerts about contradictions, and the outcome of a check."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ragshield_core.model.findings import printable

# Characters of a quotation, and of an id, in an alert.
QUOTED, SHOWN_ID = 600, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A claim of a new entry that contradicts a standing passage. Nothing was held for it.

    Attributes
    ----------
    entry_id, claim
        The new entry, and its sentences, as readers see them and cut to 600 characters.
    passage_id, passage
        The standing entry, and its sentences.
    score, p_value
        The model's score in [0, 1], and the share of clean entries that score as high, in (0, 1].
    relation, why
        ``"supersedes"`` if dates or versions say that the entry is the newer statement, otherwise
        ``"conflicts"``; and these dates or versions. The texts' authors claim them.
    canaries, questions
        Number of canary questions and of readers' questions that both entries would answer.
    model
        Name of the model that compared the two.
    """

    entry_id: str
    claim: str
    passage_id: str
    passage: str
    score: float
    p_value: float
    relation: Literal["conflicts", "supersedes"]
    why: str = ""
    canaries: int = 0
    questions: int = 0
    model: str = ""

    @property
    def order(self) -> tuple[int, int, float, float]:
        """Key that sorts the most consequential first; ``relation``, a claim, plays no part."""
        return (-self.canaries, -self.questions, self.p_value, -self.score)

    def to_dict(self) -> dict[str, Any]:
        """Return the alert as strict JSON can hold it; the quotations are hostile text."""
        return asdict(self)

    def __str__(self) -> str:
        why = f" ({printable(self.why)})" if self.why else ""
        asked = ""
        if self.canaries or self.questions:
            asked = f" {self.canaries} canary and {self.questions} readers' questions ask for both."
        return (
            f"{printable(self.entry_id, SHOWN_ID)} {self.relation} "
            f"{printable(self.passage_id, SHOWN_ID)}{why}: it says "
            f'"{printable(self.claim, QUOTED)}", there stands "{printable(self.passage, QUOTED)}".'
            f"{asked} (p = {self.p_value:.3g}, score {self.score:.2f} of {self.model})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check.

    Attributes
    ----------
    n_entries
        Number of entries of the batch.
    alerts
        Alerts within the budget of the day, the most consequential first.
    over_budget
        Alerts beyond it, in the same order.
    unchecked
        By entry id, why it was not compared, or not wholly.
    """

    n_entries: int
    alerts: tuple[Alert, ...] = ()
    over_budget: tuple[Alert, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the counts in one line, without any text or id."""
        more = f" and {len(self.over_budget)} beyond the day's budget" if self.over_budget else ""
        left = f", {len(self.unchecked)} of them not or partly" if self.unchecked else ""
        return f"{self.n_entries} entries compared{left}: {len(self.alerts)} alerts{more}"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as strict JSON can hold it."""
        return asdict(self)


class DailyBudget:
    """Number of uses that are left of a day, in UTC.

    Examples
    --------
    >>> budget = DailyBudget(3)
    >>> budget.take(2), budget.take(2), budget.take(2)
    (2, 1, 0)
    """

    def __init__(self, most: int, now: Callable[[], dt.datetime] | None = None) -> None:
        self._most = most
        self._now = now or (lambda: dt.datetime.now(dt.UTC))
        self._day: dt.date | None = None
        self._left = most
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Take as many as are left, at most ``wanted``; return their number."""
        with self._lock:
            day = self._now().date()
            if day != self._day:
                self._day, self._left = day, self._most
            given = min(wanted, self._left)
            self._left -= given
            return given


def within(alerts: Sequence[Alert], budget: DailyBudget) -> tuple[Sequence[Alert], Sequence[Alert]]:
    """Return the alerts that the budget allows, most consequential first, and the others."""
    ordered = sorted(alerts, key=lambda alert: alert.order)
    n = budget.take(len(ordered))
    return ordered[:n], ordered[n:]
