"""What LabelCentroidDetector is tried on."""

from cases.entries import LABELS
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "entry": DetectorCase(make=LabelCentroidDetector, **LABELS),
    "batch": DetectorCase(make=lambda: LabelCentroidDetector(level="batch"), **LABELS),
    "min_entries": DetectorCase(make=lambda: LabelCentroidDetector(min_entries=12), **LABELS),
}
