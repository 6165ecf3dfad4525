"""A new built-in detector is one file in the folder of detectors, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ragshield_core

NEW = '''"""Finds texts in capitals."""

import numpy as np

from ragshield_core.detectors.base import Evidence, Need, StatelessDetector


class ShoutDetector(StatelessDetector):
    name = "shout"
    needs = frozenset({Need.TEXT})
    default_threshold = 0.9

    def score(self, batch):
        return np.array([float(text.isupper()) for text in batch.texts])

    def explain(self, batch, rows):
        return [Evidence(sentence="all of it in capitals (1.0)") for _ in rows]
'''

USE = """
import sys
import ragshield_core
from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import ShoutDetector
from ragshield_core.detectors.registry import BUILT_IN

assert ragshield_core.__file__.startswith(sys.argv[1])
assert BUILT_IN["shout"] is ShoutDetector
guard = Guard.default(quarantine=Quarantine("sqlite://"))
assert any(isinstance(one, ShoutDetector) for one in guard.detectors)
guard = Guard([ShoutDetector()], quarantine=Quarantine("sqlite://"))
guard.save(sys.argv[1] + "/saved")
again = Guard.load(sys.argv[1] + "/saved", quarantine=Quarantine("sqlite://"))
batch = Batch.of(ids=["a", "b"], texts=["calm", "LOUD"], embeddings=None)
print([decision.entry_id for decision in again.screen(batch).quarantined])
"""


def test_a_new_detector_has_at_most_fifteen_lines():
    assert len([line for line in NEW.splitlines() if line.strip()]) <= 15


@pytest.mark.slow
def test_a_file_in_the_folder_is_all_that_a_new_detector_needs(tmp_path):
    source = Path(ragshield_core.__file__).parent
    shutil.copytree(source, tmp_path / "ragshield_core")
    (tmp_path / "ragshield_core" / "detectors" / "shout.py").write_text(NEW, encoding="utf-8")
    command = [sys.executable, "-c", USE, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["['b']"]
