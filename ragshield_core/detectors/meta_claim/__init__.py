"""Text that says which other text is to be believed."""

from ragshield_core.detectors.meta_claim.detector import MetaClaimDetector

__all__ = ["MetaClaimDetector"]
