"""Entries know the document that they are a part of; what is asked often has an index."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "6", "5", None, None

NAME = "ragshield_quarantine"
HELD = sa.table(NAME, *map(sa.column, ("number", "entry_metadata", "document")))
# Rows that are read at a time.
PAGE = 1000

# As they were at this schema: where metadata names a document, and how the quarantine wrote what
# JSON has no type for.
NODE, PARENT, TAG = "_ragshield_node", "doc_id", "$ragshield"
LONGEST = 200


def upgrade() -> None:
    """Read from the metadata which document each entry is a part of."""
    op.add_column(NAME, sa.Column("document", sa.Text))
    connection = op.get_bind()
    last = -1
    query = sa.select(HELD.c.number, HELD.c.entry_metadata).order_by(HELD.c.number).limit(PAGE)
    while rows := connection.execute(query.where(HELD.c.number > last)).all():
        last = rows[-1].number
        for number, metadata in rows:
            document = _document_of(json.loads(metadata))
            if document is not None:
                where = HELD.c.number == number
                connection.execute(sa.update(HELD).where(where).values(document=document))
    op.create_index("ragshield_quarantine_document", NAME, ["namespace", "document"])
    op.create_index("ragshield_quarantine_print", NAME, ["namespace", "fingerprint"])
    columns = ["namespace", "status", "number", "store"]
    op.create_index("ragshield_quarantine_status", NAME, columns)
    op.drop_index("ix_ragshield_quarantine_status", NAME)


def _document_of(metadata: Any) -> str | None:
    if TAG in metadata:
        metadata = {k: v for k, v in metadata[TAG][1] if isinstance(k, str)}
    path = (NODE, "content", "relationships", "1", "node_id") if NODE in metadata else (PARENT,)
    value = metadata
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, str):
        return None
    if len(value) <= LONGEST and value.isprintable():
        return value
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"
