"""The tables of a quarantine, and how those of earlier versions become today's."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import (
    Connection,
    Engine,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    inspect,
    select,
)
from sqlalchemy import (
    text as sql,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateColumn

from ragshield_core.errors import QuarantineError

# Execution option of a transaction that is going to write.
WRITES = "ragshield_writes"
SCHEMA_VERSION = 3  # since 2, entries have contexts; since 3, they know their store


# Stands for the store of entries that belong to none in particular: those from before schema 3,
# and what was held by a guard without a store.
ANY_STORE = "*"


# Columns that came later, and what stands in them for entries from before, in SQL.
ADDED = {"context": "NULL", "store": f"'{ANY_STORE}'"}


class TableBase(DeclarativeBase):
    """Of all tables of a quarantine."""


class HeldRow(TableBase):
    """A revision that is or was held."""

    __tablename__ = "ragshield_quarantine"
    __table_args__ = (
        Index(
            *("ragshield_quarantine_revision", "namespace", "entry_id", "fingerprint", "store"),
            unique=True,
        ),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text, server_default=ANY_STORE)
    entry_id: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(16), index=True)
    text: Mapped[bytes] = mapped_column(LargeBinary)  # UTF-8; bytes, for it may hold a NUL
    vector: Mapped[bytes] = mapped_column(LargeBinary)  # float32, little-endian, as embedded
    label: Mapped[str | None] = mapped_column(Text)
    lineage: Mapped[str | None] = mapped_column(Text)
    entry_metadata: Mapped[str] = mapped_column(Text)
    context: Mapped[bytes | None] = mapped_column(LargeBinary)  # as the text
    findings: Mapped[str] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)
    held_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    held_by: Mapped[str] = mapped_column(Text)
    reviewed_at: Mapped[str | None] = mapped_column(String(32))
    reviewed_by: Mapped[str | None] = mapped_column(Text)


class LogRow(TableBase):
    """A line of the log."""

    __tablename__ = "ragshield_audit_log"

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[str] = mapped_column(String(32))
    action: Mapped[str] = mapped_column(String(16))
    namespace: Mapped[str] = mapped_column(String(200))
    entry_id: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(32))
    actor: Mapped[str] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row and the digest before it


class IndexedRow(TableBase):
    """What an indexing run has held."""

    # Made where it is missing, like every table: databases without it are of the same schema.
    __tablename__ = "ragshield_indexed"
    __table_args__ = (
        Index("ragshield_indexed_entry", "namespace", "index_name", "entry_id", unique=True),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    index_name: Mapped[str] = mapped_column(Text)
    entry_id: Mapped[str] = mapped_column(Text)


# What a later screening of a held revision changes.
JUDGED = ("vector", "entry_metadata", "findings", "note")


LOGGED = ("seq", "at", "action", "namespace", "entry_id", "fingerprint", "actor", "note")


class SchemaRow(TableBase):
    """A version of the tables."""

    __tablename__ = "ragshield_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def table_of(mapped: type[TableBase]) -> Table:
    """Return the table of a mapped class."""
    """Return the bare table: many rows go in quicker without objects."""
    return cast("Table", mapped.__table__)


def prepare_schema(engine: Engine) -> None:
    """Make the tables where there are none, and refuse those of a later version."""
    with Session(engine) as session, session.begin():
        connection = session.connection(execution_options={WRITES: True})
        TableBase.metadata.create_all(connection)
        known = session.scalars(select(SchemaRow).with_for_update()).all()
        version = max((row.version for row in known), default=None)
        if version is None:
            session.add(SchemaRow(version=SCHEMA_VERSION))
        elif version < SCHEMA_VERSION:
            _migrate(connection)
            session.add(SchemaRow(version=SCHEMA_VERSION))
        elif version > SCHEMA_VERSION:
            msg = (
                f"the quarantine database is of schema {version}, this version of RAGShield knows "
                f"up to {SCHEMA_VERSION}; upgrade ragshield."
            )
            raise QuarantineError(msg)


def _migrate(connection: Connection) -> None:
    """Bring an older table of held entries to today's columns."""
    there = {column["name"] for column in inspect(connection).get_columns(HeldRow.__tablename__)}
    for name in ADDED:
        if name not in there:
            made = str(CreateColumn(table_of(HeldRow).c[name]).compile(dialect=connection.dialect))
            connection.execute(sql(f"ALTER TABLE {HeldRow.__tablename__} ADD COLUMN {made}"))
    (revision,) = (
        i for i in table_of(HeldRow).indexes if i.name == "ragshield_quarantine_revision"
    )
    revision.drop(connection, checkfirst=True)  # of before, without the store
    revision.create(connection)


def read_as_today(connection: Any, _record: object) -> None:
    """Show an older table that cannot be changed as one of today."""
    cursor = connection.cursor()
    table = HeldRow.__tablename__
    there = {row[1] for row in cursor.execute(f"PRAGMA main.table_info({table})")}
    made = [f", {value} AS {name}" for name, value in ADDED.items() if name not in there]
    if made:
        # A temporary view goes before the table of the same name.
        query = f"SELECT *{''.join(made)} FROM main.{table}"  # noqa: S608 - names of our own
        cursor.execute(f"CREATE TEMP VIEW IF NOT EXISTS {table} AS {query}")
    cursor.close()
