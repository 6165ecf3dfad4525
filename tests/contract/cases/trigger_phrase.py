"""What TriggerPhraseDetector is tried on."""

from phrases import plant_phrase
from support import passages

from cases.entries import TEXTS, said
from ragshield_core.detectors import TriggerPhraseDetector
from ragshield_core.testing import DetectorCase

PHRASE = "word3 blue heron word41"
CASES = {
    "": DetectorCase(
        make=TriggerPhraseDetector,
        poison=said(*plant_phrase(passages(20, 5), range(20), PHRASE)),
        **TEXTS,
    ),
}
