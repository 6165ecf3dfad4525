"""Detector of texts that tell the reader which other texts to believe."""

from ragshield_core.detectors.claim.detector import MetaClaimDetector

__all__ = ["MetaClaimDetector"]
