"""A database that threads and processes share, with reads, writes and a version of its content."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event, insert, inspect, make_url, select
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from ragshield_core.database.connecting import (
    WRITES,
    check_url,
    connected,
    in_memory,
    shown,
)
from ragshield_core.database.tables import ChangesRow, SchemaRow, TableBase, table_of
from ragshield_core.model.errors import QuarantineError

T = TypeVar("T")
# Both run statements on tables. Objects of rows need a session, which costs more.
Transaction = Connection | Session

SCHEMA = 1
# Lock for creating the tables on PostgreSQL: two processes may open a new database at once.
MAKING = 0x7261677368656C64

_EPOCHS = itertools.count()
_VERSION = select(ChangesRow.version)  # asked for often, so built once
_ALL: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """Connections that all views of one database share, opened at the first use.

    Threads may share it. A forked process has connections of its own, and a process that unpickles
    it opens its own.

    Parameters
    ----------
    url
        SQLAlchemy database URL. The first use creates the tables.

    Raises
    ------
    QuarantineError
        If the URL can never work. Every method raises it later if the database cannot be used, or
        others write all the time; ``__cause__`` is the driver's own error.

    Examples
    --------
    >>> from sqlalchemy import text
    >>> database = Database("sqlite://")
    >>> before = database.version()
    >>> database.write(lambda session: session.execute(text("SELECT 1")).scalar_one())
    1
    >>> database.version() == before
    False
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self.url = url
        self.in_memory = in_memory(make_url(url))
        self._sqlite = make_url(url).get_backend_name() == "sqlite"
        self._path: str | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the opened file
        self._engine: Engine | None = None
        self._watching: Any = None  # a connection of the driver, see version
        self._start()
        _ALL.add(self)

    def __reduce__(self) -> tuple[type[Database], tuple[str]]:
        """Cross a process boundary as a URL."""
        if self.in_memory:
            msg = f"the database {shown(self.url)} lives in this process; use a file or a server."
            raise TypeError(msg)
        return type(self), (self.url,)

    def __repr__(self) -> str:
        return f"Database({shown(self.url)})"

    @contextmanager
    def read(self, *, still: bool = False) -> Iterator[Session]:
        """Yield a session that reads; during a write of this thread, the session of that write.

        ``still`` makes all reads see the same moment, even if others write meanwhile; SQLite always
        does so.
        """
        if (writing := self.writing) is not None:
            yield writing
            return
        with self._used(alone=self.in_memory) as engine, Session(engine) as session:
            if still and not self._sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection that reads, for queries so frequent that a session is too slow."""
        if self._mine.connection is not None:
            yield self._mine.connection
            return
        with self._used(alone=self.in_memory) as engine, engine.connect() as connection:
            yield connection

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in one transaction, durable when this returns.

        It must be short, because nobody else can write meanwhile, in this process or another. A
        thread that is writing already is refused: it should pass its session on.
        """
        return self.write_rows(lambda _connection: work(self._session()))

    def write_rows(self, work: Callable[[Connection], T]) -> T:
        """Write as :meth:`write` does, without a session, which statements on tables do not need.

        A session is made if a part of the work asks for it: see :attr:`writing`.
        """
        mine = self._mine
        if mine.connection is not None:
            msg = f"this thread is writing to {shown(self.url)} already; hand its session on."
            raise QuarantineError(msg)
        with self._used(alone=True) as engine:
            mine.later = ()  # drop the steps of a failed write
            with engine.connect().execution_options(**{WRITES: True}) as connection:
                try:
                    with connection.begin():
                        mine.connection = connection
                        done = work(connection)
                        if mine.session is not None:
                            mine.session.flush()
                finally:
                    if mine.session is not None:
                        mine.session.close()
                    mine.connection = mine.session = None
            steps: tuple[Callable[[], object], ...] = mine.later
            mine.later = ()
        for step in steps:
            step()
        return done

    def afterwards(self, step: Callable[[], object]) -> None:
        """Call ``step`` once this thread's write is durable; not if the write fails."""
        self._mine.later = (*self._mine.later, step)

    @property
    def writing(self) -> Session | None:
        """The session of this thread's write; ``None`` outside a write."""
        return None if self._mine.connection is None else self._session()

    def _session(self) -> Session:
        """Return the session of this thread's write, which changes rows in its transaction."""
        if self._mine.session is None:
            self._mine.session = Session(self._mine.connection)
        return self._mine.session

    def version(self) -> tuple[int, ...]:
        """Return a tuple that changes with every write, by any process.

        It costs microseconds in SQLite and a query by primary key elsewhere. The tuple of a
        database that does not exist is empty.
        """
        if not self.exists():
            return ()
        if not self._sqlite:
            with self.connection() as connection:
                return (int(connection.scalar(_VERSION) or 0),)
        with self._used(alone=True) as engine:
            if self.in_memory:
                return (self._commits,)
            if self._watching is None:
                # This connection never writes, so it sees only the commits of all others.
                watching = engine.raw_connection()
                watching.detach()
                self._watching, self._epoch = watching, next(_EPOCHS)
            cursor = self._watching.cursor()
            (version,) = cursor.execute("PRAGMA data_version").fetchone()
            cursor.close()
            return self._epoch, int(version)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Yield the engine to one thread at a time, for other kinds of transactions."""
        with self._used(alone=True) as engine:
            yield engine

    @property
    def busy(self) -> bool:
        """Whether this thread is using the database and cannot begin another transaction."""
        return self._mine.depth > 0

    def exists(self) -> bool:
        """Return whether the database exists, without connecting, which would create the file."""
        url = make_url(self.url)
        if self._engine is not None or not self._sqlite:
            return True
        return url.database is not None and Path(url.database.removeprefix("file:")).is_file()

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        with self._lock:
            if self._watching is not None:
                self._watching.close()
                self._watching = None
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    @contextmanager
    def _used(self, *, alone: bool) -> Iterator[Engine]:
        """Yield the engine; ``alone`` to one thread at a time."""
        self._mine.depth += 1
        try:
            if alone:
                with self._lock:
                    yield self._opened()
            else:
                yield self._opened()
        finally:
            self._mine.depth -= 1

    def _opened(self) -> Engine:
        if self._engine is None:
            with self._opening:
                if self._engine is None:
                    self._path = _path_of(self.url)  # from the current folder, like the driver
                    engine = connected(self.url)
                    try:
                        _prepare_schema(engine)
                    except BaseException:
                        engine.dispose()
                        raise
                    event.listen(engine, "commit", self._count)
                    self._file = self._file_now()
                    self._engine = engine
        if self._file is not None and self._file_now() != self._file:
            msg = (
                f"the quarantine's database {shown(self.url)} cannot be used: its file is no "
                "longer the one that this process has opened, and writes would be lost; put that "
                "file back, or start the process again with the present file."
            )
            raise QuarantineError(msg)
        return self._engine

    def _file_now(self) -> tuple[int, int] | None:
        """Return device and inode of the file; ``None`` if only the driver knows the path."""
        if self._path is None:
            return None
        try:
            there = os.stat(self._path)  # noqa: PTH116 - called at every use
        except OSError:
            return -1, -1
        return there.st_dev, there.st_ino

    def _count(self, connection: Connection) -> None:
        self._commits += bool(connection.get_execution_options().get(WRITES))

    def _start(self) -> None:
        """Create the locks and the state of threads, as if no thread used the database."""
        self._lock, self._opening = threading.RLock(), threading.Lock()
        self._mine = _OfThread()
        self._commits = 0


def _prepare_schema(engine: Engine) -> None:
    """Create the tables if there are none.

    Raises
    ------
    QuarantineError
        If there are tables of another schema.
    """
    with engine.connect() as connection:
        if has_tables(connection):
            return
    sqlite = engine.dialect.name == "sqlite"
    with (
        engine.connect().execution_options(**{WRITES: sqlite}) as connection,
        connection.begin(),
    ):
        if engine.dialect.name == "postgresql":
            connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
        if has_tables(connection):  # another process was faster
            return
        TableBase.metadata.create_all(connection)
        connection.execute(insert(table_of(SchemaRow)), {"version": SCHEMA})
        connection.execute(insert(table_of(ChangesRow)), {"number": 1, "version": 1})


def has_tables(connection: Connection) -> bool:
    """Return whether a database has RAGShield's tables.

    Raises
    ------
    QuarantineError
        If they are of another schema.
    """
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


def _path_of(url: str) -> str | None:
    """Return the path of an SQLite file; ``None`` without one, or if only the driver knows it."""
    parsed = make_url(url)
    file = parsed.database
    if parsed.get_backend_name() != "sqlite" or in_memory(parsed) or file is None:
        return None
    return None if file.startswith("file:") else os.path.abspath(file)  # noqa: PTH100 - stays a str


class _OfThread(threading.local):
    """The state of one thread's use of a database."""

    depth = 0
    connection: Connection | None = None  # of its write
    session: Session | None = None  # of its write, once it is needed
    later: tuple[Callable[[], object], ...] = ()


# Databases that are locked while the process forks, one fork at a time.
_STILL: list[Database] = []
_FORKING = threading.Lock()


def _before_fork() -> None:
    """Let other threads finish their writes; an open SQLite database does not survive a fork."""
    _FORKING.acquire()
    _STILL[:] = _ALL
    for database in _STILL:
        database._lock.acquire()  # noqa: SLF001 - in its own module
        if database._sqlite and not database.in_memory:  # noqa: SLF001
            database.close()


def _after_fork_in_parent() -> None:
    for database in _STILL:
        database._lock.release()  # noqa: SLF001
    _FORKING.release()


def _after_fork_in_child() -> None:
    """Leave the connections to the parent, which goes on using them."""
    global _FORKING  # noqa: PLW0603
    _FORKING = threading.Lock()
    for database in _STILL:
        database._start()  # noqa: SLF001
        if database._engine is not None and not database.in_memory:  # noqa: SLF001
            database._engine.dispose(close=False)  # noqa: SLF001
            database._engine = None  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
