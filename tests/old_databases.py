"""Databases of quarantines as earlier versions made them, with the SQL of those versions."""

import hashlib
import json

from sqlalchemy import create_engine, text

from ragshield_core import Batch

# What differs between SQLite and PostgreSQL.
TYPES = {
    "sqlite": {"BYTES": "BLOB", "SERIAL": "INTEGER"},
    "postgresql": {"BYTES": "BYTEA", "SERIAL": "SERIAL"},
}
CONTEXT = "context BYTES, "
STORE = "store TEXT DEFAULT '*' NOT NULL, "
HELD = """CREATE TABLE ragshield_quarantine (
number SERIAL NOT NULL, namespace VARCHAR(200) NOT NULL, {store}entry_id TEXT NOT NULL,
fingerprint VARCHAR(32) NOT NULL, status VARCHAR(16) NOT NULL, text BYTES NOT NULL,
vector BYTES NOT NULL, label TEXT, lineage TEXT, entry_metadata TEXT NOT NULL, {context}
findings TEXT NOT NULL, note TEXT, held_at VARCHAR(32) NOT NULL, held_by TEXT NOT NULL,
reviewed_at VARCHAR(32), reviewed_by TEXT, PRIMARY KEY (number))"""
LOG = """CREATE TABLE ragshield_audit_log (
seq INTEGER NOT NULL, at VARCHAR(32) NOT NULL, action VARCHAR(16) NOT NULL,
namespace VARCHAR(200) NOT NULL, entry_id TEXT NOT NULL, fingerprint VARCHAR(32) NOT NULL,
actor TEXT NOT NULL, note TEXT, digest VARCHAR(64) NOT NULL, PRIMARY KEY (seq))"""
INDEXED = """CREATE TABLE ragshield_indexed (
number SERIAL NOT NULL, namespace VARCHAR(200) NOT NULL, index_name TEXT NOT NULL,
entry_id TEXT NOT NULL, PRIMARY KEY (number))"""
AT = "2026-01-02T03:04:05.678901+00:00"
LOGGED = ("seq", "at", "action", "namespace", "entry_id", "fingerprint", "actor", "note")


def make_old(url, schema, entries, *, status="held", namespace="default", metadata="{}"):
    """Make a database of schema 1, 2 or 3 that holds entries, each with a line in the log.

    Ids may come again: earlier versions let two processes hold two revisions of one entry.
    """
    engine = create_engine(url)
    types = TYPES[engine.dialect.name]

    def run(connection, statement, **values):
        for word, kind in types.items():
            statement = statement.replace(word, kind)
        connection.execute(text(statement), values)

    revision = ["namespace", "entry_id", "fingerprint"] + ["store"] * (schema > 2)
    with engine.begin() as connection:
        run(
            connection,
            HELD.format(store=STORE * (schema > 2), context=CONTEXT * (schema > 1)),
        )
        run(connection, LOG)
        run(connection, "CREATE TABLE ragshield_schema (version INTEGER NOT NULL PRIMARY KEY)")
        run(connection, f"INSERT INTO ragshield_schema VALUES ({schema})")  # noqa: S608
        run(
            connection,
            "CREATE UNIQUE INDEX ragshield_quarantine_revision ON ragshield_quarantine "
            f"({', '.join(revision)})",
        )
        run(
            connection,
            "CREATE INDEX ix_ragshield_quarantine_status ON ragshield_quarantine (status)",
        )
        if schema > 2:
            run(connection, INDEXED)
            run(
                connection,
                "CREATE UNIQUE INDEX ragshield_indexed_entry ON ragshield_indexed "
                "(namespace, index_name, entry_id)",
            )
        before = ""
        for seq, entry in enumerate(entries, start=1):
            row = {
                "namespace": namespace,
                "entry_id": entry.id,
                "fingerprint": entry.fingerprint,
                "status": status,
                "text": entry.text.encode(),
                "vector": entry.embedding.astype("<f4").tobytes(),
                "label": entry.label,
                "lineage": entry.lineage,
                "entry_metadata": metadata,
                "findings": "[]",
                "held_at": AT,
                "held_by": "import",
            }
            names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            into = f"ragshield_quarantine ({names})"
            run(connection, f"INSERT INTO {into} VALUES ({values})", **row)  # noqa: S608
            line = dict(
                zip(
                    LOGGED,
                    (seq, AT, "hold", namespace, entry.id, entry.fingerprint, "import", None),
                    strict=True,
                )
            )
            fields = json.dumps([before, *line.values()])
            line["digest"] = before = hashlib.sha256(fields.encode()).hexdigest()
            names, values = ", ".join(line), ", ".join(f":{name}" for name in line)
            into = f"ragshield_audit_log ({names})"
            run(connection, f"INSERT INTO {into} VALUES ({values})", **line)  # noqa: S608
    engine.dispose()


def one(entry_id, said, **columns):
    """Return an entry."""
    columns = {f"{name}s": [value] for name, value in columns.items()}
    return Batch.of(ids=[entry_id], texts=[said], embeddings=[[0.0, 2.0]], **columns)[0]
