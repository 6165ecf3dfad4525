"""The lines of the log about an entry are found however long the log is."""

from alembic import op

revision, down_revision, branch_labels, depends_on = "9", "8", None, None


def upgrade() -> None:
    """Make an index."""
    columns = ["namespace", "entry_id", "seq"]
    op.create_index("ragshield_audit_log_entry", "ragshield_audit_log", columns)
