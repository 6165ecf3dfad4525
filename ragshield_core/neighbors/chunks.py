"""Arrays that grow by chunks, so that growing copies no more than the last one."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.rows import CHUNK_ROWS

# Rows for which a chunk has room at least.
LEAST_ROOM = 16

# Bytes from which a chunk has a mapping of its own: the full ones of the usual lengths of vectors.
MAPPED_FROM = 2**20


class Chunks:
    """Rows of float32 that grow without copying what is there: chunks of a fixed size.

    Parameters
    ----------
    dim
        Length of a row.
    reserve
        Rows for which there is room from the beginning.
    """

    def __init__(self, dim: int, *, reserve: int = 0) -> None:
        self.dim = dim
        self._chunks: list[NDArray[np.float32]] = []
        self._n = 0
        self._reserve(reserve)

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return sum(chunk.nbytes for chunk in self._chunks)

    def append(self, rows: NDArray[np.float32]) -> None:
        """Add rows behind the last one."""
        self._reserve(self._n + len(rows))
        done = 0
        while done < len(rows):
            number, offset = divmod(self._n, CHUNK_ROWS)
            part = rows[done : done + CHUNK_ROWS - offset]
            self._chunks[number][offset : offset + len(part)] = part
            self._n += len(part)
            done += len(part)

    def move(self, source: int, target: int) -> None:
        """Copy one row onto another."""
        self._chunks[target // CHUNK_ROWS][target % CHUNK_ROWS] = self._chunks[
            source // CHUNK_ROWS
        ][source % CHUNK_ROWS]

    def pop(self) -> None:
        """Take the last row away."""
        self._n -= 1
        # One chunk in reserve, so that a size at the border does not allocate at every turn.
        while len(self._chunks) > self._n // CHUNK_ROWS + 2:
            self._chunks.pop()

    def filled(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the number of the first row and the rows of each chunk."""
        for start in range(0, self._n, CHUNK_ROWS):
            yield start, self._chunks[start // CHUNK_ROWS][: self._n - start]

    def drained(self) -> Iterator[NDArray[np.float32]]:
        """Yield the rows of each chunk, which is gone then."""
        while self._n:
            yield self._chunks.pop(0)[: self._n]
            self._n = max(0, self._n - CHUNK_ROWS)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return copies of rows, shape (n, dim)."""
        if len(self._chunks) == 1:
            return self._chunks[0].take(rows, axis=0)
        taken = np.empty((len(rows), self.dim), dtype=np.float32)
        numbers = rows // CHUNK_ROWS
        order = np.argsort(numbers, kind="stable")
        used, starts = np.unique(numbers[order], return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        for number, start, end in zip(used.tolist(), starts.tolist(), ends, strict=False):
            where = order[start:end]
            taken[where] = self._chunks[number][rows[where] - number * CHUNK_ROWS]
        return taken

    def _reserve(self, n: int) -> None:
        if len(self._chunks) <= 1 and n <= CHUNK_ROWS:
            # Few rows take little: the first chunk grows by a quarter until it is of full size.
            have = len(self._chunks[0]) if self._chunks else 0
            if n > have:
                size = min(CHUNK_ROWS, max(n, have * 5 // 4, LEAST_ROOM))
                self._replace_first(size)
            return
        if self._chunks and len(self._chunks[0]) < CHUNK_ROWS:
            self._replace_first(CHUNK_ROWS)
        while len(self._chunks) * CHUNK_ROWS < n:
            self._chunks.append(_room(CHUNK_ROWS, self.dim))

    def _replace_first(self, size: int) -> None:
        first = _room(size, self.dim)
        if self._chunks:
            first[: self._n] = self._chunks[0][: self._n]
        self._chunks = [first]


def _room(n: int, dim: int) -> NDArray[np.float32]:
    """Return rows to be filled, of which large ones are the system's again as soon as freed.

    Memory of the C library is not, if any other was taken after it: rows that are moved from one
    list into many would take twice their size ever after.
    """
    size = 4 * n * dim
    if size < MAPPED_FROM:
        return np.empty((n, dim), dtype=np.float32)
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.float32).reshape(n, dim)


class Column:
    """A growing one-dimensional array."""

    def __init__(self, dtype: Any) -> None:
        self._array: NDArray[Any] = np.empty(64, dtype=dtype)
        self._n = 0

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Return one that is filled with values, which it takes over."""
        column = cls(values.dtype)
        column._array, column._n = values, len(values)
        return column

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._array.nbytes

    @property
    def values(self) -> NDArray[Any]:
        """A view on what is filled; writing through it is meant."""
        return self._array[: self._n]

    def append(self, values: NDArray[Any]) -> None:
        """Add values behind the last one."""
        n = self._n + len(values)
        if n > len(self._array):
            grown = np.empty(max(n, len(self._array) * 3 // 2), dtype=self._array.dtype)
            grown[: self._n] = self.values
            self._array = grown
        self._array[self._n : n] = values
        self._n = n

    def pop(self) -> None:
        """Take the last value away."""
        self._n -= 1


class Ends(Column):
    """Where parts of another column end, ascending: in four bytes each, as long as these do."""

    def __init__(self) -> None:
        super().__init__(np.uint32)

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Return one that is filled with values, of which it takes a copy."""
        ends = cls()
        ends.append(values)
        return ends

    def append(self, values: NDArray[Any]) -> None:
        """Add values behind the last one."""
        if len(values) and values[-1] > np.iinfo(self._array.dtype).max:
            self._array = self._array.astype(np.int64)
        super().append(values)

    def at(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where some parts begin, and where they end."""
        if not len(numbers):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        ends = self.values
        begins = np.where(numbers > 0, ends[numbers - 1], 0)
        return begins.astype(np.int64), ends[numbers].astype(np.int64)
