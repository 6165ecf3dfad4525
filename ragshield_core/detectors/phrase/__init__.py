"""Detector of phrases that were planted in many entries."""

from ragshield_core.detectors.phrase.detector import TriggerPhraseDetector

__all__ = ["TriggerPhraseDetector"]
