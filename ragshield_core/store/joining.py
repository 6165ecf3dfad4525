"""Small writes that wait for each other are carried out as one write.

A write of one entry costs nearly as much as one of ten: it takes a turn, screens, and commits.
While one write runs, others of the same store wait, in threads or as tasks. The next one to run
takes the waiting ones along, and gives each its part of the report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ragshield_core.model.findings import Report
from ragshield_core.store.malformed import taken

if TYPE_CHECKING:
    import asyncio

Given = TypeVar("Given")
Answer = TypeVar("Answer")

# Most entries of one joint write: more cost as much together as apart.
MOST = 100


@dataclass(eq=False)
class Waiting(Generic[Given, Answer]):
    """A small write.

    Attributes
    ----------
    write
        Carries out several writes; returns an answer for each, in their order.
    given, ids
        What to write, and the ids of its entries.
    kind
        Writes of different kinds, such as different options of the store, are not joined.
    answers
        The one answer, once the write is carried out.
    loop
        The event loop on which the store works for the caller.
    given_up
        Whether the caller waits no longer.
    """

    write: Callable[[Sequence[Given]], Sequence[Answer]]
    given: Given
    ids: frozenset[str]
    kind: Hashable = None
    answers: list[Answer] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    given_up: bool = False

    def joins(self, other: Waiting[Any, Any]) -> bool:
        """Return whether the two can be one write."""
        mine, its = (self.write, self.kind, self.loop), (other.write, other.kind, other.loop)
        return mine == its


class Joiner:
    """The waiting writes of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Waiting[Any, Any]] = []  # the oldest first

    @contextmanager
    def waiting(self, one: Waiting[Any, Any]) -> Iterator[None]:
        """Let other writes take this one along until the caller goes on."""
        with self._lock:
            self._waiting.append(one)
        try:
            yield
        finally:
            with self._lock:
                one.given_up = True
                self._leave([one])

    def carry_out(self, one: Waiting[Given, Answer]) -> None:
        """Carry out a write, if no other write has; waiting ones that it can be joined with, too.

        Only one thread at a time may call this. If a joint write fails, this one is repeated alone,
        so that each caller gets its own error; the others go on waiting.
        """
        if one.answers:
            return
        some = self._joined_with(one)
        try:
            answers = one.write([each.given for each in some])
        except Exception:
            if len(some) == 1:
                raise
            with self._lock:
                others = [each for each in some[1:] if not each.given_up]
                self._waiting = [*others, *self._waiting]
            some, answers = [one], one.write([one.given])
        for each, answer in zip(some, answers, strict=True):
            each.answers.append(answer)

    def _joined_with(self, one: Waiting[Given, Answer]) -> list[Waiting[Given, Answer]]:
        """Take a write, and those that can be joined with it, out of the waiting ones."""
        with self._lock:
            some, ids = [one], set(one.ids)
            for other in self._waiting:
                fits = ids.isdisjoint(other.ids) and len(ids) + len(other.ids) <= MOST
                if other is not one and fits and other.joins(one):
                    some.append(other)
                    ids |= other.ids
            self._leave(some)
        return some

    def _leave(self, some: Sequence[Waiting[Any, Any]]) -> None:
        gone = set(map(id, some))
        self._waiting = [one for one in self._waiting if id(one) not in gone]


def lengths_of(vectors: Iterable[Any]) -> frozenset[int | None]:
    """Return the lengths of vectors; a write of another length is refused as a whole, alone."""
    return frozenset(len(one) if hasattr(one, "__len__") else None for one in vectors)


def part_of(report: Report, ids: Collection[str]) -> Report:
    """Return the report on some entries of a joint write, with all that it recalled."""
    rows = [row for row, entry_id in enumerate(report.batch.ids) if entry_id in ids]
    return report if len(rows) == len(report.batch) else taken(report, rows)
