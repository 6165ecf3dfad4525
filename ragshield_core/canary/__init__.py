"""Canary queries: what a knowledge base answers to known questions, watched over time."""

from ragshield_core.canary.answer_trace import trace_answer
from ragshield_core.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
from ragshield_core.canary.monitor import CanaryMonitor, Remediation
from ragshield_core.canary.retrievers import MatrixRetriever, Passage
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
    "EmbedderChangedError",
    "MatrixRetriever",
    "Passage",
    "Remediation",
    "Suspect",
    "Traceback",
    "trace_answer",
]
