"""Judge again when another process has learned something meanwhile.

Steps of pipelines, which write no store, use :func:`judged`; writes of a store :func:`undisturbed`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ragshield_core.guard import Guard
from ragshield_core.model.errors import OvertakenError
from ragshield_core.model.findings import Report
from ragshield_core.store.steps import Steps, done, own

T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# A batch is screened so often before other processes, if faster each time, are asked to wait.
TRIES = 3


def undisturbed(guard: Guard, attempt: Callable[[], Steps[T]]) -> Steps[T]:
    """Make an attempt; repeat it if another process was faster.

    Parameters
    ----------
    guard
        Of this process; if others are faster again and again, it asks them to wait.
    attempt
        Takes effect by :meth:`~ragshield_core.learning.writes.Writes.together`, as a whole or not
        at all.
    """
    try:
        for tries in itertools.count(1):
            if tries > TRIES:
                yield own(guard.writes.take_turn)
            try:
                return (yield from attempt())
            except OvertakenError:
                logger.info("another process was faster: a batch is screened again")
    finally:
        guard.writes.give_up_turn()
    raise AssertionError  # pragma: no cover - the loop has no end


def judged(
    guard: Guard, screen: Callable[[], Report], decide: Callable[[Report], Report]
) -> Report:
    """Judge entries by all that any process has learned; return the decisions.

    Parameters
    ----------
    guard
        Of this process.
    screen
        Screens the entries; again, where another process was faster.
    decide
        Holds suspicious entries, and learns the others unless a store does. It takes effect as a
        whole when it returns; see :meth:`~ragshield_core.learning.writes.Writes.together`.
    """

    def attempt() -> Steps[Report]:
        report: Report = yield own(screen)
        decided: Report = yield own(
            guard.writes.together, partial(decide, report), at=report.position
        )
        return guard.with_spent(decided) if guard.writes.shared else decided

    return done(undisturbed(guard, attempt))
