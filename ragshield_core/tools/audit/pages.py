"""An audit as a report: the verdict, the cases with their texts, and what to do next."""

from __future__ import annotations

import datetime as dt

from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.tools.audit.cases import Case
from ragshield_core.tools.audit.report import ScanReport
from ragshield_core.tools.case_report import (
    SHOWN_TEXTS,
    CaseReport,
    ShownCase,
    ShownText,
    code,
    looked_at,
    plain,
    span_of,
)
from ragshield_core.tools.case_report import html_page as page_of
from ragshield_core.tools.case_report import markdown as markdown_of
from ragshield_core.tools.page import bars, bullets, escaped, table

# Below this share of planted texts a reader is told that an audit sees little here.
WEAK = 0.5


def html_page(report: ScanReport, source: str, at: dt.datetime) -> str:
    """Return a whole page.

    Parameters
    ----------
    report
        Of :func:`~ragshield_core.tools.audit.scan`.
    source
        What was audited, as its path.
    at
        When, in UTC.
    """
    worth = ["<h2>What the findings are worth</h2>", f"<p>{escaped(report.note)}</p>"]
    more = [*_power(report), *_coverage(report), *worth]
    return page_of(_told(report, source, at), more)


def to_markdown(report: ScanReport, source: str, at: dt.datetime) -> str:
    """Return the same as Markdown; parameters as of :func:`html_page`."""
    apart = [f"{one.detector} took no part: {one.reason}" for one in report.skipped]
    files = "\n".join(f"- {code(one)}" for one in (*report.files, *report.unread, *apart))
    more = ["## What was judged", plain(report.note), files]
    return markdown_of(_told(report, source, at), more)


def _told(report: ScanReport, source: str, at: dt.datetime) -> CaseReport:
    share = f"set to name about {100 * report.fpr:.3g} % of the clean entries by mistake"
    return CaseReport(
        question="Is this knowledge base clean?",
        verdict=report.verdict,
        style="bad" if report.cases else "good" if report.enough else "warn",
        source=source,
        looked_at=f"{looked_at(f'{report.n_audited:,} entries', at)}; {share}",
        steps=next_steps(report, source),
        heading="Suspected attacks",
        cases=_shown(report),
        n_cases=len(report.cases),
    )


def _shown(report: ScanReport) -> list[ShownCase]:
    row_of = {report.batch.ids[row]: row for row in report.remarkable}

    def text(entry_id: str) -> ShownText:
        row = row_of[entry_id]
        span = span_of(report.remarkable[row].findings)
        return ShownText(id=entry_id, text=report.batch.texts[row], span=span)

    def shown(case: Case) -> ShownCase:
        return ShownCase(
            title=case.title,
            badge=case.severity,
            entry_ids=case.entry_ids,
            texts=tuple(map(text, case.entry_ids[:SHOWN_TEXTS])),
            evidence=case.evidence,
            by=f"Found by {', '.join(case.detectors)}",
            effect=case.effect,
            advice=case.advice,
            beside=case.beside,
            quote=case.quote,
        )

    return list(map(shown, report.cases))


def next_steps(report: ScanReport, source: str) -> list[str]:
    """Return what a person does now, a sentence each."""
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


def _power(report: ScanReport) -> list[str]:
    head = "<h2>What an attack would look like here</h2>"
    if not report.power:
        return [
            head,
            (
                "<p>This was not measured. It needs texts, their embedding model, and about 350 "
                "entries.</p>"
            ),
        ]
    return [
        head,
        (
            "<p>Attacks were made up about topics of this knowledge base, and audited among its "
            "entries. Bars show how much of them was found. What is not found here may be in the "
            "knowledge base unseen.</p>"
        ),
        bars(report.power, "share of planted texts that were found"),
    ]


def _coverage(report: ScanReport) -> list[str]:
    rows = [
        (name, _purpose(name), f"{report.judged.get(name, 0):,}", _n_found(report, name))
        for name in report.scores
    ]
    parts = [
        "<h2>What was judged</h2>",
        table(("detector", "what it does", "entries judged", "found"), rows, figures=False),
    ]
    if report.skipped:
        parts.append("<p>These detectors took no part:</p>")
        parts.append(bullets(f"{one.detector}: {one.reason}" for one in report.skipped))
    if report.files:
        parts += ["<h3>Files</h3>", bullets(report.files)]
    if report.unread:
        parts += ["<p>These files could not be read:</p>", bullets(report.unread)]
    return parts


def _purpose(name: str) -> str:
    return (BUILT_IN[name].__doc__ or "").strip().partition("\n")[0] if name in BUILT_IN else ""


def _n_found(report: ScanReport, name: str) -> int:
    return sum(any(f.detector == name for f in decision.findings) for decision in report.found)
