"""An array that grows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Column:
    """A growing one-dimensional array.

    Parameters
    ----------
    values
        What it begins with; taken over.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._array, self._n = values, len(values)

    def __len__(self) -> int:
        return self._n

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
