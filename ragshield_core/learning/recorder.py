"""Event recorder: applies events; where processes share a guard, a journal does more."""

from __future__ import annotations

import datetime as dt
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ragshield_core.learning.events import Event

if TYPE_CHECKING:
    from ragshield_core.learning.guard_state import GuardState

T = TypeVar("T")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Intent:
    """Events that are going to happen, once a store is written.

    Attributes
    ----------
    events
        In their order.
    positions
        Of a journal that has them as pending, and whose guards know of them already; none where
        nobody has to know before.
    """

    events: tuple[Event, ...]
    positions: tuple[int, ...] = ()


class Intending(NamedTuple):
    """A process that is about to do something."""

    writer: str
    n_events: int
    silent_for: float | None  # seconds since its last sign of life; None if it is gone
    alive: bool


class Standing(NamedTuple):
    """How a guard stands among the processes that share what it knows."""

    position: int  # of the last event that it has read
    behind: int  # events that came since
    writers: tuple[Intending, ...]  # who intends what is pending
    calibrated_on: dt.datetime | None  # as far as the journal still says so
    snapshot: tuple[int, dt.datetime] | None  # position of the latest, and when it was made
    database: str  # without its password
    namespace: str
    sealed: bool  # whether all of it has digests that only holders of a key can make


class Recorder:
    """Writes nothing down: what this process knows, nobody else has to.

    Parameters
    ----------
    state
        Of the guard, which keeps its recorder, and not the other way round: a guard is gone when
        nobody uses it any more.
    """

    # Whether others have to know what is going to happen before it does.
    shared = False
    position: int | None = None

    def __init__(self, state: GuardState) -> None:
        self._state: GuardState = weakref.proxy(state)

    @property
    def collecting(self) -> bool:
        """Whether what happens now is applied later, see :meth:`together`."""
        return False

    def catch_up(self) -> int:
        """Apply what has happened elsewhere; return how many events that were."""
        return 0

    def happened(self, event: Event) -> None:
        """Write an event down, and apply it."""
        self._state.apply(event)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Yield while the guard becomes another one as a whole."""
        yield

    def together(self, work: Callable[[], T], at: int | None) -> T:  # noqa: ARG002 - no journal
        """Do work whose events, and changes of the quarantine, are written down as one.

        Parameters
        ----------
        work
            To be repeatable, where there is a journal.
        at
            Position that it is based on.

        Raises
        ------
        OvertakenError
            If something has happened elsewhere since ``at``; nothing was done then.
        """
        return work()

    def intend(self, events: Sequence[Event]) -> Intent:
        """Write down what is going to happen."""
        return Intent(tuple(events))

    def finish(self, intent: Intent) -> None:
        """Say that it has happened.

        Raises
        ------
        TakenOverError
            If another process has recovered it, because this one was silent for too long.
        """
        for event in intent.events:
            self.happened(event)

    def drop(self, intent: Intent) -> None:
        """Leave what was intended to be recovered: whether it happened is not known."""

    def abandoned(self) -> Intent | None:
        """Return what processes intended that are gone, to be recovered by this one."""
        return None

    def correct(self, intent: Intent, fixes: Sequence[Event]) -> None:
        """End what was intended, with what makes up for that it did not happen, if so."""

    def moving(self) -> frozenset[str]:
        """Return the ids of entries that somebody is about to write or delete just now."""
        return frozenset()

    def take_turn(self) -> None:
        """Wait until nobody else writes, until the next write."""

    def give_up_turn(self) -> None:
        """Let others write, if nothing was written in the turn."""

    def standing(self) -> Standing | None:
        """Return how far this process has read; ``None`` where there is nothing to read."""
        return None

    def close(self) -> None:
        """Take no part any more."""
