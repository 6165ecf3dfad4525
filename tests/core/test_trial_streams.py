"""Streams of an evaluation: what is in them, and that they go on where they were interrupted."""

import json
from dataclasses import replace

import numpy as np
import pytest
from small_trials import corpus, embed, small

from ragshield_core.tools.evaluate import evaluate, streams
from ragshield_core.tools.evaluate.attacks import Planted
from ragshield_core.tools.evaluate.attacks.catalogue import BY_NAME
from ragshield_core.tools.evaluate.poison import Poison
from ragshield_core.tools.evaluate.streams import Stream, first_comings, streams_of


@pytest.fixture
def ran(monkeypatch):
    """Return the streams that were run, not read."""
    calls, real = [], streams._streamed
    monkeypatch.setattr(streams, "_streamed", lambda *job: calls.append(job) or real(*job))
    return calls


def poison_of(sizes):
    """Return poison of one attack, with so many texts for each target."""
    texts = iter(f"text {number}" for number in range(1_000))
    planted = [
        Planted(attack="mine", question=None, texts=tuple(next(texts) for _ in range(size)))
        for size in sizes
    ]
    return Poison(planted, corpus(), lambda asked: unit(embed(asked)), {})


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_stream_has_one_poisoned_entry_in_a_hundred_and_a_target_is_in_one_stream():
    poison = poison_of([5] * 7)
    found = streams_of(poison, n_clean=2_000, length=1_000, n_streams=3, seed=0)
    assert [each.targets for each in found] == [(0, 1), (2, 3), (4, 5)]
    for each in found:
        clean, planted = each.rows[each.rows < 2_000], each.rows[each.rows >= 2_000] - 2_000
        assert len(set(clean)) == 1_000
        assert sorted(planted) == sorted(np.concatenate([poison.rows_of(n) for n in each.targets]))
    assert set(found[0].rows) != set(found[1].rows)
    again = streams_of(poison, 2_000, 1_000, 3, seed=0)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(found, again, strict=True))
    many = streams_of(poison, 2_000, length=100, n_streams=99, seed=0)
    assert [each.targets for each in many] == [(n,) for n in range(7)]  # one at least
    assert streams_of(poison_of([1, 1]), 100, 50, 4, seed=0) == []  # attacks of one text


def test_of_a_clean_entry_the_first_stream_that_it_is_in_counts():
    rows = ([3, 9, 0], [0, 1, 9], [3, 1])
    made = [Stream("mine", (0,), np.array(each)) for each in rows]
    assert [new.tolist() for new in first_comings(made, 5)] == [[3, 0], [1], []]


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


@pytest.mark.slow
def test_streams_go_on_where_they_were_interrupted(tmp_path, ran):
    def stop(what, done, _):
        if what == "poison, in streams" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(folder=tmp_path, progress=stop)
    assert len(ran) == 4
    told = []
    found = small(folder=tmp_path, progress=lambda what, *n: told.append((what, *n)))
    assert len(ran) == 6
    assert ("poison, in streams", 4, 6) in told
    fresh = small()
    assert len(ran) == 12
    same = replace(found, fit_seconds=fresh.fit_seconds, milliseconds=fresh.milliseconds)
    assert same.to_json() == fresh.to_json()


@pytest.mark.slow
def test_what_was_found_under_other_settings_or_is_damaged_is_not_used(tmp_path, ran, monkeypatch):
    attacks = [BY_NAME["clones"]]
    small(folder=tmp_path, attacks=attacks)
    kept = sorted(tmp_path.glob("stream-*.json"))
    assert len(kept) == len(ran) == 3
    small(folder=tmp_path, attacks=attacks)
    assert len(ran) == 3
    kept[0].write_text('{"held": [')
    kept[1].write_text('{"held": 3}')
    small(folder=tmp_path, attacks=attacks)
    assert len(ran) == 5
    assert all(isinstance(json.loads(path.read_text())["held"], dict) for path in kept)
    small(folder=tmp_path, attacks=attacks, seed=1)
    assert len(ran) == 8
    monkeypatch.setattr(streams, "_code", lambda: b"another version")
    small(folder=tmp_path, attacks=attacks)
    assert len(ran) == 11
