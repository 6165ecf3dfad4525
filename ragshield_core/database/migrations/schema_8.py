"""Cases of entries that are judged together, rules that people make, and what the log says."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8", "7", None, None


def upgrade() -> None:
    """Make tables and columns."""
    _make_cases()
    _make_rules()


def _make_cases() -> None:
    """Make the tables of cases; the quarantine fills them in the same transaction."""
    op.create_table(
        "ragshield_case",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("namespace", sa.String(200), nullable=False),
        sa.Column("store", sa.Text, nullable=False),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("is_open", "n_waiting", "n_released", "n_confirmed", "n_members")
        ),
        sa.Column("severity", sa.Float, nullable=False),
        sa.Column("opened_at", sa.String(32), nullable=False),
        sa.Column("latest_at", sa.String(32), nullable=False),
        sa.Column("detectors", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
    )
    for name in ("severity", "n_waiting", "opened_at", "latest_at", "detectors", "source"):
        columns = ["namespace", "is_open", name, "number"]
        op.create_index(f"ragshield_case_{name}", "ragshield_case", columns)
    op.create_table(
        "ragshield_case_member",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("case_number", sa.Integer, nullable=False),
        sa.Column("namespace", sa.String(200), nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("wording", sa.String(32), nullable=False),
        sa.Column("anchor", sa.String(32)),
        sa.Column("severity", sa.Float, nullable=False),
        sa.Column("detectors", sa.Text, nullable=False),
        sa.Column("searched", sa.Text, nullable=False),
    )
    member = "ragshield_case_member"
    op.create_index("ragshield_case_member_case", member, ["case_number", "number"])
    op.create_index("ragshield_case_member_wording", member, ["namespace", "wording"])
    op.create_index("ragshield_case_member_anchor", member, ["namespace", "anchor"])
    op.create_index("ragshield_case_member_source", member, ["namespace", "source"])


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
