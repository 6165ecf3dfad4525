"""Detectors of labels that do not fit the labels of other entries."""

from ragshield_core.detectors.label.centroid import LabelCentroidDetector
from ragshield_core.detectors.label.model import LabelModelDetector
from ragshield_core.detectors.label.neighbors import LabelNeighborDetector

__all__ = ["LabelCentroidDetector", "LabelModelDetector", "LabelNeighborDetector"]
