"""Lines of the log are found by their entry, cases by a mark, however many there are."""

from alembic import op

revision, down_revision, branch_labels, depends_on = "9", "8", None, None


def upgrade() -> None:
    """Make an index, and two of more columns."""
    columns = ["namespace", "entry_id", "seq"]
    op.create_index("ragshield_audit_log_entry", "ragshield_audit_log", columns)
    member = "ragshield_case_member"
    for mark in ("wording", "anchor"):
        name = f"{member}_{mark}"
        op.drop_index(name, member)
        op.create_index(name, member, ["namespace", mark, "case_number", "number"])
