"""Tells detectors what people have confirmed as poisoned, whoever accused it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragshield_core.learning.events import Change
from ragshield_core.model.errors import QuarantineError

if TYPE_CHECKING:
    from ragshield_core.learning.guard_state import GuardState
    from ragshield_core.quarantine import HeldEntry, Quarantine

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# What the log says of entries that are confirmed from now on, or no longer.
ACTIONS = ("confirm", "reopen", "purge")
# Entries of one event: a journal keeps them in full.
AT_ONCE = 256


class Confirmations:
    """Looks for new confirmations in a quarantine, where any process may have made them.

    Parameters
    ----------
    state
        Of the guard, which keeps what its detectors were told.
    """

    def __init__(self, state: GuardState) -> None:
        self._state = state
        # What the last look went by: a fit or a load puts another table into the place of this one.
        self._told = dict[str, str]()
        self._version: tuple[int, ...] = ()
        self._line = 0

    def look(self, quarantine: Quarantine) -> None:
        """Have group detectors remember what was confirmed since the last look.

        A look that finds nothing new costs microseconds where nothing was written, else a query.
        """
        knowledge = self._state.knowledge
        if self._state.recorder.collecting or knowledge.dim is None:
            return
        try:
            version = quarantine.database.version()
            seen = version == self._version and self._told is knowledge.confirmed
            if seen or not version:  # empty: there is no database, and asking makes none
                return
            self._tell_news(quarantine)
        except QuarantineError as error:
            logger.warning("detectors hear of no new confirmation: %s", error)
            return
        self._version, self._told = version, knowledge.confirmed

    def _tell_news(self, quarantine: Quarantine) -> None:
        """Tell detectors what was confirmed, and note which decisions were taken back."""
        told = self._state.knowledge.confirmed
        if told is self._told:
            line, ids = quarantine.log.changed_since(self._line, ACTIONS)
        else:
            line = quarantine.log.end()
            ids = frozenset((*quarantine.confirmed_ids(), *told))
        prints = quarantine.prints(ids=list(ids)) if ids else ()
        now = {one.id: one.fingerprint for one in prints if one.status == "confirmed"}
        if gone := tuple(sorted(i for i in ids if i in told and i not in now)):
            self._state.happened(Change.CONFIRMED, ids=gone)
        new = [i for i, revision in now.items() if told.get(i) != revision]
        for start in range(0, len(new), AT_ONCE):
            self._tell(quarantine.list("confirmed", ids=new[start : start + AT_ONCE]))
        self._line = line

    def _tell(self, confirmed: Sequence[HeldEntry]) -> None:
        """Tell detectors of the latest revision under each id, if its vector is of their model."""
        from ragshield_core.quarantine.entries import batches_of  # noqa: PLC0415 - SQLAlchemy

        dim = self._state.knowledge.dim
        latest = {one.id: one for one in confirmed if one.vector.size in (0, dim)}
        for entries in batches_of([*latest.values()]):
            self._state.happened(Change.CONFIRMED, entries=entries)
