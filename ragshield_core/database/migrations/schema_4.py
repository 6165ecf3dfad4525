"""Writers take turns: a row that each of them locks, and counts in."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "4", "3", None, None


def upgrade() -> None:
    """Make the row, and let code that knows no migrations refuse the database from now on."""
    changes = op.create_table(
        "ragshield_changes",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(changes, [{"number": 1, "version": 1}])
    op.execute("DELETE FROM ragshield_schema")
    op.execute("INSERT INTO ragshield_schema (version) VALUES (4)")
