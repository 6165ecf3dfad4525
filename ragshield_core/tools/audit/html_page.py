"""An audit as a page of HTML: the verdict, the cases with their texts, and what to do next."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence
from importlib.metadata import version

from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.findings import Finding, printable
from ragshield_core.model.severity import Severity
from ragshield_core.tools.audit.cases import Case
from ragshield_core.tools.audit.report import ScanReport
from ragshield_core.tools.page import bars, bullets, escaped, table, whole_page

# Cases and texts that are shown: a page of thousands helps nobody.
SHOWN_CASES, SHOWN_TEXTS = 200, 6
# Characters of a text, around the sentence that convicts.
SHOWN = 900
STYLES = {Severity.CRITICAL: "bad", Severity.HIGH: "bad", Severity.MEDIUM: "warn"}
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
    style = "bad" if report.cases else "good" if report.enough else "warn"
    head, _, rest = report.verdict.partition(". ")
    body = [
        "<h1>Is this knowledge base clean?</h1>",
        f'<div class="verdict {style}"><b>{escaped(head)}.</b><p>{escaped(rest)}</p></div>',
        (
            f'<p class="soft">{escaped(source)}, {report.n_audited:,} entries, looked at on '
            f"{at:%Y-%m-%d %H:%M} UTC by RAGShield {version('ragshield')}; accepted share of clean "
            f"entries among the findings: {report.fpr:g}.</p>"
        ),
        "<h2>What to do next</h2>",
        bullets(next_steps(report, source)),
    ]
    if report.cases:
        body.append(f"<h2>Suspected attacks ({len(report.cases)})</h2>")
        body += [
            _case(report, number, case)
            for number, case in enumerate(report.cases[:SHOWN_CASES], start=1)
        ]
        if (more := len(report.cases) - SHOWN_CASES) > 0:
            body.append(f"<p>{more:,} more cases are in the JSON report.</p>")
    body += _power(report)
    body += _coverage(report)
    body += ["<h2>What the findings are worth</h2>", f"<p>{escaped(report.note)}</p>"]
    return whole_page("RAGShield: is this knowledge base clean?", body)


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


def _case(report: ScanReport, number: int, case: Case) -> str:
    row_of = {report.batch.ids[row]: row for row in report.remarkable}
    style = STYLES.get(case.severity, "soft")
    ids = case.entry_ids[:SHOWN_TEXTS]
    texts = "".join(_text(report, row_of[entry_id]) for entry_id in ids)
    more = len(case.entry_ids) - len(ids)
    parts = [
        (
            f'<h3><span class="badge {style}">{escaped(case.severity)}</span>'
            f"{number}. {escaped(case.title)}</h3>"
        ),
        f"<p>{escaped(case.effect)}</p>" if case.effect else "",
        f'<div class="texts">{texts}</div>',
        f"<p>{more} more entries are in this case.</p>" if more > 0 else "",
    ]
    if case.beside:
        beside = ", ".join(escaped(entry_id, 100) for entry_id in case.beside[:SHOWN_TEXTS])
        parts.append(f"<p>Look at these as well, which are no findings: {beside}.</p>")
    by = ", ".join(case.detectors)
    parts.append(f'<p class="soft">Found by {escaped(by)}: {escaped(case.evidence)}</p>')
    return f'<section class="case">{"".join(parts)}</section>'


def _text(report: ScanReport, row: int) -> str:
    """Return the id of an entry and its text, with the part marked that convicts."""
    entry_id, text = report.batch.ids[row], report.batch.texts[row]
    span = _span(report.remarkable[row].findings)
    start, end = span or (0, 0)
    begin = max(0, min(start - SHOWN // 3, len(text) - SHOWN))
    shown = text[begin : begin + SHOWN]
    start, end = max(0, start - begin), min(len(shown), end - begin)
    cut = [shown[:start], shown[start:end], shown[end:]]
    before, marked, after = (html.escape(_lines(part)) for part in cut)
    dots = ("… " if begin else "", " …" if begin + SHOWN < len(text) else "")
    inside = f"<mark>{marked}</mark>" if marked else ""
    return (
        f'<div><span class="soft">{escaped(entry_id, 200)}</span>'
        f"<pre>{dots[0]}{before}{inside}{after}{dots[1]}</pre></div>"
    )


def _lines(text: str) -> str:
    """Return a text that shows hidden characters; line breaks stay."""
    return "\n".join(printable(line, SHOWN * 4) for line in text.split("\n"))


def _span(findings: Sequence[Finding]) -> tuple[int, int] | None:
    return next((f.span for f in findings if f.span is not None and not f.beside), None)


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
