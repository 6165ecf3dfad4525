"""Let processes that share a guard judge and write one after the other.

Steps of pipelines, which write no store, use :func:`judged`; writes of a store :func:`undisturbed`.
"""

from __future__ import annotations

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


def undisturbed(guard: Guard, attempt: Callable[[], Steps[T]]) -> Steps[T]:
    """Do an attempt while no other process writes.

    A process that is stopped for longer than its lease loses its turn, and makes the attempt again.

    Parameters
    ----------
    guard
        Of this process.
    attempt
        Takes effect by :meth:`~ragshield_core.learning.writes.Writes.together`, as a whole or not
        at all.
    """
    try:
        while True:
            yield own(guard.writes.take_turn)
            try:
                return (yield from attempt())
            except OvertakenError:
                guard.writes.give_up_turn()
                logger.info("the turn was lost: a batch is screened again")
    finally:
        guard.writes.give_up_turn()


def judged(
    guard: Guard, screen: Callable[[], Report], decide: Callable[[Report], Report]
) -> Report:
    """Judge entries by all that any process has learned; return the decisions.

    Parameters
    ----------
    guard
        Of this process.
    screen
        Screens the entries; again, where the process lost its turn.
    decide
        Holds suspicious entries, and learns the others unless a store does. It takes effect as a
        whole when it returns; see :meth:`~ragshield_core.learning.writes.Writes.together`.
    """

    def attempt() -> Steps[Report]:
        report: Report = yield own(screen)
        decided: Report = yield own(
            guard.writes.together, partial(decide, report), at=report.position
        )
        return guard.judge.with_spent(decided) if guard.writes.shared else decided

    return done(undisturbed(guard, attempt))
