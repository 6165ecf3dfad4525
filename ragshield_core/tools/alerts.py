"""Alerts about contradictions, and the outcome of a check as reports show it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from ragshield_core.model.findings import printable
from ragshield_core.tools.case_report import Part, ShownCase, ShownText

HEADING = "Statements that contradict each other"
# Characters of a quotation, and of an id, in an alert; of a line about one.
QUOTED, SHOWN_ID, SHOWN_LINE = 600, 100, 2_000
# Alerts of a day, or of a report: about as many as a person reads.
PER_DAY = 20


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
    pair
        Identity of the two entries with their present texts, in either order: see :func:`pair_of`.
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
    pair: str
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

    @property
    def title(self) -> str:
        """The ids and their relation."""
        why = f" ({printable(self.why)})" if self.why else ""
        passage_id = printable(self.passage_id, SHOWN_ID)
        return f"{printable(self.entry_id, SHOWN_ID)} {self.relation} {passage_id}{why}"

    @property
    def asked(self) -> str:
        """The questions that ask for both entries, in a sentence; empty if none does."""
        if not (self.canaries or self.questions):
            return ""
        return f"{self.canaries} canary and {self.questions} readers' questions ask for both."

    @property
    def figures(self) -> str:
        """The p-value, and the score of the model."""
        return f"p = {self.p_value:.3g}, score {self.score:.2f} of {printable(self.model, 60)}"

    def __str__(self) -> str:
        said = (
            f'{self.title}: it says "{printable(self.claim, QUOTED)}", '
            f'there stands "{printable(self.passage, QUOTED)}".'
        )
        return " ".join(filter(None, (said, self.asked, f"({self.figures})")))

    def shown(self) -> ShownCase:
        """Return the alert as reports show it, with both quotations."""
        return ShownCase(
            title=self.title,
            severity=self.relation,
            entry_ids=(self.entry_id, self.passage_id),
            texts=(
                ShownText(id=self.entry_id, text=self.claim),
                ShownText(id=self.passage_id, text=self.passage),
            ),
            evidence=f'there stands "{self.passage}"',
            by=self.figures,
            effect=self.asked,
            quote=self.claim,
        )


def pair_of(*entries: tuple[str, str]) -> str:
    """Return the identity of two entries, each an id and a text, in either order.

    An entry with another text is another one: a closed alert must not hide later texts.

    Examples
    --------
    >>> pair_of(("a", "open"), ("b", "shut")) == pair_of(("b", "shut"), ("a", "open"))
    True
    >>> pair_of(("a", "open"), ("b", "shut")) == pair_of(("a", "open"), ("b", "closed"))
    False
    """
    data = json.dumps(sorted(entries)).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check.

    Attributes
    ----------
    n_entries
        Number of entries of the batch.
    alerts
        Alerts within the budget, the most consequential first.
    over_budget
        Alerts beyond it, in the same order.
    unchecked
        By entry id, why it was not compared, or not wholly.
    note
        A sentence on the worth of the alerts; may be empty.
    """

    n_entries: int
    alerts: tuple[Alert, ...] = ()
    over_budget: tuple[Alert, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def summary(self) -> str:
        """Return the counts in one line, without any text or id."""
        more = f" and {len(self.over_budget)} beyond the budget" if self.over_budget else ""
        left = f", {len(self.unchecked)} of them not or partly" if self.unchecked else ""
        return f"{self.n_entries} entries compared{left}: {len(self.alerts)} alerts{more}"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as strict JSON can hold it."""
        return asdict(self)

    def to_report(self) -> dict[str, Any]:
        """Return the outcome for a JSON report: counts in place of all that is not told."""
        counts = {"over_budget": len(self.over_budget), "unchecked": self.reasons}
        return {**asdict(self), **counts}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the outcome that :meth:`to_dict` wrote."""
        found = {name: values[name] for name in ("n_entries", "unchecked", "note")}
        for name in ("alerts", "over_budget"):
            found[name] = tuple(Alert(**one) for one in values[name])
        return cls(**found)

    @property
    def reasons(self) -> dict[str, int]:
        """Number of entries that were not compared, or not wholly, by reason."""
        return dict(Counter(self.unchecked.values()))

    def lines(self) -> list[str]:
        """Return the outcome in lines for people: counts, alerts, reasons; hostile text escaped."""
        reasons = (f"not compared: {why} ({n} entries)" for why, n in self.reasons.items())
        told = [self.summary(), *map(str, self.alerts), *reasons, self.note]
        return [printable(line, SHOWN_LINE) for line in told if line]

    def section(self) -> Part:
        """Return the outcome as a part of a report."""
        reasons = [f"Not compared: {why} ({n} entries)." for why, n in self.reasons.items()]
        text = f"{self.summary()}. Nothing is held for it: read both sides. {self.note}".rstrip()
        cases = [alert.shown() for alert in self.alerts]
        return Part(HEADING, text, cases=cases, lines=reasons)


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
