"""Where detector classes are found by their kind: the built-in ones and installed plug-ins."""

from __future__ import annotations

from importlib.metadata import entry_points

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.canary_displacement import CanaryDisplacementDetector
from ragshield_core.detectors.clique import CliqueDetector
from ragshield_core.detectors.disfluency import DisfluencyDetector
from ragshield_core.detectors.hidden_text import HiddenTextDetector
from ragshield_core.detectors.instruction import InstructionDetector
from ragshield_core.detectors.label_centroid import LabelCentroidDetector
from ragshield_core.detectors.label_model import LabelModelDetector
from ragshield_core.detectors.label_neighbors import LabelNeighborDetector
from ragshield_core.detectors.leading_question import LeadingQuestionDetector
from ragshield_core.detectors.trigger_phrase import TriggerPhraseDetector
from ragshield_core.errors import StateError
from ragshield_core.findings import Skipped

# A package that brings a detector names its class in this group of entry points.
ENTRY_POINT_GROUP = "ragshield.detectors"

BUILT_IN: dict[str, type[Detector]] = {
    detector.kind: detector
    for detector in (
        LabelCentroidDetector,
        LabelNeighborDetector,
        LabelModelDetector,
        CliqueDetector,
        TriggerPhraseDetector,
        LeadingQuestionDetector,
        InstructionDetector,
        HiddenTextDetector,
        DisfluencyDetector,
    )
}

# Of no use before somebody says with which queries: known by their kind, for saved guards, and no
# part of the default one.
ON_REQUEST: dict[str, type[Detector]] = {
    CanaryDisplacementDetector.kind: CanaryDisplacementDetector
}


def detector_class(kind: str) -> type[Detector]:
    """Return the detector class of that kind.

    Raises
    ------
    StateError
        If no built-in detector and no installed plug-in is of that kind.
    """
    known = BUILT_IN | ON_REQUEST
    if kind in known:
        return known[kind]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        found = point.load()
        if isinstance(found, type) and issubclass(found, Detector):
            return found
    msg = (
        f"no detector of kind {kind!r} is known, expected one of {sorted(known)} or the name of "
        f"an entry point in the group {ENTRY_POINT_GROUP!r}; install the package that brings it."
    )
    raise StateError(msg)


def built_in_detectors() -> tuple[list[Detector], list[Skipped]]:
    """Return one of every built-in detector, with its defaults.

    Returns
    -------
    tuple[list[Detector], list[Skipped]]
        The detectors, and those that lack a package, with the way to get it.
    """
    detectors: list[Detector] = []
    missing = []
    for kind, cls in BUILT_IN.items():
        try:
            detectors.append(cls())
        except ImportError as error:  # says which extra brings the package
            missing.append(Skipped(detector=kind, reason=str(error)))
    return detectors, missing
