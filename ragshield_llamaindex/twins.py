"""A method written once, as steps, and its synchronous and asynchronous forms made of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from ragshield_core.adapters.steps import Steps, adone, done

P = ParamSpec("P")
T = TypeVar("T")


def synchronous(steps: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return the method that does these steps one after the other."""

    @functools.wraps(steps)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return done(steps(*args, **kwargs))

    return method


def asynchronous(
    method: Callable[..., T], name: str | None = None
) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return the twin of a method of :func:`synchronous`, which awaits what can be awaited.

    Its name, which spans have, is that of the method with an ``a``, unless another is given.
    """
    steps = cast("Callable[..., Steps[T]]", inspect.unwrap(method))

    @functools.wraps(steps)
    async def twin(*args: Any, **kwargs: Any) -> T:
        return await adone(steps(*args, **kwargs))

    bare = method.__name__.lstrip("_")
    twin.__name__ = method.__name__.replace(bare, f"a{bare}") if name is None else name
    twin.__doc__ = f"Do as :meth:`{method.__name__}` does, by asynchronous methods."
    return twin
