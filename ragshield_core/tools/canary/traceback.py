"""Who is to blame, how much, and why: what a traceback returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ragshield_core.model.findings import Decision, Finding, Verdict, printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS
from ragshield_core.tools.canary.passages import Passage

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

# Who is more likely to be to blame than not is a suspect.
SUSPECT_AT = 0.5
# Metadata keys under which programs keep the time of ingestion. Not those of a document's own date,
# which is a claim of whoever wrote it.
TIME_KEYS = ("ingested_at", "indexed_at", "inserted_at", "added_at")
# Numbers from here on are milliseconds: as seconds, they lie beyond the year 5000.
MILLISECONDS = 1e11
# Rows of a table; beyond, there are suspects only.
SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspect:
    """An entry, and how much it is to blame.

    Attributes
    ----------
    entry_id, passage
        Which, and what was retrieved.
    responsibility
        In [0, 1].
    why
        One sentence with the numbers that convinced, the entry's lineage and time of ingestion.
    canaries
        Names of the flagged canaries for which it was retrieved.
    rank
        Best one, from 1.
    rank_score
        The notebook's: .55 for each appearance, and .45 divided by its rank.
    related_ids
        Entries that say much the same.
    findings
        What text detectors say of it, a sentence each.
    """

    entry_id: str
    passage: Passage
    responsibility: float
    why: str
    canaries: tuple[str, ...] = ()
    rank: int = 1
    rank_score: float = 0.0
    related_ids: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def ingested_at(self) -> dt.datetime | None:
        """Time of ingestion in UTC, as the entry's metadata says; times without a zone are UTC."""
        return ingested_at(self.passage)

    def decision(self) -> Decision:
        """Return the decision to hold it, with why."""
        finding = Finding(
            detector="canary_traceback",
            entry_id=self.entry_id,
            score=self.responsibility,
            threshold=SUSPECT_AT,
            p_value=None,
            evidence=self.why,
            related_ids=self.related_ids,
            taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        )
        return Decision(entry_id=self.entry_id, verdict=Verdict.QUARANTINE, findings=(finding,))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the text as JSON-ready values."""
        when = self.ingested_at
        return {
            "entry_id": self.entry_id,
            "responsibility": self.responsibility,
            "why": self.why,
            "canaries": list(self.canaries),
            "rank": self.rank,
            "rank_score": self.rank_score,
            "related_ids": list(self.related_ids),
            "findings": list(self.findings),
            "lineage": self.passage.lineage,
            "ingested_at": None if when is None else when.isoformat(),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Traceback:
    """Entries that were looked at, most responsible first.

    Attributes
    ----------
    candidates
        All of them.
    subject
        What was traced.
    """

    candidates: tuple[Suspect, ...]
    subject: str = ""
    all_are_suspects: bool = field(default=False, repr=False)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those that are more likely to blame than not; by the notebook's rule, all of them."""
        if self.all_are_suspects:
            return self.candidates
        return tuple(s for s in self.candidates if s.responsibility >= SUSPECT_AT)

    def summary(self) -> str:
        """Return the counts in one line."""
        return f"{self.subject}: {len(self.suspects)} suspects of {len(self.candidates)} candidates"

    def __repr__(self) -> str:
        return f"<Traceback {self.summary()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but texts as JSON-ready values."""
        return {
            "subject": self.subject,
            "suspects": [s.entry_id for s in self.suspects],
            "candidates": [s.to_dict() for s in self.candidates],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()

    def table(self, limit: int | None = None) -> Table | Text:
        """Return a table of candidates for :mod:`rich`, most responsible first, text escaped.

        Parameters
        ----------
        limit
            Rows at most; default: all suspects, and of other candidates as many as make ten.
        """
        from rich.table import Table  # noqa: PLC0415 - only where something is shown
        from rich.text import Text  # noqa: PLC0415

        title = Text(printable(self.summary(), 200))
        if not self.candidates:
            return title
        table = Table(title=title)
        table.add_column("entry", overflow="fold")
        table.add_column("blame", justify="right")
        table.add_column("rank", justify="right")
        table.add_column("why", overflow="fold")
        table.add_column("text", overflow="fold")
        suspects = set(self.suspects)
        for suspect in self.candidates[:limit]:
            if limit is None and suspect not in suspects and len(table.rows) >= SHOWN:
                continue
            row = (
                suspect.entry_id,
                f"{suspect.responsibility:.3f}",
                str(suspect.rank),
                suspect.why,
                printable(suspect.passage.text, 80),
            )
            style = "red" if suspect in suspects else ""
            table.add_row(*(Text(printable(cell, 500), style=style) for cell in row))
        left = len(self.candidates) - len(table.rows)
        if left:
            table.caption = f"and {left} more: --limit, or --output suspects.json"
        return table


def ingested_at(passage: Passage) -> dt.datetime | None:
    """Return the time of ingestion that the metadata names, in UTC; None if it names none."""
    for key in TIME_KEYS:
        value = passage.metadata.get(key)
        try:
            if isinstance(value, dt.datetime):
                when = value
            elif isinstance(value, str):
                when = dt.datetime.fromisoformat(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                seconds = value / 1000 if abs(value) >= MILLISECONDS else value
                when = dt.datetime.fromtimestamp(seconds, dt.UTC)
            else:
                continue
            if when == when:  # noqa: PLR0124 - how data frames say that there is none: NaT
                return in_utc(when)
        except (ValueError, OverflowError, OSError):
            continue
    return None


def in_utc(when: dt.datetime) -> dt.datetime:
    """Return a time in UTC; one without a zone is taken to be."""
    return when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when.astimezone(dt.UTC)


def text_part(suspicion: float, findings: Sequence[str]) -> list[str]:
    """Return the part of a sentence that says how suspicious a text is, if it is."""
    if not suspicion:
        return []
    said = f": {findings[0]}" if findings else ""
    return [f"suspicious text ({suspicion:.2f}{said})"]


def origin(passage: Passage) -> str:
    """Return where an entry comes from and when, as its metadata says."""
    parts = [f"from {printable(passage.lineage, 60)!r}"] if passage.lineage else []
    when = ingested_at(passage)
    if when is not None:
        parts.append(f"ingested {when:%Y-%m-%d %H:%M}")
    return f" ({', '.join(parts)})" if parts else ""
