"""What was read in texts, remembered: several detectors and calls read the same text."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import Generic, TypeVar

Reading = TypeVar("Reading")

# Texts whose reading is remembered, and characters of the longest, some MB in all: a new entry is
# scored, explained and learned, and at retrieval the same passages come again and again.
REMEMBERED, REMEMBERED_LENGTH = 2_000, 4_000
# Of readings that are a few numbers: thresholds are taken by the same sample again and again, of
# 4,000 texts for the usual rate, and among them come new ones.
SMALL_REMEMBERED = 10_000


class Remembered(Generic[Reading]):
    """Reads texts, and remembers the latest short ones and the latest long one; a decorator.

    Parameters
    ----------
    read
        Returns the reading of one text. Readings must not be changed.
    most
        How many short ones are remembered.
    """

    def __init__(self, read: Callable[[str], Reading], most: int = REMEMBERED) -> None:
        update_wrapper(self, read)
        self._short = lru_cache(maxsize=most)(read)
        self._long = lru_cache(maxsize=1)(read)

    def __call__(self, text: str) -> Reading:
        """Return the reading of a text."""
        return self._short(text) if len(text) <= REMEMBERED_LENGTH else self._long(text)

    def forget(self) -> None:
        """Forget all readings."""
        self._short.cache_clear()
        self._long.cache_clear()
