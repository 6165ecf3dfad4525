"""Detectors of entries that agree with each other more than their neighbourhood explains."""

from ragshield_core.detectors.groups.consensus import ConsensusDetector
from ragshield_core.detectors.groups.detector import CliqueDetector

__all__ = ["CliqueDetector", "ConsensusDetector"]
