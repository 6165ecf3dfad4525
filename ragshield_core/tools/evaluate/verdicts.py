"""What a guard says of entries that come in batches."""

from __future__ import annotations

from collections.abc import Iterator

from ragshield_core.entries import Batch
from ragshield_core.findings import Decision, Report


def objecting(report: Report) -> dict[str, list[str]]:
    """Return the detectors that object to each entry that is to be held, by id."""
    return {decision.entry_id: kinds(decision) for decision in report.quarantined}


def kinds(decision: Decision) -> list[str]:
    """Return the detectors whose thresholds an entry is above."""
    return list(dict.fromkeys(f.detector for f in decision.findings if f.score > f.threshold))


def parts(entries: Batch, size: int) -> Iterator[Batch]:
    """Yield entries in batches of a size."""
    for start in range(0, len(entries), size):
        yield entries.take(range(start, min(start + size, len(entries))))
