"""Results of a screening: findings and a decision for each entry, a report for the batch."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.printing import printable as printable  # noqa: PLC0414 - with findings

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions, RenderResult


# Beginning of evidence that was found beside the text of an entry, in its context.
BESIDE = "beside the visible text, in what a model reads"


class Verdict(StrEnum):
    """The outcome for an entry."""

    ADMIT = "admit"
    FLAG = "flag"  # written, with one scalar metadata key
    QUARANTINE = "quarantine"  # kept out of the store, in full, until a reviewer decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One detector's evidence against one entry."""

    detector: str
    entry_id: str
    score: float  # the detector's own unit; higher is more suspicious
    threshold: float  # the policy quarantines above it
    p_value: float | None  # (0, 1]: how often a clean entry scores this high; None uncalibrated
    evidence: str  # one sentence, holding the number that convinced us
    related_ids: tuple[str, ...] = ()  # other entries that the evidence names
    span: tuple[int, int] | None = None  # characters of the text, end excluded
    taxonomy: tuple[str, ...] = ()  # ids of model.taxonomy

    @property
    def beside(self) -> bool:
        """Whether the evidence was found in the context of the entry, alone or with the text."""
        return self.evidence.startswith(BESIDE)

    @property
    def only_beside(self) -> bool:
        """Whether the evidence was found in the context of the entry alone."""
        return self.evidence.startswith(f"{BESIDE}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Why one detector has no opinion about one entry."""

    detector: str
    entry_id: str
    reason: str
    failed: bool = False  # the detector crashed; False if it lacked an input


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on one entry, and the reasons."""

    entry_id: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    note: str | None = None  # why the verdict differs from that of the findings alone

    @property
    def unscreened(self) -> bool:
        """Whether the policy failed open: a detector failed on the entry, and it was admitted."""
        return self.verdict is not Verdict.QUARANTINE and any(u.failed for u in self.unjudged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A detector that took no part in a screening.

    ``waiting`` if it resumes by itself, once enough entries are known or new entries are as usual.
    """

    detector: str
    reason: str
    waiting: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The outcome of one screening; creating it changes nothing.

    Attributes
    ----------
    batch
        The screened entries.
    remarkable
        The decisions other than a plain admission, by row of the batch.
    decisions
        One per entry, in the order of the batch.
    scores
        Per detector, shape (n_entries,), float64, higher is more suspicious; NaN where the
        detector had no opinion.
    skipped
        Detectors that took no part, and why.
    timings
        Seconds spent in each detector.
    retroactive
        Decisions about entries that were admitted earlier and that this batch makes suspicious:
        the rest of their group has come. The guarded stores act on them.
    spent
        Share of all entries since the calibration, this batch included, that were ever held or
        recalled, [0, 1]: compare it with the accepted rate. ``None`` before the calibration.
        ``guard.status()`` has it by detector and source.
    calibrated_at
        Size of the knowledge base when the thresholds were set; ``None`` for default thresholds.
    n_left_out
        Number of plainly admitted entries that ``batch`` leaves out to save memory.
    """

    batch: Batch
    remarkable: Mapping[int, Decision] = field(default_factory=dict)
    scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    retroactive: tuple[Decision, ...] = ()
    spent: float | None = None
    calibrated_at: int | None = None
    n_left_out: int = 0

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision per entry, in the order of the batch."""
        # Built on demand: nearly all are plain admissions, and a write needs none of those.
        decisions = [Decision(entry_id=i, verdict=Verdict.ADMIT) for i in self.batch.ids]
        for row, decision in self.remarkable.items():
            decisions[row] = decision
        return tuple(decisions)

    @cached_property
    def admitted(self) -> NDArray[np.bool_]:
        """Shape (n_entries,): True where the entry goes into the store, flagged ones included."""
        admitted = np.ones(len(self.batch), dtype=np.bool_)
        for row, decision in self.remarkable.items():
            admitted[row] = decision.verdict is not Verdict.QUARANTINE
        return admitted

    @property
    def flagged(self) -> tuple[Decision, ...]:
        """Decisions to admit an entry with a flag."""
        return self._with(Verdict.FLAG)

    @property
    def quarantined(self) -> tuple[Decision, ...]:
        """Decisions to hold an entry."""
        return self._with(Verdict.QUARANTINE)

    @property
    def unjudged(self) -> tuple[Unjudged, ...]:
        """Every case in which a detector had no opinion about an entry."""
        return tuple(item for decision in self.decisions for item in decision.unjudged)

    @property
    def unscreened(self) -> tuple[str, ...]:
        """Ids of entries admitted although a detector failed on them; they are screened later."""
        rows = sorted(self.remarkable)
        decisions = (self.remarkable[row] for row in rows)
        return tuple(decision.entry_id for decision in decisions if decision.unscreened)

    def _with(self, verdict: Verdict) -> tuple[Decision, ...]:
        rows = sorted(self.remarkable)
        return tuple(self.remarkable[r] for r in rows if self.remarkable[r].verdict is verdict)

    def noted(self, notes: Mapping[str, str]) -> Report:
        """Return the report with these notes, by entry id, added to those of the decisions."""
        if not notes:
            return self
        changed = dict(self.remarkable)
        for row, entry_id in enumerate(self.batch.ids):
            if entry_id in notes:
                decision = self.decisions[row]
                note = "; ".join(filter(None, (decision.note, notes[entry_id])))
                changed[row] = replace(decision, note=note)
        return replace(self, remarkable=changed)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one flat dict per entry: id, verdict, and the strongest finding."""
        return [_record(decision) for decision in self.decisions]

    def to_frame(self) -> pd.DataFrame:
        """Return :meth:`to_records` as a pandas data frame, one row per entry.

        Raises
        ------
        ImportError
            If pandas is not installed; RAGShield does not require it.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - optional, and slow to import
        except ImportError as error:
            msg = "Report.to_frame needs pandas, which is not installed; pip install pandas."
            raise ImportError(msg) from error
        return pd.DataFrame.from_records(self.to_records())

    def to_json(self) -> str:
        """Return everything except texts and vectors as JSON."""
        return json.dumps(
            {
                "decisions": [_decision_to_dict(decision) for decision in self.decisions],
                "retroactive": [_decision_to_dict(decision) for decision in self.retroactive],
                "spent": self.spent,
                "calibrated_at": self.calibrated_at,
                "n_left_out": self.n_left_out,
                "unscreened": list(self.unscreened),
                "skipped": [
                    {"detector": s.detector, "reason": s.reason, "waiting": s.waiting}
                    for s in self.skipped
                ],
                "timings": dict(self.timings),
            }
        )

    def not_judged(self) -> tuple[str, ...]:
        """Return the ids of entries that no detector had an opinion about."""
        if not len(self.batch):
            return ()
        none = np.ones(len(self.batch), dtype=np.bool_)
        for column in self.scores.values():
            none &= np.isnan(column)
        return tuple(self.batch.ids[row] for row in np.flatnonzero(none).tolist())

    def summary(self) -> str:
        """Return the counts in one line, without any text of an entry.

        They include the detectors that do not act for now (:attr:`skipped` names them), and the
        entries that no detector could judge.
        """
        missing = len(self.not_judged()) if self.scores else 0
        unscreened = len(self.unscreened)
        waiting = sum(skipped.waiting for skipped in self.skipped)
        n = len(self.batch) + self.n_left_out
        return (
            f"{n} entries: "
            f"{n - len(self.flagged) - len(self.quarantined)} admitted, "
            f"{len(self.flagged)} flagged, {len(self.quarantined)} quarantined"
            + (f", {len(self.retroactive)} of earlier ones as well" if self.retroactive else "")
            + (f"; {missing} judged by no detector" if missing else "")
            + (f"; {unscreened} let in although a detector failed" if unscreened else "")
            + (f"; for now without {waiting} of the detectors" if waiting else "")
        )

    def __repr__(self) -> str:
        return f"<Report {self.summary()}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table  # noqa: PLC0415 - only needed to display a report
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=self.summary())
        for column in _COLUMNS:
            table.add_column(column, justify="right" if column in _NUMBERS else "left")
        for row in self._remarkable():
            # Text objects, not markup: ids and evidence may be hostile.
            table.add_row(*(Text(printable(cell)) for cell in row))
        yield table
        for skipped in self.skipped:
            yield Text(printable(f"skipped {skipped.detector}: {skipped.reason}"))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(printable(cell))}</td>" for cell in row) + "</tr>"
            for row in self._remarkable()
        )
        remarks = [f"skipped {s.detector}: {s.reason}" for s in self.skipped]
        below = "".join(f"<p>{html.escape(printable(remark))}</p>" for remark in remarks)
        return (
            f"<table><caption>{html.escape(self.summary())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
        )

    def _remarkable(self) -> list[tuple[str, ...]]:
        """Rows to show: every entry that was not simply admitted."""
        rows: list[tuple[str, ...]] = []
        for decision in (*self.decisions, *self.retroactive):
            plain = decision.verdict is Verdict.ADMIT and not decision.unscreened
            if plain and not decision.findings and not decision.note:
                continue
            record = _record(decision)
            figures = [(record[name], form) for name, form in _FIGURES.items()]
            rows.append(
                (
                    record["entry_id"],
                    record["verdict"],
                    ", ".join(one.detector for one in by_strength(decision)),
                    *("" if figure is None else f"{figure:{form}}" for figure, form in figures),
                    record["why"],
                )
            )
        return rows


# Score, threshold and p belong to the first detector, which has the strongest finding.
_COLUMNS = ("entry", "verdict", "found by", "score", "threshold", "p", "why")
_NUMBERS = ("score", "threshold", "p")
_FIGURES = {"score": ".3f", "threshold": ".3f", "p_value": ".4f"}


def _record(decision: Decision) -> dict[str, Any]:
    first = next(iter(by_strength(decision)), None)
    return {
        "entry_id": decision.entry_id,
        "verdict": str(decision.verdict),
        **{name: getattr(first, name, None) for name in ("detector", *_FIGURES)},
        "why": why(decision),
    }


def _decision_to_dict(decision: Decision) -> dict[str, Any]:
    return {
        "entry_id": decision.entry_id,
        "verdict": str(decision.verdict),
        "note": decision.note,
        "findings": [finding_to_dict(finding) for finding in decision.findings],
        "unjudged": [
            {"detector": item.detector, "reason": item.reason, "failed": item.failed}
            for item in decision.unjudged
        ],
    }


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON-ready values; :func:`finding_from_dict` reads them."""
    return {
        "detector": finding.detector,
        "entry_id": finding.entry_id,
        "score": float(finding.score),  # plug-ins may return NumPy floats
        "threshold": float(finding.threshold),
        "p_value": None if finding.p_value is None else float(finding.p_value),
        "evidence": finding.evidence,
        "related_ids": list(finding.related_ids),
        "span": None if finding.span is None else [int(end) for end in finding.span],
        "taxonomy": list(finding.taxonomy),
    }


def finding_from_dict(values: Mapping[str, Any]) -> Finding:
    """Return the finding that :func:`finding_to_dict` wrote."""
    span = values["span"]
    return Finding(
        **{
            **values,
            "related_ids": tuple(values["related_ids"]),
            "span": None if span is None else (int(span[0]), int(span[1])),
            "taxonomy": tuple(values["taxonomy"]),
        }
    )


def accusers(decisions: Iterable[Decision]) -> dict[str, tuple[str, ...]]:
    """Return the names of the detectors that accuse an entry, by its id; accused entries only."""
    return {
        d.entry_id: tuple(dict.fromkeys(f.detector for f in d.findings))
        for d in decisions
        if d.findings
    }


def by_strength(decision: Decision) -> list[Finding]:
    """Return the findings by p-value, then by their distance above the threshold."""
    return sorted(
        decision.findings,
        key=lambda f: (1.0 if f.p_value is None else f.p_value, f.threshold - f.score),
    )


def why(decision: Decision) -> str:
    """Return the reasons of a decision in one line."""
    parts = [finding.evidence for finding in by_strength(decision)]
    parts += [f"{item.detector}: {item.reason}" for item in decision.unjudged]
    if decision.note:
        parts.append(decision.note)
    return "; ".join(parts)
