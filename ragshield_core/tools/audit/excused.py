"""What rules that people have made excuse of an audit's findings, before these are held."""

from __future__ import annotations

from dataclasses import replace

from ragshield_core.model.findings import Verdict
from ragshield_core.model.policy import Policy
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.audit.report import ScanReport
from ragshield_core.tools.rules import Rules


def without_excused(report: ScanReport, quarantine: Quarantine) -> ScanReport:
    """Return a report without the findings that the rules of a quarantine excuse.

    As a guard goes by them: what a person has confirmed as poisoned is not excused. Decisions of
    which nothing is left admit, with a note of the rule.

    Parameters
    ----------
    report
        Of an audit in memory.
    quarantine
        Into which the findings are going to be put.
    """
    found = {row: report.remarkable[row] for row in report.found_rows}
    batch = report.batch.take(list(found))
    confirmed = quarantine.confirmed_among(batch)
    before = {
        place: decision
        for place, decision in enumerate(found.values())
        if decision.entry_id not in confirmed
    }
    after = Rules(quarantine).excuse(batch, before, Policy())
    remarkable = dict(report.remarkable)
    for place, row in enumerate(found):
        if place in before and after[place] is not before[place]:
            left = after[place].findings
            verdict = before[place].verdict if left else Verdict.ADMIT
            # What is admitted keeps its findings, as what people have released does.
            findings = left or before[place].findings
            remarkable[row] = replace(after[place], findings=findings, verdict=verdict)
    return replace(report, remarkable=remarkable)
