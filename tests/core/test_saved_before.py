"""What was saved by the code of 2026-11-22, before the first release, still opens.

``tests/saved_before`` was made by that code: a fitted and calibrated guard, a guard of retrieved
sets, and a database with the quarantine and the canaries of one namespace.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support import group, join, passages

from ragshield_core import Guard, Quarantine
from ragshield_core.canary import CanaryMonitor
from ragshield_core.entries import Batch
from ragshield_core.quarantine import Status
from ragshield_core.retrieval import RetrievalGuard

SAVED = Path(__file__).parents[1] / "saved_before"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def saved(tmp_path):
    """Return a copy, since opening may migrate."""
    return Path(shutil.copytree(SAVED, tmp_path / "saved"))


@pytest.fixture
def quarantine(saved):
    return Quarantine(f"sqlite:///{saved}/quarantine.db", namespace="kept")


def assert_scores(found, expected):
    assert set(found) == set(expected)
    for name, column in expected.items():
        wanted = np.array([np.nan if score is None else score for score in column])
        np.testing.assert_allclose(found[name], wanted, atol=1e-4, err_msg=name)


def test_a_guard_screens_as_it_did_when_it_was_saved(saved, quarantine):
    guard = Guard.load(saved / "guard", quarantine=quarantine)
    assert guard.thresholds == pytest.approx(EXPECTED["thresholds"])
    report = guard.screen(join(passages(20, 9, "later"), group(4, 6)))
    assert_scores(report.scores, EXPECTED["scores"])
    assert sorted(d.entry_id for d in report.quarantined) == EXPECTED["quarantined"]
    guard.admit(guard.hold(report))  # and goes on


def test_a_guard_of_retrieved_sets_judges_as_it_did(saved):
    guard = RetrievalGuard.load(saved / "retrieval")
    assert guard.thresholds == pytest.approx(EXPECTED["retrieval_thresholds"])
    known = passages(160, 1)
    report = guard.screen("what about all this", known.take(range(5)), known.embeddings[0])
    assert_scores(report.scores, EXPECTED["retrieval_scores"])


def test_a_quarantine_lists_releases_and_holds(quarantine):
    assert sorted((one.id, str(one.status)) for one in quarantine.list(None)) == [
        tuple(pair) for pair in EXPECTED["held"]
    ]
    before = [record for record in quarantine.log() if record.action != "seal"]
    assert len(before) == EXPECTED["log"]
    quarantine.verify()
    assert quarantine.show("told").entry.embedding.size == 0  # held without a vector
    quarantine.release(["bad3-2"], by="cy")
    assert quarantine.show("bad3-2").status is Status.RELEASED
    quarantine.verify()


def test_canaries_find_their_baseline(quarantine):
    texts = ["refund in 14 days", "ships in 3 days"]

    def embed(texts):
        return [[text.count("refund") + 0.1, text.count("ship") + 0.1] for text in texts]

    known = Batch.of(ids=["a", "b"], texts=texts, embeddings=embed(texts))
    monitor = CanaryMonitor(["refund?"], known, embedder=embed, k=1, quarantine=quarantine)
    assert len(monitor.history()) == 1
    assert not monitor.check().flagged
