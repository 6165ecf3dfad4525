"""Held entries and lines of the log, as returned by a quarantine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.findings import Finding, printable
from ragshield_core.quarantine import metadata_json
from ragshield_core.quarantine.status import Status

# Number of characters of an id to show.
SHOWN_ID = 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldEntry:
    """An entry in quarantine, with all data needed to judge and restore it."""

    entry: Entry
    vector: np.ndarray[tuple[int], np.dtype[np.float32]]  # (dim,), as embedded; empty if none was
    findings: tuple[Finding, ...]
    note: str | None
    status: Status
    held_at: dt.datetime
    held_by: str
    reviewed_at: dt.datetime | None
    reviewed_by: str | None
    store: str | None = None  # the store for which it is held; None for any
    number: int = -1  # in order of arrival

    @property
    def id(self) -> str:
        """The entry's id."""
        return self.entry.id

    @property
    def decided(self) -> bool:
        """Whether a reviewer has released or confirmed it."""
        return self.status in (Status.RELEASED, Status.CONFIRMED)

    def __repr__(self) -> str:
        # Its text may be hostile, and its vector is long.
        by = ", ".join(dict.fromkeys(finding.detector for finding in self.findings)) or "hand"
        return f"<HeldEntry {printable(self.id, SHOWN_ID)!r}: {self.status}, found by {by}>"


class Print(NamedTuple):
    """A revision in quarantine and its status, without text and vector."""

    number: int  # in order of arrival
    id: str
    fingerprint: str
    status: Status
    metadata_text: str | None = None  # only on request

    @property
    def metadata(self) -> dict[str, Any]:
        """The entry's metadata, if requested; otherwise empty."""
        return {} if self.metadata_text is None else metadata_json.loads(self.metadata_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One line of the audit log; holds no text of an entry."""

    seq: int
    at: dt.datetime
    action: str
    entry_id: str
    fingerprint: str
    actor: str
    note: str | None


def batch_of(held: Sequence[HeldEntry]) -> Batch:
    """Return held entries as a batch, unchanged and in order."""
    return Batch.of(
        ids=[item.id for item in held],
        texts=[item.entry.text for item in held],
        embeddings=[item.vector for item in held],
        labels=[item.entry.label for item in held],
        lineages=[item.entry.lineage for item in held],
        metadatas=[item.entry.metadata for item in held],
        contexts=[item.entry.context for item in held],
    )


def batches_of(held: Sequence[HeldEntry]) -> list[Batch]:
    """Return held entries as batches: one with vectors and one without."""
    parts = [h for h in held if h.vector.size], [h for h in held if not h.vector.size]
    return [batch_of(part) for part in parts if part]
