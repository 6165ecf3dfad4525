"""The database of a quarantine, and of the journal, snapshots and other tables beside it."""

from ragshield_core.database.connecting import DEFAULT_URL, database_url
from ragshield_core.database.database import Database, Transaction
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
