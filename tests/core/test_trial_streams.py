"""Streams of an evaluation: what is in them, and how many texts come."""

import numpy as np
import pytest
from small_trials import corpus, embed

from ragshield_core import Batch
from ragshield_core.tools.evaluate import evaluate
from ragshield_core.tools.evaluate.attacks import BY_NAME, Planted
from ragshield_core.tools.evaluate.poison import Poison


def poison_of(sizes):
    """Return poison of one attack, with so many texts for each target."""
    texts = iter(f"text {number}" for number in range(1_000))
    planted = [
        Planted(attack="mine", question=None, texts=tuple(next(texts) for _ in range(size)))
        for size in sizes
    ]
    return Poison(planted, corpus(), embed, {})


def test_a_stream_has_one_poisoned_entry_in_a_hundred_and_a_target_is_in_one_stream():
    poison = poison_of([5] * 7)
    found = poison.streams(n_clean=2_000, length=1_000, n_streams=3, seed=0)
    assert [each.targets for each in found] == [(0, 1), (2, 3), (4, 5)]
    for each in found:
        clean, planted = each.rows[each.rows < 2_000], each.rows[each.rows >= 2_000] - 2_000
        assert len(set(clean)) == 1_000
        assert sorted(planted) == sorted(np.concatenate([poison.rows_of(n) for n in each.targets]))
    assert set(found[0].rows) != set(found[1].rows)
    again = poison.streams(2_000, 1_000, 3, seed=0)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(found, again, strict=True))
    many = poison.streams(2_000, length=100, n_streams=99, seed=0)
    assert [each.targets for each in many] == [(n,) for n in range(7)]  # one at least
    assert poison_of([1, 1]).streams(100, 50, 4, seed=0) == []  # attacks of one text


def test_planted_texts_are_no_revisions_of_entries_of_the_corpus():
    ids = [f"planted-{row}" for row in range(len(corpus()))]
    named = Batch.of(ids=ids, texts=corpus().texts, embeddings=corpus().embeddings)
    planted = [Planted(attack="mine", question=None, texts=("one text", "another one"))]
    assert not {*Poison(planted, named, embed, {}).batch.ids} & {*ids}


@pytest.mark.slow
def test_smaller_groups_are_the_first_texts_of_larger_ones_and_embedded_once():
    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    attack = BY_NAME["opinions"]
    found = evaluate(
        corpus(), counted, attacks=[attack], n_targets=2, fpr=0.1, stream=40, sizes=(2, 3, 8)
    )
    assert len(asked) == len(set(asked))
    alone = {r.size: r.held.n for r in found.recalls if r.regime == "alone"}
    assert alone == {2: 4, 3: 6, 5: 10, 8: 16}
    assert {r.size for r in found.recalls if r.regime != "alone"} == {5}  # as published
    poison = poison_of([8])
    assert poison.rows_of(0, 3).tolist() == poison.rows_of(0, 8)[:3].tolist()


@pytest.mark.slow
def test_own_targets_with_fewer_texts_than_others_come_with_all_of_them():
    own = [
        Planted(attack="mine", question=None, texts=("one", "two", "three")),
        Planted(attack="mine", question=None, texts=("four", "five")),
    ]
    found = evaluate(corpus(), embed, attacks=[], own=own, fpr=0.1, stream=40)
    counts = {(r.regime, r.size): r.held.n for r in found.recalls}
    assert counts == {
        ("alone", 1): 2,
        ("alone", 2): 4,
        ("alone", 3): 5,
        ("stream", 3): 5,
        ("batch", 3): 5,
    }
