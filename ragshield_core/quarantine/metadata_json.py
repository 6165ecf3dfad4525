"""Conversion of metadata of common Python types to JSON and back, without pickle."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from ragshield_core.model.findings import printable

# A value of a type that JSON lacks becomes {TAG: [type name, JSON value]}.
TAG = "$ragshield"

_COLLECTIONS: dict[str, type[tuple[Any, ...] | set[Any] | frozenset[Any]]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def _written(when: dt.datetime) -> str:
    # A data frame's NaT is a datetime, which isoformat would write as one of the year 1.
    return "" if when != when else dt.datetime.isoformat(when)  # noqa: PLR0124


def _read(text: str) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    # datetime before date: every datetime is a date.
    "datetime": (dt.datetime, _written, _read),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "decimal": (Decimal, str, Decimal),
    "path": (Path, str, Path),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}

_PLAIN = frozenset({str, float, bool, type(None)})
# Largest integer that every database and JSON reader accepts.
LONGEST = 2**63 - 1


def dumps(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON text that :func:`loads` converts back to equal values.

    NumPy scalars come back as Python numbers, and pandas' NaT as None.

    Raises
    ------
    TypeError
        If a value is of a type that only pickle can write; names the key, never a value.
    ValueError
        If a value contains itself, or is a number too long to write.

    Examples
    --------
    >>> loads(dumps({"seen": dt.date(2026, 1, 2), "pages": (1, 2)}))
    {'seen': datetime.date(2026, 1, 2), 'pages': (1, 2)}
    """
    try:
        return json.dumps(_encode(metadata, ()))
    except RecursionError:
        msg = "metadata contains itself or is nested too deeply, expected a tree of plain values."
        raise ValueError(msg) from None


def is_plain(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata holds only short values of JSON types, as most metadata does."""
    if type(metadata) is not dict or TAG in metadata:  # other mappings may run any code
        return False
    kinds = set(map(type, metadata.values())) - _PLAIN
    return set(map(type, metadata)) <= {str} and (
        not kinds
        or (
            kinds == {int}
            and all(-LONGEST <= n <= LONGEST for n in metadata.values() if type(n) is int)
        )
    )


def loads(text: str) -> dict[str, Any]:
    """Return the metadata that :func:`dumps` wrote."""
    decoded: dict[str, Any] = json.loads(text)
    if TAG in text:  # most metadata needs no decoding
        decoded = _decode(decoded)
    return decoded


def _encode(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a value in JSON types; ``path`` is its location, used for errors only.

    A path consists of keys and one-item lists with an index, or ``...`` in unordered collections.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        # A longdouble's own item() returns a longdouble again.
        return float(value) if isinstance(value, np.floating) else _encode(value.item(), path)
    if isinstance(value, list):
        return [_encode(item, (*path, [i])) for i, item in enumerate(value)]
    for name, collection in _COLLECTIONS.items():
        if isinstance(value, collection):
            return {TAG: [name, [_encode(item, (*path, [...])) for item in value]]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and TAG not in value:
            return {key: _encode(item, (*path, key)) for key, item in value.items()}
        pairs = [[_encode(k, path), _encode(v, (*path, k))] for k, v in value.items()]
        return {TAG: ["dict", pairs]}
    for name, (kind, encode, _) in _TYPES.items():
        if isinstance(value, kind):
            return {TAG: [name, encode(value)]}
    msg = (
        f"metadata{''.join(map(_step, path))} is of type {type(value).__name__}, which the "
        "quarantine cannot keep without pickling it; use strings, numbers, dates, lists or dicts."
    )
    raise TypeError(msg)


def _step(step: Any) -> str:
    """Return a step of a path for an error message, escaped: metadata keys may be hostile."""
    if isinstance(step, list):
        return "[...]" if step == [...] else f"[{step[0]}]"
    named = repr(step) if isinstance(step, str | int | float) else type(step).__name__
    return f"[{printable(named, 60)}]"


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _decode(item) for key, item in value.items()}
    name, content = value[TAG]
    if name == "dict":
        return {_decode(key): _decode(item) for key, item in content}
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](_decode(item) for item in content)
    return _TYPES[name][2](content)
