"""Base of every detector: the three kinds, evidence, and pieces of large knowledge bases."""

from ragshield_core.detectors.base.abilities import (
    lacking_in,
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
    JudgesTexts,
    Need,
    Scope,
    Traits,
    as_others,
)
from ragshield_core.detectors.base.group import GroupDetector

__all__ = [
    "N_FOLDS",
    "Detector",
    "Evidence",
    "GroupDetector",
    "JudgesTexts",
    "Need",
    "Scope",
    "StatelessDetector",
    "Traits",
    "as_others",
    "judged_scores",
    "lacking_in",
    "learns",
    "out_of_fold",
    "skip_reason",
]
