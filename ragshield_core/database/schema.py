"""The tables of a database are made, or brought to today's form, by alembic's migrations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from ragshield_core.database.connecting import WRITES
from ragshield_core.database.retrying import retried
from ragshield_core.database.tables import MigrationRow, SchemaRow, TableBase
from ragshield_core.errors import QuarantineError

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

# What is done to the content of tables that were brought to today's form.
Settle = Callable[[Session], object]

MIGRATIONS = Path(__file__).parent / "migrations"
# The latest migration: a file is added, and this is changed.
SCHEMA = 9

# Taken while tables are made on PostgreSQL: two processes may open a new database at once.
MAKING = 0x7261677368656C64
# How SQLite and PostgreSQL say that somebody may only read.
READ_ONLY = ("SQLITE_READONLY", "25006", "42501")

# Alembic hands its connection to migrations by a global name.
_MIGRATING = threading.Lock()


def prepare_schema(engine: Engine, settle: Settle | None = None) -> int:
    """Bring tables to today's form; refuse those of a later one.

    Parameters
    ----------
    engine
        Of the database.
    settle
        Called with a session of the transaction that has changed tables.

    Returns
    -------
    int
        The version that they are of: an earlier one than today's where they may only be read, and
        are shown as those of today. 0 stands for all before migrations.
    """
    with engine.connect() as connection:
        found = _schema_of(engine, connection)
    if found == SCHEMA:
        return found
    try:
        retried(str(engine.url), lambda: _migrate(engine, settle))
    except QuarantineError as error:
        if not _may_only_read(error.__cause__):
            raise
        with engine.connect() as connection:
            found = _schema_of(engine, connection)
            views = _as_today(connection)
        if not views:
            raise
        engine.dispose()  # those that are connected do not have the views

        def show(connection: Any, _record: object) -> None:
            cursor = connection.cursor()
            for view in views:
                cursor.execute(view)
            cursor.close()
            connection.commit()

        event.listen(engine, "connect", show)
        return found
    return SCHEMA


def _schema_of(engine: Engine, connection: Connection) -> int:
    """Return the version of the tables; 0 where no migration was made."""
    found = 0
    there = inspect(connection)
    for row, column in ((MigrationRow, "version_num"), (SchemaRow, "version")):
        if there.has_table(row.__tablename__):
            query = f"SELECT {column} FROM {row.__tablename__}"  # noqa: S608 - names of our own
            versions = [int(value) for value in connection.scalars(sql(query))]
            if max(versions, default=0) > SCHEMA:
                msg = (
                    f"the quarantine database {str(engine.url)!r} is of schema {max(versions)}, "
                    f"this version of RAGShield knows up to {SCHEMA}; upgrade ragshield."
                )
                raise QuarantineError(msg)
            found = found or (max(versions, default=0) if row is MigrationRow else 0)
    return found


def _migrate(engine: Engine, settle: Settle | None) -> None:
    from alembic.migration import MigrationContext  # noqa: PLC0415 - slow, and seldom needed
    from alembic.operations import Operations  # noqa: PLC0415

    sqlite = engine.dialect.name == "sqlite"
    with (
        _MIGRATING,
        engine.connect().execution_options(**{WRITES: sqlite}) as connection,
        connection.begin(),
    ):
        if engine.dialect.name == "postgresql":
            connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
        script = _script()
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": MigrationRow.__tablename__,
                "fn": lambda revision, _context: script._upgrade_revs("head", revision),  # noqa: SLF001 - as its own commands do
            },
        )
        before = context.get_current_revision()
        with Operations.context(context):
            context.run_migrations()
        # Else another process was quicker, and has settled it; others write by now.
        if settle is not None and before != str(SCHEMA):
            with Session(connection) as session:
                settle(session)
                session.flush()


@lru_cache
def _script() -> ScriptDirectory:
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])


def _may_only_read(error: BaseException | None) -> bool:
    names = (getattr(error, "sqlite_errorname", None), getattr(error, "sqlstate", None))
    return any(str(name).startswith(READ_ONLY) for name in names if name)


def _as_today(connection: Connection) -> list[str]:
    """Return what shows older tables, which cannot be changed, as those of today.

    Temporary views go before tables of the same name.
    """
    there = inspect(connection)
    quote = connection.dialect.identifier_preparer.quote
    views = []
    # Those of other modules are made when they are first used.
    for table in TableBase.metadata.sorted_tables:
        if not there.has_table(table.name):
            empty = ", ".join(f"NULL AS {quote(column.name)}" for column in table.columns)
            views.append(f"CREATE TEMP VIEW {table.name} AS SELECT {empty} WHERE 1 = 0")
            continue
        known = {column["name"] for column in there.get_columns(table.name)}
        schema = "main" if connection.dialect.name == "sqlite" else there.default_schema_name
        columns = []
        for column in table.columns:
            default = getattr(column.server_default, "arg", None)
            missing = "NULL" if default is None else f"'{default}'"
            made = quote(column.name)
            columns.append(made if column.name in known else f"{missing} AS {made}")
        views.append(
            f"CREATE TEMP VIEW {table.name} AS SELECT {', '.join(columns)} "  # noqa: S608
            f"FROM {quote(schema or 'public')}.{table.name}"
        )
    return views
