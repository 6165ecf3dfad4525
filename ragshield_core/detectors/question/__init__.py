"""Detectors of texts that were written to be retrieved for a question."""

from ragshield_core.detectors.question.canary_displacement import CanaryDisplacementDetector
from ragshield_core.detectors.question.hub import HubDetector
from ragshield_core.detectors.question.leading_question import LeadingQuestionDetector
from ragshield_core.detectors.question.query_echo import QueryEchoDetector

__all__ = [
    "CanaryDisplacementDetector",
    "HubDetector",
    "LeadingQuestionDetector",
    "QueryEchoDetector",
]
