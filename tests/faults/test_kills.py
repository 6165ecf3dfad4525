"""A client that is killed at random moments and repeats its call loses nothing."""

import pytest
from crash_stores import STORES
from crashes import Task, chosen, ingest


@pytest.fixture
def task(request, tmp_path):
    """Return a function that makes a small task for a store."""

    def make(store, name):
        server = request.getfixturevalue("empty_postgres") if store == "PGVector" else ""
        url = server or f"sqlite:///{tmp_path}/{name}.db"
        folder = tmp_path / name
        return Task(store, folder, url, server, n=120, known=100, seed=0, fpr=0.05, batch=30)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_killed_ingestion_ends_like_an_undisturbed_one(task, store):
    alone = ingest(task(store, "alone"))
    plan = task(store, "alone").plan
    kills = chosen(5, len(plan.steps) - 1, seed=3)
    killed = ingest(task(store, "killed"), kills, alone.seconds)
    assert alone.end.wrong == killed.end.wrong == {}
    assert killed.kills.total() >= 3
    # Before the call was repeated: nothing that was acknowledged is lost, and nothing is shown.
    assert not {"missing", "twice", "readable", "stale", "log"} & killed.wrong.keys()
    # Other clean entries may be held: a repeated batch meets the entries it left behind.
    held = [plan.poisoned.intersection(one.end.held) for one in (alone, killed)]
    assert held[0] == held[1]
