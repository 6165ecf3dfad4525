"""The report of an audit, with the worst findings first."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.files.folder import Coverage
from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import Decision, Finding, Report, Verdict, finding_to_dict, why
from ragshield_core.model.severity import Severity
from ragshield_core.tools.audit.cases import cases_of
from ragshield_core.tools.case_report import ShownCase

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from ragshield_core.tools.alerts import Checked

# If a smaller share of the entries was judged, a report without findings means nothing.
ENOUGH = 0.9


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanReport(Report):
    """The outcome of an audit, with a ranking: a :class:`~ragshield_core.model.findings.Report`.

    Attributes
    ----------
    fpr
        Accepted share of clean entries among the findings, for all detectors together.
    thresholds
        Per detector, the score above which an entry is a finding.
    n_clean
        Number of trusted entries behind the thresholds; 0 if thresholds are estimates.
    failed
        Names of detectors that crashed; their findings are missing.
    unread
        Files that could not be read, a sentence each; their entries were not audited.
    by_rule
        Names of detectors that used their default thresholds, which follow no rate.
    n_audited, n_unjudged
        Number of entries of the knowledge base, and of those about which no detector had an
        opinion.
    has_texts
        Whether any entry has a text.
    judged
        Per detector, the number of entries about which it had an opinion.
    high
        Per detector, all scores above its threshold, ascending, those of trusted entries included.
    n_partitions
        Number of partitions of an audit by partitions; each entry was compared with those of its
        :data:`~ragshield_core.tools.audit.partitioned.plan.LOOKED_INTO` nearest ones. ``batch``
        then holds the ids of the found entries, without texts and vectors, and ``scores`` their
        scores.
    neighbors_found
        For such an audit, recall@k of the nearest neighbours by k, measured on entries drawn at
        random.
    missed
        The same in a sentence; empty if each entry was compared with all.
    idle
        Names of detectors that would have judged a larger knowledge base, or failed; their
        findings are missing.
    files
        Sentences about files: the number read, and those left out on purpose.
    power
        By the form of an attack, the share of its texts that this audit would find, measured on
        synthetic texts that were planted in the knowledge base. Empty without an embedding model.
    provenance
        Provenance of the audit: see :func:`~ragshield_core.tools.audit.provenance.provenance_of`.
        Empty unless the command has written a report.
    old, n_old
        For an audit with a baseline: ids and revisions of entries in cases that the baseline has,
        and the number of these cases. They are not findings.
    contradictions
        Entries that contradict each other, quoted on both sides; ``None`` if none were compared.
        They are not findings either: one of the two is wrong or outdated, and nobody knows which.
    """

    whole: ClassVar[bool] = True  # whether the batch is a whole knowledge base
    fpr: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=dict)
    n_clean: int = 0
    failed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    by_rule: tuple[str, ...] = ()
    n_audited: int = 0
    n_unjudged: int = 0
    has_texts: bool = True
    judged: Mapping[str, int] = field(default_factory=dict)
    high: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    n_partitions: int = 0
    neighbors_found: Mapping[int, float] = field(default_factory=dict)
    missed: str = ""
    idle: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    power: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    old: tuple[tuple[str, str], ...] = ()
    n_old: int = 0
    contradictions: Checked | None = None

    @cached_property
    def cases(self) -> tuple[ShownCase, ...]:
        """The findings by attack, worst first, without entries that people released."""
        found = {row: self.remarkable[row] for row in self.found_rows}
        strongest = {row: self.strongest(one) for row, one in found.items()}
        return cases_of(self.batch, found, strongest, whole=self.whole)

    @property
    def enough(self) -> bool:
        """Whether enough was judged for a report without findings to mean something."""
        judged = self.n_audited - self.n_unjudged
        return (
            not (self.failed or self.unread or self.idle or not self.audited)
            and judged >= ENOUGH * self.n_audited
        )

    @property
    def verdict(self) -> str:
        """The answer: the cases, the number of judged entries, and the share of planted texts."""
        n, n_found, n_all = len(self.cases), len(self.found), f"{self.n_audited:,}"
        if n:
            counts = Counter(case.severity for case in self.cases)
            by_severity = ", ".join(f"{counts[one]} {one}" for one in Severity if counts[one])
            attacks = "1 suspected attack" if n == 1 else f"{n} suspected attacks"
            told = [f"{attacks} found in {n_found} of {n_all} entries: {by_severity}."]
        elif self.enough:
            told = [f"No {'new ' if self.n_old else ''}attack found in {n_all} entries."]
        else:
            told = [f"Nothing was found, but not enough was judged of {n_all} entries."]
        if self.n_old:
            cases = "1 case" if self.n_old == 1 else f"{self.n_old} cases"
            told.append(f"Besides, there are still {cases} of the baseline.")
        judged, n_acting = self.n_audited - self.n_unjudged, len(self.scores)
        unread = f"; {len(self.unread)} files could not be read" if self.unread else ""
        of = n_acting + len(self.idle)
        told.append(f"{judged:,} entries were judged, by {n_acting} of {of} detectors{unread}.")
        if self.power:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.power.items())
            told.append(f"Of planted attacks it would find: {shares}.")
        else:
            told.append(
                "How much of an attack would be found was not measured: that takes texts, their "
                "embedding model and about 350 entries."
            )
        return " ".join(told)

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Rows of the findings, worst first.

        Scores of different detectors have different units, so findings are compared by the share
        of entries of this knowledge base that the same detector scores as high.
        """
        keys = {
            row: min((self._rarity(f), f.threshold - f.score) for f in decision.findings)
            for row, decision in self.remarkable.items()
        }
        return tuple(sorted(keys, key=lambda row: (*keys[row], row)))

    @cached_property
    def found_rows(self) -> list[int]:
        """Rows of the findings, worst first, without those that people released."""
        return [row for row in self.ranking if not self.admitted[row]]

    @property
    def found(self) -> tuple[Decision, ...]:
        """Decisions against entries, worst first, without entries that people released."""
        return tuple(self.remarkable[row] for row in self.found_rows)

    def covering(self, files: Coverage | None) -> Self:
        """Return the report with what became of the files in a folder."""
        if files is None:
            return self
        unread = tuple(f"{one.name} cannot be read: {one.why}." for one in files.of("unread"))
        left_out = [f"{one.name} was left out: {one.why}." for one in files.of("skipped")]
        return replace(self, unread=unread, files=(files.summary(), *left_out))

    def overruled(self, released: Mapping[str, str]) -> ScanReport:
        """Return the report with the entries admitted that people released before.

        Parameters
        ----------
        released
            Remarks that name the person, by entry id, as :meth:`Quarantine.hold` returns them.
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
        """Whether any detector took part: otherwise a report without findings means nothing."""
        return bool(self.scores) or not self.n_audited

    @property
    def note(self) -> str:
        """Sentences on the reliability of the findings."""
        if not self.audited:
            return "Nothing was audited: every detector was skipped."
        rules = more = ""
        if self.by_rule:
            rules = (
                f" Default thresholds are in force for {', '.join(self.by_rule)}, whatever the "
                "rate: they may find many clean entries."
            )
        if self.n_clean:
            note = (
                f"Thresholds from {self.n_clean} trusted entries: of the other clean ones, a share "
                f"of at most {self.fpr:g} is expected among the findings."
            )
        elif len(self.found) > self.fpr * self.n_audited:
            note = (
                "More was found than the accepted rate allows: there are too few entries to tell "
                "what is usual here, or much poison."
            )
            more = " Read all findings, or name trusted entries to have the rate kept."
        else:
            note = (
                "Thresholds come from the knowledge base itself, without what looks poisoned: of "
                f"its clean entries, a share of about {self.fpr:g} is expected among the findings."
            )
            more = " Name trusted entries to have the rate kept."
        return f"{note}{rules}{more} {self.missed}".rstrip()

    def summary(self) -> str:
        """Return the counts in one line, without any text of an entry."""
        unjudged = self.n_unjudged
        missed = f", {unjudged} of them judged by no detector" if unjudged else ""
        found = int(np.count_nonzero(~self.admitted))
        return f"{self.n_audited} entries audited{missed}: {found} found suspicious"

    def to_json(self) -> str:
        """Return the findings, worst first, as JSON; no vectors, no other entries.

        Texts are in quotations of contradictions only.
        """
        values = {
            "entries": self.n_audited,
            "detectors": list(self.scores),
            "judged": self.n_audited - self.n_unjudged,
            "fpr": self.fpr,
            "calibrated": bool(self.n_clean),
            "trusted_entries": self.n_clean,
            "verdict": self.verdict,
            "enough": self.enough,
            "power": self.power,
            "cases": [case.to_dict() for case in self.cases],
            "note": self.note,
            "thresholds": self.thresholds,
            "old": [{"entry_id": one, "revision": revision} for one, revision in self.old],
            "old_cases": self.n_old,
            "findings": [
                {
                    "entry_id": decision.entry_id,
                    "revision": revision,
                    "findings": list(map(finding_to_dict, decision.findings)),
                }
                for decision, revision in zip(self.found, self.revisions(), strict=True)
            ],
            "skipped": [{"detector": s.detector, "reason": s.reason} for s in self.skipped],
            "failed": self.failed,
            "unread": self.unread,
            "files": self.files,
            "timings": self.timings,
            "provenance": self.provenance,
        }
        if self.contradictions is not None:
            values["contradictions"] = self.contradictions.to_report()
        return json.dumps(_strict(values), allow_nan=False)

    def revisions(self) -> list[str]:
        """Return the fingerprint of each found entry; empty strings for an audit by partitions."""
        if self.n_partitions:
            return [""] * len(self.found_rows)
        return self.batch.take(self.found_rows).fingerprints()

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
        """Return the share of its detector's judged entries that score as high, in (0, 1]."""
        scores = self.high[finding.detector]
        as_high = len(scores) - int(np.searchsorted(scores, finding.score))
        return as_high / self.judged[finding.detector]

    def __repr__(self) -> str:
        return f"<ScanReport {self.summary()}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415 - only where something is shown

        yield from super().__rich_console__(console, options)
        yield Text(self.note)


def _strict(value: Any) -> Any:
    """Replace infinite and NaN numbers, which strict JSON lacks, by `None`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _strict(one) for key, one in value.items()}
    return [_strict(one) for one in value] if isinstance(value, list | tuple) else value


def read_baseline(path: Path) -> frozenset[tuple[str, str]]:
    """Return ids and revisions of the entries found in an earlier JSON report."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        rows = [*report["findings"], *report["old"]]
        known = frozenset((str(row["entry_id"]), str(row["revision"])) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        msg = (
            f"{path} cannot be read as a baseline ({type(error).__name__}), expected what "
            "ragshield scan --output FILE.json wrote."
        )
        raise SourceError(msg) from error
    return known


def without_known(report: ScanReport, known: frozenset[tuple[str, str]]) -> ScanReport:
    """Return a report in which only cases with a new entry are findings.

    An entry is new if its id or its text is: an attacker may change a page that was found before.
    """
    marks = dict(
        zip((decision.entry_id for decision in report.found), report.revisions(), strict=True)
    )
    cases = [case for case in report.cases if all((i, marks[i]) in known for i in case.entry_ids)]
    ids = [i for case in cases for i in case.entry_ids]
    kept = report.overruled(dict.fromkeys(ids, "stood in the baseline"))
    return replace(kept, old=tuple((i, marks[i]) for i in ids), n_old=len(cases))
