"""What a screening found, told to callbacks and to the log: ids, hashes and scores, never texts."""

from __future__ import annotations

import logging
from typing import Any, Literal

from langchain_core.callbacks import Callbacks, adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config

from ragshield_core import Report
from ragshield_core.findings import Decision

EVENT = "ragshield.detection"

Stage = Literal["ingestion", "retrieval"]

logger = logging.getLogger("ragshield")


def report_detection(
    report: Report, callbacks: Callbacks = None, *, stage: Stage = "retrieval"
) -> None:
    """Tell callbacks that entries were flagged or quarantined; says nothing if none was.

    The run that this is part of gets a custom event ``ragshield.detection``, which handlers see in
    ``on_custom_event`` and ``astream_events`` hands on. Outside a run there is nobody to tell.

    Parameters
    ----------
    report
        What was decided.
    callbacks
        Of the run, e.g. ``run_manager.get_child()``; ``None`` takes those of the runnable that is
        running in this context.
    stage
        At ``"retrieval"`` the log is written here; at ``"ingestion"`` the guard has done so when it
        held the entries.
    """
    data = _told(report, stage)
    config = _config(callbacks)
    if data is not None and _in_a_run(config):
        dispatch_custom_event(EVENT, data, config=config)


async def areport_detection(
    report: Report, callbacks: Callbacks = None, *, stage: Stage = "retrieval"
) -> None:
    """Do as :func:`report_detection` does, for asynchronous handlers."""
    data = _told(report, stage)
    config = _config(callbacks)
    if data is not None and _in_a_run(config):
        await adispatch_custom_event(EVENT, data, config=config)


def detection(report: Report, stage: Stage) -> dict[str, Any]:
    """Return what the event carries, JSON-ready.

    Returns
    -------
    dict[str, Any]
        ``stage``; ``n_entries``; ``quarantined``, ``flagged`` and ``retroactive``: each a list of
        ``entry_id``, ``fingerprint`` (None for entries admitted earlier), ``findings`` (each with
        ``detector``, ``score``, ``threshold``, ``p_value``) and ``failed`` detectors; and the
        ``skipped`` detectors.
    """
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
        "stage": stage,
        "n_entries": len(report.batch),
        "quarantined": [told(decision) for decision in report.quarantined],
        "flagged": [told(decision) for decision in report.flagged],
        "retroactive": [told(decision) for decision in report.retroactive],
        "skipped": [skipped.detector for skipped in report.skipped],
    }


def _told(report: Report, stage: Stage) -> dict[str, Any] | None:
    """Write the log; return the event's data, or None if there is nothing to tell."""
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


def _config(callbacks: Callbacks) -> RunnableConfig:
    return ensure_config(None if callbacks is None else {"callbacks": callbacks})


def _in_a_run(config: RunnableConfig) -> bool:
    # Asked beforehand, since the RuntimeError of dispatch_custom_event without a run looks like one
    # of a handler, which must not get lost.
    return get_callback_manager_for_config(config).parent_run_id is not None
