"""Rules that people make, and lines of the log that tell of them."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8", "7", None, None


def upgrade() -> None:
    """Make tables and columns."""
    _make_rules()


def _make_rules() -> None:
    op.create_table(
        "ragshield_rule",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String(200), nullable=False),
        sa.Column("store", sa.Text, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("detectors", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("made_at", sa.String(32), nullable=False),
        sa.Column("made_by", sa.Text, nullable=False),
        sa.Column("expires_at", sa.String(32)),
        sa.Column("revoked_at", sa.String(32)),
        sa.Column("revoked_by", sa.Text),
        sa.Column("digest", sa.String(64)),
    )
    op.create_index("ragshield_rule_namespace", "ragshield_rule", ["namespace", "number"])
    op.add_column("ragshield_audit_log", sa.Column("rule_number", sa.Integer))
    op.add_column("ragshield_audit_log", sa.Column("rule_digest", sa.String(64)))
    op.create_index(
        "ragshield_audit_log_rule",
        "ragshield_audit_log",
        ["seq"],
        sqlite_where=sa.text("rule_number IS NOT NULL"),
        postgresql_where=sa.text("rule_number IS NOT NULL"),
    )
