"""RAGShield's core: keeps poisoned documents out of RAG knowledge bases; knows no framework."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.detectors.base import Detector, StatelessDetector
    from ragshield_core.guard import Guard
    from ragshield_core.model.entries import Batch, Entry
    from ragshield_core.model.errors import PoisonedEntryError, RAGShieldError
    from ragshield_core.model.findings import Decision, Finding, Report, Verdict
    from ragshield_core.model.policy import Policy
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.retrieval import RetrievalGuard, screen_retrieved

__all__ = [
    "Batch",
    "Decision",
    "Detector",
    "Entry",
    "Finding",
    "Guard",
    "PoisonedEntryError",
    "Policy",
    "Quarantine",
    "RAGShieldError",
    "Report",
    "RetrievalGuard",
    "StatelessDetector",
    "Verdict",
    "screen_retrieved",
]

# Module of each name: only used modules are imported.
_HOMES = {
    **dict.fromkeys(("Batch", "Entry"), "model.entries"),
    **dict.fromkeys(("Decision", "Finding", "Report", "Verdict"), "model.findings"),
    **dict.fromkeys(("PoisonedEntryError", "RAGShieldError"), "model.errors"),
    **dict.fromkeys(("RetrievalGuard", "screen_retrieved"), "retrieval"),
    **dict.fromkeys(("Detector", "StatelessDetector"), "detectors.base"),
    "Guard": "guard",
    "Policy": "model.policy",
    "Quarantine": "quarantine",
}

__getattr__ = attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
