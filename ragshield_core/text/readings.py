"""What was read in texts, remembered: several calls ask for the same of a text that comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from ragshield_core.entries import Batch
from ragshield_core.text.workers import read_all

Reading = TypeVar("Reading")

# Texts whose reading is remembered, and characters of the longest, some MB in all: a new entry is
# scored, explained and learned, and at retrieval the same passages come again and again.
REMEMBERED, REMEMBERED_LENGTH = 2_000, 4_000
# The same where many guards are known to read the same texts, one after the other.
MOST_REMEMBERED = 50_000


# Numbers of texts that are asked for just now, by whoever does.
_wanted: list[int] = []
# Whoever remembers readings.
_all: WeakSet[Readings[Any]] = WeakSet()
_lock = threading.Lock()


@contextmanager
def remembering(n: int) -> Iterator[None]:
    """Remember the readings of so many texts for a while, :data:`MOST_REMEMBERED` at most.

    For work in which several guards read the same texts: what is read in a text depends on nothing
    else, so that each is read once in a process. On leaving, what is more than usual is forgotten.

    Parameters
    ----------
    n
        Texts; fewer than are remembered anyway change nothing.
    """
    wanted = min(n, MOST_REMEMBERED)
    _wanted.append(wanted)
    try:
        yield
    finally:
        _wanted.remove(wanted)
        with _lock:
            alive = list(_all)
        for readings in alive:
            readings.shrink()


class Readings(Generic[Reading]):
    """Reads texts, and remembers the latest short ones, and whole batches that are learned.

    Parameters
    ----------
    read
        Of texts, one reading each, in order, whichever texts stand beside it; a function of a
        module. Readings are not to be changed.
    """

    def __init__(self, read: Callable[[Sequence[str]], list[Reading]]) -> None:
        self._read = read
        self._known: dict[str, Reading] = {}
        self._learned: WeakKeyDictionary[Batch, list[Reading]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        with _lock:
            _all.add(self)

    def __call__(self, texts: Sequence[str]) -> list[Reading]:
        """Return the reading of each text, in order."""
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        found.update(zip(new, read_all(self._read, new), strict=True))
        self._remember(texts, found)
        return [found[text] for text in texts]

    def of(self, entries: Batch) -> list[Reading]:
        """Return the reading of each entry's text, and remember it as long as the batch is there.

        Who learns a knowledge base asks for its readings, and again to hold entries out.
        """
        with self._lock:
            found = self._learned.get(entries)
        if found is None:
            found = self(entries.texts)
            with self._lock:
                self._learned[entries] = found
        return found

    def forget(self) -> None:
        """Remember nothing any more."""
        with self._lock:
            self._known.clear()
            self._learned.clear()

    def shrink(self) -> None:
        """Forget the short texts that were not asked for the longest, beyond what is wanted now."""
        with self._lock:
            self._shrink(_most())

    def _shrink(self, most: int) -> None:
        for text in list(islice(self._known, max(0, len(self._known) - most))):
            del self._known[text]

    def _remember(self, texts: Sequence[str], found: dict[str, Reading]) -> None:
        """Remember short texts, and forget those that were not asked for the longest."""
        with self._lock:
            most = _most()
            for text in texts[-most:]:
                if len(text) <= REMEMBERED_LENGTH:
                    self._known.pop(text, None)
                    self._known[text] = found[text]
            self._shrink(most)


def _most() -> int:
    """Return how many texts' readings are remembered just now."""
    return max(REMEMBERED, *_wanted, 0)
