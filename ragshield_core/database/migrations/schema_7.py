"""Every row has a digest, and every line of the log that of the row that it tells of."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "7", "6", None, None


def upgrade() -> None:
    """Make columns; the quarantine, which may have a key, fills them in the same transaction."""
    op.add_column("ragshield_quarantine", sa.Column("digest", sa.String(64)))
    op.add_column("ragshield_indexed", sa.Column("digest", sa.String(64)))
    op.add_column("ragshield_audit_log", sa.Column("form", sa.Integer))
    op.add_column("ragshield_audit_log", sa.Column("held_number", sa.Integer))
    op.add_column("ragshield_audit_log", sa.Column("held_digest", sa.String(64)))
    op.add_column("ragshield_audit_log", sa.Column("key_name", sa.String(16)))
    op.create_index("ragshield_audit_log_held", "ragshield_audit_log", ["held_number", "seq"])
