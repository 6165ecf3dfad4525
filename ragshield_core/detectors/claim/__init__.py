"""Detector of texts that say which other texts to believe."""

from ragshield_core.detectors.claim.detector import MetaClaimDetector

__all__ = ["MetaClaimDetector"]
