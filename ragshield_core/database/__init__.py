"""The database of a quarantine, and of the journal, snapshots and other tables beside it."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.database.database import Database, Transaction
    from ragshield_core.database.naming import DEFAULT_URL, database_url
    from ragshield_core.database.tables import TableBase, chunks, table_of

__all__ = [
    "DEFAULT_URL",
    "Database",
    "TableBase",
    "Transaction",
    "chunks",
    "database_url",
    "table_of",
]

# Module of each name: the help of commands imports no database.
_HOMES = {
    **dict.fromkeys(("DEFAULT_URL", "database_url"), "naming"),
    **dict.fromkeys(("Database", "Transaction"), "database"),
    **dict.fromkeys(("TableBase", "chunks", "table_of"), "tables"),
}

__getattr__ = attributes(__name__, _HOMES)
