"""Base of every detector: the three kinds, evidence, and pieces of large knowledge bases."""

from ragshield_core.detectors.base.abilities import (
    held_out_scores,
    lacking_in,
    refresh,
    skip_reason,
)
from ragshield_core.detectors.base.detector import (
    N_FOLDS,
    Detector,
    StatelessDetector,
    judged_scores,
    learns,
    out_of_fold,
)
from ragshield_core.detectors.base.evidence import (
    Evidence,
    Need,
    Scope,
    Traits,
    as_others,
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
    "as_others",
    "explained_with_contexts",
    "held_out_scores",
    "judged_scores",
    "lacking_in",
    "learns",
    "of_texts_and_contexts",
    "out_of_fold",
    "refresh",
    "skip_reason",
]
