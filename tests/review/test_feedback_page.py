"""The page shows how often people contradict each detector."""

import re

import numpy as np
import pytest
from reviewers import TOKENS, Browser, held
from support import Scripted, scored

from ragshield_core import Guard
from ragshield_core.tools.review import review_app


class Store:
    """A guarded store, as far as the page needs one here."""

    def __init__(self, guard):
        self.guard, self.quarantine = guard, guard.quarantine

    def standing(self, ids):
        return scored([0.0] * 0).take([]) if not ids else scored([0.0]).take([])


@pytest.fixture
def guard(tmp_path):
    guard = Guard.open(f"sqlite:///{tmp_path}/guard.db", detectors=[Scripted()], fpr=0.05)
    guard.fit(scored(np.linspace(0.0, 1.0, 1000).tolist(), prefix="k")).calibrate()
    scores = np.concatenate([np.linspace(0.0, 0.5, 700), np.linspace(1.1, 2.0, 300)]).tolist()
    guard.hold(guard.screen(scored(scores, prefix="n", lineages=["<b>wiki</b>"] * 1000)))
    yield guard
    guard.close()


def words(page):
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.mark.slow
def test_rates_are_shown_with_intervals_also_where_nothing_is_decided(guard):
    anna = Browser(review_app(Store(guard), tokens=TOKENS))
    page = words(anna.get("/feedback").text)
    row = page.partition("scripted")[2]
    assert re.match(r" 300 300 0 0 nothing decided 0\.00 to 3\d\.\d\d ", row), row
    assert re.match(r".*\ball 300 300 0 0 ", page)
    ids = [one.id for one in guard.quarantine.list()]
    guard.quarantine.release(ids[:200], by="anna")
    guard.quarantine.confirm(ids[200:210], by="anna")
    page = anna.get("/feedback").text
    assert "<b>" not in page
    assert "scripted 300 90 200 10" in words(page)
    assert re.search(r"4\.76 % 2\.31 to 8\.58", words(page))  # Clopper-Pearson of 10 of 210


@pytest.mark.slow
def test_without_a_guard_rates_are_unknown(quarantine, anna):
    assert "Nothing was held yet" in anna.get("/feedback").text
    held(quarantine, ["one", "two"])
    anna.decide(1, "release", ["1"])
    page = words(anna.get("/feedback").text)
    assert "clique 2 1 1 0" in page
    assert "unknown" in page
    assert "calibrate the guard with clean entries that you have read" in page
