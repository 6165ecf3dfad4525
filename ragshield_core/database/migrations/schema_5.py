"""Of the revisions under one id of a store, one is held."""

import datetime as dt
import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "5", "4", None, None

HELD = sa.table(
    "ragshield_quarantine",
    *map(
        sa.column,
        ("number", "namespace", "store", "entry_id", "fingerprint", "status", "held_at"),
    ),
)
COLUMNS = ("seq", "at", "action", "namespace", "entry_id", "fingerprint", "actor", "note")
LOG = sa.table("ragshield_audit_log", *map(sa.column, (*COLUMNS, "digest")))
NOTE = "several revisions were held at once; the latest stays"


def upgrade() -> None:
    """Mark all but the latest of held revisions as superseded, as one process would have."""
    connection = op.get_bind()
    query = (
        sa.select(HELD)
        .where(HELD.c.status == "held")
        .order_by(HELD.c.held_at.desc(), HELD.c.number.desc())
    )
    seen, older = set(), []
    for row in connection.execute(query):
        place = row.namespace, row.store, row.entry_id
        if place in seen:
            older.append(row)
        seen.add(place)
    for row in older:
        where = HELD.c.number == row.number
        connection.execute(sa.update(HELD).where(where).values(status="superseded"))
    _log(connection, older)
    if connection.dialect.name in ("sqlite", "postgresql"):
        # Others have no such index; there, writers that take turns have to do.
        op.create_index(
            "ragshield_quarantine_one_held",
            "ragshield_quarantine",
            ["namespace", "store", "entry_id"],
            unique=True,
            sqlite_where=sa.text("status = 'held'"),
            postgresql_where=sa.text("status = 'held'"),
        )


def _log(connection: sa.Connection, superseded: list[sa.Row[tuple[object, ...]]]) -> None:
    """Say so in the log, in the form that it has at this schema."""
    query = sa.select(LOG.c.seq, LOG.c.digest).order_by(LOG.c.seq.desc()).limit(1)
    seq, before = connection.execute(query).first() or (0, "")
    for row in superseded:
        seq += 1
        at = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        place = (row.namespace, row.entry_id, row.fingerprint)
        line = [seq, at, "supersede", *place, "migration", NOTE]
        before = hashlib.sha256(json.dumps([before, *line]).encode()).hexdigest()
        values = dict(zip(COLUMNS, line, strict=True)) | {"digest": before}
        connection.execute(sa.insert(LOG).values(values))
