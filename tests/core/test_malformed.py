"""Malformed entries are separated from the rest, held, or refused by name."""

import pickle

import numpy as np
import pytest
from support import DIM, Scripted, vector_of

from ragshield_core import Guard, Policy, Verdict
from ragshield_core.model.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    MalformedEntriesWarning,
)
from ragshield_core.store.held import stays_held
from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.malformed import RawEntries, sift, unusable

N = 4


@pytest.fixture
def guard(quarantine):
    return Guard([Scripted()], quarantine=quarantine)


def columns(n=N, **changed):
    """Return good entries, of which single values are changed: ``labels={1: ...}``."""
    texts = [f"billing {row}" for row in range(n)]
    given = {
        "ids": [f"e{row}" for row in range(n)],
        "texts": texts,
        "vectors": [vector_of(text).tolist() for text in texts],
        "labels": ["billing"] * n,
        "lineages": [None] * n,
        "metadatas": [{"page": row} for row in range(n)],
        "contexts": [None] * n,
    }
    for name, values in changed.items():
        for row, value in values.items():
            if name in given:
                given[name][row] = value
    said = {name: changed.get(name, {}) for name in ("reasons", "refused")}
    return RawEntries(**given, **said)


ODD = {
    "vectors": ([np.nan] * DIM, "NaN"),
    "metadatas": ({"page": 1, "odd": object()}, r"metadata['odd']"),
    "reasons": ("said the adapter", "said the adapter"),
}


@pytest.mark.parametrize("column", ODD)
def test_malformed_entry_is_separated_and_held(guard, column):
    value, word = ODD[column]
    sifted = sift(columns(**{column: {2: value}}), guard)
    assert sifted.batch.ids == ("e0", "e1", "e2", "e3")
    assert sifted.whole.ids == ("e0", "e1", "e3")
    assert not sifted.refused
    report = sifted.hold_malformed(guard.hold(guard.screen(sifted.whole)), guard)
    assert report.batch is sifted.batch
    assert report.admitted.tolist() == [True, True, False, True]
    assert report.scores["scripted"][[0, 1, 3]].tolist() == [-1, -1, -1]
    assert np.isnan(report.scores["scripted"][2])
    held = guard.quarantine.show("e2")
    assert word in held.note == report.decisions[2].note
    assert held.entry.text == "billing 2"
    assert held.vector.size == (0 if column == "vectors" else DIM)
    assert set(held.entry.metadata) == {"page"}


@pytest.mark.parametrize(("what", "value"), [("label", "a\0b"), ("source", "half \ud83d")])
def test_claim_that_no_database_can_store_becomes_none(what, value):
    reasons = []
    assert MetadataKeys().claims({what: value}, "e0", reasons=reasons) == (None, None)
    name = {"source": "lineage"}.get(what, what)
    assert reasons == [f"its {name} holds a NUL or a lone surrogate, expected valid Unicode text"]


def test_whole_batches_are_passed_through(guard):
    sifted = sift(columns(), guard)
    assert sifted.whole is sifted.batch
    report = guard.screen(sifted.whole)
    assert sifted.hold_malformed(report, guard) is report
    assert not guard.quarantine.exists() or guard.quarantine.count(None) == 0


def test_all_reasons_are_reported_including_those_of_a_store(guard):
    sifted = sift(columns(reasons={1: "its label is odd"}, vectors={1: None}), guard)
    sifted = sifted.without({1: "the store says no", 3: "nor this"})
    assert set(sifted.reasons) == {1, 3}
    for word in ("its label", "no vector", "the store says no"):
        assert word in sifted.reasons[1]


@pytest.mark.parametrize("column", ["ids", "texts"])
@pytest.mark.parametrize("value", [None, 7, b"bytes"])
def test_entry_without_a_usable_id_or_text_is_refused(guard, column, value):
    sifted = sift(columns(**{column: {1: value}}), guard)
    assert sifted.rows == (0, 2, 3)
    assert sifted.batch.ids == ("e0", "e2", "e3")
    assert list(sifted.refused) == [1]


def test_hostile_ids_are_escaped_where_they_are_named():
    reasons = unusable(["\x1b[2J", "\x1b[2J", "a\0b"], ["x", "x", "x"])
    assert set(reasons) == {1, 2}
    assert "\x1b" not in "".join(reasons.values())
    assert "\0" not in "".join(reasons.values())


def test_vectors_of_another_dimension_are_malformed_or_refused(guard):
    first = sift(columns(vectors={0: [1.0] * 3}), guard)  # most entries have the right one
    assert list(first.reasons) == [0]
    guard.learn(first.whole)
    assert guard.judge.dim == DIM
    shorter = columns(vectors={row: [1.0] * 3 for row in range(N)})
    sifted = sift(shorter, guard)
    assert sifted.rows == ()
    assert set(sifted.refused) == set(range(N))
    assert f"'e1': its vector has 3 dimensions, expected {DIM}" in sifted.refused[1]
    none = sift(columns(vectors=dict.fromkeys(range(N))), guard)  # no other model's
    assert set(none.reasons) == set(range(N))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_batch_of_a_broken_model_is_refused_and_passes_once_the_model_works(guard, number):
    vectors = dict.fromkeys(range(N), [number] * DIM)
    with pytest.raises(InvalidBatchError, match=r"none of the 4 vectors.*'e0'.*NaN.*again once"):
        sift(columns(vectors=vectors), guard)
    sifted = sift(columns(), guard)
    assert guard.hold(guard.screen(sifted.whole)).admitted.all()


@pytest.mark.parametrize("vector", [[np.nan] * DIM, [0.0] * DIM, None])
def test_an_entry_held_for_its_vector_is_judged_once_it_has_one(guard, vector):
    sifted = sift(columns(vectors={2: vector}), guard)
    sifted.hold_malformed(guard.hold(guard.screen(sifted.whole)), guard)
    assert guard.quarantine.held_ids(["e2"])
    report = stays_held(guard.hold(guard.screen(sift(columns(), guard).whole)), guard)
    assert report.admitted.all()
    assert not guard.quarantine.held_ids(["e2"])
    assert guard.quarantine.count("superseded") == 1


def test_released_entry_is_admitted_if_its_vector_is_usable(guard):
    for name, value in (("reasons", "odd"), ("vectors", None)):
        sifted = sift(columns(**{name: {1: value}}), guard)
        sifted.hold_malformed(guard.hold(guard.screen(sifted.whole)), guard)
        if guard.quarantine.held_ids(["e1"]):
            guard.quarantine.release(["e1"], by="anna")
    again = sift(columns(reasons={1: "odd"}), guard)
    report = again.hold_malformed(guard.hold(guard.screen(again.whole)), guard)
    assert report.decisions[1].verdict is Verdict.ADMIT
    assert "released by anna" in report.decisions[1].note
    unfit = sift(columns(), guard).without({1: "the store says no"})
    report = unfit.hold_malformed(guard.hold(guard.screen(unfit.whole)), guard)
    assert report.admitted.tolist() == [True, False, True, True]
    assert "the store says no; released by anna" in report.decisions[1].note
    bare = sift(columns(vectors={1: None}), guard)
    assert bare.rows == (0, 2, 3)
    assert "released by anna" in bare.refused[1]


def test_warning_is_raised_if_no_entry_is_left(guard):
    sifted = sift(columns(reasons=dict.fromkeys(range(N), "a list")), guard)
    with pytest.warns(MalformedEntriesWarning, match="none of the 4 entries.*'e0': a list"):
        sifted.hold_malformed(guard.screen(sifted.whole), guard)
    assert guard.quarantine.count() == N


def test_a_policy_that_raises_holds_nothing(quarantine):
    guard = Guard([Scripted()], policy=Policy(on_detect="raise"), quarantine=quarantine)
    sift(columns(), guard).check(guard)
    sifted = sift(columns(ids={0: ""}, reasons={2: "odd"}), guard)
    with pytest.raises(MalformedEntriesError, match="nothing was written or held") as raised:
        sifted.check(guard)
    assert raised.value.reasons == {0: sifted.refused[0], 2: "'e2': odd"}


def test_the_error_names_the_first_and_keeps_all():
    error = MalformedEntriesError({row: f"why {row}" for row in range(50)}, ids=["a", "b"])
    assert "50 entries" in str(error)
    assert "why 19;" not in str(error)
    assert "why 19 (and 30 more" in str(error)
    assert len(error.reasons) == 50
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(copy), copy.reasons, copy.ids) == (str(error), error.reasons, ["a", "b"])


def test_entry_refused_by_the_adapter_is_in_no_batch(guard):
    sifted = sift(columns(refused={1: "said the adapter"}, ids={3: ""}), guard)
    assert sifted.batch.ids == ("e0", "e2")
    assert sifted.refused[1] == "said the adapter"
    assert set(sifted.refused) == {1, 3}


def deep(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


def shared(levels=30):
    """Return a list that is small in memory, and endless once it is written down."""
    value = ["x"] * 10
    for _ in range(levels):
        value = [value] * 10
    return value


LARGE = {
    "a list": ({"odd": [0] * 8000}, "metadata['odd'] has more than the 2,000 values"),
    "keys": ({f"k{n}": n for n in range(20_000)}, "has more than the 2,000 values"),
    "a text": ({"odd": "x" * 4_000_001}, "metadata['odd'] has more than the 4,000,000 characters"),
    "a key": ({"x" * 4_000_001: 1}, "has more than the 4,000,000 characters"),
    "depth": ({"odd": deep(60)}, "metadata['odd'] is nested more than 50 deep"),
    "the same list again and again": ({"odd": shared()}, "metadata['odd'] has more than"),
}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.slow
def test_metadata_beyond_the_bounds_is_held_with_the_keys_that_fit(guard, kind):
    metadata, reason = LARGE[kind]
    sifted = sift(columns(metadatas={2: {"page": 2} | metadata}), guard)
    report = sifted.hold_malformed(guard.hold(guard.screen(sifted.whole)), guard)
    assert report.admitted.tolist() == [True, True, False, True]
    (held,) = guard.quarantine.list()
    assert reason in held.note
    assert held.entry.metadata["page"] == 2
    assert "odd" not in held.entry.metadata
    assert len(held.entry.metadata) <= 2000
    guard.quarantine.release(["e2"], by="anna")
    again = sift(columns(metadatas={2: {"page": 2} | metadata}), guard)
    report = again.hold_malformed(guard.hold(guard.screen(again.whole)), guard)
    assert not report.admitted[2]  # a store would still not survive it


def test_a_policy_says_how_much_metadata_an_entry_may_have(quarantine):
    guard = Guard([Scripted()], quarantine=quarantine, policy=Policy(metadata_values=9_000))
    assert not sift(columns(metadatas={2: {"tags": [0] * 8000}}), guard).reasons
    assert sift(columns(metadatas={2: {"tags": [0] * 9001}}), guard).reasons
