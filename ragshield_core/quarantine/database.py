"""A connection to the database of a quarantine, and what is said where there is none."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Engine,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ragshield_core.errors import QuarantineError
from ragshield_core.findings import (
    printable,
)
from ragshield_core.quarantine.tables import WRITES, prepare_schema, read_as_today

DEFAULT_URL = "sqlite:///ragshield.db"


# How often a write to the log is tried again when another process took its number.
LOG_TRIES = 20


class Database:
    """Connections that all views of a quarantine share, opened at the first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._lock = threading.RLock()
        self._holder: int | None = None  # the thread that is using it

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Yield the engine, made at the first use, to one thread at a time."""
        with self._lock:
            before, self._holder = self._holder, threading.get_ident()
            try:
                if self._engine is None:
                    self._engine = connected(self._url)
                yield self._engine
            finally:
                self._holder = before

    @property
    def busy(self) -> bool:
        """Whether this very thread is using it, so that no other transaction can begin here."""
        return self._holder == threading.get_ident()

    def close(self) -> None:
        """Give connections back."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def exists(self) -> bool:
        """Return whether the database is there: asking would make the file."""
        url = make_url(self._url)
        if self._engine is not None or url.get_backend_name() != "sqlite":
            return True
        return url.database is not None and Path(url.database.removeprefix("file:")).is_file()


def in_memory(url: URL) -> bool:
    """Return whether a database is gone with its connection."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def check_url(url: object) -> None:
    """Raise unless it is the URL of a database."""
    """Refuse a database that can never be used, before anything is to be held in it."""
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
        # What make_url says quotes the URL.
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


def unusable(url: str, error: BaseException) -> str:
    """Say that a database cannot be used, and what to look at."""
    """Return what is said of a database that cannot be used: its own words, in one line."""
    said = next(iter(str(getattr(error, "orig", None) or error).splitlines()), "")
    shown = make_url(url).render_as_string(hide_password=True)
    return (
        f"the quarantine's database {shown!r} cannot be used ({type(error).__name__}: "
        f"{printable(said, 200)}); check that it is there, can be written and has room."
    )


def connected(url: str) -> Engine:
    """Return an engine on a database that has the tables."""
    parsed = make_url(url)
    # Errors must not quote what was to be written: texts and metadata.
    options: dict[str, Any] = {"hide_parameters": True}
    if in_memory(parsed):
        # One connection for all threads: each new one would be a new, empty database.
        options |= {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = create_engine(parsed, **options)

    def explain(context: ExceptionContext) -> None:
        error = context.original_exception
        # Those of a log's number, taken by another process, are tried again.
        if isinstance(error, Exception) and not isinstance(
            context.sqlalchemy_exception, IntegrityError
        ):
            raise QuarantineError(unusable(url, error))

    event.listen(engine, "handle_error", explain)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    try:
        prepare_schema(engine)
    except QuarantineError as error:
        engine.dispose()
        if not str(getattr(error.__cause__, "sqlite_errorname", "")).startswith("SQLITE_READONLY"):
            raise
        # Who may only read an older database sees it as one of today.
        event.listen(engine, "connect", read_as_today)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # Transactions are begun by _begin_sqlite, not by the driver's own guess.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    for tries_left in reversed(range(LOG_TRIES)):
        try:  # the switch to WAL does not wait for another process that is making it
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if not tries_left:
                raise
            time.sleep(0.05)
    cursor.execute("PRAGMA synchronous = FULL")  # durable when the call returns
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    # A writer takes its lock at once: one that upgrades later can meet a deadlock.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
