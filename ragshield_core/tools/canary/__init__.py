"""Canary queries: a knowledge base's answers to known questions, watched over time."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes
from ragshield_core.model.errors import CanaryError, EmbedderChangedError

if TYPE_CHECKING:
    from ragshield_core.tools.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
    from ragshield_core.tools.canary.knowledge_base import (
        Embedder,
        KnowledgeBase,
        MatrixRetriever,
        Passage,
    )
    from ragshield_core.tools.canary.monitor import CanaryMonitor, Remediation
    from ragshield_core.tools.canary.suite import Canary, CanarySuite
    from ragshield_core.tools.canary.traceback import Suspect, Traceback, trace_answer

__all__ = [
    "AnomalyWeights",
    "Canary",
    "CanaryDrift",
    "CanaryError",
    "CanaryMonitor",
    "CanarySuite",
    "DriftReport",
    "Embedder",
    "EmbedderChangedError",
    "KnowledgeBase",
    "MatrixRetriever",
    "Passage",
    "Remediation",
    "Suspect",
    "Traceback",
    "trace_answer",
]

# Module of each name: the help of commands imports none of them.
_HOMES = {
    **dict.fromkeys(("AnomalyWeights", "CanaryDrift", "DriftReport"), "drift"),
    **dict.fromkeys(("Embedder", "KnowledgeBase", "MatrixRetriever", "Passage"), "knowledge_base"),
    **dict.fromkeys(("CanaryMonitor", "Remediation"), "monitor"),
    **dict.fromkeys(("Canary", "CanarySuite"), "suite"),
    **dict.fromkeys(("Suspect", "Traceback", "trace_answer"), "traceback"),
}

__getattr__ = attributes(__name__, _HOMES)
