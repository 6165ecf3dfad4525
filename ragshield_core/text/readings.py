"""Cache of the readings of texts: several detectors and calls read the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache, update_wrapper
from typing import Any, Generic, TypeVar, cast

Reading = TypeVar("Reading")

# Number of cached readings, and characters of the longest text, some MB in all: a new entry is
# scored, explained and learned, and a retrieval finds the same passages again and again.
REMEMBERED, REMEMBERED_LENGTH = 2_000, 4_000
# Number of cached readings of a few numbers each: the same sample, of 4,000 texts for the usual
# rate, sets thresholds again and again, and new texts come between.
SMALL_REMEMBERED = 10_000
# Number of readings of a few numbers each that are kept while a knowledge base is fitted: 60 to
# 190 MB of each reader, for passages of 90 words. Beyond it, texts are read again.
MOST_KEPT = 250_000


# Readings that another process has made, or that are kept, by the name of the reader and by text.
_GIVEN: ContextVar[Mapping[str, dict[str, Any]] | None] = ContextVar("given", default=None)


class Remembered(Generic[Reading]):
    """Decorator that caches the readings of the latest short texts and of the latest long one.

    Parameters
    ----------
    read
        Returns the reading of one text. Callers must not change it.
    most
        Number of short texts whose readings are cached.
    again
        Restores a reading from its form in an event: from JSON, or as it is if it is an array.
    """

    def __init__(
        self,
        read: Callable[[str], Reading],
        most: int = REMEMBERED,
        again: Callable[[Any], Reading] = lambda reading: reading,
    ) -> None:
        update_wrapper(self, read)
        self._again = again
        self.small = most >= SMALL_REMEMBERED
        # Name under which events store its readings.
        self.name = f"{read.__module__}.{getattr(read, '__qualname__', type(read).__qualname__)}"
        self._short = lru_cache(maxsize=most)(read)
        self._long = lru_cache(maxsize=1)(read)

    def __call__(self, text: str) -> Reading:
        """Return the reading of a text."""
        if (given := _GIVEN.get()) is None or (mine := given.get(self.name)) is None:
            return self._read(text)
        if (found := mine.get(text)) is None:
            found = self._read(text)
            if len(mine) < MOST_KEPT:
                mine[text] = found
        return cast("Reading", found)

    def _read(self, text: str) -> Reading:
        return self._short(text) if len(text) <= REMEMBERED_LENGTH else self._long(text)

    def again(self, kept: Sequence[Any]) -> list[Reading]:
        """Return readings from their form in an event."""
        return list(map(self._again, kept))

    def forget(self) -> None:
        """Forget all readings."""
        self._short.cache_clear()
        self._long.cache_clear()


def read(texts: Sequence[str], readers: Sequence[Remembered[Any]]) -> dict[str, list[Any]]:
    """Return the readings of all short texts, by name of the reader: JSON-ready ones, or arrays."""
    short = [text for text in texts if len(text) <= REMEMBERED_LENGTH]
    return {reader.name: list(map(reader, short)) for reader in readers}


def read_ahead(texts: Sequence[str], readers: Sequence[Remembered[Any]]) -> None:
    """Read all short texts, so that their readings are cached; failures come up again later."""
    for text in texts:
        if len(text) <= REMEMBERED_LENGTH:
            for reader in readers:
                with suppress(Exception):
                    reader(text)


@contextmanager
def given(
    texts: Sequence[str], kept: Mapping[str, Sequence[Any]], readers: Sequence[Remembered[Any]]
) -> Iterator[None]:
    """Let readers reuse the results of :func:`read` for these texts inside the context."""
    short = [text for text in texts if len(text) <= REMEMBERED_LENGTH]
    known = {
        reader.name: dict(zip(short, reader.again(kept[reader.name]), strict=True))
        for reader in readers
        if reader.name in kept
    }
    token = _GIVEN.set(known)
    try:
        yield
    finally:
        _GIVEN.reset(token)


@contextmanager
def keep_readings(readers: Sequence[Remembered[Any]]) -> Iterator[None]:
    """Keep readings of a few numbers each inside the context, in which texts are read again."""
    token = _GIVEN.set({reader.name: {} for reader in readers if reader.small})
    try:
        yield
    finally:
        _GIVEN.reset(token)
