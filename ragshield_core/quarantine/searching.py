"""An SQL expression that keeps SQLite from a slow way."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def checked(column: Any) -> ColumnElement[Any]:
    """Return a column by which rows are checked, and never looked up.

    SQLite, which keeps no figures of its tables, takes ten rows to be of one tenant: it would
    rather go through all of a tenant's than look up twenty by their numbers, and through all of one
    status than through the members of a case.

    Examples
    --------
    >>> from sqlalchemy import column
    >>> from sqlalchemy.dialects import postgresql, sqlite
    >>> print((checked(column("namespace")) == "a").compile(dialect=sqlite.dialect()))
    +namespace = ?
    >>> print((checked(column("namespace")) == "a").compile(dialect=postgresql.dialect()))
    namespace = %(param_1)s
    """
    return _Checked(column)


class _Checked(FunctionElement[Any]):
    """Of a column."""

    name = "checked"
    inherit_cache = True


@compiles(_Checked)
def _by_itself(element: _Checked, compiler: SQLCompiler, **how: Any) -> str:
    (column,) = element.clauses
    return compiler.process(column, **how)


@compiles(_Checked, "sqlite")
def _without_index(element: _Checked, compiler: SQLCompiler, **how: Any) -> str:
    return f"+{_by_itself(element, compiler, **how)}"
