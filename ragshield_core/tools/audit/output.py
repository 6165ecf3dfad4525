"""The findings of an audit as a table and as CSV; all that comes from entries is hostile."""

from __future__ import annotations

import csv
import io
import json

from rich.table import Table
from rich.text import Text

from ragshield_core.model.findings import printable
from ragshield_core.tools.audit.report import ScanReport

# A cell that starts with one of these is computed by spreadsheets, full-width ones included.
FORMULA_STARTS = tuple("=+-@＝＋－＠|%")
CSV_COLUMNS = (
    *("rank", "entry_id", "detector", "score", "threshold", "p_value", "evidence"),
    *("related_ids", "taxonomy"),
)
# Longer than any evidence, shorter than what a cell of a spreadsheet can hold.
CELL = 32_000
# A cell of a table on the terminal.
SHOWN = 300
SHOWN_ID = 60
# Ids of a case there.
SHOWN_IDS = 6


def cases_table(report: ScanReport, limit: int) -> Table:
    """Return the worst cases as a table, one row per case, hostile text escaped.

    Parameters
    ----------
    report
        Of :func:`~ragshield_core.tools.audit.scan`.
    limit
        Rows at most.
    """
    table = Table(show_lines=True)
    for column in ("#", "severity", "what", "entries"):
        right = column == "#"
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for number, case in enumerate(report.cases[:limit], start=1):
        what = [f"{case.title}: {case.quote}" if case.quote else case.title]
        what += [case.effect] if case.effect else []
        entries = [printable(i, SHOWN_ID) for i in case.entry_ids[:SHOWN_IDS]]
        if more := len(case.entry_ids) - SHOWN_IDS:
            entries += [f"and {more} more"] if more > 0 else []
        if case.beside:
            entries.append(f"beside: {len(case.beside)}")
        rows = (str(number), str(case.severity), " ".join(what), "\n".join(entries))
        cells = [printable(row, SHOWN) for row in rows[:3]]
        table.add_row(*map(Text, cells), Text(rows[3]))
    if len(report.cases) > limit:
        table.caption = f"and {len(report.cases) - limit} more: --limit, or --output findings.json"
    return table


def to_csv(report: ScanReport) -> str:
    """Return one line per finding, worst entries first: ids and evidence, never texts.

    For people and spreadsheets: control characters are spelt out, and what a spreadsheet would take
    for a formula gets an apostrophe in front. Programs read the JSON, where ids are exact.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for rank, decision in enumerate(report.found, start=1):
        for finding in decision.findings:
            writer.writerow(
                (
                    rank,
                    safe_cell(finding.entry_id),
                    safe_cell(finding.detector),
                    finding.score,
                    finding.threshold,
                    "" if finding.p_value is None else finding.p_value,
                    safe_cell(finding.evidence),
                    safe_cell(json.dumps(finding.related_ids)),
                    safe_cell(" ".join(finding.taxonomy)),
                )
            )
    return file.getvalue()


def safe_cell(text: str) -> str:
    """Return text that no spreadsheet computes and no terminal obeys.

    >>> safe_cell("=HYPERLINK(A1)"), safe_cell("plain")
    ("'=HYPERLINK(A1)", 'plain')
    """
    shown = printable(text, CELL)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA_STARTS) else shown
