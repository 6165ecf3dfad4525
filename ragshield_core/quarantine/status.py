"""Statuses of entries in quarantine."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of an entry in quarantine."""

    HELD = "held"  # waits for a reviewer's decision
    RELEASED = "released"  # judged good, back in the store
    CONFIRMED = "confirmed"  # judged poisoned, kept as evidence
    SUPERSEDED = "superseded"  # a later revision, or version of its document, took its place
    READMITTED = "readmitted"  # superseded and admitted later, or stored before a held copy
    REPLACED = "replaced"  # replaced in the store by a text of another lineage; can be restored


# Statuses of revisions in the store under their own id, even if copies of them are held.
LET_IN = frozenset({Status.RELEASED, Status.READMITTED})
