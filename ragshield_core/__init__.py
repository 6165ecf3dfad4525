"""RAGShield's core: keeps poisoned documents out of RAG knowledge bases; knows no framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragshield_core.detectors.base import Detector, StatelessDetector
    from ragshield_core.entries import Batch, Entry
    from ragshield_core.errors import PoisonedEntryError, RAGShieldError
    from ragshield_core.findings import Decision, Finding, Report, Verdict
    from ragshield_core.guard import Guard
    from ragshield_core.policy import Policy
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

# Where each is: only what is used is imported.
_HOMES = {
    **dict.fromkeys(("Batch", "Entry"), "entries"),
    **dict.fromkeys(("Decision", "Finding", "Report", "Verdict"), "findings"),
    **dict.fromkeys(("PoisonedEntryError", "RAGShieldError"), "errors"),
    **dict.fromkeys(("RetrievalGuard", "screen_retrieved"), "retrieval"),
    **dict.fromkeys(("Detector", "StatelessDetector"), "detectors.base"),
    "Guard": "guard",
    "Policy": "policy",
    "Quarantine": "quarantine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
