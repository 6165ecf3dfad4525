"""Makes the tables of a new database, and refuses one of another schema."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, insert, inspect, select
from sqlalchemy import text as sql

from ragshield_core.database.connecting import WRITES, shown
from ragshield_core.database.tables import ChangesRow, SchemaRow, TableBase, table_of
from ragshield_core.model.errors import QuarantineError

SCHEMA = 1

# Taken while tables are made on PostgreSQL: two processes may open a new database at once.
MAKING = 0x7261677368656C64


def prepare_schema(engine: Engine) -> None:
    """Make the tables where there are none.

    Raises
    ------
    QuarantineError
        If there are tables of another schema.
    """
    with engine.connect() as connection:
        if _has_tables(connection):
            return
    _make(engine)


def _has_tables(connection: Connection) -> bool:
    if not inspect(connection).has_table(SchemaRow.__tablename__):
        return False
    found = connection.scalars(select(SchemaRow.version)).all()
    if list(found) != [SCHEMA]:
        url = connection.engine.url.render_as_string(hide_password=False)
        msg = (
            f"the quarantine database {shown(url)} is of schema "
            f"{', '.join(map(str, found)) or 'unknown'}, this version of RAGShield knows only "
            f"schema {SCHEMA}; install the version of RAGShield that made it, or name another "
            "database."
        )
        raise QuarantineError(msg)
    return True


def _make(engine: Engine) -> None:
    sqlite = engine.dialect.name == "sqlite"
    with (
        engine.connect().execution_options(**{WRITES: sqlite}) as connection,
        connection.begin(),
    ):
        if engine.dialect.name == "postgresql":
            connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
        if _has_tables(connection):  # another process was quicker
            return
        TableBase.metadata.create_all(connection)
        connection.execute(insert(table_of(SchemaRow)), {"version": SCHEMA})
        connection.execute(insert(table_of(ChangesRow)), {"number": 1, "version": 1})
