"""Engines: connections to databases, and error messages if a connection fails."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ragshield_core.database.naming import DEFAULT_URL
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable

# Execution option of a writing transaction: it waits for all other writing transactions.
WRITES = "ragshield_writes"

# Drivers of PostgreSQL that use libpq, and its time limits for a silent host, unless the URL sets
# them. Without limits it waits for ever to connect, and for hours afterwards.
LIBPQ = ("psycopg", "psycopg2")
PATIENCE = {"connect_timeout": 10, "tcp_user_timeout": 30_000}  # seconds; milliseconds

# Milliseconds that SQLite waits for other writers.
BUSY = 60_000

# Parameters of a URL that messages hide.
_SECRET = re.compile("pass|secret|token|key", re.IGNORECASE)

# Errors of transactions that waited in vain for a lock. PostgreSQL: deadlock, lock not available.
# SQLite, with extended codes cut to their first byte: busy, locked.
SQL_STATES = frozenset({"40P01", "55P03"})
SQLITE_CODES = frozenset({5, 6})

# Number of attempts to switch a new file to a write-ahead log.
WAL_TRIES = 20


def in_memory(url: URL) -> bool:
    """Return whether a database disappears with its connection."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def check_url(url: object) -> None:
    """Refuse a database that can never be used, before an entry has to be held in it."""
    if not isinstance(url, str):
        msg = (
            f"the quarantine's URL is of type {type(url).__name__}, expected a str such as "
            f"{DEFAULT_URL!r}."
        )
        raise QuarantineError(msg)
    try:
        parsed = make_url(url)
        parsed.get_dialect().import_dbapi()
    except (SQLAlchemyError, ImportError, ValueError) as error:
        shown = printable(url.split("@")[-1], 100)  # without name and password
        # The message of make_url quotes the URL.
        reason = "it is no URL" if isinstance(error, ArgumentError) else str(error)
        msg = (
            f"no quarantine can be kept at {shown!r} ({printable(reason, 200)}); expected an "
            f"SQLAlchemy URL of a database whose driver is installed, such as {DEFAULT_URL!r}."
        )
        raise QuarantineError(msg) from None
    file = parsed.database
    if parsed.get_backend_name() != "sqlite" or file is None or in_memory(parsed):
        return
    if file.startswith("file:"):  # the driver's own URIs
        return
    if not Path(file).absolute().parent.is_dir():
        msg = f"the quarantine's folder {str(Path(file).parent)!r} does not exist; make it first."
        raise QuarantineError(msg)


def shown(url: str) -> str:
    """Return a URL for messages: without its password and without secrets in its parameters."""
    parsed = make_url(url)
    secret = {name: "hidden" for name in parsed.query if _SECRET.search(name)}
    return repr(parsed.update_query_dict(secret).render_as_string(hide_password=True))


def said(error: BaseException) -> str:
    """Return the first line of a driver's error; further lines may quote entries."""
    first = next(iter(str(getattr(error, "orig", None) or error).splitlines()), "")
    return f"{type(error).__name__}: {printable(first, 200)}"


def unusable(url: str, error: BaseException) -> str:
    """Return the error message for a database that cannot be used."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state in SQL_STATES or getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_CODES:
        return (
            f"the quarantine's database {shown(url)} is busy: others were in the way all the time "
            f"({said(error)}). Nothing was written; try again, with fewer writers."
        )
    return (
        f"the quarantine's database {shown(url)} cannot be used ({said(error)}); check that it is "
        "there, can be written and has room."
    )


def connected(url: str) -> Engine:
    """Return an engine that has not connected yet."""
    parsed = make_url(url)
    # Errors must not quote the written values: texts and metadata.
    options: dict[str, Any] = {"hide_parameters": True}
    if in_memory(parsed):
        # One connection for all threads: each new one would be a new, empty database.
        options |= {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    elif parsed.get_backend_name() != "sqlite":
        # A server may have restarted; and a writer that waited for a lock must see earlier commits.
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
        if parsed.get_driver_name() in LIBPQ:
            options["connect_args"] = {k: v for k, v in PATIENCE.items() if k not in parsed.query}
    engine = create_engine(parsed, **options)

    def explain(context: ExceptionContext) -> None:
        if context.is_pre_ping:
            return  # the server was away: the pool connects anew, and raises if that fails
        original = context.original_exception
        if isinstance(original, Exception):
            raise QuarantineError(unusable(url, original))

    event.listen(engine, "handle_error", explain)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # _begin_sqlite begins transactions, instead of the driver.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY}")
    for tries_left in reversed(range(WAL_TRIES)):
        try:  # the switch to WAL does not wait for another process that makes it at the same time
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_READONLY"):
                break  # a read-only file keeps its mode
            if not tries_left:
                raise
            time.sleep(0.05)
    cursor.execute("PRAGMA synchronous = FULL")  # durable when the call returns
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    # A writer takes its lock at once: upgrading a lock later can cause a deadlock.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin(connection: Any) -> None:
    # As in SQLite, one transaction writes at a time, from its beginning. This avoids deadlocks,
    # rows changed by others meanwhile, and numbers used twice.
    if connection.get_execution_options().get(WRITES, False):
        connection.exec_driver_sql("UPDATE ragshield_changes SET version = version + 1")
