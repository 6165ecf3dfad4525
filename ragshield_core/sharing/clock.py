"""The clock of the database: hosts that share one need not agree about the time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function that it is
    """Seconds since 1970, when the statement runs: not when its transaction began.

    A transaction may have waited for a lock meanwhile. On SQLite, whose file is on one host, the
    clock is that of the host.
    """

    type = Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _on_sqlite(_element: now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _on_postgresql(_element: now, _compiler: Any, **_options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
