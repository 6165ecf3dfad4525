"""The health page: status of guard and quarantine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragshield_core.database.read_only import read_only
from ragshield_core.learning.status import Status as Standing
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine, Status, Unverified, Verified
from ragshield_core.sharing.standing import status_of
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.evaluate.rates import Interval, exact_interval
from ragshield_core.tools.review.cases import Cases
from ragshield_core.tools.review.takeovers import Suite, suites

# Days of which the page shows how many entries were held.
DAYS = 30


@dataclass(frozen=True, kw_only=True)
class Health:
    """Contents of the health page.

    Attributes
    ----------
    standing
        Of the guard; ``None`` where there is none in the database, with ``why_not``.
    counts
        Entries by status.
    by_day
        Entries held on each of the last ``DAYS`` days, the earliest first; empty before any was.
    good
        Share of what people have decided that was good: of all that is held, about as many are.
    whole
        Whether cases count what waits.
    head
        Of the log.
    suites
        Canaries, by their latest checks.
    verified
        When log and entries were last verified by somebody, or why that is not known; ``n_since``
        lines came after, but for the one that says so.
    """

    standing: Standing | None
    why_not: str
    counts: Mapping[str, int]
    by_day: Sequence[tuple[str, int]]
    good: Interval | None
    whole: bool
    head: str
    suites: Sequence[Suite] = ()
    verified: Verified | Unverified = Unverified.NEVER
    n_since: int = 0


def health_view(quarantine: Quarantine, store: Guarded | None) -> Health:
    """Return how guard and quarantine stand; changes nothing."""
    standing, why_not = _standing(quarantine, store)
    there = quarantine.exists()
    counts = {str(status): quarantine.count(status) if there else 0 for status in Status}
    days = _latest(Cases(quarantine).by_day(DAYS)) if there else []
    judged = counts[Status.RELEASED] + counts[Status.CONFIRMED]
    good = exact_interval(counts[Status.RELEASED], judged) if judged else None
    verified = quarantine.log.verification() if there else Unverified.NEVER
    n_since = 0
    if isinstance(verified, Verified):
        n_since = quarantine.log.end() - verified.up_to - 1
    return Health(
        standing=standing,
        why_not=why_not,
        counts=counts,
        by_day=days,
        good=good,
        whole=Cases(quarantine).whole() if there else True,
        head=quarantine.log.head() if there else "0:",
        suites=suites(quarantine) if there else [],
        verified=verified,
        n_since=n_since,
    )


def _latest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the count of each of the last days, also of those on which nothing was held."""
    today = dt.datetime.now(dt.UTC).date()
    days = [(today - dt.timedelta(days=ago)).isoformat() for ago in reversed(range(DAYS))]
    return [(day, counts.get(day, 0)) for day in days] if counts else []


def _standing(quarantine: Quarantine, store: Guarded | None) -> tuple[Standing | None, str]:
    try:
        if store is not None:
            return store.guard.status(), ""
        with read_only(quarantine.database.url) as session:
            return status_of(session, quarantine.database.url, quarantine.namespace), ""
    except RAGShieldError as error:
        return None, printable(str(error), 300)
