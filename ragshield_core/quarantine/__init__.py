"""Where held entries wait for a decision."""

from ragshield_core.database import DEFAULT_URL
from ragshield_core.quarantine.entries import (
    LET_IN,
    Found,
    HeldEntry,
    LogRecord,
    Print,
    Status,
    Unverified,
    Verified,
    batches_of,
)
from ragshield_core.quarantine.narrowing import Narrowing
from ragshield_core.quarantine.store import Quarantine

__all__ = [
    "DEFAULT_URL",
    "LET_IN",
    "Found",
    "HeldEntry",
    "LogRecord",
    "Narrowing",
    "Print",
    "Quarantine",
    "Status",
    "Unverified",
    "Verified",
    "batches_of",
]
