"""What a screening found, told to LlamaIndex's instrumentation: ids, hashes and scores, no texts.

Handlers added to the root dispatcher, or to ``get_dispatcher("ragshield_llamaindex")``, see a
:class:`PoisonDetectedEvent` whenever entries were flagged or held.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from ragshield_core import Report
from ragshield_core.findings import Decision

Stage = Literal["ingestion", "retrieval"]

dispatcher = get_dispatcher("ragshield_llamaindex")
logger = logging.getLogger("ragshield")


class PoisonDetectedEvent(BaseEvent):
    """Entries were flagged, or kept from the store or from a prompt.

    Attributes
    ----------
    stage
        ``"ingestion"`` or ``"retrieval"``.
    n_entries
        How many were judged.
    quarantined, flagged, retroactive
        Each a list of ``entry_id``, ``fingerprint`` (None for entries admitted earlier),
        ``findings`` (each with ``detector``, ``score``, ``threshold``, ``p_value``) and ``failed``
        detectors. What a filter drops at retrieval counts as quarantined.
    skipped
        Detectors that took no part.
    """

    stage: Stage
    n_entries: int
    quarantined: list[dict[str, Any]]
    flagged: list[dict[str, Any]]
    retroactive: list[dict[str, Any]]
    skipped: list[str]

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "PoisonDetectedEvent"


def report_detection(report: Report, *, stage: Stage) -> None:
    """Tell handlers that entries were flagged or quarantined; says nothing if none was.

    Parameters
    ----------
    report
        What was decided.
    stage
        At ``"retrieval"`` the log is written here; at ``"ingestion"`` the guard has done so when it
        held the entries.
    """
    if not (report.quarantined or report.flagged or report.retroactive):
        return
    event = PoisonDetectedEvent(stage=stage, **_detection(report))
    if stage == "retrieval":
        n = len(event.quarantined) + len(event.flagged)
        logger.warning("%d of %d retrieved entries are suspicious", n, event.n_entries)
        for verdict in ("quarantined", "flagged"):
            for item in getattr(event, verdict):
                found = ", ".join(f"{f['detector']} {f['score']:.4f}" for f in item["findings"])
                logger.info("%s %r: %s", verdict, item["entry_id"], found or "not judged")
    dispatcher.event(event)


def _detection(report: Report) -> dict[str, Any]:
    rows = {entry_id: row for row, entry_id in enumerate(report.batch.ids)}

    def told(decision: Decision) -> dict[str, Any]:
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
        "n_entries": len(report.batch),
        "quarantined": [told(decision) for decision in report.quarantined],
        "flagged": [told(decision) for decision in report.flagged],
        "retroactive": [told(decision) for decision in report.retroactive],
        "skipped": [skipped.detector for skipped in report.skipped],
    }
