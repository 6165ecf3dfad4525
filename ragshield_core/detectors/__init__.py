"""Detectors: evidence for and against the entries of a knowledge base."""

from ragshield_core.detectors.base import Detector, Evidence, Need, Scope
from ragshield_core.detectors.canary_displacement import CanaryDisplacementDetector
from ragshield_core.detectors.clique import CliqueDetector
from ragshield_core.detectors.consensus import ConsensusDetector
from ragshield_core.detectors.disfluency import DisfluencyDetector
from ragshield_core.detectors.hidden_text import HiddenTextDetector
from ragshield_core.detectors.instruction.detector import InstructionDetector
from ragshield_core.detectors.label_centroid import LabelCentroidDetector
from ragshield_core.detectors.label_model import LabelModelDetector
from ragshield_core.detectors.label_neighbors import LabelNeighborDetector
from ragshield_core.detectors.leading_question import LeadingQuestionDetector
from ragshield_core.detectors.query_echo import QueryEchoDetector
from ragshield_core.detectors.retrieved import RetrievalDetector, RetrievedSet
from ragshield_core.detectors.trigger_phrase import TriggerPhraseDetector

__all__ = [
    "CanaryDisplacementDetector",
    "CliqueDetector",
    "ConsensusDetector",
    "Detector",
    "DisfluencyDetector",
    "Evidence",
    "HiddenTextDetector",
    "InstructionDetector",
    "LabelCentroidDetector",
    "LabelModelDetector",
    "LabelNeighborDetector",
    "LeadingQuestionDetector",
    "Need",
    "QueryEchoDetector",
    "RetrievalDetector",
    "RetrievedSet",
    "Scope",
    "TriggerPhraseDetector",
]
