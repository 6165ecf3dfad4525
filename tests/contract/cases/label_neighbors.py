"""What LabelNeighborDetector is tried on."""

from cases.entries import LABELS
from ragshield_core.detectors import LabelNeighborDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "": DetectorCase(make=LabelNeighborDetector, **LABELS),
    "majority": DetectorCase(make=lambda: LabelNeighborDetector(vote="majority", k=5), **LABELS),
    "threshold": DetectorCase(make=lambda: LabelNeighborDetector(vote="threshold"), **LABELS),
    "approximate": DetectorCase(make=lambda: LabelNeighborDetector(exact_up_to=0), **LABELS),
}
