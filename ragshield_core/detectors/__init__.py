"""Detectors: evidence for and against the entries of a knowledge base.

Beside those named here, whatever other built-in detector the modules of this folder define can be
imported from it; see :mod:`ragshield_core.detectors.registry`.
"""

from typing import TYPE_CHECKING, Any

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
from ragshield_core.detectors.meta_claim.detector import MetaClaimDetector
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
    "MetaClaimDetector",
    "Need",
    "QueryEchoDetector",
    "RetrievalDetector",
    "RetrievedSet",
    "Scope",
    "TriggerPhraseDetector",
]

if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        from ragshield_core.detectors.registry import BUILT_IN, FOR_RETRIEVAL, ON_REQUEST  # noqa: PLC0415

        for one in (*BUILT_IN.values(), *ON_REQUEST.values(), *FOR_RETRIEVAL.values()):
            if one.__name__ == name:
                return one
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
