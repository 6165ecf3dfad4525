"""What the tables of a database have in common, and the one that all writers share."""

from __future__ import annotations

from typing import cast

from sqlalchemy import BigInteger, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class TableBase(DeclarativeBase):
    """Of all tables that :mod:`ragshield_core.database.schema` makes."""


class SchemaRow(TableBase):
    """The version of the tables, in one row."""

    __tablename__ = "ragshield_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class ChangesRow(TableBase):
    """How often the database was written, in one row; who writes locks it first.

    SQLite, which has a lock and a counter of its own, leaves it alone.
    """

    __tablename__ = "ragshield_changes"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int] = mapped_column(BigInteger)


def table_of(mapped: type[TableBase]) -> Table:
    """Return the bare table of a mapped class: many rows go in quicker without objects."""
    return cast("Table", mapped.__table__)
