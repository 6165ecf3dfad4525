"""Transactions that met others are tried again, for a while."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm.exc import StaleDataError

from ragshield_core.database.conflicts import is_conflict, wait_before
from ragshield_core.database.connecting import said, shown
from ragshield_core.model.errors import QuarantineError

T = TypeVar("T")

# How often a transaction is tried, and for how many seconds another try is begun.
TRIES, PATIENCE = 20, 60.0


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
