"""What LabelModelDetector is tried on."""

from cases.entries import LABELS, approximate, learning_with
from ragshield_core.detectors import LabelModelDetector
from ragshield_core.detectors.label import model
from ragshield_core.testing import DetectorCase

CASES = {
    "": DetectorCase(make=LabelModelDetector, **LABELS),
    "sampled": DetectorCase(
        make=learning_with(LabelModelDetector, model, "MAX_ENTRIES", 24), **LABELS
    ),
    "approximate": DetectorCase(make=approximate(LabelModelDetector), **LABELS),
}
