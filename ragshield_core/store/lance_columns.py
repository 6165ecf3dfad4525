"""Conditions on a LanceDB table, and the columns of its metadata, for both frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ragshield_core.model.findings import printable
from ragshield_core.store.inner import chunks

AT_ONCE = 1000  # ids a condition
METADATA = "metadata"
# Every key of metadata is a column for good, so that hostile keys must not come without end.
MOST_KEYS = 200


def literal(text: str) -> str:
    """Return a text as a literal of SQL: within single quotes, only these need an escape."""
    return "'" + text.replace("'", "''") + "'"


def among(key: str, ids: Sequence[str]) -> str:
    """Return a condition on ids."""
    return f"{key} IN ({', '.join(map(literal, ids))})"


def rows_of(table: Any, key: str, ids: Sequence[str]) -> list[Any]:
    """Return tables of Arrow with the rows under the ids; none if there is no table yet."""
    parts = chunks(list(dict.fromkeys(ids)), AT_ONCE) if table is not None else ()
    return [
        table.search().where(among(key, part)).limit(table.count_rows()).to_arrow()
        for part in parts
    ]


def ids_in(table: Any, key: str, condition: str = "true") -> list[str]:
    """Return all ids, or those of rows that fulfil a condition; none if there is no table yet."""
    if table is None or not table.count_rows():
        return []
    found = table.search().where(condition).select([key]).limit(table.count_rows()).to_arrow()
    return [str(one) for one in found[key].to_pylist()]


def delete(table: Any, key: str, ids: Sequence[str]) -> None:
    """Delete the rows under the ids, if there is a table."""
    for part in chunks(ids, AT_ONCE) if table is not None else ():
        table.delete(among(key, part))


def put(table: Any, key: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert or replace rows in one commit, after their new keys became columns."""
    import pyarrow as pa  # noqa: PLC0415 - LanceDB needs it

    wanted = types_of(*(row[METADATA] for row in rows))
    there = fields_of(table)
    if new := {name: of for name, of in wanted.items() if name not in there}:
        table.add_columns([pa.field(METADATA, pa.struct(new))])
    merge = table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(pa.Table.from_pylist(rows, schema=table.schema))
    if new:  # Lance fails to filter by a key that older fragments lack, until they are rewritten
        with suppress(Exception):  # another process writes: the next new key rewrites them
            table.optimize()


def unfit(table: Any, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the rows whose metadata the table's columns cannot keep, each with the reason."""
    found, fields = {}, fields_of(table)
    for row, metadata in enumerate(metadatas):
        kept = {key: value for key, value in metadata.items() if value is not None}
        odd = next((key for key, value in kept.items() if not takes(fields, key, value)), None)
        if odd is not None:
            found[row] = (
                f"metadata[{printable(repr(odd), 60)}] is of type {type(kept[odd]).__name__}, "
                "which its column in LanceDB cannot keep, expected a str, bool, int or float "
                "as in other documents, under a key without dots."
            )
        elif len(fields.keys() | kept.keys()) > MOST_KEYS:
            found[row] = f"its metadata would be more than {MOST_KEYS} columns of LanceDB."
        else:
            fields = types_of(kept) | fields
    return found


def fields_of(table: Any) -> dict[str, Any]:
    """Return the types of the metadata's columns by name; none if there is no table yet."""
    if table is None:
        return {}
    return {field.name: field.type for field in table.schema.field(METADATA).type}


def types_of(*metadatas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a new column for each key."""
    import pyarrow as pa  # noqa: PLC0415

    of = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    pairs = [pair for metadata in reversed(metadatas) for pair in metadata.items()]
    return {key: of[type(value)] for key, value in pairs if value is not None}


def takes(fields: Mapping[str, Any], key: Any, value: Any) -> bool:
    """Return whether a value comes back unchanged from its column, which may be a new one."""
    import pyarrow as pa  # noqa: PLC0415

    if type(value) not in (str, bool, int, float) or not isinstance(key, str) or "." in key:
        return False
    try:
        back = pa.scalar(value, fields.get(key)).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return bool(key) and back == value and isinstance(back, bool) == isinstance(value, bool)
