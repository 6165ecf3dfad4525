"""What LabelNeighborDetector is tried on."""

from cases.entries import LABELS, approximate
from ragshield_core.detectors import LabelNeighborDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "": DetectorCase(make=LabelNeighborDetector, **LABELS),
    "five": DetectorCase(make=lambda: LabelNeighborDetector(k=5), **LABELS),
    "approximate": DetectorCase(make=approximate(LabelNeighborDetector), **LABELS),
}
