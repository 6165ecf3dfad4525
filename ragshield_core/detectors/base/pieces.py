"""Pieces of a knowledge base that is too large for one memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch

if TYPE_CHECKING:
    from ragshield_core.detectors.groups.found import FoundGroups

# Told what is being done, how many are done, and of how many.
Progress = Callable[[str, int, int], object]


class Pieces(ABC):
    """Entries that are read piece by piece, as often as it takes, always in the same order."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries."""

    @abstractmethod
    def batches(self, what: str) -> Iterator[Batch]:
        """Yield all entries in their order, some thousand at a time.

        Parameters
        ----------
        what
            Is done with them, as people are told.
        """

    @abstractmethod
    def groups(self) -> FoundGroups:
        """Return what was found of their groups."""

    def take(self, rows: NDArray[np.int64]) -> Iterator[Batch]:
        """Yield some entries, in ascending order of their places, some thousand at a time."""
        start = 0
        for batch in self.batches("reading again"):
            inside = rows[(rows >= start) & (rows < start + len(batch))] - start
            if inside.size:
                yield batch.take(inside)
            start += len(batch)


class InPieces(ABC):
    """What takes the place of a batch that no memory holds: see :meth:`Guard.fit`."""

    @abstractmethod
    def pieces(
        self,
        groups: Mapping[str, Any] | None,
        *,
        engine: Any = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> AbstractContextManager[Pieces]:
        """Find groups, and lend the pieces.

        Parameters
        ----------
        groups
            Arguments of the :class:`~ragshield_core.detectors.CliqueDetector` that learns them;
            ``None`` if none does.
        engine
            Who runs the tasks; by name, or itself. ``None`` for this process.
        seed
            Of random choices.
        progress
            Told how far it is.
        """
