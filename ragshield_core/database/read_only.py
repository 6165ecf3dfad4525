"""A database looked at from outside: nothing in it is made or written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ragshield_core.database.connecting import check_url, shown, unusable
from ragshield_core.database.database import Database
from ragshield_core.model.errors import QuarantineError


@contextmanager
def read_only(url: str) -> Iterator[Session]:
    """Yield a session that cannot write.

    Raises
    ------
    QuarantineError
        If the URL cannot work, or there is no such database: an SQLite file is not made.
    """
    check_url(url)
    if not Database(url).exists():
        msg = f"there is no database {shown(url)}, expected one that exists; check the URL."
        raise QuarantineError(msg)
    engine = create_engine(make_url(url), hide_parameters=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _only_queries)
    else:
        engine = engine.execution_options(postgresql_readonly=True)
    try:
        with Session(engine) as session:
            yield session
    except SQLAlchemyError as error:
        original = getattr(error, "orig", None) or error
        raise QuarantineError(unusable(url, original)) from None
    finally:
        engine.dispose()


def _only_queries(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only = ON")
    cursor.close()
