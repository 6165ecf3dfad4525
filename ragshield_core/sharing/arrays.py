"""Named arrays as bytes and back: NumPy's own format, one after the other, never pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
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
        np.save(buffer, array, allow_pickle=False)
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
    arrays = {name: np.load(buffer, allow_pickle=False) for name in names}
    if buffer.read(1):
        msg = "there is more than the arrays that are named"
        raise ValueError(msg)
    return arrays
