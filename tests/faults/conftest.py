"""Detectors that work, before each test and after it."""

import threading

import pytest
from small_store import Moody


@pytest.fixture(autouse=True)
def mood():
    """Return a function that says how detectors feel from now on."""
    hung = []

    def set_mood(mood):
        Moody.mood = mood
        if isinstance(mood, threading.Event):
            hung.append(mood)

    Moody.mood, Moody.asked = None, 0
    yield set_mood
    Moody.mood = None
    for event in hung:
        event.set()
