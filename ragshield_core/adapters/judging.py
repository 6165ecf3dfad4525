"""Entries are judged and held as one, by guards that share what they know: who is overtaken, again.

For steps of pipelines, which write no store; a keeper of a store says what it writes in the same
way.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial

from ragshield_core.errors import OvertakenError
from ragshield_core.findings import Report
from ragshield_core.guard import Guard

logger = logging.getLogger("ragshield")  # ids and counts, never text

# How often a batch is screened, if others are faster each time, before they are asked to wait.
TRIES = 3


def judged(
    guard: Guard, screen: Callable[[], Report], decide: Callable[[Report], Report]
) -> Report:
    """Return what was decided, on the strength of all that any process had learned by then.

    Parameters
    ----------
    guard
        Of this process.
    screen
        Screens the entries; again, where another process was faster.
    decide
        Holds what is suspicious, and learns the rest where nobody else does. It takes effect as a
        whole when it returns; see :meth:`ragshield_core.Guard.together`.
    """
    try:
        for tries in itertools.count(1):
            if tries > TRIES:
                guard.take_turn()
            report = screen()
            try:
                decided = guard.together(partial(decide, report), at=report.position)
                return guard.with_spent(decided) if guard.shared else decided
            except OvertakenError:
                logger.info("another process was faster: a batch is screened again")
    finally:
        guard.give_up_turn()
    raise AssertionError  # pragma: no cover - the loop has no end
