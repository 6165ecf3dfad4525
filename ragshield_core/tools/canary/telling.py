"""Reports of checks of canaries and of tracebacks: HTML, Markdown and SARIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragshield_core.model.findings import Finding, printable
from ragshield_core.tools.audit.sarif import (
    CONTRADICTION,
    Located,
    alerted,
    document_of,
    entry_location,
)
from ragshield_core.tools.case_report import SUSPECT, CaseReport, ShownCase, ShownText, looked_at
from ragshield_core.tools.case_report import html_page as page_of
from ragshield_core.tools.page import escaped, table

if TYPE_CHECKING:
    import datetime as dt

    from ragshield_core.tools.canary.drift import CanaryDrift, DriftReport
    from ragshield_core.tools.canary.traceback import Suspect, Traceback

SAID = {
    "canary_drift": "Watched questions that retrieve, or are answered, otherwise than before.",
    "canary_traceback": "Entries that are to blame for such a change.",
    **CONTRADICTION,
}
# Ids that are named in a sentence.
NAMED = 10


def verdict_of(report: DriftReport) -> str:
    """Return the result of a check in one or two sentences."""
    n, flagged = len(report.canaries), len(report.flagged)
    said = f"None of {n} watched questions has changed more than growth explains."
    if flagged:
        have = "has" if flagged == 1 else "have"
        said = f"{flagged} of {n} watched questions {have} changed more than growth explains."
    if report.still_served:
        said += f" {len(report.still_served)} entries in quarantine are still retrieved."
    return said


def told_of_drift(report: DriftReport, traceback: Traceback | None = None) -> CaseReport:
    """Return a check for HTML and Markdown, with the suspects of a traceback if given."""
    suite = printable(report.suite, 60)
    steps = []
    if report.still_served:
        some = ", ".join(printable(name, 60) for name in report.still_served[:NAMED])
        steps.append(f"Take what is in quarantine out of the knowledge base: {some}.")
    if report.flagged:
        names = ", ".join(printable(drift.name, 60) for drift in report.flagged[:NAMED])
        steps += [
            f"Ask these questions yourself, and read what they retrieve: {names}.",
            (
                "Hold the entries that are to blame: ragshield canary trace --quarantine, with the "
                f"suite {suite} and the options of this check."
            ),
            (
                "If the change is wanted, record a new baseline: ragshield canary baseline, with "
                "the same options."
            ),
        ]
    return CaseReport(
        question="Do watched questions still get what they got?",
        verdict=verdict_of(report),
        style="bad" if report.flagged or report.still_served else "good",
        source=f"suite {suite}, baseline {report.baseline}",
        looked_at=looked_at(f"the first {report.k} results of each question", report.checked_at),
        steps=steps or ["Nothing. Check again after the next change of the knowledge base."],
        heading="Entries that are to blame",
        cases=[] if traceback is None else list(map(_shown, traceback.suspects)),
        n_cases=0 if traceback is None else len(traceback.suspects),
        parts=[] if report.contradictions is None else [report.contradictions.section()],
    )


def told_of_suspects(traceback: Traceback, at: dt.datetime) -> CaseReport:
    """Return a traceback for HTML and Markdown; ``at`` is its time in UTC."""
    n = len(traceback.suspects)
    steps = [
        "Read the entries, the first one first. Is what they say true?",
        "Hold those that are not: the same command with --quarantine; then ragshield review.",
    ]
    return CaseReport(
        question="Which entries are to blame?",
        verdict=f"{n} of {len(traceback.candidates)} entries are more likely to blame than not.",
        style="bad" if n else "good",
        source=traceback.subject,
        looked_at=looked_at(f"{len(traceback.candidates)} retrieved entries", at),
        steps=steps if n else ["Nothing here is to blame. Look at the prompt and the model."],
        heading="Entries that are to blame",
        cases=list(map(_shown, traceback.suspects)),
        n_cases=n,
    )


def to_sarif(report: DriftReport | None, traceback: Traceback | None = None) -> str:
    """Return flagged canaries of a check, and suspects of a traceback, as SARIF."""
    found, notes, said = [], [], ""
    if traceback is not None:
        said = traceback.summary()
        found = [
            Located(
                finding,
                "error",
                entry_location(suspect.entry_id, suspect.passage.lineage or "knowledge base"),
            )
            for suspect in traceback.suspects
            for finding in suspect.decision().findings
        ]
    if report is not None:
        said = verdict_of(report)
        found = [*(_drifted(drift, report.suite) for drift in report.flagged), *found]
        if report.contradictions is not None:
            found += [
                alerted(alert, lambda finding: entry_location(finding.entry_id, "knowledge base"))
                for alert in report.contradictions.alerts
            ]
        notes = [
            ("error", f"{name} is in quarantine and still retrieved")
            for name in report.still_served
        ]
    return document_of(found, notes=notes, successful=True, properties={"verdict": said}, said=SAID)


def _shown(suspect: Suspect) -> ShownCase:
    asked = ", ".join(suspect.canaries)
    return ShownCase(
        title=f"{suspect.entry_id} comes at place {suspect.rank}",
        severity=SUSPECT,
        entry_ids=(suspect.entry_id,),
        texts=(ShownText(id=suspect.entry_id, text=suspect.passage.text),),
        evidence=suspect.why,
        by=f"To blame by {suspect.responsibility:.0%}",
        effect=f"It is retrieved for: {asked}." if asked else "",
        beside=suspect.related_ids,
        quote=" ".join(suspect.passage.text.split())[:160],
    )


def _drifted(drift: CanaryDrift, suite: str) -> Located:
    finding = Finding(
        detector="canary_drift",
        entry_id=drift.name,
        score=drift.score,
        threshold=math.nan,  # each figure has its own
        p_value=drift.takeover_p,
        evidence="; ".join(drift.reasons) or "it has changed",
        related_ids=drift.newcomers,
    )
    return Located(finding, "warning", entry_location(drift.name, suite, "canary"), "canary")


# Canaries shown in full, the worst ones, so that a page of a thousand stays readable.
DRAWN = 50


def html_report(
    report: DriftReport,
    history: Sequence[DriftReport] = (),
    traceback: Traceback | None = None,
) -> str:
    """Return a page of a check, with earlier checks, oldest first, and a traceback's suspects."""
    return page_of(told_of_drift(report, traceback), [html_body(report, history)])


def html_body(report: DriftReport, history: Sequence[DriftReport] = ()) -> str:
    """Return all checks and the figures of one, for a page or a notebook."""
    seen = report.checked_at in {one.checked_at for one in history}
    checks = [*history] if seen else [*history, report]
    parts = [f"<h2>Canaries</h2><p>{escaped(report.summary())}</p>"]
    drawn = report.flagged[:DRAWN]
    parts += [
        f'<details open><summary class="bad">{escaped(drift.name, 120)}</summary>'
        f"{table(('figure', 'value'), drift.figures(), figures=False)}</details>"
        for drift in drawn
    ]
    others = [drift for drift in report.canaries if drift not in drawn]
    if others:
        figures = [(d.name, "yes" if d.flagged else "no", f"{d.score:.3f}") for d in others]
        parts.append(table(("canary", "flagged", "anomaly"), figures))
    if len(checks) > 1:
        lines = [
            (
                f"{one.checked_at:%Y-%m-%d %H:%M} UTC",
                f"{len(one.flagged)} of {len(one.canaries)}",
                f"{max((drift.score for drift in one.canaries), default=0.0):.3f}",
                ", ".join(printable(drift.name, 60) for drift in one.flagged[:NAMED]),
            )
            for one in reversed(checks)
        ]
        heads = ("checked", "flagged", "highest anomaly", "which")
        parts += ["<h2>Checks, the latest first</h2>", table(heads, lines, figures=False)]
    return "".join(parts)
