"""Where held entries wait for a decision."""

from ragshield_core.quarantine.store import (
    DEFAULT_URL,
    LET_IN,
    HeldEntry,
    LogRecord,
    Quarantine,
    Status,
)

__all__ = ["DEFAULT_URL", "LET_IN", "HeldEntry", "LogRecord", "Quarantine", "Status"]
