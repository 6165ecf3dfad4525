"""What CanaryDisplacementDetector is tried on."""

import displaced_queries

from ragshield_core.testing import DetectorCase

DISPLACED = {
    "known": displaced_queries.KNOWN,
    "clean": displaced_queries.CLEAN,
    "poison": displaced_queries.crafted(),
}
CASES = {
    "": DetectorCase(make=displaced_queries.make, **DISPLACED),
    "first": DetectorCase(make=lambda: displaced_queries.make(k=1), **DISPLACED),
}
