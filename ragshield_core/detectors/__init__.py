"""Detectors: evidence for and against the entries of a knowledge base."""

from ragshield_core.detectors.base import Detector, Evidence, Need, Scope
from ragshield_core.detectors.clique import CliqueDetector
from ragshield_core.detectors.label_centroid import LabelCentroidDetector

__all__ = ["CliqueDetector", "Detector", "Evidence", "LabelCentroidDetector", "Need", "Scope"]
