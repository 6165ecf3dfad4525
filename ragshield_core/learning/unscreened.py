"""What was let in although a detector failed on it, until that detector has judged it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ragshield_core.model.findings import Report

# How often an entry is screened again by itself: where the detector judges others, and fails on it
# time and again, it is the entry's own doing.
TRIES = 3

Failures = Mapping[str, str]  # by detector, what was said


class Unscreened:
    """Remembers entries that are to be screened again, and which detectors have to.

    Of an entry that was not written after all it may remember more than there is: who asks looks
    at what is known.
    """

    def __init__(self) -> None:
        self._failures: dict[str, Failures] = {}
        self._tries: Counter[str] = Counter()  # of this process

    def __len__(self) -> int:
        return len(self._failures)

    def add(self, failures: Mapping[str, Failures]) -> None:
        """Remember entries, by id."""
        self._failures |= failures

    def drop(self, ids: Iterable[str]) -> None:
        """Forget entries: they were screened, or a person has judged them."""
        for entry_id in ids:
            self._failures.pop(entry_id, None)
            self._tries.pop(entry_id, None)

    def clear(self) -> None:
        """Forget all: the knowledge base was vouched for, or judged as a whole."""
        self._failures, self._tries = {}, Counter()

    def tried(self, ids: Iterable[str]) -> None:
        """Take note that a detector failed again."""
        self._tries.update(ids)

    def among(self, known: Collection[str]) -> dict[str, Failures]:
        """Return what is remembered of the entries that are known."""
        return {i: failures for i, failures in self._failures.items() if i in known}

    def due(self, known: Collection[str], failing: Collection[str]) -> list[str]:
        """Return the known entries of which the detectors work again, so far as is known."""
        return [
            i
            for i, failures in self.among(known).items()
            if self._tries[i] < TRIES and not failures.keys() & set(failing)
        ]

    def state(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        return {i: dict(failures) for i, failures in self._failures.items()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.clear()
        self._failures = {i: dict(failures) for i, failures in values.items()}


def let_in(report: Report) -> dict[str, Failures]:
    """Return by id what a report admits although detectors failed on it, and what they said."""
    return {
        decision.entry_id: {item.detector: item.reason for item in decision.unjudged if item.failed}
        for decision in report.remarkable.values()
        if decision.unscreened
    }


def failing(report: Report) -> dict[str, str]:
    """Return the detectors that failed on entries of a report, and what they said."""
    return {item.detector: item.reason for item in report.unjudged if item.failed}
