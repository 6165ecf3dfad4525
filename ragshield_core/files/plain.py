"""Passages of text, JSON and tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

from ragshield_core.files.passages import Passage, UnreadError, paragraphs

__all__ = ["json_lines", "json_values", "paragraphs", "table"]

_DELIMITERS = ",;\t|"
# Characters of one field; csv allows 131,072 by default.
_LONGEST_FIELD = 1 << 24


def json_values(text: str) -> Iterator[Passage]:
    """Yield what the values of a JSON file say, a record a passage."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"not JSON ({type(error).__name__})"
        raise UnreadError(msg) from None
    yield from _records(enumerate(value if isinstance(value, list) else [value], 1), "record")


def json_lines(text: str) -> Iterator[Passage]:
    """Yield what the values of JSON Lines say, a line a passage."""

    def values() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    msg = f"line {number} is not JSON ({type(error).__name__})"
                    raise UnreadError(msg) from None

    yield from _records(values(), "line")


def table(text: str) -> Iterator[Passage]:
    """Yield the rows of a table, each value behind the name of its column."""
    usual = csv.field_size_limit(_LONGEST_FIELD)  # of the whole process
    head = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    rows = csv.reader(StringIO(text), delimiter=delimiter)
    names: list[str] | None = None
    line = 1
    try:
        for row in rows:
            if names is None:
                names = row
                if len(row) == 1:  # a list of texts; its first line is one as well
                    yield from _passage("", row, line)
            else:
                yield from _passage("", _named(names, row), line)
            line = rows.line_num + 1
    except csv.Error:
        msg = f"no table from line {line} on"
        raise UnreadError(msg) from None
    finally:
        csv.field_size_limit(usual)
    if names is not None and len(names) > 1 and line == 2:  # noqa: PLR2004 - a heading alone
        yield from _passage("", names, 1)


def _passage(lead: str, lines: Iterable[str], number: int) -> Iterator[Passage]:
    if said := (lead + "\n".join(line for line in lines if line.strip())).strip():
        yield Passage(said, "line", number)


def _named(names: list[str], row: list[str]) -> Iterator[str]:
    for at, value in enumerate(row):
        if value.strip():
            yield f"{names[at]}: {value}" if at < len(names) and len(names) > 1 else value


def _records(values: Iterable[tuple[int, Any]], unit: str) -> Iterator[Passage]:
    for number, value in values:
        try:
            said = "\n".join(_said(value, ""))
        except RecursionError:
            msg = f"{unit} {number} is nested too deeply"
            raise UnreadError(msg) from None
        if said.strip():
            yield Passage(said, unit, number)


def _said(value: Any, name: str) -> Iterator[str]:
    """Yield the texts and numbers of a value, each behind its name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _said(inner, key)
    elif isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            return  # a vector
        for inner in value:
            yield from _said(inner, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).encode("utf-8", "replace").decode()
        yield f"{name}: {text}" if name and len(name) <= len(text) else text
