"""Named arrays as bytes and back: NumPy's own format, one after the other, never pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
