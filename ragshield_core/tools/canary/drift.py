"""Drift of retrieved passages and answers from a baseline: figures, weights, reports."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ragshield_core.model.findings import printable
from ragshield_core.tools.alerts import HEADING, Checked
from ragshield_core.tools.canary.knowledge_base import Passage

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Threshold = Annotated[float, Field(gt=0.0, le=1.0)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


# Characters of an id in reports.
SHOWN_ID = 60
# Figures in reports, and their formats.
FIGURES = {
    **dict.fromkeys(("answer_drift", "jaccard", "overlap_at_k", "takeover"), ".3f"),
    "takeover_p": ".3g",
    "resemblance_p": ".3g",
    "suspicion_ratio": ".3f",
    "suspicion_delta": "+.3f",
}


class AnomalyWeights(BaseModel):
    """Weights and thresholds of the anomaly score.

    Parameters
    ----------
    answer, answer_cap
        The score gains ``answer`` times the drift of the answer (1 - cosine), up to the cap.
    jaccard, overlap
        It gains ``jaccard`` times 1 - Jaccard similarity and ``overlap`` times 1 - overlap@k.
    suspicion, suspicion_cap
        It gains ``suspicion`` times the rise of the suspicion ratio, up to the cap.
    threshold
        Scores from it on are flagged.
    answer_takeover
        An answer with at least this drift is flagged if the entry at the first rank, or the entry
        that the answer follows, is new. With few entries and canaries, ranks cannot tell growth
        from takeover.
    takeover_p
        A canary is flagged if newcomers at its head are less probable than this under mere growth.
        Additions of the same kind as older entries flag at most this share of the canaries, usually
        fewer. A higher value finds more single poisoned entries. If nearly all canaries, at least
        three, are below .05, these are flagged as well.

    Notes
    -----
    The defaults down to ``threshold`` are those of "Detecting RAG Poisoning via Canary Queries and
    Retrieval Drift" (MP Aghababa, a public notebook).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    answer: Weight = 0.75
    answer_cap: Share = 0.60
    jaccard: Share = 0.20
    overlap: Share = 0.15
    suspicion: Weight = 0.8
    suspicion_cap: Share = 0.10
    threshold: Threshold = 0.65
    answer_takeover: Threshold = 0.25
    takeover_p: Probability = 0.02

    def score(
        self,
        *,
        answer_drift: float | None,
        jaccard: float,
        overlap: float,
        suspicion_delta: float,
    ) -> float:
        """Return the anomaly score, in [0, 1].

        Examples
        --------
        >>> AnomalyWeights().score(answer_drift=0.4, jaccard=0.5, overlap=0.5, suspicion_delta=0.1)
        0.555
        """
        score = (1.0 - jaccard) * self.jaccard + (1.0 - overlap) * self.overlap
        score += min(self.answer_cap, (answer_drift or 0.0) * self.answer)
        score += min(self.suspicion_cap, max(0.0, suspicion_delta) * self.suspicion)
        return max(0.0, min(1.0, score))


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryDrift:
    """Drift of one canary.

    Attributes
    ----------
    name, query
        Of the canary.
    flagged, reasons
        Whether the canary drifted, and why: sentences with the deciding number.
    score
        Anomaly, in [0, 1]; see :class:`AnomalyWeights`.
    answer, answer_drift
        The answer, and 1 minus its cosine to the baseline's. Both are ``None`` without an answerer,
        the latter also without an embedder.
    jaccard, overlap_at_k
        Between the retrieved ids and the baseline's.
    takeover, takeover_p
        Newcomers' share of the head, and its p-value under mere growth, combined with those of
        their coverage of the query and of their resemblance. The p-value is ``None`` if more than
        half of everything looks new and the size of the knowledge base is unknown.
    resemblance_p
        P-value, under mere growth, of newcomers at the head that resemble each other more than the
        passages around them; ``None`` without vectors, and with fewer than two newcomers to
        compare.
    taken_over
        Whether growth hardly explains the newcomers.
    suspicion_ratio, suspicion_delta
        Mean suspicion of the retrieved texts, and its change.
    ids, baseline_ids
        Ids retrieved now, and at the baseline, best first.
    newcomers
        Retrieved ids that are new or have a new text, best first.
    """

    name: str
    query: str
    flagged: bool
    score: float
    reasons: tuple[str, ...] = ()
    answer: str | None = None
    answer_drift: float | None = None
    jaccard: float | None = None
    overlap_at_k: float | None = None
    takeover: float | None = None
    takeover_p: float | None = None
    resemblance_p: float | None = None
    taken_over: bool = False
    suspicion_ratio: float = 0.0
    suspicion_delta: float | None = None
    ids: tuple[str, ...] = ()
    baseline_ids: tuple[str, ...] = ()
    newcomers: tuple[str, ...] = ()

    def figures(self) -> list[tuple[str, str]]:
        """Return names and values of all known figures, formatted for people."""
        rows: list[tuple[str, str]] = [
            ("flagged", "yes" if self.flagged else "no"),
            ("anomaly", f"{self.score:.3f}"),
        ]
        for name, form in FIGURES.items():
            value = getattr(self, name)
            if value is not None:
                rows.append((name.replace("_", " ").replace(" at k", "@k"), format(value, form)))
        new = set(self.newcomers)
        # Each id is shortened: a long one must not hide the others.
        for name, ids in (("before", self.baseline_ids), ("retrieved", self.ids)):
            shown = (("+" if i in new else "") + printable(i, SHOWN_ID) for i in ids)
            if ids or name == "retrieved":
                rows.append((name, ", ".join(shown)))
        if self.reasons:
            rows.append(("why", "; ".join(self.reasons)))
        return rows


_CANARIES = TypeAdapter(tuple[CanaryDrift, ...])


@dataclass(frozen=True, kw_only=True, eq=False)
class DriftReport:
    """The outcome of one check; changes nothing by itself.

    Attributes
    ----------
    suite, baseline, k
        Name of the suite, version of its baseline, and number of compared places.
    checked_at
        UTC.
    growth
        Share of newcomers that mere growth would bring to each rank.
    canaries
        One per canary, in the order of the suite.
    still_served
        Ids of held or confirmed entries that are still retrieved among the first k of a canary.
        All figures omit them, but users still get answers from them.
    passages
        Retrieved passages by canary; not kept in the database.
    contradictions
        Contradictions between newcomers at flagged canaries and other passages; ``None`` if the
        monitor has no checker.
    """

    suite: str
    baseline: int
    k: int
    checked_at: dt.datetime
    growth: float
    canaries: tuple[CanaryDrift, ...]
    still_served: tuple[str, ...] = ()
    passages: Mapping[str, Sequence[Passage]] = field(default_factory=dict)
    contradictions: Checked | None = None

    @property
    def flagged(self) -> tuple[CanaryDrift, ...]:
        """Canaries that drifted, worst first."""
        found = [c for c in self.canaries if c.flagged]
        return tuple(sorted(found, key=lambda c: (-c.score, c.takeover_p or 0.0)))

    def __getitem__(self, name: str) -> CanaryDrift:
        found = next((c for c in self.canaries if c.name == name), None)
        if found is None:
            msg = f"no canary {name!r} in this check of suite {self.suite!r}; see canaries."
            raise KeyError(msg)
        return found

    def __iter__(self) -> Iterator[CanaryDrift]:
        return iter(self.canaries)

    def summary(self) -> str:
        """Return the counts in one line."""
        held = len(self.still_served)
        return (
            f"suite {self.suite!r} against baseline {self.baseline}: "
            f"{len(self.flagged)} of {len(self.canaries)} canaries flagged"
            + (f"; {held} entries in quarantine are still retrieved" if held else "")
        )

    def __repr__(self) -> str:
        return f"<DriftReport {self.summary()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but passages as JSON-ready values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "passages"}
        return values | {
            "checked_at": self.checked_at.isoformat(timespec="microseconds"),
            "flagged": len(self.flagged),
            "total": len(self.canaries),
            "still_served": list(self.still_served),
            "canaries": [asdict(c) for c in self.canaries],
            "contradictions": self.contradictions and self.contradictions.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report that :meth:`to_dict` wrote."""
        found = values.get("contradictions")
        return cls(
            **{name: values[name] for name in ("suite", "baseline", "k", "growth")},
            checked_at=dt.datetime.fromisoformat(values["checked_at"]),
            still_served=tuple(values["still_served"]),
            canaries=_CANARIES.validate_python(values["canaries"]),
            contradictions=None if found is None else Checked.from_dict(found),
        )

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict())

    def to_html(self, history: Sequence[DriftReport] = ()) -> str:
        """Return a page that needs no network."""
        from ragshield_core.tools.canary.telling import html_report  # noqa: PLC0415 - builds on this

        return html_report(self, history)

    def _repr_html_(self) -> str:
        from ragshield_core.tools.canary.telling import html_body  # noqa: PLC0415 - builds on this

        found = self.contradictions
        return html_body(self) + ("" if found is None else found.section().html())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.tables((*self.flagged, *(c for c in self.canaries if not c.flagged)))

    def tables(self, canaries: Sequence[CanaryDrift]) -> list[Any]:
        """Return summary, a table for each canary and contradictions, hostile text escaped."""
        from rich.table import Table  # noqa: PLC0415 - only for display
        from rich.text import Text  # noqa: PLC0415

        shown: list[Any] = [
            Text(
                printable(self.summary(), 200),
                style="red" if self.flagged or self.still_served else "green",
            )
        ]
        for drift in canaries:
            table = Table(title=Text(printable(drift.name, 80)), show_header=False)
            table.title_justify = "left"
            table.add_column("figure", no_wrap=True)
            table.add_column("value", overflow="fold")
            for name, value in drift.figures():
                style = "red" if name in ("flagged", "why") and drift.flagged else ""
                table.add_row(name, Text(printable(value, 400), style=style))
            shown.append(table)
        if self.contradictions is not None:
            shown += map(Text, (f"{HEADING}:", *self.contradictions.lines()))
        return shown
