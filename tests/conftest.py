"""Makes ``support`` importable: pytest puts this folder on the path."""

import os

import pytest
from hypothesis import HealthCheck, settings

from ragshield_core import Quarantine

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same examples on every machine; no deadline, since others may be using the cores.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


@pytest.fixture
def quarantine():
    return Quarantine("sqlite://")


@pytest.fixture
def on_file(tmp_path):
    """URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'quarantine.db'}"
