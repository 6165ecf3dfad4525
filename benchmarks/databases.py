"""Databases for benchmarks: SQLite files, and a private PostgreSQL server (pgserver)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, make_url
from sqlalchemy import text as sql

KINDS = ("SQLite", "PostgreSQL")


class Databases:
    """Databases of one kind.

    Parameters
    ----------
    folder
        Folder of the SQLite files.
    server
        URL of a database on a PostgreSQL server; without one, the databases are SQLite files.
    """

    def __init__(self, folder: Path, server: str | None = None) -> None:
        self._folder, self._server = folder, server
        self._made = 0

    def new(self, like: str | None = None) -> str:
        """Return the URL of a new database: empty, or a copy of one that is not in use."""
        self._made += 1
        name = f"made_{self._made}"
        if self._server is None:
            path = self._folder / f"{name}.db"
            if like is not None:
                shutil.copy(_file(like), path)
            return f"sqlite:///{path}"
        template = "" if like is None else f" TEMPLATE {make_url(like).database}"
        self._say(f"CREATE DATABASE {name}{template}")
        url = make_url(self._server).set(database=name)
        return url.render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Delete a database that is no longer in use."""
        if self._server is None:
            for ending in ("", "-wal", "-shm"):
                Path(f"{_file(url)}{ending}").unlink(missing_ok=True)
        else:
            self._say(f"DROP DATABASE {make_url(url).database}")

    def _say(self, statement: str) -> None:
        assert self._server is not None  # noqa: S101
        engine = create_engine(self._server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sql(statement))
        engine.dispose()


def _file(url: str) -> str:
    file = make_url(url).database
    assert file is not None  # noqa: S101
    return file


@contextmanager
def databases(
    kinds: Sequence[str] = KINDS, server: str = "pgserver"
) -> Iterator[dict[str, Databases]]:
    """Yield databases by kind, PostgreSQL from the package `server`; delete all at the end."""
    with TemporaryDirectory(prefix="ragshield", ignore_cleanup_errors=True) as folder:
        found = {"SQLite": Databases(Path(folder))}
        if "PostgreSQL" not in kinds:
            yield found
            return
        running = import_module(server).get_server(Path(folder) / "pg", cleanup_mode="stop")
        url = running.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        found["PostgreSQL"] = Databases(Path(folder), url)
        try:
            yield {kind: found[kind] for kind in kinds}
        finally:
            running.cleanup()
