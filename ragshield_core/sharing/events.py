"""How an event becomes a row of the journal, which says when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ragshield_core.database import TableBase
from ragshield_core.database.tables import JournalRow
from ragshield_core.learning.events import Event
from ragshield_core.model.errors import StateError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import Digests
from ragshield_core.quarantine.sealed import RESTORE
from ragshield_core.sharing import arrays as named_arrays

# Bytes of an event. Databases take rows of up to 1 GB, and every process reads every event at once.
MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JournalRecord:
    """An event with its place in the journal."""

    position: int
    event: Event
    writer: str
    at: float  # seconds since 1970, by the database's clock


class Written(NamedTuple):
    """An event as it is kept."""

    kind: str
    content: str
    arrays: bytes


def written(event: Event) -> Written:
    """Return an event as it is kept.

    Raises
    ------
    TypeError
        If it holds what neither JSON nor an array without objects can say.
    ValueError
        If it is too large.
    """
    kind = str(event.change)
    values, arrays = event.to_parts()
    size = sum(array.nbytes for array in arrays.values())
    content = to_json(values, f"the values of an event {kind!r}")
    if size + len(content) > MOST_BYTES:
        msg = (
            f"an event {kind!r} is of {size + len(content):,} bytes, expected at most "
            f"{MOST_BYTES:,}; write it as several events, or as a snapshot."
        )
        raise ValueError(msg)
    return Written(kind, content, named_arrays.to_bytes(arrays))


def read(row: Mapping[Any, Any], digests: Digests) -> JournalRecord:
    """Return the event of a row.

    Raises
    ------
    StateError
        If the row does not match its digest.
    """
    position, namespace = row["position"], row["namespace"]
    where = f"event {position} of the journal of namespace {printable(namespace, 60)!r}"
    if not digests.match(JournalRow, row):
        raise_damaged(where, JournalRow)
    try:
        event = Event.from_parts(json.loads(row["content"]), named_arrays.from_bytes(row["arrays"]))
    except (ValueError, TypeError, KeyError, EOFError, RecursionError) as error:
        msg = f"{where} cannot be read ({type(error).__name__}); restore the database."
        raise StateError(msg) from error
    return JournalRecord(position=position, event=event, writer=row["writer"], at=row["at"])


def raise_damaged(what: str, kind: type[TableBase]) -> NoReturn:
    """Say that a row does not match its digest."""
    msg = (
        f"{what}, in {kind.__tablename__}, does not match its digest, expected that of what was "
        f"written: it was damaged or changed by hand; {RESTORE}"
    )
    raise StateError(msg)


def to_json(values: Mapping[str, Any], what: str) -> str:
    """Return values as JSON in ASCII, which any database keeps.

    Raises
    ------
    TypeError
        If a value is of a type that JSON has not, or a key is no str.
    ValueError
        If a value contains itself, or is a number too long to write.
    """
    try:
        _check_keys(values)
        return json.dumps(dict(values), separators=(",", ":"))
    except TypeError as error:
        msg = f"{what} cannot be kept: {error}; use dicts with str keys, lists, texts and numbers."
        raise TypeError(msg) from None
    except (RecursionError, ValueError):
        msg = (
            f"{what} contain themselves, are nested too deeply or hold a number too long to write, "
            "expected a tree of plain values."
        )
        raise ValueError(msg) from None


def _check_keys(value: Any) -> None:
    # JSON would make a str of another key, without a word.
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                msg = f"a key is of type {type(key).__name__}"
                raise TypeError(msg)
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)
