"""A database that threads and processes share: read it, write it, ask whether it has changed."""

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

SCHEMA = 1
# Taken while tables are made on PostgreSQL: two processes may open a new database at once.
MAKING = 0x7261677368656C64

_EPOCHS = itertools.count()
_ALL: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """Connections that all views of one database share, opened at the first use.

    Threads may share it. A process that was forked has connections of its own, and one that gets
    it pickled opens its own.

    Parameters
    ----------
    url
        SQLAlchemy database URL. Tables are made at the first use.

    Raises
    ------
    QuarantineError
        If the URL can never work. Later, of every method: if the database cannot be used, or
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
        self._file: tuple[int, int] | None = None  # which one was opened
        self._engine: Engine | None = None
        self._watching: Any = None  # a connection of the driver's, see version
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
        """Yield a session that reads; within a write of this thread, the session of that.

        ``still`` reads all of it as of one moment, whoever writes meanwhile; SQLite always
        does.
        """
        if self._mine.session is not None:
            yield self._mine.session
            return
        with self._used(alone=self.in_memory) as engine, Session(engine) as session:
            if still and not self._sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection that reads: for what is asked so often that a session costs more."""
        if self._mine.session is not None:
            yield self._mine.session.connection()
            return
        with self._used(alone=self.in_memory) as engine, engine.connect() as connection:
            yield connection

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in one transaction, durable when this returns.

        Nobody else writes meanwhile, in this process or another: it has to be short. A
        thread that is writing already is refused: it has a session to hand on.
        """
        if self._mine.session is not None:
            msg = f"this thread is writing to {shown(self.url)} already; hand its session on."
            raise QuarantineError(msg)
        with self._used(alone=True) as engine:
            self._mine.later = ()  # of a write that came to nothing
            try:
                with Session(engine) as session, session.begin():
                    session.connection(execution_options={WRITES: True})
                    self._mine.session = session
                    done = work(session)
            finally:
                self._mine.session = None
            steps: tuple[Callable[[], object], ...] = self._mine.later
            self._mine.later = ()
        for step in steps:
            step()
        return done

    def afterwards(self, step: Callable[[], object]) -> None:
        """Have ``step`` called once this thread's write is durable; not if it comes to nothing."""
        self._mine.later = (*self._mine.later, step)

    @property
    def writing(self) -> Session | None:
        """The session of this thread's write; ``None`` outside of one."""
        return self._mine.session

    def version(self) -> tuple[int, ...]:
        """Return what is another tuple after anything was written, by whichever process.

        It costs microseconds in SQLite and a query by primary key elsewhere. The tuple of a
        database that is not there is empty.
        """
        if not self.exists():
            return ()
        if not self._sqlite:
            with self.connection() as connection:
                return (int(connection.scalar(select(ChangesRow.version)) or 0),)
        with self._used(alone=True) as engine:
            if self.in_memory:
                return (self._commits,)
            if self._watching is None:
                # It writes nothing itself: what it is told of are the commits of all others.
                watching = engine.raw_connection()
                watching.detach()
                self._watching, self._epoch = watching, next(_EPOCHS)
            cursor = self._watching.cursor()
            (version,) = cursor.execute("PRAGMA data_version").fetchone()
            cursor.close()
            return self._epoch, int(version)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Yield the engine, to one thread at a time, for transactions of another kind."""
        with self._used(alone=True) as engine:
            yield engine

    @property
    def busy(self) -> bool:
        """Whether this very thread is using it, so that no other transaction can begin here."""
        return self._mine.depth > 0

    def exists(self) -> bool:
        """Return whether the database is there: asking would make the file."""
        url = make_url(self.url)
        if self._engine is not None or not self._sqlite:
            return True
        return url.database is not None and Path(url.database.removeprefix("file:")).is_file()

    def close(self) -> None:
        """Give connections back; the next use opens them again."""
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
                    self._path = _path_of(self.url)  # as the driver sees it from here
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
                f"the quarantine's database {shown(self.url)} cannot be used: its file is not the "
                "one any more that this process has opened, and what is written would be lost with "
                "it; put that file back, or start the process again with what is there now."
            )
            raise QuarantineError(msg)
        return self._engine

    def _file_now(self) -> tuple[int, int] | None:
        """Return what tells the file from any other; ``None`` where the path is the driver's."""
        if self._path is None:
            return None
        try:
            there = os.stat(self._path)  # noqa: PTH116 - asked at every use
        except OSError:
            return -1, -1
        return there.st_dev, there.st_ino

    def _count(self, connection: Connection) -> None:
        self._commits += bool(connection.get_execution_options().get(WRITES))

    def _start(self) -> None:
        """Begin with no thread in it."""
        self._lock, self._opening = threading.RLock(), threading.Lock()
        self._mine = _OfThread()
        self._commits = 0


def _prepare_schema(engine: Engine) -> None:
    """Make the tables where there are none.

    Raises
    ------
    QuarantineError
        If there are tables of another schema.
    """
    with engine.connect() as connection:
        if _has_tables(connection):
            return
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


def _path_of(url: str) -> str | None:
    """Return the path of an SQLite file; ``None`` where it is none, or the driver knows which."""
    parsed = make_url(url)
    file = parsed.database
    if parsed.get_backend_name() != "sqlite" or in_memory(parsed) or file is None:
        return None
    return None if file.startswith("file:") else os.path.abspath(file)  # noqa: PTH100 - stays a str


class _OfThread(threading.local):
    """What one thread does with a database."""

    depth = 0
    session: Session | None = None
    later: tuple[Callable[[], object], ...] = ()


# Databases that are held still while the process forks, one fork at a time.
_STILL: list[Database] = []
_FORKING = threading.Lock()


def _before_fork() -> None:
    """Let other threads finish what they write; SQLite does not survive a fork while open."""
    _FORKING.acquire()
    _STILL[:] = _ALL
    for database in _STILL:
        database._lock.acquire()  # noqa: SLF001 - of this very module
        if database._sqlite and not database.in_memory:  # noqa: SLF001
            database.close()


def _after_fork_in_parent() -> None:
    for database in _STILL:
        database._lock.release()  # noqa: SLF001
    _FORKING.release()


def _after_fork_in_child() -> None:
    """Leave connections to the parent, which goes on with them."""
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
