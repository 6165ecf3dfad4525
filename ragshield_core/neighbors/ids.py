"""Ids as arrays, for a saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Ids may hold halves of surrogate pairs.
ENCODING = ("utf-8", "surrogatepass")


def packed(ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return ids as arrays, for a saved state."""
    parts = [entry_id.encode(*ENCODING) for entry_id in ids]
    return {
        "ids": np.frombuffer(bytearray().join(parts), dtype=np.uint8),
        "id_lengths": np.fromiter(map(len, parts), np.int64, len(parts)),
    }


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids that were :func:`packed`.

    Raises
    ------
    ValueError
        If they do not fit together.
    """
    text, lengths = arrays["ids"], arrays["id_lengths"]
    if text.dtype != np.uint8 or lengths.dtype != np.int64 or lengths.ndim != 1:
        msg = "its ids are not bytes and their lengths"
        raise ValueError(msg)
    if (lengths < 0).any() or lengths.sum() != len(text):
        msg = f"{len(text)} bytes of ids, expected {lengths.sum()}"
        raise ValueError(msg)
    whole, ends = np.ascontiguousarray(text).data, np.cumsum(lengths)
    borders = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return [str(whole[start:end], *ENCODING) for start, end in borders]
