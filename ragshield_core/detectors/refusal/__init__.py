"""Detector of texts that refuse or deny an answer."""

from ragshield_core.detectors.refusal.detector import RefusalDetector

__all__ = ["RefusalDetector"]
