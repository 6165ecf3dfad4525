"""What an audit found, worst first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.findings import Decision, Finding, Report, Verdict, finding_to_dict, why

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanReport(Report):
    """The outcome of an audit; a :class:`~ragshield_core.findings.Report` that knows its order.

    Attributes
    ----------
    fpr
        Accepted share of clean entries among the findings, of all detectors together.
    thresholds
        Per detector, the score above which an entry is a finding.
    n_clean
        Trusted entries behind the thresholds; 0 where they are estimates.
    failed
        Names of detectors that crashed: what they would have found is missing.
    by_rule
        Names of detectors that acted by their default thresholds, which follow no rate.
    """

    fpr: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=dict)
    n_clean: int = 0
    failed: tuple[str, ...] = ()
    by_rule: tuple[str, ...] = ()

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Rows of the findings, worst first.

        Scores of different detectors have different units: what is compared is the share of
        entries of this knowledge base that the same detector scores as high.
        """
        keys = {
            row: min((self._rarity(f), f.threshold - f.score) for f in decision.findings)
            for row, decision in self.remarkable.items()
        }
        return tuple(sorted(keys, key=lambda row: (*keys[row], row)))

    @property
    def found(self) -> tuple[Decision, ...]:
        """Decisions against entries, worst first; those that people released are not among them."""
        return tuple(self.remarkable[row] for row in self.ranking if not self.admitted[row])

    def overruled(self, released: Mapping[str, str]) -> ScanReport:
        """Return the report with entries admitted that people released before.

        Parameters
        ----------
        released
            Remarks who did, by id; as :meth:`Quarantine.hold` returns them.
        """
        remarkable = {
            row: replace(decision, verdict=Verdict.ADMIT, note=released[decision.entry_id])
            if decision.entry_id in released
            else decision
            for row, decision in self.remarkable.items()
        }
        return replace(self, remarkable=remarkable)

    @property
    def audited(self) -> bool:
        """Whether any detector had an opinion: without one, no finding means nothing."""
        return bool(self.scores) or not self.n_audited

    @property
    def n_audited(self) -> int:
        """Number of entries of the knowledge base."""
        return len(self.batch)

    @property
    def has_texts(self) -> bool:
        """Whether any entry has a text."""
        return any(self.batch.texts)

    @property
    def note(self) -> str:
        """What the findings are worth."""
        if not self.audited:
            return "Nothing was audited: every detector was skipped."
        rules = (
            f" Default thresholds are in force for {', '.join(self.by_rule)}, whatever the rate: "
            "they may find many clean entries."
            if self.by_rule
            else ""
        )
        if self.n_clean:
            return (
                f"Thresholds from {self.n_clean} trusted entries: of the other clean ones, a share "
                f"of at most {self.fpr:g} is expected among the findings.{rules}"
            )
        return (
            "A ranked list, not a verdict: without trusted entries the thresholds are estimated "
            f"from the knowledge base itself, and the false-positive rate of {self.fpr:g} is an "
            f"estimate.{rules} Name trusted entries to have it kept."
        )

    def summary(self) -> str:
        """Return the counts in one line, without any text of an entry."""
        unjudged = self.n_unjudged
        missed = f", {unjudged} of them judged by no detector" if unjudged else ""
        found = int(np.count_nonzero(~self.admitted))
        return f"{self.n_audited} entries audited{missed}: {found} found suspicious"

    def to_json(self) -> str:
        """Return the findings, worst first, as JSON; no texts, no vectors, no other entries."""
        return json.dumps(
            {
                "entries": self.n_audited,
                "judged": self.n_audited - self.n_unjudged,
                "fpr": self.fpr,
                "calibrated": bool(self.n_clean),
                "trusted_entries": self.n_clean,
                "note": self.note,
                "thresholds": {name: _json_number(v) for name, v in self.thresholds.items()},
                "findings": [
                    {
                        "entry_id": decision.entry_id,
                        "findings": [
                            {
                                key: _json_number(value) if isinstance(value, float) else value
                                for key, value in finding_to_dict(finding).items()
                            }
                            for finding in decision.findings
                        ],
                    }
                    for decision in self.found
                ],
                "skipped": [{"detector": s.detector, "reason": s.reason} for s in self.skipped],
                "failed": list(self.failed),
                "timings": dict(self.timings),
            },
            allow_nan=False,
        )

    @cached_property
    def n_unjudged(self) -> int:
        """Number of entries about which no detector had an opinion."""
        judged = np.zeros(len(self.batch), dtype=np.bool_)
        for scores in self.scores.values():
            judged |= ~np.isnan(scores)
        return int(np.count_nonzero(~judged))

    @cached_property
    def _ordered(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.sort(scores[~np.isnan(scores)]) for name, scores in self.scores.items()}

    def _remarkable(self) -> list[tuple[str, ...]]:
        """Rows to show, worst first."""
        shown: list[tuple[str, ...]] = []
        for row in self.ranking:
            decision = self.remarkable[row]
            finding = self.strongest(decision)
            p_value = "" if finding.p_value is None else f"{finding.p_value:.4f}"
            found_by = ", ".join(
                one.detector for one in sorted(decision.findings, key=self._rarity)
            )
            numbers = (f"{finding.score:.3f}", f"{finding.threshold:.3f}", p_value)
            row_shown = (decision.entry_id, str(decision.verdict), found_by, *numbers)
            shown.append((*row_shown, why(decision)))
        return shown

    def strongest(self, decision: Decision) -> Finding:
        """Return the finding whose score is rarest in this knowledge base."""
        return min(decision.findings, key=self._rarity)

    def _rarity(self, finding: Finding) -> float:
        return self.share_as_high(finding.detector, finding.score)

    def share_as_high(self, detector: str, score: float) -> float:
        """Return the share of the entries judged by a detector that score as high, in (0, 1]."""
        scores = self._ordered[detector]
        return 1.0 - int(np.searchsorted(scores, score)) / len(scores)

    def __repr__(self) -> str:
        return f"<ScanReport {self.summary()}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415 - only where something is shown

        yield from super().__rich_console__(console, options)
        yield Text(self.note)


def _json_number(value: Any) -> Any:
    return value if math.isfinite(value) else None
