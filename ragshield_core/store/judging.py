"""Judge entries in a step of a pipeline, which writes no store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ragshield_core.guard import Guard
from ragshield_core.model.findings import Report


def judged(
    guard: Guard, screen: Callable[[], Report], decide: Callable[[Report], Report]
) -> Report:
    """Judge entries by all that any process has learned; return the decisions.

    Processes that share a guard judge one after the other.

    Parameters
    ----------
    guard
        Of this process.
    screen
        Screens the entries.
    decide
        Holds suspicious entries, and learns the others unless a store does. It takes effect as a
        whole when it returns; see :meth:`~ragshield_core.learning.writes.Writes.together`.
    """
    turn = guard.writes.take_turn()
    try:
        report = guard.writes.together(partial(decide, screen()), turn=turn)
        return guard.judge.with_spent(report) if guard.writes.shared else report
    finally:
        guard.writes.give_up_turn(turn)
