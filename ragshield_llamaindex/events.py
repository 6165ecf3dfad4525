"""What a screening found, told to LlamaIndex's instrumentation: ids, hashes and scores, no texts.

Handlers added to the root dispatcher, or to ``get_dispatcher("ragshield_llamaindex")``, see a
:class:`PoisonDetectedEvent` whenever entries were flagged or held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from ragshield_core import Report
from ragshield_core.store.events import Stage, told
from ragshield_llamaindex.convert import source_of

dispatcher = get_dispatcher("ragshield_llamaindex")


class PoisonDetectedEvent(BaseEvent):
    """Entries were flagged, or kept from the store or from a prompt.

    Attributes
    ----------
    stage
        ``"ingestion"`` or ``"retrieval"``.
    n_entries
        How many were judged.
    quarantined, flagged, retroactive
        Each a list of ``entry_id``, ``document`` (the id of its source document, None where none is
        known), ``fingerprint`` (None for entries admitted earlier),
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


def report_detection(
    report: Report, *, stage: Stage, documents: Mapping[str, str | None] | None = None
) -> None:
    """Tell handlers that entries were flagged or quarantined; says nothing if none was.

    Parameters
    ----------
    report
        What was decided.
    stage
        At ``"retrieval"`` the log is written here; at ``"ingestion"`` the guard has done so when it
        held the entries.
    documents
        Ids of source documents, by those of entries; default: as the report's batch has them.
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
