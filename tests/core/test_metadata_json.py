"""Metadata goes to JSON and back without a loss and without pickle."""

import datetime as dt
import enum
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core.quarantine import metadata_json

ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))])
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    # fold only picks one of two instants when clocks are put back; ISO 8601 has no word for it
    st.datetimes(timezones=ZONES).map(lambda value: value.replace(fold=0)),
    st.times().map(lambda value: value.replace(fold=0)),
    st.uuids(),
    st.decimals(allow_nan=False),
)
KEYS = st.one_of(st.text(), st.just(metadata_json.TAG), st.integers(), st.tuples(st.text()))
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)


def typed(value):
    """Return a value in which 1, 1.0 and True differ, and so do a list and a tuple."""
    if isinstance(value, dict):
        return "dict", frozenset((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return type(value).__name__, frozenset(typed(item) for item in value)
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(typed(item) for item in value)
    return type(value).__name__, repr(value)


@pytest.mark.slow
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_every_usual_value_comes_back_equal_and_of_its_type(metadata):
    assert typed(metadata_json.loads(metadata_json.dumps(metadata))) == typed(metadata)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_floats_that_are_no_numbers_come_back(value):
    back = metadata_json.loads(metadata_json.dumps({"x": value}))["x"]
    np.testing.assert_equal(back, value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.True_, True),
        (np.str_("a"), "a"),
        (np.longdouble(0.5), 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numpy_scalars_come_back_as_plain_numbers(value, plain):
    assert metadata_json.loads(metadata_json.dumps({"x": value})) == {"x": plain}


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, 1j, np.zeros(2), enum.Enum("E", "A").A, {"deep": [object()]}]
)
def test_value_that_needs_pickle_is_refused_with_its_key(value):
    with pytest.raises(TypeError, match=r"metadata\['secret'\].*without pickling"):
        metadata_json.dumps({"fine": 1, "secret": value})


def test_a_missing_time_of_a_data_frame_comes_back_as_none():
    assert metadata_json.loads(metadata_json.dumps({"at": pd.NaT})) == {"at": None}


def test_hostile_keys_are_escaped_in_errors():
    with pytest.raises(TypeError) as caught:
        metadata_json.dumps({"\x1b[2J" + "x" * 5000: object(), "b": 1})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 250
    with pytest.raises(TypeError, match=r"metadata\[tuple\] is of type complex"):
        metadata_json.dumps({("secret",): 1j})


def test_text_that_looks_like_a_tag_stays_text():
    hostile = {
        metadata_json.TAG: ["uuid", str(uuid.UUID(int=1))],
        "d": {metadata_json.TAG: ["decimal", "1"]},
    }
    assert metadata_json.loads(metadata_json.dumps(hostile)) == hostile
    assert metadata_json.loads(metadata_json.dumps({"n": Decimal("1.10")})) == {
        "n": Decimal("1.10")
    }


@pytest.mark.parametrize(
    ("metadata", "plain"),
    [
        ({}, True),
        ({"a": "b", "n": 1, "f": 0.5, "t": True, "z": None}, True),
        ({"n": 2**63 - 1}, True),
        ({"n": 2**63, "a": "b"}, False),
        ({"n": 1, "m": -(2**63)}, False),
        ({"n": np.int64(1)}, False),
        ({"n": 1, "day": dt.date(2026, 1, 2)}, False),
        ({"list": []}, False),
        ({1: "a"}, False),
        ({metadata_json.TAG: "a"}, False),
    ],
)
def test_only_short_values_that_json_has_are_plain(metadata, plain):
    assert metadata_json.is_plain(metadata) is plain
