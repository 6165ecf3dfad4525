"""An audit as Markdown, for a comment or a summary in CI; all that is of entries is inert."""

from __future__ import annotations

import datetime as dt
import re
from importlib.metadata import version

from ragshield_core.model.findings import printable
from ragshield_core.tools.audit.cases import Case
from ragshield_core.tools.audit.html_page import next_steps
from ragshield_core.tools.audit.report import ScanReport

SHOWN_CASES, SHOWN_IDS = 50, 10
# Characters of what an entry says.
QUOTED = 300
# What has a meaning in Markdown.
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")


def to_markdown(report: ScanReport, source: str, at: dt.datetime) -> str:
    """Return the verdict, the cases, what was judged, and what to do next.

    Parameters
    ----------
    report
        Of :func:`~ragshield_core.tools.audit.scan`.
    source
        What was audited, as its path.
    at
        When, in UTC.
    """
    head, _, rest = report.verdict.partition(". ")
    lines = [
        "# Is this knowledge base clean?",
        f"**{plain(head)}.** {plain(rest)}",
        (
            f"{code(source)}, {at:%Y-%m-%d %H:%M} UTC, RAGShield {version('ragshield')}; accepted "
            f"share of clean entries among the findings: {report.fpr:g}."
        ),
    ]
    if report.cases:
        lines.append(f"## Suspected attacks ({len(report.cases)})")
        cases = enumerate(report.cases[:SHOWN_CASES], start=1)
        lines.append("\n".join(_case(number, case) for number, case in cases))
        if (more := len(report.cases) - SHOWN_CASES) > 0:
            lines.append(f"{more} more cases are in the JSON report.")
    lines += ["## What was judged", plain(report.note)]
    apart = [f"{one.detector} took no part: {one.reason}" for one in report.skipped]
    lines.append("\n".join(f"- {code(one)}" for one in (*report.files, *report.unread, *apart)))
    steps = (f"- {plain(step)}" for step in next_steps(report, source))
    lines += ["## What to do next", "\n".join(steps)]
    return "\n\n".join(filter(None, lines)) + "\n"


def plain(text: str) -> str:
    r"""Return a sentence as Markdown that shows it as it is.

    >>> print(plain("1 < 2 *here*"))
    1 \< 2 \*here\*
    """
    return _MARKS.sub(r"\\\1", printable(text, limit=4000))


def code(text: str) -> str:
    """Return hostile text as code: no link, no picture, no name that is told.

    >>> code("a `b` @team")
    '`` a `b` @team ``'
    """
    shown = printable(text, limit=QUOTED)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if fence != "`" else f"`{shown}`"


def _case(number: int, case: Case) -> str:
    ids = ", ".join(code(entry_id) for entry_id in case.entry_ids[:SHOWN_IDS])
    more = len(case.entry_ids) - SHOWN_IDS
    told = [
        f"{number}. **{case.severity}**: {plain(case.title)}. {plain(case.effect)}".rstrip(),
        f"   - entries: {ids}{f' and {more} more' if more > 0 else ''}",
        f"   - says: {code(case.quote)}" if case.quote else "",
        f"   - evidence: {code(case.evidence)}",
    ]
    return "\n".join(filter(None, told))
