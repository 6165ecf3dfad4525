"""Findings of an audit as a table, HTML and Markdown; the text of entries is hostile."""

from __future__ import annotations

import datetime as dt

from rich.table import Table
from rich.text import Text

from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.findings import printable
from ragshield_core.tools.audit.report import ScanReport
from ragshield_core.tools.case_report import CaseReport, Part, looked_at

# Maximum length of a cell on the terminal and of an id in it, and number of ids of a case.
SHOWN, SHOWN_ID, SHOWN_IDS = 300, 60, 6
MEASURED = (
    "Attacks were made up about topics of this knowledge base, and audited among its entries. Bars "
    "show how much of them was found. The knowledge base may hold others unseen."
)
NOT_MEASURED = (
    "This was not measured. It needs texts, their embedding model, and about 350 entries."
)
# If a smaller share of planted texts is found, the report warns that the audit misses attacks.
WEAK = 0.5


def cases_table(report: ScanReport, limit: int) -> Table:
    """Return the worst cases as a table, one row per case, hostile text escaped."""
    shown = Table(show_lines=True)
    for column in ("#", "severity", "what", "entries"):
        shown.add_column(column, justify="right" if column == "#" else "left", overflow="fold")
    for number, case in enumerate(report.cases[:limit], start=1):
        what = f"{case.title}: {case.quote}" if case.quote else case.title
        entries = [printable(i, SHOWN_ID) for i in case.entry_ids[:SHOWN_IDS]]
        if (more := len(case.entry_ids) - SHOWN_IDS) > 0:
            entries.append(f"and {more} more")
        if case.beside:
            entries.append(f"beside: {len(case.beside)}")
        cells = (str(number), str(case.severity), f"{what} {case.effect}".rstrip())
        shown.add_row(*(Text(printable(cell, SHOWN)) for cell in cells), Text("\n".join(entries)))
    if (more := len(report.cases) - limit) > 0:
        shown.caption = f"and {more} more: --limit, or --output findings.json"
    return shown


def case_report(report: ScanReport, source: str, at: dt.datetime) -> CaseReport:
    """Return an audit of the path ``source`` at a time in UTC, for HTML and Markdown."""
    found_by = [{finding.detector for finding in one.findings} for one in report.found]
    rows = [
        (
            name,
            (BUILT_IN[name].__doc__ or "").strip().partition("\n")[0] if name in BUILT_IN else "",
            f"{report.judged.get(name, 0):,}",
            sum(name in names for names in found_by),
        )
        for name in report.scores
    ]
    heads = ("detector", "what it does", "entries judged", "found")
    skipped = [f"{one.detector}: {one.reason}" for one in report.skipped]
    parts = [
        *([] if report.contradictions is None else [report.contradictions.section()]),
        Part(
            "What an attack would look like here",
            MEASURED if report.power else NOT_MEASURED,
            shares=report.power,
            axis="share of planted texts that were found",
        ),
        Part("Coverage", heads=heads, rows=rows),
        Part("", "These detectors took no part:" if skipped else "", lines=skipped),
        Part("Files" if report.files else "", lines=report.files),
        Part("", "These files could not be read:" if report.unread else "", lines=report.unread),
        Part("What the findings are worth", report.note),
    ]
    share = f"set to name about {100 * report.fpr:.3g} % of the clean entries by mistake"
    return CaseReport(
        question="Is this knowledge base clean?",
        verdict=report.verdict,
        style="bad" if report.cases else "good" if report.enough else "warn",
        source=source,
        looked_at=f"{looked_at(f'{report.n_audited:,} entries', at)}; {share}",
        steps=next_steps(report, source),
        heading="Suspected attacks",
        cases=report.cases,
        n_cases=len(report.cases),
        parts=parts,
    )


def next_steps(report: ScanReport, source: str) -> list[str]:
    """Return the next steps for a person, a sentence each."""
    steps = []
    if report.cases:
        steps += [
            "Read each case, the worst first. Look for what it makes a reader do or believe.",
            (
                "Put the findings into quarantine, where they wait for a decision: ragshield scan "
                f"{source} --quarantine --database guard.db"
            ),
            "Decide on them: ragshield review --database guard.db",
            "Delete the confirmed ones from the knowledge base; the audit changes nothing there.",
        ]
    if report.unread:
        steps.append("Make the files readable that are named below, and audit again.")
    if report.idle:
        steps.append(
            f"These detectors judged nothing: {', '.join(report.idle)}. The reasons are below; "
            "most need more entries."
        )
    if report.power and min(report.power.values()) < WEAK:
        steps.append(
            "Parts of an attack would not be found here, see below. Name entries that you trust "
            "(--clean), and watch important questions with canaries (ragshield canary)."
        )
    steps.append("Guard what comes from now on: ragshield fit, and the page 'Guard what you have'.")
    return steps
