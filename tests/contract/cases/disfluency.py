"""What DisfluencyDetector is tried on."""

from made_up_language import articles, poisoned

from ragshield_core.detectors import DisfluencyDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "": DetectorCase(
        make=DisfluencyDetector,
        known=articles(700, 1),
        clean=articles(20, 2, "clean"),
        poison=poisoned(8, 3),
    ),
}
