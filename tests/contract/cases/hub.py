"""What HubDetector is tried on."""

import hubs

from ragshield_core.testing import DetectorCase

HUBS = {"known": hubs.KNOWN, "clean": hubs.CLEAN, "poison": hubs.planted()}
CASES = {"": DetectorCase(make=hubs.make, **HUBS)}
