"""Warnings at the opening of a store that its guard does not know."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from ragshield_core.detectors.base import learns
from ragshield_core.model.errors import UnfittedGuardWarning
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.reconciling import warn_if_different

logger = logging.getLogger("ragshield")


def look(keeper: Keeper[Any], count: Callable[[], int], what: str, way_out: str) -> None:
    """Warn of a guard that knows none of its store's entries, or others than these.

    Parameters
    ----------
    keeper
        Of the store.
    count
        Returns how many entries the store has; whatever it raises, nobody can be asked yet.
    what
        The store, in words.
    way_out
        The call that adopts the store.
    """
    guard = keeper.guard
    if guard.n_known or not any(learns(detector) for detector in guard.detectors):
        warn_if_different(keeper, what, stacklevel=4)
        return
    try:
        n = count()
    except Exception as error:  # noqa: BLE001 - the store's own; the first write says more
        logger.warning("whether the %s holds entries is not known: %s", what, type(error).__name__)
        return
    if n:
        msg = (
            f"the {what} holds {n} entries, and the guard knows none of them: new ones are "
            f"compared with nothing. Use {way_out}, or, where the guard was saved, "
            "Guard.load(folder, quarantine=...)."
        )
        warnings.warn(msg, UnfittedGuardWarning, stacklevel=3)
