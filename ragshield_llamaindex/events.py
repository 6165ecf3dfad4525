"""Events about screenings for LlamaIndex's instrumentation: ids, hashes and scores, no texts.

Handlers added to the root dispatcher, or to ``get_dispatcher("ragshield_llamaindex")``, see a
:class:`PoisonDetectedEvent` whenever entries were flagged or held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from ragshield_core import Report
from ragshield_core.hooks import Stage
from ragshield_core.store.events import told
from ragshield_llamaindex.convert import source_of

dispatcher = get_dispatcher("ragshield_llamaindex")


class PoisonDetectedEvent(BaseEvent):
    """Entries were flagged, or kept out of the store or a prompt.

    Attributes
    ----------
    stage
        ``"ingestion"`` or ``"retrieval"``.
    n_entries
        Number of entries judged.
    quarantined, flagged, retroactive
        Each a list of ``entry_id``, ``document`` (the id of its source document, None where none is
        known), ``fingerprint`` (None for entries admitted earlier),
        ``findings`` (each with ``detector``, ``score``, ``threshold``, ``p_value``) and ``failed``
        detectors. Entries that a filter drops at retrieval count as quarantined.
    skipped
        Detectors that did not run.
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


def report_detection(
    report: Report, *, stage: Stage, documents: Mapping[str, str | None] | None = None
) -> None:
    """Send handlers an event if entries were flagged or quarantined.

    Parameters
    ----------
    report
        The decisions.
    stage
        At ``"retrieval"``, this function writes the log; at ``"ingestion"``, the guard wrote it
        when it held the entries.
    documents
        Source document ids by entry id; default: those in the report's batch.
    """
    data = told(report, stage)
    if data is not None:
        if documents is None:
            batch = report.batch
            documents = dict(zip(batch.ids, map(source_of, batch.metadatas), strict=True))
        for verdict in ("quarantined", "flagged", "retroactive"):
            data[verdict] = [
                {**item, "document": documents.get(item["entry_id"])} for item in data[verdict]
            ]
        dispatcher.event(PoisonDetectedEvent(**data))
