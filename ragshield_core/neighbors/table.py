"""Vectors where they are kept: what a store is asked for so that nobody else has to keep them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Where detectors have vectors from: from memory, of every worker, or from the store.
Where = Literal["memory", "store"]


class FoundEntries(NamedTuple):
    """What a table has near to some queries; each entry once, however many queries it is near to.

    Attributes
    ----------
    ids
        Of m entries.
    vectors
        Shape (m, dim), float32, as they are stored: of any length.
    rows
        Shape (n_queries, k), int64: which of the entries are near to each query, in any order; -1
        where there are fewer than k.
    """

    ids: Sequence[str]
    vectors: NDArray[np.float32]
    rows: NDArray[np.int64]


class VectorTable(ABC):
    """The vectors of a store, searched by the store itself.

    Searches may be approximate. What any method raises is an error of the store: it is reported
    under :attr:`name`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What the store is called in messages, e.g. its class and collection."""

    @abstractmethod
    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return about k nearest entries of each query by cosine, in one round trip.

        Parameters
        ----------
        embeddings
            Shape (n_queries, dim), float32, rows of unit length; at least one.
        k
            How many, at least 1. Fewer are an answer only if the store holds no more.
        """

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return which of the ids the store holds, and their vectors, shape (n, dim), as stored."""


class TableUser(ABC):
    """Base class of a detector that can leave vectors in the store."""

    @property
    @abstractmethod
    def in_store(self) -> str | None:
        """Name of the store in which neighbours are found; ``None`` where they are in memory."""

    @property
    @abstractmethod
    def n_local(self) -> int:
        """How many vectors are kept in memory."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether what is needed is at hand: a saved detector may lack its store."""

    @abstractmethod
    def use_table(self, table: VectorTable, where: Where | None) -> None:
        """Use a store's vectors.

        Parameters
        ----------
        table
            Of the store.
        where
            ``"store"`` finds neighbours there from now on, ``"memory"`` fetches all vectors;
            ``None`` leaves them where they are.
        """

    @abstractmethod
    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return how many.

        Nothing is lost where it does not answer.
        """
