"""Canary queries: what a knowledge base answers to known questions, watched over time."""

from ragshield_core.canary.answer_trace import trace_answer
from ragshield_core.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
from ragshield_core.canary.embedder import Embedder
from ragshield_core.canary.frameworks import Framework
from ragshield_core.canary.knowledge_base import (
    GuardedKnowledgeBase,
    KnowledgeBase,
    WritableKnowledgeBase,
)
from ragshield_core.canary.matrix import MatrixRetriever
from ragshield_core.canary.monitor import CanaryMonitor
from ragshield_core.canary.passages import Passage
from ragshield_core.canary.remediation import Remediation
from ragshield_core.canary.suite import Canary, CanarySuite
from ragshield_core.canary.traceback import Suspect, Traceback
from ragshield_core.errors import CanaryError, EmbedderChangedError

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
    "Framework",
    "GuardedKnowledgeBase",
    "KnowledgeBase",
    "MatrixRetriever",
    "Passage",
    "Remediation",
    "Suspect",
    "Traceback",
    "WritableKnowledgeBase",
    "trace_answer",
]
