"""Report on waiting entries in HTML, Markdown and SARIF: cases, the worst first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from ragshield_core.model.findings import Decision, Finding, Verdict, by_strength, printable
from ragshield_core.model.severity import Severity
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.tools.audit.cases import QUOTED, advice_on, convicting, quote_of, title_of
from ragshield_core.tools.audit.sarif import LEVELS, Located, document_of, entry_location
from ragshield_core.tools.case_report import CaseReport, ShownCase, ShownText, looked_at, span_of
from ragshield_core.tools.review.cases import Case, Cases

BY_HAND = ("A person holds an entry", "A person holds {n} entries")


class Heading(NamedTuple):
    """The heading of a case."""

    title: str  # a sentence without its full stop
    quote: str  # the convicting words, or the beginning of the first text
    main: str | None  # the convicting detector; None if a person held the case

    def convicts(self, held: HeldEntry) -> bool:
        """Return whether the title's finding is in the entry itself.

        Other entries are in the case because its evidence names them, and may be good.
        """
        return self.main is None or any(one.detector == self.main for one in held.findings)


def heading(case: Case, first: tuple[Sequence[Finding], str] | None) -> Heading:
    """Return the heading of a case, from findings and text of its first entry if that exists."""
    findings, text = first or ((), "")
    found = Decision(entry_id="", verdict=Verdict.QUARANTINE, findings=tuple(findings))
    strongest = next(iter(by_strength(found)), None)
    n = case.n_waiting or case.n_members
    quote = printable(quote_of(text, strongest), QUOTED)
    if strongest is None and not case.detectors:
        return Heading(BY_HAND[n > 1].format(n=n), quote, None)
    first_by = case.detectors[0] if strongest is None else strongest.detector
    main = convicting(first_by, case.detectors, n)
    return Heading(title_of(printable(main, 60), n), quote, main)


# Entries of a case that a report reads: a flood has a million.
READ = 100


class QuarantineReport:
    """A page of cases with their entries, read once for all forms.

    ``n_cases`` counts the cases of all pages; ``at`` is the time of the query, in UTC.
    """

    def __init__(
        self, quarantine: Quarantine, found: Sequence[Case], n_cases: int, at: dt.datetime
    ) -> None:
        self._quarantine, self._found, self._at, self.n_cases = quarantine, found, at, n_cases

    @cached_property
    def _cases(self) -> list[tuple[Case, Heading, tuple[HeldEntry, ...]]]:
        cases = Cases(self._quarantine)
        firsts = cases.firsts(self._found)
        return [
            (case, heading(case, firsts.get(case.number)), cases.members(case.number, limit=READ))
            for case in self._found
        ]

    @property
    def verdict(self) -> str:
        """The answer in two sentences."""
        waiting = sum(case.n_waiting for case in self._found)
        if not waiting:
            return "Nothing waits for a decision here."
        entries = "1 entry waits" if waiting == 1 else f"{waiting:,} entries wait"
        cases = "1 case" if self.n_cases == 1 else f"{self.n_cases:,} cases"
        if len(self._found) < self.n_cases:
            cases = f"the first {len(self._found)} of {cases}"
        first = self._found[0]
        title = heading(first, Cases(self._quarantine).firsts([first]).get(first.number)).title
        return f"{entries} for a decision in {cases}. The first is {_severity(first)}: {title}."

    def told(self) -> CaseReport:
        """Return the report for HTML and Markdown."""
        return CaseReport(
            question="What waits in quarantine?",
            verdict=self.verdict,
            style="bad" if any(case.n_waiting for case in self._found) else "good",
            source=repr(self._quarantine),
            looked_at=looked_at(f"{self._quarantine.count():,} entries that wait", self._at),
            steps=self._steps(),
            heading="Cases",
            cases=[_shown(*one) for one in self._cases],
            n_cases=self.n_cases,
        )

    def to_sarif(self) -> str:
        """Return the findings against waiting entries: ids and evidence, never texts."""
        found = [
            Located(
                finding,
                LEVELS.get(case.severity, "warning"),
                entry_location(held.id, held.entry.lineage or "quarantine"),
            )
            for case, _, members in self._cases
            for held in members
            if held.status is Status.HELD
            for finding in held.findings
        ]
        notes = [
            ("note", f"case {case.number} has {case.n_members:,} entries, {READ} were read")
            for case in self._found
            if case.n_members > READ
        ]
        if (left := self.n_cases - len(self._found)) > 0:
            notes.append(("note", f"{left:,} more cases are not in this file: --limit"))
        return document_of(found, notes=notes, successful=True, properties={"note": self.verdict})

    def _steps(self) -> list[str]:
        waiting = next((case for case in self._found if case.n_waiting), None)
        if waiting is None:
            return ["Nothing, until the guard holds something."]
        where = "with the --database of this report"
        return [
            "Read each case, the worst first. Look for what it makes a reader do or believe.",
            f"Decide in the browser, case by case: ragshield review, {where}.",
            (
                "Or here: ragshield quarantine confirm --case "
                f"{waiting.number} keeps that case out for good; release --case {waiting.number} "
                f"lets it in ({where})."
            ),
            "Of what was confirmed, look for more of the same source.",
        ]


def _severity(case: Case) -> str:
    return "not rated" if case.severity is Severity.UNKNOWN else str(case.severity)


def _shown(case: Case, head: Heading, members: Sequence[HeldEntry]) -> ShownCase:
    convicted = [held for held in members if head.convicts(held)]
    findings = [one for held in convicted for one in held.findings if one.detector == head.main]
    found = Decision(entry_id="", verdict=Verdict.QUARANTINE, findings=tuple(findings))
    reasons = [one.evidence for one in by_strength(found)] + [one.note or "" for one in members]
    beside = tuple(held.id for held in members if not head.convicts(held))
    by = f"Found by {', '.join(case.detectors)}" if case.detectors else "Held by a person"
    counts = {
        "waiting": case.n_waiting,
        "confirmed": case.n_confirmed,
        "released": case.n_released,
    }
    return ShownCase(
        title=f"Case {case.number}: {head.title}",
        severity=_severity(case),
        entry_ids=tuple(held.id for held in convicted),
        n_entries=case.n_members - len(beside),
        texts=tuple(
            ShownText(id=held.id, text=held.entry.text, span=span_of(held.findings))
            for held in convicted
        ),
        evidence=next(filter(None, reasons), ""),
        by=f"{by}; {', '.join(f'{n:,} {name}' for name, n in counts.items() if n)}",
        beside=beside,
        advice=advice_on(head.main),
        quote=head.quote,
    )
