"""What every detector is built on: the kinds of detectors, evidence, and pieces of large bases."""

from ragshield_core.detectors.base.detector import (
    N_FOLDS,
    Detector,
    Evidence,
    Need,
    Scope,
    explained_with_contexts,
    of_texts_and_contexts,
)

__all__ = [
    "N_FOLDS",
    "Detector",
    "Evidence",
    "Need",
    "Scope",
    "explained_with_contexts",
    "of_texts_and_contexts",
]
