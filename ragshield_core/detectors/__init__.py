"""Detectors: evidence for and against the entries of a knowledge base.

Every other built-in detector of the modules in this folder can be imported from it as well; see
:mod:`ragshield_core.detectors.registry`.
"""

from typing import TYPE_CHECKING, Any

from ragshield_core.detectors.base import (
    Detector,
    Evidence,
    GroupDetector,
    Need,
    Scope,
    StatelessDetector,
    Traits,
)
from ragshield_core.detectors.base.retrieved import RetrievalDetector, RetrievedSet
from ragshield_core.detectors.claim import MetaClaimDetector
from ragshield_core.detectors.gibberish import DisfluencyDetector
from ragshield_core.detectors.groups import CliqueDetector, ConsensusDetector
from ragshield_core.detectors.hidden import HiddenTextDetector
from ragshield_core.detectors.instruction import InstructionDetector, OrderDetector
from ragshield_core.detectors.label import (
    LabelCentroidDetector,
    LabelModelDetector,
    LabelNeighborDetector,
)
from ragshield_core.detectors.phrase import TriggerPhraseDetector
from ragshield_core.detectors.question import (
    CanaryDisplacementDetector,
    HubDetector,
    LeadingQuestionDetector,
    QueryEchoDetector,
)
from ragshield_core.detectors.refusal import RefusalDetector

__all__ = [
    "CanaryDisplacementDetector",
    "CliqueDetector",
    "ConsensusDetector",
    "Detector",
    "DisfluencyDetector",
    "Evidence",
    "GroupDetector",
    "HiddenTextDetector",
    "HubDetector",
    "InstructionDetector",
    "LabelCentroidDetector",
    "LabelModelDetector",
    "LabelNeighborDetector",
    "LeadingQuestionDetector",
    "MetaClaimDetector",
    "Need",
    "OrderDetector",
    "QueryEchoDetector",
    "RefusalDetector",
    "RetrievalDetector",
    "RetrievedSet",
    "Scope",
    "StatelessDetector",
    "Traits",
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
