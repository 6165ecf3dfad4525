"""The tables as they were before there were migrations, made or brought up from schema 1 or 2."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "3", None, None, None

HELD = "ragshield_quarantine"
REVISION = ("namespace", "entry_id", "fingerprint", "store")


def upgrade() -> None:
    """Make what is missing."""
    there = sa.inspect(op.get_bind())
    store = sa.Column("store", sa.Text, nullable=False, server_default="*")
    if there.has_table(HELD):
        _bring_up(there, store)
    else:
        _make_held(store)
    if not there.has_table("ragshield_audit_log"):
        op.create_table(
            "ragshield_audit_log",
            sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("at", sa.String(32), nullable=False),
            sa.Column("action", sa.String(16), nullable=False),
            sa.Column("namespace", sa.String(200), nullable=False),
            sa.Column("entry_id", sa.Text, nullable=False),
            sa.Column("fingerprint", sa.String(32), nullable=False),
            sa.Column("actor", sa.Text, nullable=False),
            sa.Column("note", sa.Text),
            sa.Column("digest", sa.String(64), nullable=False),
        )
    if not there.has_table("ragshield_indexed"):
        op.create_table(
            "ragshield_indexed",
            sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
            sa.Column("namespace", sa.String(200), nullable=False),
            sa.Column("index_name", sa.Text, nullable=False),
            sa.Column("entry_id", sa.Text, nullable=False),
        )
        columns = ["namespace", "index_name", "entry_id"]
        op.create_index("ragshield_indexed_entry", "ragshield_indexed", columns, unique=True)
    if not there.has_table("ragshield_schema"):
        op.create_table(
            "ragshield_schema",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        )


def _make_held(store: sa.Column[str]) -> None:
    op.create_table(
        HELD,
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String(200), nullable=False),
        store,
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, index=True),
        sa.Column("text", sa.LargeBinary, nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sa.Column("label", sa.Text),
        sa.Column("lineage", sa.Text),
        sa.Column("entry_metadata", sa.Text, nullable=False),
        sa.Column("context", sa.LargeBinary),
        sa.Column("findings", sa.Text, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("held_at", sa.String(32), nullable=False),
        sa.Column("held_by", sa.Text, nullable=False),
        sa.Column("reviewed_at", sa.String(32)),
        sa.Column("reviewed_by", sa.Text),
    )
    op.create_index("ragshield_quarantine_revision", HELD, list(REVISION), unique=True)


def _bring_up(there: sa.Inspector, store: sa.Column[str]) -> None:
    """Entries of schema 1 have no context, and those of 1 and 2 are of any store."""
    known = {column["name"] for column in there.get_columns(HELD)}
    for column in (sa.Column("context", sa.LargeBinary), store):
        if column.name not in known:
            op.add_column(HELD, column)
    indexes = {index["name"]: index["column_names"] for index in there.get_indexes(HELD)}
    if indexes.get("ragshield_quarantine_revision") != list(REVISION):
        op.drop_index("ragshield_quarantine_revision", HELD)
        op.create_index("ragshield_quarantine_revision", HELD, list(REVISION), unique=True)
