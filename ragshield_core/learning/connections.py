"""What a store lends its guard: vectors, so that detectors keep none, and its embedding model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ragshield_core.detectors.base import Detector
from ragshield_core.detectors.base.abilities import UsesEmbedder
from ragshield_core.neighbors.stored import TableUser, VectorTable, Where, not_at_hand


class Connections:
    """A store's vectors and embedding model, in the hands of the detectors that want them.

    Parameters
    ----------
    detectors
        Of the guard.
    lock
        Of the guard: nothing is judged while detectors are connected.
    """

    def __init__(self, detectors: Sequence[Detector], lock: threading.RLock) -> None:
        self._detectors, self._lock = tuple(detectors), lock
        self._table: VectorTable | None = None
        self._where: Where | None = None
        self._embed: Callable[[list[str]], Any] | None = None
        self._chosen = False  # the embedder, by the user, so that no store offers its own

    def reconnect(self, detectors: Sequence[Detector]) -> None:
        """Connect the detectors that took the place of those before."""
        self._detectors = tuple(detectors)
        self._connect()
        if self._embed is not None:
            self._hand_over()

    # Vectors

    def use_table(self, table: VectorTable, where: Where | None = None) -> None:
        """Have the vectors of the store at hand; guarded stores do this.

        Parameters
        ----------
        table
            Of the store that the guard is of.
        where
            ``"store"``: detectors find neighbours there from now on, and keep no vectors but of
            what the store does not have. ``"memory"``: all vectors are fetched. ``None``, the
            default, leaves it as it is: a guard that was saved without vectors needs its store.

        Raises
        ------
        ValueError
            If ``where`` is neither, or no detector can leave vectors in the store.
        NeighborsError
            If vectors cannot be fetched.
        """
        if where not in (None, "memory", "store"):
            msg = f"neighbors is {where!r}, expected 'memory', 'store' or None."
            raise ValueError(msg)
        if where == "store" and not self._table_users:
            names = ", ".join(detector.name for detector in self._detectors)
            msg = (
                f"none of the detectors ({names}) can find neighbours in the store; add "
                "CliqueDetector(), which others share, or leave neighbors out."
            )
            raise ValueError(msg)
        with self._lock:
            self._table, self._where = table, where
            self._connect()

    def let_go(self) -> int:
        """Drop the vectors that the store has by now, see :meth:`use_table`; return how many."""
        with self._lock:
            return sum(user.let_go() for user in self._table_users)

    @property
    def where(self) -> Where:
        """Where detectors find neighbours: in ``"memory"``, or in the ``"store"``."""
        return "store" if any(user.in_store is not None for user in self._table_users) else "memory"

    def where_in_words(self) -> str:
        """Return where neighbours are found, for people."""
        for user in self._table_users:
            if user.in_store is not None:
                lost = "" if user.connected else ", which is not at hand"
                return f"the store {user.in_store!r}{lost}; {user.n_local} vectors in memory"
        return "memory"

    @property
    def complete(self) -> bool:
        """Whether the store in which neighbours are found is at hand."""
        return all(user.connected for user in self._table_users)

    def check(self) -> None:
        """Refuse to judge without the store in which neighbours are found.

        Raises
        ------
        NeighborsError
            If it is not at hand.
        """
        lost = next((user for user in self._table_users if not user.connected), None)
        if lost is not None:
            raise not_at_hand(lost.in_store or "")

    def _connect(self) -> None:
        if self._table is not None:
            for user in self._table_users:
                user.use_table(self._table, self._where)

    @property
    def _table_users(self) -> list[TableUser]:
        return [detector for detector in self._detectors if isinstance(detector, TableUser)]

    # The embedding model

    def use_embedder(self, embed: Callable[[list[str]], Any] | None) -> None:
        """Take the embedding model that the user has chosen, or none."""
        with self._lock:
            self._embed, self._chosen = embed, True
            self._hand_over()

    def offer_embedder(self, embed: Callable[[list[str]], Any]) -> None:
        """Take the embedding model of a store, unless the user has decided; stores do this."""
        with self._lock:
            if not self._chosen and embed != self._embed:
                self._embed = embed
                self._hand_over()

    @property
    def embedder(self) -> Callable[[list[str]], Any] | None:
        """The embedding model; ``None`` where the user wants none, or nobody has offered one."""
        return self._embed

    def _hand_over(self) -> None:
        for user in self._embedder_users:
            user.use_embedder(self._embed)

    @property
    def _embedder_users(self) -> list[UsesEmbedder]:
        return [detector for detector in self._detectors if isinstance(detector, UsesEmbedder)]
