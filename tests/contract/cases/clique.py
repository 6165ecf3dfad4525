"""What CliqueDetector is tried on."""

from cases.entries import GROUPS
from ragshield_core.detectors import CliqueDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "groups": DetectorCase(make=CliqueDetector, **GROUPS),
    "trusted": DetectorCase(
        make=lambda: CliqueDetector(trusted_lineages=["a"], min_entries=50), **GROUPS
    ),
    "approximate": DetectorCase(make=lambda: CliqueDetector(exact_up_to=0), **GROUPS),
    "cleanbase": DetectorCase(make=lambda: CliqueDetector(rule="cleanbase", alpha=2.0), **GROUPS),
}
