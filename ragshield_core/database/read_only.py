"""Read-only access to a database, which creates and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ragshield_core.database.connecting import check_url, shown, unusable
from ragshield_core.database.database import Database, has_tables
from ragshield_core.model.errors import QuarantineError


@contextmanager
def read_only(url: str) -> Iterator[Session]:
    """Yield a session that cannot write, and sees the database at one moment.

    Raises
    ------
    QuarantineError
        If the URL cannot work, the database does not exist (no SQLite file is created), or its
        tables are of another schema.
    """
    check_url(url)
    if not Database(url).exists():
        msg = f"there is no database {shown(url)}, expected one that exists; check the URL."
        raise QuarantineError(msg)
    engine = create_engine(_as_it_lies(make_url(url)), hide_parameters=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _only_queries)
        event.listen(engine, "begin", _begin)
    else:
        still = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        engine = engine.execution_options(**still)
    try:
        with Session(engine) as session:
            has_tables(session.connection())
            yield session
    except SQLAlchemyError as error:
        original = getattr(error, "orig", None) or error
        raise QuarantineError(unusable(url, original)) from None
    finally:
        engine.dispose()


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN")


def _as_it_lies(url: URL) -> URL:
    """Return a URL with which SQLite reads a file in a folder where it cannot create another.

    A file with its latest pages in a log beside it keeps its URL: some process writes it from
    elsewhere.
    """
    file = url.database or ""
    if url.get_backend_name() != "sqlite" or not Path(file).is_file():
        return url
    log = Path(f"{file}-wal")
    if log.exists() or not _cannot_be_written(file):
        return url
    whole = f"file:{quote(str(Path(file).absolute()))}"
    return url.set(database=whole).update_query_dict({"immutable": "1", "uri": "true"})


def _cannot_be_written(file: str) -> bool:
    """Return whether no file can be created beside a file: the file system or folder is read-only.

    Windows gives no reliable answer for a folder.
    """
    if not hasattr(os, "statvfs"):
        return False
    still = bool(os.statvfs(file).f_flag & os.ST_RDONLY)
    return still or not os.access(Path(file).absolute().parent, os.W_OK)


def _only_queries(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would not begin a transaction before a query
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only = ON")
    cursor.close()
