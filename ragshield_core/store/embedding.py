"""The texts of one write get their vectors, also where the model refuses some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ragshield_core.store.steps import Step, Steps

T = TypeVar("T")

# Models raise these for texts that they cannot read, not when they cannot be reached.
REFUSALS = (ValueError, TypeError)


def embedded(items: Sequence[T], embed: Callable[[Sequence[T]], Step]) -> Steps[list[Any]]:
    """Return what a model makes of items, None for those that it refuses, unless it refuses all.

    Parameters
    ----------
    items
        Texts, or nodes.
    embed
        Asks the model; a step that returns one result for each of some items.
    """

    def tried(some: Sequence[T]) -> Steps[list[Any]]:
        try:
            return list((yield embed(some))) if some else []
        except REFUSALS:
            if len(some) == 1:
                return [None]
        half = len(some) // 2
        first = yield from tried(some[:half])
        return first + (yield from tried(some[half:]))

    found = yield from tried(items)
    if items and all(one is None for one in found):
        return list((yield embed(items)))  # raises again
    return found
