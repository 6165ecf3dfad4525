"""Campaigns in fitted entries: recognized against a random order, and kept out of the baseline."""

import logging

import numpy as np
import pytest
from support import guard_of, join
from topics import CENTRES, DIM, TOPICS, clean, on_topics

from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.base.order import came_together


def by_chance(n, seed):
    """Return random scores in two orders."""
    rng = np.random.default_rng(seed)
    usual = rng.exponential(size=n)
    return usual + rng.exponential(size=n), usual + rng.exponential(size=n)


@pytest.mark.parametrize("seed", range(5))
def test_uninformative_order_names_almost_no_entries(seed):
    assert came_together(*by_chance(4_000, seed), 3.0).mean() < 0.002


@pytest.mark.parametrize("seed", range(5))
def test_entries_suspicious_only_in_their_own_order_are_named(seed):
    ordered, shuffled = by_chance(4_000, seed)
    ordered[:200] += 8.0
    named = came_together(ordered, shuffled, 3.0)
    assert named[:200].mean() > 0.9
    assert named[200:].sum() <= 0.3 * named.sum()


@pytest.mark.parametrize(
    ("n", "score", "n_named"),
    [
        *((50, 2.9, 0), (50, 3.1, 50)),  # up to 3 is usual in any order
        *((24, 9.0, 0), (25, 9.0, 25)),  # a few groups are chance
        *((99, 8.0, 99), (101, 8.0, 0)),  # topics that came together are no poison
    ],
)
def test_usual_scores_small_groups_and_topics_are_not_named(n, score, n_named):
    scores = np.where(np.arange(1_000) < n, score, 0.0)
    assert came_together(scores, np.zeros(1_000), 3.0).sum() == n_named


def campaign(n_groups, seed, prefix, size=5):
    """Return groups, each near to each other on a topic, with a claim of its own."""
    rng = np.random.default_rng(seed)
    topic = np.repeat(rng.integers(TOPICS, size=n_groups), size)
    middle = np.repeat(0.6 * rng.normal(size=(n_groups, DIM)), size, axis=0)
    vectors = CENTRES[topic] + middle + 0.2 * rng.normal(size=(len(topic), DIM))
    claims = [f"{prefix}claim{row // size} {prefix}date{row // size}" for row in range(len(topic))]
    return on_topics(rng, topic, vectors, prefix, claims)


KNOWN, POISON = clean(2_850, 0), campaign(30, 1, "old")


def placed(manner):
    """Return a store to adopt, with a twentieth of poison at its end, or group by group."""
    store = join(KNOWN, POISON)
    if manner == "last":
        return store
    places = np.repeat(np.random.default_rng(2).random(30), 5)
    order = np.argsort(np.r_[np.arange(len(KNOWN)) / len(KNOWN), places], kind="stable")
    return store.take(order)


@pytest.fixture(scope="module")
def state():
    """Return the state of a detector fitted on a store with poison at its end."""
    return CliqueDetector().fit(placed("last")).state()


@pytest.fixture
def detector(state):
    detector = CliqueDetector()
    detector.restore(*state)
    return detector


def caught(guard):
    """Return a mask of the held entries of new groups that arrive among clean entries."""
    batch = join(campaign(8, 3, "new"), clean(160, 4, "later"))
    return ~guard.screen(batch).admitted[:40]


@pytest.fixture(scope="module")
def clean_guard():
    """Return a guard that was adopted on a store without any poison."""
    return guard_of(CliqueDetector(), quarantine_at=0.02).adopt(KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["last", "by groups"])
def test_campaign_in_an_adopted_store_costs_little_recall(clean_guard, manner, caplog):
    with caplog.at_level(logging.WARNING, logger="ragshield"):
        guard = guard_of(CliqueDetector(), quarantine_at=0.02).adopt(placed(manner))
    before = caught(clean_guard).mean()
    assert before > 0.9
    assert caught(guard).mean() >= before - 0.1
    assert "came together" in caplog.text
    (told,) = [one for one in guard.status().concerns() if "for poison" in one]
    assert told.startswith(f"clique takes {guard.status().doubted['clique']} of the entries")
    assert (~guard.screen(clean(1_000, 5, "fresh")).admitted).mean() <= 0.02


@pytest.mark.slow
def test_campaign_is_doubted_and_little_else(detector):
    doubted = detector.outliers(placed("last"))
    assert doubted[len(KNOWN) :].mean() > 0.8
    assert doubted[: len(KNOWN)].sum() <= 0.3 * doubted.sum()


@pytest.mark.slow
def test_clean_store_is_not_taken_for_a_campaign(caplog):
    with caplog.at_level(logging.WARNING, logger="ragshield"):
        detector = CliqueDetector().fit(KNOWN)
    assert "came together" not in caplog.text
    assert detector.n_doubted() == 0
    assert not detector.outliers(KNOWN).any()


@pytest.mark.slow
def test_order_of_a_small_store_is_ignored(monkeypatch):
    monkeypatch.setattr("ragshield_core.detectors.groups.measuring.FEWEST", len(placed("last")) + 1)
    assert CliqueDetector().fit(placed("last")).n_doubted() == 0


@pytest.mark.slow
def test_trusted_entries_are_no_longer_doubted(detector):
    store = placed("last")
    named = np.flatnonzero(detector.outliers(store)[: len(KNOWN)])
    assert named.size  # by mistake: they lie where a campaign does
    before = detector.n_doubted()
    detector.trust([store.ids[row] for row in named.tolist()])
    assert detector.n_doubted() == before - len(named)
    detector.forget(store.take(np.arange(len(KNOWN), len(store))))
    assert detector.n_doubted() == 0
    assert not detector.outliers(store)[named].any()


@pytest.mark.slow
def test_saved_state_remembers_doubted_entries(detector):
    store, again = placed("last"), CliqueDetector()
    again.restore(*detector.state())
    assert again.n_doubted() == detector.n_doubted() > 0
    np.testing.assert_array_equal(again.outliers(store), detector.outliers(store))
    again.refresh(store)
    detector.refresh(store)
    np.testing.assert_array_equal(
        again.held_out_scores(store, 0), detector.held_out_scores(store, 0)
    )


@pytest.mark.slow
def test_large_store_is_also_measured_in_random_order(monkeypatch):
    monkeypatch.setattr("ragshield_core.detectors.groups.measuring.CROSS_FITTED", 2_000)
    store = placed("last")
    detector = CliqueDetector().fit(store)
    doubted = detector.outliers(store)
    assert doubted[len(KNOWN) :].mean() > 0.4
    assert doubted[: len(KNOWN)].sum() <= 0.3 * doubted.sum()
