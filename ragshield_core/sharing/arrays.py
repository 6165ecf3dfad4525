"""Named arrays as bytes and back: NumPy's own format, one after the other, never pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_LENGTH = 8  # bytes of the number that says how long the list of names is


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes, /) -> object:
        """Take bytes."""


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes; none at the end."""


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


def write_array(sink: Sink, array: NDArray[Any]) -> None:
    """Write one array."""
    np.lib.format.write_array(sink, np.asarray(array), allow_pickle=False)


def read_array(source: Source) -> NDArray[Any]:
    """Return the next array, which may be changed."""
    array: NDArray[Any] = np.lib.format.read_array(source, allow_pickle=False)  # type: ignore[arg-type]
    return array


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes; nothing is compressed, since vectors hardly can be.

    Examples
    --------
    >>> from_bytes(to_bytes({"vectors": np.eye(2, dtype=np.float32)}))
    {'vectors': array([[1., 0.], [0., 1.]], dtype=float32)}
    """
    if not arrays:
        return b""
    names = json.dumps(list(arrays)).encode()
    buffer = io.BytesIO()
    buffer.write(len(names).to_bytes(_LENGTH, "little"))
    buffer.write(names)
    for name, array in arrays.items():
        check(name, np.asarray(array))
        write_array(buffer, array)
    return buffer.getvalue()


def from_bytes(data: bytes) -> dict[str, NDArray[Any]]:
    """Return what :func:`to_bytes` made bytes of.

    Raises
    ------
    ValueError
        If they are none.
    """
    if not data:
        return {}
    buffer = io.BytesIO(data)
    names = json.loads(buffer.read(int.from_bytes(buffer.read(_LENGTH), "little")))
    arrays = {name: read_array(buffer) for name in names}
    if buffer.read(1):
        msg = "there is more than the arrays that are named"
        raise ValueError(msg)
    return arrays
