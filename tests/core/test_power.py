"""The share of an attack that a guard would detect, given its entries and embedding model."""

import numpy as np
import pytest
from support import CENTRES, PASSAGE_DIM, guard_of, passages

from ragshield_core import Guard
from ragshield_core.detectors import CliqueDetector
from ragshield_core.sharing.standing import status_of
from ragshield_core.store.opening import learn_store

KNOWN = passages(600, 1)


def of_the_question(texts):
    """Return vectors of a model that tells topics apart: texts of a target are alike."""
    rng = np.random.default_rng(1)
    near = [CENTRES[row % len(CENTRES)] + rng.normal(size=PASSAGE_DIM) for row in range(20)]
    return [near[row // 5] + rng.normal(scale=0.02, size=PASSAGE_DIM) for row in range(len(texts))]


def of_nothing(texts):
    """Return vectors of a model for which no two texts are alike."""
    return np.random.default_rng(2).normal(size=(len(texts), PASSAGE_DIM))


def adopted(guard, embed):
    guard.state.offer_embedder(embed)
    learn_store(guard, KNOWN, None)
    return guard


@pytest.mark.slow
def test_a_guard_says_which_share_of_planted_groups_it_would_hold():
    guard = adopted(guard_of(CliqueDetector()), of_the_question)
    power = guard.status().power
    assert list(power) == ["groups of 5", "groups of 3", "groups of 2"]
    assert power["groups of 5"] > 0.9
    assert f"{power['groups of 5']:.0%} of groups of 5" in str(guard.status())
    assert not any("hardly sees" in concern for concern in guard.status().concerns())


@pytest.mark.slow
def test_a_model_that_shows_no_groups_is_a_concern():
    guard = adopted(guard_of(CliqueDetector()), of_nothing)
    assert max(guard.status().power.values()) < 0.2
    (concern,) = (one for one in guard.status().concerns() if "hardly sees" in one)
    assert "% of groups of 5" in concern


@pytest.mark.slow
def test_planted_texts_leave_no_trace(monkeypatch):
    def told(*_):
        raise AssertionError

    monkeypatch.setattr("ragshield_core.learning.judge.screening", told)  # which tools count
    plain, measured = guard_of(CliqueDetector()), guard_of(CliqueDetector())
    learn_store(plain, KNOWN, None)
    adopted(measured, of_the_question)
    assert plain.n_known == measured.n_known
    assert plain.calibration.thresholds == measured.calibration.thresholds
    assert plain.status().power == {}
    assert measured.status().power
    assert measured.quarantine.count() == 0
    assert measured.status().spent == plain.status().spent


@pytest.mark.slow
def test_other_processes_and_the_command_know_the_power(tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    guard = adopted(Guard.open(url, detectors=[CliqueDetector()]), of_the_question)
    again = Guard.open(url, detectors=[CliqueDetector()])
    assert again.status().power == guard.status().power != {}
    with again.quarantine.database.read() as session:
        assert status_of(session, url, "default").power == guard.status().power


@pytest.mark.parametrize("reason", ["no model", "short texts", "a model that fails"])
@pytest.mark.slow
def test_power_is_empty_if_it_cannot_be_measured(reason, caplog):
    def failing(_):
        raise OSError

    guard, known = guard_of(CliqueDetector()), KNOWN
    embed = {"no model": None, "short texts": of_nothing, "a model that fails": failing}[reason]
    if reason == "short texts":
        texts = ["a few words"] * len(KNOWN)
        known = type(KNOWN).of(
            ids=KNOWN.ids, texts=texts, embeddings=KNOWN.vectors, lineages=KNOWN.lineages
        )
    guard.state.use_embedder(embed)
    learn_store(guard, known, None)
    assert guard.status().power == {}
    assert ("OSError" in caplog.text) is (reason == "a model that fails")
