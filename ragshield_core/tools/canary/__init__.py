"""Canary queries: a knowledge base's answers to known questions, watched over time."""

from ragshield_core.model.errors import CanaryError, EmbedderChangedError
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
