"""How many entries a store holds, asked in the ways of one kind of store after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def size_by(
    source: Any, counts: Sequence[Callable[[Any], int]], inside: Sequence[str]
) -> int | None:
    """Return how many entries there are; None where nobody can be asked.

    Parameters
    ----------
    source
        A store, or something around one.
    counts
        Functions that count, each for a kind of store; of another kind they may fail as they like.
    inside
        Attributes in which retrievers, indexes and guards keep what they ask.
    """
    waiting, seen = [source], set()
    while waiting:
        holder = waiting.pop(0)
        if holder is None or id(holder) in seen:
            continue
        seen.add(id(holder))
        for count in counts:
            try:
                return int(count(holder))
            except Exception:  # noqa: BLE001, S112 - it is of another kind, or does not answer
                continue
        waiting += [_attribute(holder, name) for name in inside]
    return None


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a guarded store says what to use instead
        return None
