"""The tables of what processes share, beside those of the quarantine."""

from __future__ import annotations

from typing import cast

from sqlalchemy import BigInteger, Double, Index, LargeBinary, String, Table, Text
from sqlalchemy import text as sql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

# Of the rows of a namespace.
FORMAT = 1
# Any number that no other application is likely to lock.
_ADVISORY_LOCK = 7_241_963_550_018


class TableBase(DeclarativeBase):
    """Of all tables of the journal and its snapshots."""


class HeadRow(TableBase):
    """Where the journal of a namespace stands; whoever writes to the journal locks this row."""

    __tablename__ = "ragshield_journal_heads"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    format: Mapped[int]
    position: Mapped[int] = mapped_column(BigInteger)  # of the last event; 0 before the first
    epoch: Mapped[int] = mapped_column(BigInteger)  # raised by anything that readers must see
    pruned: Mapped[int] = mapped_column(BigInteger)  # events up to here are in snapshots only
    tickets: Mapped[int] = mapped_column(BigInteger)  # the last that was drawn


class JournalRow(TableBase):
    """One event."""

    __tablename__ = "ragshield_journal"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(40))
    writer: Mapped[str] = mapped_column(String(64))
    at: Mapped[float] = mapped_column(Double)  # seconds since 1970, by the database's clock
    content: Mapped[str] = mapped_column(Text)  # JSON in ASCII: any text, halves of pairs as well
    arrays: Mapped[bytes] = mapped_column(LargeBinary)
    sha256: Mapped[str] = mapped_column(String(64))  # over all of the above but the time


class PendingRow(TableBase):
    """An event that is intended: its writer has not settled it yet."""

    __tablename__ = "ragshield_journal_pending"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    writer: Mapped[str] = mapped_column(String(64))


class WriterRow(TableBase):
    """A process that takes part."""

    __tablename__ = "ragshield_journal_writers"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    heartbeat: Mapped[float] = mapped_column(Double)  # as JournalRow.at
    position: Mapped[int] = mapped_column(BigInteger)  # up to which it has read
    ticket: Mapped[int | None] = mapped_column(BigInteger)  # the lowest of the living has the turn


class StoreRow(TableBase):
    """The store of a namespace."""

    __tablename__ = "ragshield_stores"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    name: Mapped[str] = mapped_column(Text)  # as what is held says on its way to which store it was
    since: Mapped[float] = mapped_column(Double)  # as JournalRow.at


class SnapshotRow(TableBase):
    """A snapshot; without a manifest it is not complete yet, or about to be removed."""

    __tablename__ = "ragshield_snapshots"
    __table_args__ = (Index("ragshield_snapshots_position", "namespace", "position"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    namespace: Mapped[str] = mapped_column(String(200))
    position: Mapped[int] = mapped_column(BigInteger)
    touched: Mapped[float] = mapped_column(Double)  # as JournalRow.at; when it was last written to
    manifest: Mapped[str | None] = mapped_column(Text)  # JSON: the chunks of every part
    sha256: Mapped[str | None] = mapped_column(String(64))  # of the manifest


class ChunkRow(TableBase):
    """A piece of a snapshot."""

    __tablename__ = "ragshield_snapshot_chunks"

    snapshot: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


def table_of(mapped: type[TableBase]) -> Table:
    """Return the bare table: rows are read and written without objects, which cost more."""
    return cast("Table", mapped.__table__)


def prepare_tables(session: Session) -> None:
    """Make the tables where there are none; several processes may do so at once.

    Parameters
    ----------
    session
        In a transaction that is going to write.
    """
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        # Until the transaction ends. SQLite has locked the whole file already.
        session.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    TableBase.metadata.create_all(connection)
