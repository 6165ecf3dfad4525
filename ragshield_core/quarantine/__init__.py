"""Quarantine: held entries, the audit log, and the tables of review cases."""

from ragshield_core.database import DEFAULT_URL
from ragshield_core.quarantine.entries import (
    LET_IN,
    HeldEntry,
    LogRecord,
    Print,
    Status,
    batches_of,
)
from ragshield_core.quarantine.grouping import Narrowing
from ragshield_core.quarantine.log import AuditLog
from ragshield_core.quarantine.quarantine import Quarantine
from ragshield_core.quarantine.rows import unkeepable

__all__ = [
    "DEFAULT_URL",
    "LET_IN",
    "AuditLog",
    "HeldEntry",
    "LogRecord",
    "Narrowing",
    "Print",
    "Quarantine",
    "Status",
    "batches_of",
    "unkeepable",
]
