"""Detector of text that no person has written: words in random order, or no words."""

from ragshield_core.detectors.gibberish.detector import DisfluencyDetector

__all__ = ["DisfluencyDetector"]
