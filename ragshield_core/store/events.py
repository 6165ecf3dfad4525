"""Findings of a screening for logs and framework events: ids, hashes and scores, no texts."""

from __future__ import annotations

import logging
from typing import Any

from ragshield_core.hooks import Stage
from ragshield_core.model.findings import Decision, Report

logger = logging.getLogger("ragshield")


def detection(report: Report, stage: Stage) -> dict[str, Any]:
    """Return the content of an event, JSON-ready.

    Returns
    -------
    dict[str, Any]
        ``stage``; ``n_entries``; ``quarantined``, ``flagged`` and ``retroactive``: each a list of
        ``entry_id``, ``fingerprint`` (None for entries admitted earlier), ``findings`` (each with
        ``detector``, ``score``, ``threshold``, ``p_value``) and ``failed`` detectors; and the
        ``skipped`` detectors.
    """
    rows = {entry_id: row for row, entry_id in enumerate(report.batch.ids)}

    def of(decision: Decision) -> dict[str, Any]:
        row = rows.get(decision.entry_id)
        return {
            "entry_id": decision.entry_id,
            "fingerprint": None if row is None else report.batch[row].fingerprint,
            # Evidence is left out: its sentences may quote the text.
            "findings": [
                {
                    "detector": finding.detector,
                    "score": finding.score,
                    "threshold": finding.threshold,
                    "p_value": finding.p_value,
                }
                for finding in decision.findings
            ],
            "failed": [item.detector for item in decision.unjudged if item.failed],
        }

    return {
        "stage": stage,
        "n_entries": len(report.batch),
        "quarantined": [of(decision) for decision in report.quarantined],
        "flagged": [of(decision) for decision in report.flagged],
        "retroactive": [of(decision) for decision in report.retroactive],
        "skipped": [skipped.detector for skipped in report.skipped],
    }


def told(report: Report, stage: Stage) -> dict[str, Any] | None:
    """Write the log; return the event's data, or None if no entry is suspicious."""
    if not (report.quarantined or report.flagged or report.retroactive):
        return None
    data = detection(report, stage)
    if stage == "retrieval":
        logger.warning(
            "%d of %d retrieved entries are suspicious",
            len(report.quarantined) + len(report.flagged),
            len(report.batch),
        )
        for verdict in ("quarantined", "flagged"):
            for item in data[verdict]:
                found = ", ".join(f"{f['detector']} {f['score']:.4f}" for f in item["findings"])
                logger.info(
                    "%s %r (revision %s): %s",
                    verdict,
                    item["entry_id"],
                    item["fingerprint"],
                    found or "not judged",
                )
    return data
