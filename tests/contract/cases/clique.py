"""What CliqueDetector is tried on."""

from cases.entries import GROUPS, approximate
from ragshield_core.detectors import CliqueDetector
from ragshield_core.testing import DetectorCase

CASES = {
    "groups": DetectorCase(make=CliqueDetector, **GROUPS),
    "trusted": DetectorCase(
        make=lambda: CliqueDetector(trusted_lineages=["a"], min_entries=50), **GROUPS
    ),
    "approximate": DetectorCase(make=approximate(CliqueDetector), **GROUPS),
    "cleanbase": DetectorCase(make=lambda: CliqueDetector(rule="cleanbase", alpha=2.0), **GROUPS),
}
