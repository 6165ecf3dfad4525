"""What rules that people have made excuse of an audit's findings, before these are held."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Scope, judged_scores
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Verdict
from ragshield_core.model.policy import Policy
from ragshield_core.quarantine import Quarantine
from ragshield_core.screening.screening import crash
from ragshield_core.tools.audit.report import ScanReport
from ragshield_core.tools.rules import Rules
from ragshield_core.tools.rules.excusing import by_rules

logger = logging.getLogger("ragshield")  # names and counts, never text


def without_excused(
    report: ScanReport, detectors: Sequence[Detector], quarantine: Quarantine
) -> ScanReport:
    """Return a report without the findings that the rules of a quarantine excuse.

    As a guard goes by them: what a person has confirmed as poisoned is not excused. Decisions of
    which nothing is left admit, with a note of the rule.

    Parameters
    ----------
    report
        Of an audit in memory.
    detectors
        That have judged: a text that holds a phrase of ours is judged again without it. Only those
        that judge each entry by itself can be; findings of others are not excused by a phrase.
    quarantine
        Into which the findings are going to be put.
    """
    found = {row: report.remarkable[row] for row in report.ranking if not report.admitted[row]}
    batch = report.batch.take(list(found))
    confirmed = quarantine.confirmed_among(batch)
    before = {
        place: decision
        for place, decision in enumerate(found.values())
        if decision.entry_id not in confirmed
    }
    by_name = {one.name: one for one in detectors}

    def quiet(name: str, texts: Batch, rows: Sequence[int]) -> NDArray[np.bool_]:
        silent = np.zeros(len(rows), dtype=np.bool_)
        detector = by_name.get(name)
        if (
            detector is None
            or detector.traits.scope is not Scope.ENTRY
            or name not in report.thresholds
        ):
            return silent
        try:
            scores = judged_scores(detector, texts.take(list(rows)))
        except Exception as error:  # noqa: BLE001 - any crash, of any detector
            logger.error("%s could not be asked again: %s", name, crash(error))  # noqa: TRY400
            return silent
        return np.nan_to_num(scores, nan=np.inf) <= report.thresholds[name]

    after = by_rules(Rules(quarantine), batch, before, Policy(), quiet)
    remarkable = dict(report.remarkable)
    for place, row in enumerate(found):
        if place in before and after[place] is not before[place]:
            left = after[place].findings
            verdict = before[place].verdict if left else Verdict.ADMIT
            # What is admitted keeps its findings, as what people have released does.
            findings = left or before[place].findings
            remarkable[row] = replace(after[place], findings=findings, verdict=verdict)
    return replace(report, remarkable=remarkable)
