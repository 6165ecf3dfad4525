"""Entries that would be retrieved for many different queries."""

import numpy as np
import pytest
from hubs import CLEAN, KNOWN, VECTORS, make, planted
from support import guard_of, passages

from ragshield_core import Batch
from ragshield_core.detectors import HubDetector


def of(*vectors, prefix="e"):
    """Return entries with these vectors."""
    ids = [f"{prefix}{row}" for row in range(len(vectors))]
    return Batch.of(ids=ids, texts=[""] * len(vectors), embeddings=vectors)


def test_hubs_are_found_by_the_rule_and_clean_entries_are_not():
    detector = make().fit(KNOWN)
    assert (detector.score(planted()) > detector.default_threshold).all()
    assert (detector.score(CLEAN) <= detector.default_threshold).all()


def test_queries_with_the_same_results_count_together():
    # Nine people ask one thing, in slightly different words, and three people other things.
    popular = [[1.0, 0.0, 0.0, 0.01 * n] for n in range(9)]
    other = [[0.0, 1.0, 0.0, 0.0], [0.0, 0.9, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0]]
    detector = HubDetector(["q"] * 12, [*popular, *other], k=1)
    detector.fit(of([0.6, 0.0, 0.0, 0.8], [0, 0.6, 0, 0.8], [0, 0.5, 0.4, 0.8], [0, 0, 0.6, 0.8]))
    answers, takes_over = detector.score(of([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]))
    # Four things are asked: the first entry answers one of them, the second one three.
    assert answers == pytest.approx(0.25)
    assert takes_over == pytest.approx(0.75)


def test_hubs_that_stand_together_do_not_hide_each_other():
    # Their common queries have the same results then, but only in part.
    detector = make().fit(KNOWN)
    alone = detector.score(planted()).max()
    several = Batch.of(
        ids=[*KNOWN.ids, *planted().ids],
        texts=[*KNOWN.texts, *planted().texts],
        embeddings=np.concatenate([KNOWN.embeddings, planted().embeddings]),
    )
    found = make().audit(several)
    assert found[-4:].min() > found[:-4].max()
    assert found[-4:].min() > alone / 2


def test_scores_of_fitted_entries_are_those_of_new_ones():
    detector = make().fit(KNOWN)
    held_out = detector.held_out_scores(KNOWN, 0)
    rows = np.argsort(-held_out)[:20].tolist()
    left_out = [
        make().fit(KNOWN.take(np.delete(np.arange(600), row))).score(KNOWN.take([row]))[0]
        for row in rows
    ]
    # A little more, since each of their queries has another last result without them.
    assert 1.0 < held_out[rows].mean() / np.mean(left_out) < 1.3


def test_a_new_revision_keeps_the_places_of_the_old_one():
    detector = make().fit(KNOWN)
    detector.learn(planted(1))
    again = planted(1)
    similar = Batch.of(ids=again.ids, texts=["new words"], embeddings=again.embeddings * 1.0 + 0.01)
    before = detector.score(similar)[0]
    detector.overlook(again.ids)
    assert detector.score(similar)[0] < before / 5
    detector.overlook(())
    assert detector.score(similar)[0] == before


def test_an_entry_that_left_no_longer_counts():
    detector, fresh = make().fit(KNOWN), make().fit(KNOWN)
    detector.learn(planted())
    crowded = detector.score(planted(1))
    detector.forget(planted())
    assert detector.score(planted(1)) == fresh.score(planted(1)) != crowded


def test_few_queries_need_more_of_them():
    assert make().traits.floor == pytest.approx(3 / 200)
    assert HubDetector(["q"] * 1000, np.ones((1000, 2))).traits.floor == pytest.approx(0.005)
    assert HubDetector(["q"] * 10, np.ones((10, 2))).traits.floor == pytest.approx(0.3)


def test_the_explanation_counts_queries_and_says_what_is_usual():
    detector = make().fit(KNOWN)
    (evidence,) = detector.explain(planted(1), [0])
    assert "of 200 watched queries, such as 'where is" in evidence.sentence
    most = max(map(detector.held_out_scores(KNOWN, 0).__getitem__, range(600)))
    assert "no entry here is among those of more than" in evidence.sentence
    assert most < detector.score(planted(1))[0]


def test_a_calibrated_guard_holds_hubs_and_few_clean_entries():
    guard = guard_of(make()).fit(KNOWN).calibrate()
    assert not guard.screen(planted()).admitted.any()
    assert guard.screen(passages(600, seed=8, prefix="other")).admitted.mean() > 0.97


def test_a_small_or_emptied_knowledge_base_is_no_error():
    few = KNOWN.take(range(3))
    detector = HubDetector(["q"] * len(VECTORS), VECTORS).fit(few)
    assert detector.score(planted(2)).shape == (2,)
    detector.forget(few)
    assert detector.score(planted(2)).tolist() == [1.0, 1.0]
    assert {*detector.unjudged(planted(2))} == {0, 1}
