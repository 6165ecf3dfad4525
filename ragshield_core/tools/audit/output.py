"""The findings of an audit as a table and as CSV; all that comes from entries is hostile."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ragshield_core.model.findings import printable, why
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


def findings_table(report: ScanReport, limit: int) -> Table:
    """Return the worst findings as a table, one row per entry, hostile text escaped.

    Parameters
    ----------
    report
        Of :func:`~ragshield_core.tools.audit.scan`.
    limit
        Rows at most.
    """
    table = Table(title=Text(report.summary()))
    several = len(report.scores) > 1
    columns = ["#", "entry", "score", *(["p"] if report.n_clean else []), "why"]
    for column in columns:
        right = column in ("#", "score", "p")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for number, decision in enumerate(report.found[:limit], start=1):
        finding = report.strongest(decision)
        row = {
            "#": str(number),
            "entry": decision.entry_id,
            "score": f"{finding.score:.3f}",
            "p": "" if finding.p_value is None else f"{finding.p_value:.4f}",
            "why": (f"{finding.detector}: " if several else "") + why(decision),
        }
        table.add_row(*(Text(printable(row[column], SHOWN)) for column in columns))
    if len(report.found) > limit:
        table.caption = f"and {len(report.found) - limit} more: --limit, --json, --csv or --sarif"
    return table


def write_csv(report: ScanReport, path: Path) -> None:
    """Write one line per finding, worst entries first: ids and evidence, never texts.

    For people and spreadsheets: control characters are spelt out, and what a spreadsheet would take
    for a formula gets an apostrophe in front. Programs read the JSON, where ids are exact.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
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


def safe_cell(text: str) -> str:
    """Return text that no spreadsheet computes and no terminal obeys.

    >>> safe_cell("=HYPERLINK(A1)"), safe_cell("plain")
    ("'=HYPERLINK(A1)", 'plain')
    """
    shown = printable(text, CELL)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA_STARTS) else shown
