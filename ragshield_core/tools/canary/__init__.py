"""Canary queries: what a knowledge base answers to known questions, watched over time."""

from ragshield_core.model.errors import CanaryError, EmbedderChangedError
from ragshield_core.tools.canary.answer_trace import trace_answer
from ragshield_core.tools.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
from ragshield_core.tools.canary.embedder import Embedder
from ragshield_core.tools.canary.frameworks import Framework
from ragshield_core.tools.canary.knowledge_base import (
    KnowledgeBase,
    WritableKnowledgeBase,
)
from ragshield_core.tools.canary.matrix import MatrixRetriever
from ragshield_core.tools.canary.monitor import CanaryMonitor
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.remediation import Remediation
from ragshield_core.tools.canary.suite import Canary, CanarySuite
from ragshield_core.tools.canary.traceback import Suspect, Traceback

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
    "KnowledgeBase",
    "MatrixRetriever",
    "Passage",
    "Remediation",
    "Suspect",
    "Traceback",
    "WritableKnowledgeBase",
    "trace_answer",
]
