"""Transactions that met others are tried again, for a while."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm.exc import StaleDataError

from ragshield_core.database.connecting import is_conflict, said, shown
from ragshield_core.model.errors import QuarantineError

T = TypeVar("T")

# How often a transaction is tried, and for how many seconds another try is begun.
TRIES, PATIENCE = 20, 60.0
# Seconds before the second try, doubled before each further one, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0


def retried(url: str, attempt: Callable[[], T]) -> T:
    """Return what ``attempt`` returns, which is one whole transaction.

    Raises
    ------
    QuarantineError
        If others were in the way each time.
    """
    until = time.monotonic() + PATIENCE
    for tries in itertools.count(1):
        try:
            return attempt()
        except (DBAPIError, StaleDataError) as error:
            if not is_conflict(error):
                raise
            if tries == TRIES or time.monotonic() > until:
                msg = (
                    f"the quarantine's database {shown(url)} could not be written, tried {tries} "
                    f"times: others were in the way ({said(error)}). Nothing was written; try "
                    "again, with fewer writers."
                )
                raise QuarantineError(msg) from getattr(error, "orig", error)
        time.sleep(wait_before(tries))
    raise AssertionError  # pragma: no cover - the last try returns or raises


def wait_before(tries: int) -> float:
    """Return for how many seconds to wait after so many tries, at random: others wait as well."""
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1))
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
