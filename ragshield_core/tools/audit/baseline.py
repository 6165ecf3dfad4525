"""An earlier report as a baseline: cases that stood in it are no findings any more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.report import ScanReport

OLD = "stood in the baseline"


def read_baseline(path: Path) -> frozenset[tuple[str, str]]:
    """Return ids and revisions of the entries that an earlier report in JSON has found.

    Raises
    ------
    SourceError
        If it is no such report.
    """
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
    """Return a report in which only those cases are findings that have an entry that is new.

    An entry is new if its id is, or its text: an attacker may change a page that was found before.
    """
    marks = dict(
        zip((decision.entry_id for decision in report.found), report.revisions(), strict=True)
    )
    cases = [case for case in report.cases if all((i, marks[i]) in known for i in case.entry_ids)]
    ids = [i for case in cases for i in case.entry_ids]
    kept = report.overruled(dict.fromkeys(ids, OLD))
    return replace(kept, old=tuple((i, marks[i]) for i in ids), n_old=len(cases))
