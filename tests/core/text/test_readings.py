"""Readings are remembered for a few short texts."""

import json

import pytest

from ragshield_core.text import readings
from ragshield_core.text.readings import Remembered


class Counting:
    """Reads texts, and counts how many."""

    def __init__(self):
        self.n = 0

    def __call__(self, text):
        self.n += 1
        return len(text)


@pytest.fixture
def read():
    return Counting()


def test_a_text_is_read_once(read):
    remembered = Remembered(read)
    assert [remembered(text) for text in ("one", "three", "one", "three", "two")] == [3, 5, 3, 5, 3]
    assert read.n == 3


def test_few_short_texts_and_one_long_text_are_remembered(read):
    remembered = Remembered(read, 2)
    long = "long" * 1_001
    for text in ("a", "b", long, "a", "b", long):
        remembered(text)
    assert read.n == 3
    for text in ("c", "a", f"{long}er", long):  # "b" and the first long text were forgotten
        remembered(text)
    assert read.n == 7
    remembered("c")
    assert read.n == 7


def test_readings_are_forgotten(read):
    remembered = Remembered(read)
    for text in ("short", "long" * 1_001):
        remembered(text)
        remembered.forget()
        remembered(text)
    assert read.n == 4


def test_given_readings_are_not_read_again(read):
    texts = ("one", "long" * 1_001, "three")
    kept = json.loads(json.dumps(readings.read(texts, [Remembered(read)])))
    elsewhere = Counting()
    remembered = Remembered(elsewhere)
    with readings.given(texts, kept, [remembered]):
        assert [remembered(text) for text in texts] == [3, 4_004, 5]
        assert elsewhere.n == 1  # of long texts no reading is kept
    assert remembered("one") == 3
    assert elsewhere.n == 2  # given readings are not remembered


def test_small_readings_are_kept_inside_a_context(read):
    small = Remembered(read, readings.SMALL_REMEMBERED)
    small._short = small._long = read  # remembers nothing
    texts = ["one", "three", "long" * 1_001]
    with readings.keep_readings([small]):
        assert [small(text) for text in texts * 2] == [3, 5, 4_004] * 2
        assert read.n == 3
    assert small("one") == 3
    assert read.n == 4


def test_no_more_readings_are_kept_than_fit_into_memory(read, monkeypatch):
    monkeypatch.setattr(readings, "MOST_KEPT", 1)
    small = Remembered(read, readings.SMALL_REMEMBERED)
    small._short = read
    with readings.keep_readings([small]):
        assert [small(text) for text in ("one", "three") * 2] == [3, 5] * 2
    assert read.n == 3


def test_large_readings_are_not_kept(read):
    large = Remembered(read, 1)
    with readings.keep_readings([large]):
        for text in ("one", "three", "one"):
            large(text)
    assert read.n == 3
