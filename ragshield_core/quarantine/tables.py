"""The tables of a quarantine."""

from __future__ import annotations

from sqlalchemy import Index, LargeBinary, String, Text
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, mapped_column

from ragshield_core.database import TableBase

# Stands for the store of entries that belong to none in particular: a guard without a store held
# them.
ANY_STORE = "*"


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
        # Answers what is listed, in its order, and counted.
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
    document: Mapped[str | None] = mapped_column(Text)  # that it is a part of, see documents.py
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class LogRow(TableBase):
    """A line of the log."""

    __tablename__ = "ragshield_audit_log"
    __table_args__ = (
        Index("ragshield_audit_log_held", "held_number", "seq"),
        # Answers what was done with an entry.
        Index("ragshield_audit_log_entry", "namespace", "entry_id", "seq"),
        # Answers at every write and read whether a rule was made or revoked since.
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
    held_number: Mapped[int | None]  # of the row that it tells of
    held_digest: Mapped[str | None] = mapped_column(String(64))  # of that row; none if it is gone
    key_name: Mapped[str | None] = mapped_column(String(16))
    rule_number: Mapped[int | None]  # of the rule that it tells of
    rule_digest: Mapped[str | None] = mapped_column(String(64))  # of that row


class RuleRow(TableBase):
    """A rule that a person has made, in force or not; see :mod:`ragshield_core.tools.rules`."""

    __tablename__ = "ragshield_rule"
    __table_args__ = (Index("ragshield_rule_namespace", "namespace", "number"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(String(32))
    value: Mapped[str] = mapped_column(Text)  # a lineage, or a phrase as it was given
    detectors: Mapped[str | None] = mapped_column(Text)  # a JSON list; none for the usual ones
    reason: Mapped[str] = mapped_column(Text)
    made_at: Mapped[str] = mapped_column(String(32))  # ISO 8601, UTC
    made_by: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[str | None] = mapped_column(String(32))  # none for never
    revoked_at: Mapped[str | None] = mapped_column(String(32))
    revoked_by: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))  # over this row


class IndexedRow(TableBase):
    """An entry that an indexing run brought, and that was held."""

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
    """Entries that are judged together; told from the entries, see ``grouping.py``."""

    __tablename__ = "ragshield_case"
    # Answers a page of the queue in each of its orders.
    __table_args__ = tuple(
        Index(f"ragshield_case_{name}", "namespace", "is_open", name, "number")
        for name in ("severity", "n_waiting", "opened_at", "latest_at", "detectors", "source")
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # of its first entry
    namespace: Mapped[str] = mapped_column(String(200))
    store: Mapped[str] = mapped_column(Text)
    is_open: Mapped[int]  # 1 while entries wait
    n_waiting: Mapped[int]
    n_released: Mapped[int]
    n_confirmed: Mapped[int]
    n_members: Mapped[int]
    severity: Mapped[float]  # the highest of any member
    opened_at: Mapped[str] = mapped_column(String(32))
    latest_at: Mapped[str] = mapped_column(String(32))
    detectors: Mapped[str] = mapped_column(Text)  # names, each between spaces, in order
    source: Mapped[str] = mapped_column(Text)  # of its first entry that claims one


class MemberRow(TableBase):
    """To which case an entry belongs that is or was held."""

    __tablename__ = "ragshield_case_member"
    __table_args__ = (
        Index("ragshield_case_member_case", "case_number", "number"),
        # Answers which cases have a mark, and which entry of a case came last with it.
        Index("ragshield_case_member_wording", "namespace", "wording", "case_number", "number"),
        Index("ragshield_case_member_anchor", "namespace", "anchor", "case_number", "number"),
        Index("ragshield_case_member_source", "namespace", "source"),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # of the held row
    case_number: Mapped[int]
    namespace: Mapped[str] = mapped_column(String(200))
    source: Mapped[str | None] = mapped_column(Text)
    wording: Mapped[str] = mapped_column(String(32))  # the same for copies
    anchor: Mapped[str | None] = mapped_column(String(32))  # the same for those around one entry
    severity: Mapped[float]
    detectors: Mapped[str] = mapped_column(Text)  # as of the case
    searched: Mapped[str] = mapped_column(Text)  # id and how the text begins, case folded


# What a later screening of a held revision changes.
JUDGED = ("vector", "entry_metadata", "document", "findings", "note")
