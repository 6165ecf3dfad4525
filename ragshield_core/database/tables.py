"""All tables: held entries and their log, review cases, and the shared state of processes.

In most tables each row has a digest, over its table and all of its columns except those that give a
reason in :data:`UNSEALED`: see :mod:`ragshield_core.quarantine.digests`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from sqlalchemy import BigInteger, ColumnElement, Double, Index, LargeBinary, String, Table, Text
from sqlalchemy import text as sql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

# Store of entries that belong to no particular store, since a guard without a store held them.
ANY_STORE = "*"
# Most bound parameters of one statement.
CHUNK = 500
# Key of the reason why a column is not in the digest of its row, or a table has no digests: a
# change to it changes no judgement.
UNSEALED = "unsealed"
# Columns that a later screening of a held revision changes.
JUDGED = ("vector", "entry_metadata", "document", "findings", "note")


class TableBase(DeclarativeBase):
    """Base of all tables, which a :class:`.Database` creates at its first use."""


class SchemaRow(TableBase):
    """The version of the tables, in one row."""

    __tablename__ = "ragshield_schema"
    __table_args__ = ({"info": {UNSEALED: "a database of another version is refused"}},)

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class ChangesRow(TableBase):
    """The number of writes to the database, in one row that every writer locks first.

    SQLite does not use it, as it has a lock and a counter of its own.
    """

    __tablename__ = "ragshield_changes"
    __table_args__ = ({"info": {UNSEALED: "another number only has everybody read once more"}},)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger)


class HeldRow(TableBase):
    """A revision that is or was held."""

    __tablename__ = "ragshield_quarantine"
    __table_args__ = (
        Index(
            *("ragshield_quarantine_revision", "namespace", "entry_id", "fingerprint", "store"),
            unique=True,
        ),
        Index(
            *("ragshield_quarantine_one_held", "namespace", "store", "entry_id"),
            unique=True,
            sqlite_where=sql("status = 'held'"),
            postgresql_where=sql("status = 'held'"),
        ),
        # Serves lists, in their order, and counts.
        Index("ragshield_quarantine_status", "namespace", "status", "number", "store"),
        Index("ragshield_quarantine_document", "namespace", "document"),
        Index("ragshield_quarantine_print", "namespace", "fingerprint"),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    entry_id: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(16))
    text: Mapped[bytes] = mapped_column(LargeBinary)  # UTF-8; bytes, because it may hold a NUL
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
    document: Mapped[str | None] = mapped_column(Text)  # the document it is part of, see rows.py
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class LogRow(TableBase):
    """A line of the log."""

    __tablename__ = "ragshield_audit_log"
    __table_args__ = (
        Index("ragshield_audit_log_held", "held_number", "seq"),
        # Serves the history of an entry.
        Index("ragshield_audit_log_entry", "namespace", "entry_id", "seq"),
        # Shows at every write and read whether a rule was made or revoked since.
        Index(
            "ragshield_audit_log_rule",
            "seq",
            sqlite_where=sql("rule_number IS NOT NULL"),
            postgresql_where=sql("rule_number IS NOT NULL"),
        ),
    )

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[str] = mapped_column(String(32))
    action: Mapped[str] = mapped_column(String(16))
    namespace: Mapped[str] = mapped_column(String(200))
    entry_id: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(32))
    actor: Mapped[str] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row and the digest before it
    held_number: Mapped[int | None]  # of the held row that this line is about
    held_digest: Mapped[str | None] = mapped_column(String(64))  # of that row; none if it is gone
    key_name: Mapped[str | None] = mapped_column(String(16))
    rule_number: Mapped[int | None]  # of the rule that this line is about
    rule_digest: Mapped[str | None] = mapped_column(String(64))  # of that row
    # Position of the namespace's journal; in a line about a snapshot, position of the snapshot.
    journal_position: Mapped[int | None] = mapped_column(BigInteger)


class RuleRow(TableBase):
    """A rule that a person has made, in force or not; see :mod:`ragshield_core.tools.rules`."""

    __tablename__ = "ragshield_rule"
    __table_args__ = (Index("ragshield_rule_namespace", "namespace", "number"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    source: Mapped[str] = mapped_column(Text)  # a lineage
    detectors: Mapped[str | None] = mapped_column(Text)  # JSON list; none for the usual detectors
    reason: Mapped[str] = mapped_column(Text)
    made_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    made_by: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[str | None] = mapped_column(String(32))  # none for never
    revoked_at: Mapped[str | None] = mapped_column(String(32))
    revoked_by: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class IndexedRow(TableBase):
    """A held entry of an indexing run."""

    __tablename__ = "ragshield_indexed"
    __table_args__ = (
        Index("ragshield_indexed_entry", "namespace", "index_name", "entry_id", unique=True),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    index_name: Mapped[str] = mapped_column(Text)
    entry_id: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class CaseRow(TableBase):
    """A review case: entries that are reviewed together, grouped by ``grouping.py``."""

    __tablename__ = "ragshield_case"
    # Serve a page of the queue in each of its orders.
    __table_args__ = (
        Index("ragshield_case_severity", "namespace", "is_open", "rank", "rarity", "number"),
        *(
            Index(f"ragshield_case_{name}", "namespace", "is_open", name, "number")
            for name in ("n_waiting", "opened_at")
        ),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # of its first entry
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    is_open: Mapped[int]  # 1 while entries wait
    n_waiting: Mapped[int]
    n_released: Mapped[int]
    n_confirmed: Mapped[int]
    n_members: Mapped[int]
    rank: Mapped[int]  # place of its severity in the queue, see ``grouping.RANKS``
    rarity: Mapped[float]  # of its strongest finding, see ``grouping.rarity_of``
    opened_at: Mapped[str] = mapped_column(String(32))
    latest_at: Mapped[str] = mapped_column(String(32))
    detectors: Mapped[str] = mapped_column(Text)  # names, each between spaces, in order
    source: Mapped[str] = mapped_column(Text)  # of its first entry that claims one
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class MemberRow(TableBase):
    """The case of an entry that is or was held."""

    __tablename__ = "ragshield_case_member"
    __table_args__ = (
        Index("ragshield_case_member_case", "case_number", "number"),
        # Finds the case of a copy, even after many of its entries were released.
        Index("ragshield_case_member_wording", "namespace", "wording", "store", "tells"),
        Index("ragshield_case_member_source", "namespace", "source"),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # of the held row
    case_number: Mapped[int]
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    tells: Mapped[int]  # 1 while other entries may join its case through it
    source: Mapped[str | None] = mapped_column(Text)
    wording: Mapped[str] = mapped_column(String(32))  # the same for copies
    rarity: Mapped[float]  # of its strongest finding; 0 for unknown
    detectors: Mapped[str] = mapped_column(Text)  # as of the case
    searched: Mapped[str] = mapped_column(Text)  # id and beginning of the text, case folded
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class HeadRow(TableBase):
    """The head of a namespace's journal."""

    __tablename__ = "ragshield_journal_heads"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)  # of the last event; 0 before the first
    pruned: Mapped[int] = mapped_column(BigInteger)  # events up to here are in snapshots only
    pending: Mapped[int]  # number of pending events
    tickets: Mapped[int] = mapped_column(  # the last ticket drawn
        BigInteger, info={UNSEALED: "the order in which writers wait"}
    )
    key_name: Mapped[str | None] = mapped_column(String(16))  # key of the namespace's digests
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class JournalRow(TableBase):
    """One event."""

    __tablename__ = "ragshield_journal"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(40))
    writer: Mapped[str] = mapped_column(String(64))
    at: Mapped[float] = mapped_column(  # seconds since 1970, by the database's clock
        Double, info={UNSEALED: "a time that people are shown"}
    )
    content: Mapped[str] = mapped_column(Text)  # JSON in ASCII, which keeps halves of pairs, too
    arrays: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class PendingRow(TableBase):
    """A pending event: its writer has not closed it yet."""

    __tablename__ = "ragshield_journal_pending"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    writer: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class WriterRow(TableBase):
    """A process that writes to the journal of a namespace."""

    __tablename__ = "ragshield_journal_writers"
    __table_args__ = ({"info": {UNSEALED: "who is alive, and waits: others wait, or take over"}},)

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    heartbeat: Mapped[float] = mapped_column(Double)  # as JournalRow.at
    ticket: Mapped[int | None] = mapped_column(BigInteger)  # the lowest live one has the turn


class StoreRow(TableBase):
    """The store of a namespace."""

    __tablename__ = "ragshield_stores"

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    name: Mapped[str] = mapped_column(Text)  # the name that HeldRow.store has as well
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class SnapshotRow(TableBase):
    """A snapshot of a guard's state."""

    __tablename__ = "ragshield_snapshots"
    __table_args__ = (Index("ragshield_snapshots_position", "namespace", "position"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    namespace: Mapped[str] = mapped_column(String(200))
    position: Mapped[int] = mapped_column(BigInteger)
    made_at: Mapped[float] = mapped_column(  # as JournalRow.at
        Double, info={UNSEALED: "a time that people are shown"}
    )
    manifest: Mapped[str] = mapped_column(Text)  # JSON: the chunks of every part
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class ChunkRow(TableBase):
    """A piece of a snapshot."""

    __tablename__ = "ragshield_snapshot_chunks"

    snapshot: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    namespace: Mapped[str] = mapped_column(String(200))
    data: Mapped[bytes] = mapped_column(LargeBinary)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class BaselineRow(TableBase):
    """The baseline of a suite of canaries: its answers and rankings, believed clean."""

    __tablename__ = "ragshield_canary_baseline"
    __table_args__ = (
        Index("ragshield_canary_version", "namespace", "suite", "version", unique=True),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(200))
    version: Mapped[int]
    created_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    content: Mapped[str] = mapped_column(Text)
    vectors: Mapped[bytes] = mapped_column(LargeBinary)  # npz: queries, answers
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class CheckRow(TableBase):
    """A check of a suite of canaries."""

    __tablename__ = "ragshield_canary_check"
    __table_args__ = (Index("ragshield_canary_checks", "namespace", "suite", "number"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(200))
    report: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class ContradictionRow(TableBase):
    """An alert about two entries that contradict each other, open or closed by a person."""

    __tablename__ = "ragshield_contradiction"
    __table_args__ = (
        Index("ragshield_contradiction_pair", "namespace", "pair", unique=True),
        Index("ragshield_contradiction_open", "namespace", "closed_at"),
        Index("ragshield_contradiction_day", "namespace", "opened_at"),
    )

    namespace: Mapped[str] = mapped_column(String(200), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    pair: Mapped[str] = mapped_column(String(32))  # of both entries with their texts
    opened_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    # These columns sort alerts, the most consequential first.
    canaries: Mapped[int]
    questions: Mapped[int]
    p_value: Mapped[float] = mapped_column(Double)
    score: Mapped[float] = mapped_column(Double)
    alert: Mapped[str] = mapped_column(Text)  # JSON in ASCII, with both quotations
    closed_at: Mapped[str | None] = mapped_column(String(32))
    closed_by: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


def table_of(mapped: type[TableBase]) -> Table:
    """Return the bare table of a mapped class: inserting many rows is faster without objects."""
    return cast("Table", mapped.__table__)


def chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield items in chunks of the size that one statement takes."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def checked(column: Any) -> ColumnElement[Any]:
    """Return a column that filters rows, but that no index look-up may use.

    SQLite keeps no statistics of its tables, and assumes ten rows per tenant: it would scan all
    rows of a tenant instead of looking up twenty by number, and all rows of a status instead of the
    members of a case.

    Examples
    --------
    >>> from sqlalchemy import column
    >>> from sqlalchemy.dialects import postgresql, sqlite
    >>> print((checked(column("namespace")) == "a").compile(dialect=sqlite.dialect()))
    +namespace = ?
    >>> print((checked(column("namespace")) == "a").compile(dialect=postgresql.dialect()))
    namespace = %(param_1)s
    """
    return _Checked(column)


class _Checked(FunctionElement[Any]):
    name = "checked"
    inherit_cache = True


@compiles(_Checked)
def _by_itself(element: _Checked, compiler: SQLCompiler, **how: Any) -> str:
    (column,) = element.clauses
    return compiler.process(column, **how)


@compiles(_Checked, "sqlite")
def _without_index(element: _Checked, compiler: SQLCompiler, **how: Any) -> str:
    return f"+{_by_itself(element, compiler, **how)}"
