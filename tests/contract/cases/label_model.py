"""What LabelModelDetector is tried on."""

from cases.entries import LABELS, approximate
from ragshield_core.detectors import LabelModelDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "": DetectorCase(make=LabelModelDetector, **LABELS),
    "sampled": DetectorCase(make=lambda: LabelModelDetector(max_entries=24), **LABELS),
    "approximate": DetectorCase(make=approximate(LabelModelDetector), **LABELS),
}
