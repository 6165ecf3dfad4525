"""Arguments of wrong types are refused when they are given, not when they are first needed."""

from __future__ import annotations

from typing import Any

from langchain_core.indexing import RecordManager

from ragshield_core import Guard
from ragshield_core.model.arguments import kind_of


def expect(name: str, value: object, kind: type[Any], way_out: str) -> None:
    """Refuse a value that is of another type.

    Raises
    ------
    TypeError
        Names the argument, both types, and the way out.
    """
    if value is None or not isinstance(value, kind):
        msg = f"{name} is {kind_of(value)}, expected a {kind.__name__}: {way_out}."
        raise TypeError(msg)


def expect_guard(guard: object) -> None:
    """Refuse what is no guard of entries."""
    way_out = "make one by Guard.default(), or Guard.load(folder) where one was saved"
    expect("guard", guard, Guard, way_out)


def expect_records(records: object) -> None:
    """Refuse what is no record manager."""
    way_out = "what LangChain's indexing remembers documents by, e.g. an SQLRecordManager"
    expect("record_manager", records, RecordManager, way_out)
