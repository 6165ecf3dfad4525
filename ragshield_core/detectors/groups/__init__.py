"""Detectors of entries that agree with each other more than their surroundings explain."""

from ragshield_core.detectors.groups.consensus import ConsensusDetector
from ragshield_core.detectors.groups.detector import CliqueDetector

__all__ = ["CliqueDetector", "ConsensusDetector"]
