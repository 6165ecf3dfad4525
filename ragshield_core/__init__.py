"""RAGShield's core: keeps poisoned documents out of RAG knowledge bases; knows no framework."""

from typing import TYPE_CHECKING, Any

from ragshield_core.detectors.base import Detector
from ragshield_core.entries import Batch, Entry
from ragshield_core.errors import PoisonedEntryError, RAGShieldError
from ragshield_core.findings import Decision, Finding, Report, Verdict
from ragshield_core.guard import Guard
from ragshield_core.policy import Policy
from ragshield_core.retrieval import RetrievalGuard, screen_retrieved

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

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
    "Verdict",
    "screen_retrieved",
]


def __getattr__(name: str) -> Any:
    # Most of the import time would be SQLAlchemy's, which screening alone does not need.
    if name == "Quarantine":
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415

        return Quarantine
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
