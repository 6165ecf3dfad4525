"""Rows of unit vectors, what was found among them, and the checks that every search begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import InvalidBatchError, StateError

# Rows that came through float16 are off by about 1e-3; anything further was never normalised.
UNIT_TOLERANCE = 5e-3


# Rows of the longest matrix product with one list: 12 MB of 384 dimensions.
CHUNK_ROWS = 8_192


# faiss splits queries into blocks of 4,096 itself, so that smaller calls would only lose speed.
QUERY_ROWS = 4_096


# What reading damaged values and arrays raises.
DAMAGE = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(OverflowError, MemoryError),
)


class Neighbors(NamedTuple):
    """The nearest entries of each query, best first.

    Attributes
    ----------
    slots
        Shape (n_queries, k), int64; -1 where there are fewer than k.
    similarities
        Shape (n_queries, k), float32, cosines, descending; -inf where the slot is -1. Rounding
        lets a cosine exceed 1 by about 1e-6.
    """

    slots: NDArray[np.int64]
    similarities: NDArray[np.float32]


def load_faiss() -> Any:
    """Import FAISS where it is first needed: it takes as long as all the rest together."""
    import faiss  # noqa: PLC0415 - see above

    return faiss  # its stubs do not know half of what it has


def exact(queries: NDArray[np.float32], rows: NDArray[np.float32], k: int) -> Neighbors:
    """Return the k nearest rows of each query; rows that hold NaN are never found."""
    faiss = load_faiss()
    similarities, slots = faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
    similarities[slots < 0] = -np.inf
    return Neighbors(slots, similarities)


def joined(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """Return the neighbours of several groups of queries as one."""
    return Neighbors(*map(np.concatenate, zip(none_found(0, k), *parts, strict=True)))


def merged(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """Return the k best of several lists of neighbours; among equals the first."""
    slots = np.concatenate([part.slots for part in parts], axis=1)
    similarities = np.concatenate([part.similarities for part in parts], axis=1)
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return Neighbors(
        np.take_along_axis(slots, order, axis=1), np.take_along_axis(similarities, order, axis=1)
    )


def none_found(n: int, k: int) -> Neighbors:
    """Return neighbours of which none is found."""
    return Neighbors(
        np.full((n, k), -1, dtype=np.int64), np.full((n, k), -np.inf, dtype=np.float32)
    )


def check_k(k: int) -> None:
    """Raise unless a number of neighbours is asked for."""
    if k < 1:
        msg = f"k is {k}, expected how many neighbours to find, at least 1."
        raise InvalidBatchError(msg)


def check_rows(
    name: str,
    rows: NDArray[np.float32],
    dim: int | None = None,
    ids: Sequence[str] | None = None,
) -> None:
    """Raise unless rows are unit vectors of the wanted dimension."""
    if (
        rows.ndim != 2  # noqa: PLR2004
        or rows.dtype != np.float32
        or (dim is not None and rows.shape[1] != dim)
    ):
        msg = (
            f"{name} has shape {rows.shape} and dtype {rows.dtype}, expected "
            f"(n, {'dim' if dim is None else dim}) and float32."
        )
        raise InvalidBatchError(msg)
    squares = np.einsum("ij,ij->i", rows, rows)
    # Written so that NaN fails as well.
    wrong = np.flatnonzero(~(np.abs(squares - 1.0) <= 2 * UNIT_TOLERANCE))
    if len(wrong):
        row = int(wrong[0])
        whose = "" if ids is None else f" (entry {ids[row]!r})"
        msg = (
            f"{name}[{row}]{whose} has L2 norm {np.sqrt(squares[row]):.3f}, expected 1.000; "
            "normalise it first."
        )
        raise InvalidBatchError(msg)


def raise_damaged(what: str) -> None:
    """Raise the error of a saved index that cannot be used."""
    msg = (
        f"the saved neighbour index cannot be used: {what}; restore it from a backup or build it "
        "again."
    )
    raise StateError(msg)
