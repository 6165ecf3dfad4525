"""Text that says which other text is to be believed."""

from ragshield_core.detectors.claim.detector import MetaClaimDetector

__all__ = ["MetaClaimDetector"]
