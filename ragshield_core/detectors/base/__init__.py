"""Base of every detector: the three kinds, evidence, and pieces of large knowledge bases."""

from ragshield_core.detectors.base.detector import (
    N_FOLDS,
    Detector,
    StatelessDetector,
    judged_scores,
    learns,
    out_of_fold,
    skip_reason,
)
from ragshield_core.detectors.base.evidence import (
    Evidence,
    Need,
    Scope,
    Traits,
    explained_with_contexts,
    of_texts_and_contexts,
)
from ragshield_core.detectors.base.group import GroupDetector

__all__ = [
    "N_FOLDS",
    "Detector",
    "Evidence",
    "GroupDetector",
    "Need",
    "Scope",
    "StatelessDetector",
    "Traits",
    "explained_with_contexts",
    "judged_scores",
    "learns",
    "of_texts_and_contexts",
    "out_of_fold",
    "skip_reason",
]
