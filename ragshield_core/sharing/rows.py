"""Events and arrays as database rows that reveal damage, and the database's clock.

Arrays are stored as their bytes, beside their types and shapes, never pickled. The clock is the
database's: hosts that share a database need not agree about the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

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

# Largest event in bytes: databases limit rows to 1 GB, and every process reads each event whole.
MOST_BYTES = 2**28
# Errors that damaged parts raise when they are read.
DAMAGE = (ValueError, TypeError, KeyError, EOFError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JournalRecord:
    """An event with its place in the journal."""

    position: int
    event: Event
    writer: str
    at: float  # seconds since 1970, by the database's clock


def written(event: Event) -> dict[str, Any]:
    """Return the columns that store an event.

    Raises
    ------
    TypeError
        If it holds a value that neither JSON nor an array without objects can store.
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
    return {"kind": kind, "content": content, "arrays": to_bytes(arrays)}


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
    except DAMAGE as error:
        msg = f"{where} cannot be read ({type(error).__name__}); restore the database."
        raise StateError(msg) from error
    return JournalRecord(position=position, event=event, writer=row["writer"], at=row["at"])


def raise_damaged(what: str, kind: type[TableBase]) -> NoReturn:
    """Raise the error of a row that does not match its digest."""
    msg = (
        f"{what}, in {kind.__tablename__}, does not match its digest, expected that of what was "
        f"written: it was damaged or changed by hand; {RESTORE}"
    )
    raise StateError(msg)


# Arrays


def form_of(name: str, array: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape of an array, from which :func:`formed` rebuilds it.

    Raises
    ------
    TypeError
        If it has fields, or holds objects, which would have to be pickled.
    """
    if array.dtype.hasobject or array.dtype.names:
        msg = (
            f"array {name!r} is of dtype {array.dtype}, expected numbers, strings or bytes: "
            "objects would have to be pickled. Put them into the JSON-ready values."
        )
        raise TypeError(msg)
    return array.dtype.str, array.shape


def formed(data: bytearray, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array that these bytes encode; it is writable and shares their memory.

    Raises
    ------
    ValueError
        If there are too few or too many bytes.
    """
    kind = np.dtype(dtype)
    if not (data or kind.itemsize) or 0 in shape:
        return np.zeros(shape, kind)
    return np.frombuffer(data, kind).reshape(shape)


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes, uncompressed: vectors hardly compress.

    Examples
    --------
    >>> from_bytes(to_bytes({"vectors": np.eye(2, dtype=np.float32)}))
    {'vectors': array([[1., 0.],
           [0., 1.]], dtype=float32)}
    """
    if not arrays:
        return b""
    forms = [(name, array.nbytes, *form_of(name, array)) for name, array in arrays.items()]
    parts = [array.tobytes() for array in arrays.values()]
    return b"".join([json.dumps(forms).encode(), b"\n", *parts])


def from_bytes(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays from the result of :func:`to_bytes`; they are writable."""
    head, _, rest = data.partition(b"\n")
    arrays, start = {}, 0
    for name, size, dtype, shape in json.loads(head) if head else ():
        arrays[name] = formed(bytearray(rest[start : start + size]), dtype, shape)
        start += size
    return arrays


# The clock


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function that it is
    """Seconds since 1970 at which the statement runs, not at which its transaction began.

    A transaction may have waited for a lock in between. On SQLite, whose file is on one host, the
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
