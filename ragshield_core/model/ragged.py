"""Arrays of different lengths, stored as one array and the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def joined(parts: Sequence[NDArray[Any]], dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return arrays of this type, of different lengths, as one, and the end of each.

    Examples
    --------
    >>> joined([np.array([3, 4]), np.array([5])], np.int64)
    (array([3, 4, 5]), array([2, 3]))
    """
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return np.concatenate([np.empty(0, dtype=dtype), *parts]), np.cumsum(lengths)


def divided(
    whole: NDArray[Any], ends: NDArray[np.int64], rows: NDArray[np.integer[Any]] | None = None
) -> list[NDArray[Any]]:
    """Return the arrays that were :func:`joined`, or some of them, as views.

    Raises
    ------
    ValueError
        If all are wanted, and they do not fill the whole.

    Examples
    --------
    >>> divided(np.array([3, 4, 5]), np.array([2, 3]), np.array([1, 0]))
    [array([5]), array([3, 4])]
    """
    if rows is None:
        check_ends(whole, ends)
        rows = np.arange(len(ends))
    begins = np.where(rows > 0, ends[rows - 1], 0) if len(rows) else rows
    return [whole[a:b] for a, b in zip(begins.tolist(), ends[rows].tolist(), strict=True)]


def check_ends(whole: NDArray[Any], ends: NDArray[np.int64]) -> None:
    """Check that arrays with these ends fill the whole.

    Raises
    ------
    ValueError
        If they do not.
    """
    borders = np.append(0, ends)
    if borders[-1] != len(whole) or (np.diff(borders) < 0).any():
        msg = f"{len(ends)} arrays end at {borders[-1]}, expected them to fill {len(whole)} places"
        raise ValueError(msg)
