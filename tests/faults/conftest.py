"""Puts the folder of test_replay on the path, as for the tests of the core."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "core"))
