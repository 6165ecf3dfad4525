"""How events and arrays become rows of a database, which say when they are damaged, and its clock.

Arrays are in NumPy's own format, one after the other, never pickle. The clock is the database's:
hosts that share one need not agree about the time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ragshield_core.database import TableBase
from ragshield_core.database.tables import JournalRow
from ragshield_core.learning.events import Event
from ragshield_core.model.errors import StateError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import Digests
from ragshield_core.quarantine.evidence import RESTORE

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
    content = json.dumps(values, separators=(",", ":"))
    if size + len(content) > MOST_BYTES:
        msg = (
            f"an event {kind!r} is of {size + len(content):,} bytes, expected at most "
            f"{MOST_BYTES:,}; write it as several events, or as a snapshot."
        )
        raise ValueError(msg)
    return Written(kind, content, to_bytes(arrays))


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
        event = Event.from_parts(json.loads(row["content"]), from_bytes(row["arrays"]))
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


# Arrays


def check(name: str, array: NDArray[Any]) -> None:
    """Refuse an array that could only be pickled.

    Raises
    ------
    TypeError
        If it holds objects.
    """
    if array.dtype.hasobject:
        msg = (
            f"array {name!r} is of dtype {array.dtype}, expected numbers, strings or bytes: "
            "objects would have to be pickled. Put them into the JSON-ready values."
        )
        raise TypeError(msg)


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes; nothing is compressed, since vectors hardly can be.

    Examples
    --------
    >>> from_bytes(to_bytes({"vectors": np.eye(2, dtype=np.float32)}))
    {'vectors': array([[1., 0.], [0., 1.]], dtype=float32)}
    """
    if not arrays:
        return b""
    buffer = io.BytesIO()
    buffer.write(json.dumps(list(arrays)).encode() + b"\n")
    for name, array in arrays.items():
        check(name, np.asarray(array))
        np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def from_bytes(data: bytes) -> dict[str, NDArray[Any]]:
    """Return what :func:`to_bytes` made bytes of; the arrays may be changed.

    Raises
    ------
    ValueError
        If they are none.
    """
    if not data:
        return {}
    buffer = io.BytesIO(data)
    names = json.loads(buffer.readline())
    arrays = {name: np.lib.format.read_array(buffer, allow_pickle=False) for name in names}
    if buffer.read(1):
        msg = "there is more than the arrays that are named"
        raise ValueError(msg)
    return arrays


# Bytes of a header of NumPy's format that are looked at.
_HEADER = 1 << 16


def pieces(array: NDArray[Any], size: int) -> Iterator[bytes]:
    """Yield the bytes of an array in NumPy's format, at most so many at a time.

    The whole is never in memory twice.
    """
    array = np.asarray(array, order="C")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    rest = bytearray(head.getvalue())
    flat = array.reshape(-1).view(np.uint8) if array.size and array.itemsize else np.empty(0)
    for start in range(0, len(flat) or 1, size):
        rest += flat[start : start + size].tobytes()
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


def joined(data: bytearray) -> NDArray[Any]:
    """Return the array whose pieces were put together; it lies in them, and may be changed.

    Raises
    ------
    ValueError
        If they are none.

    Examples
    --------
    >>> vectors = np.eye(2, dtype=np.float32)
    >>> joined(bytearray(b"".join(pieces(vectors, 5))))
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    head = io.BytesIO(bytes(data[:_HEADER]))
    if np.lib.format.read_magic(head) != (1, 0):
        msg = "it is of another version of NumPy's format"
        raise ValueError(msg)
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(head)
    if by_columns or dtype.hasobject:
        msg = "it is not as it was written"
        raise ValueError(msg)
    found: NDArray[Any] = np.frombuffer(data, dtype, offset=head.tell())
    return found.reshape(shape)


# The clock


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
