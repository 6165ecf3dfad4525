"""The health page: status of guard and quarantine."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ragshield_core.database.read_only import read_only
from ragshield_core.learning.status import Status as Standing
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine, Status, Unverified, Verified
from ragshield_core.sharing.standing import status_of
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.canary.storage import CanaryStore
from ragshield_core.tools.evaluate.rates import exact_interval
from ragshield_core.tools.review.cases import Cases


def health_view(quarantine: Quarantine, store: Guarded | None) -> dict[str, Any]:
    """Return how guard and quarantine stand, for the health page; changes nothing.

    ``good`` is the share of what people have decided that was good: of all that is held, about as
    much is. ``whole`` says whether cases count what waits. ``verified`` says when log and entries
    were last verified by somebody, or why that is not known; ``n_since`` lines came after, but for
    the one that says so.
    """
    standing, why_not = _standing(quarantine, store)
    there = quarantine.exists()
    counts = {str(status): quarantine.count(status) if there else 0 for status in Status}
    judged = counts[Status.RELEASED] + counts[Status.CONFIRMED]
    verified = quarantine.log.verification() if there else Unverified.NEVER
    n_since = 0
    if isinstance(verified, Verified):
        n_since = quarantine.log.end() - verified.up_to - 1
    return {
        "standing": standing,
        "why_not": why_not,
        "counts": counts,
        "good": exact_interval(counts[Status.RELEASED], judged) if judged else None,
        "whole": Cases(quarantine).whole() if there else True,
        "head": quarantine.log.head() if there else "0:",
        "suites": _suites(quarantine) if there else [],
        "verified": verified,
        "n_since": n_since,
    }


def _standing(quarantine: Quarantine, store: Guarded | None) -> tuple[Standing | None, str]:
    try:
        if store is not None:
            return store.guard.status(), ""
        with read_only(quarantine.database.url) as session:
            return status_of(session, quarantine.database.url, quarantine.namespace), ""
    except RAGShieldError as error:
        return None, printable(str(error), 300)


def _suites(quarantine: Quarantine) -> list[tuple[str, str, str]]:
    """Return each suite of canaries, when it was checked last, and how many have drifted then."""
    kept, found = CanaryStore(quarantine), []
    with suppress(RAGShieldError):
        for name in kept.suites():
            for last in kept.checks(name, limit=1):
                drifted = f"{len(last.flagged)} of {len(last.canaries)}"
                found.append((name, f"{last.checked_at:%Y-%m-%d %H:%M} UTC", drifted))
                break
            else:
                found.append((name, "never", f"not checked of {len(kept.baseline(name).asked)}"))
    return found
