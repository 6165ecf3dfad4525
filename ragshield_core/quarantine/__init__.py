"""Quarantine: held entries, the audit log, and the tables of review cases."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.quarantine.entries import HeldEntry, LogRecord, Print, batches_of
    from ragshield_core.quarantine.grouping import Narrowing
    from ragshield_core.quarantine.log import AuditLog
    from ragshield_core.quarantine.quarantine import Quarantine
    from ragshield_core.quarantine.rows import unkeepable
    from ragshield_core.quarantine.status import LET_IN, Status

__all__ = [
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

# Module of each name: the help of commands imports no database.
_HOMES = {
    **dict.fromkeys(("HeldEntry", "LogRecord", "Print", "batches_of"), "entries"),
    **dict.fromkeys(("LET_IN", "Status"), "status"),
    "Narrowing": "grouping",
    "AuditLog": "log",
    "Quarantine": "quarantine",
    "unkeepable": "rows",
}

__getattr__ = attributes(__name__, _HOMES)
