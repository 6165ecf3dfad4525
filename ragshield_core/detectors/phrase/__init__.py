"""Detector of phrases planted in many entries."""

from ragshield_core.detectors.phrase.detector import TriggerPhraseDetector

__all__ = ["TriggerPhraseDetector"]
