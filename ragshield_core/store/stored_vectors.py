"""Where a guarded store lets its guard find neighbours: in memory, or in the store inside."""

from __future__ import annotations

from ragshield_core.guard import Guard
from ragshield_core.neighbors.stored import VectorTable, Where


def use_table(
    guard: Guard, table: VectorTable | None, neighbors: Where | None, *, store: object, able: str
) -> bool:
    """Let a guard find neighbours in the store inside, if it is to; return whether it could.

    Parameters
    ----------
    guard
        Of the store.
    table
        The store's vectors; ``None`` where it cannot be asked for neighbours.
    neighbors
        As of :meth:`ragshield_core.learning.guard_state.GuardState.use_table`.
    store
        The one inside.
    able
        Kinds of stores of the framework that can be asked, as a list in words.

    Raises
    ------
    TypeError
        If neighbours are to be found in a store that cannot be asked; says which can.
    ValueError
        If ``neighbors`` is none of the three, or no detector can leave vectors in the store.
    NeighborsError
        If vectors are to be taken into memory, and cannot be fetched.
    """
    if table is not None:
        guard.state.use_table(table, neighbors)
        return True
    if neighbors not in (None, "memory", "store"):
        msg = f"neighbors is {neighbors!r}, expected 'memory', 'store' or None."
        raise ValueError(msg)
    if neighbors == "store" or guard.state.where == "store":
        msg = (
            f"neighbours cannot be found in {type(store).__name__}, expected {able}, or an "
            "inner_store with a table; leave neighbors out, or use such a store."
        )
        raise TypeError(msg)
    return False
