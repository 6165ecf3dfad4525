"""Operations written once, and run by a store's synchronous or asynchronous methods.

An operation is a generator of steps: calls of the store, and work of our own. One driver runs the
steps one after the other; the other awaits those that can be awaited. :func:`synchronous` turns an
operation into a public method, and :func:`asynchronous` into its twin.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Step(NamedTuple):
    """A piece of work, and its asynchronous twin if it has one."""

    work: Callable[[], Any]
    awork: Callable[[], Awaitable[Any]] | None = None


Steps = Generator[Step, Any, T]


def own(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step:
    """Return a step of our own work, which the asynchronous driver runs in a thread."""
    return Step(partial(work, *args, **kwargs))


def asked(store: Any, name: str, /, *args: Any, **kwargs: Any) -> Step:
    """Return a step that calls a store's method, or its asynchronous twin, named with an ``a``."""
    twin = getattr(store, f"a{name}", None)
    work = partial(getattr(store, name), *args, **kwargs)
    return Step(work, None if twin is None else partial(twin, *args, **kwargs))


def done(steps: Steps[T]) -> T:
    """Run an operation by synchronous methods."""
    answer, error = None, None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                answer = step.work()
            except Exception as raised:  # noqa: BLE001 - passed to the operation
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def adone(steps: Steps[T]) -> T:
    """Run an operation by asynchronous methods; our own work runs in a thread."""
    answer, error = None, None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                work = partial(asyncio.to_thread, step.work) if step.awork is None else step.awork
                answer = await work()
            except Exception as raised:  # noqa: BLE001 - passed to the operation
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def synchronous(operation: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Turn an operation into a method or a function."""

    @wraps(operation)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return done(operation(*args, **kwargs))

    return _shown_without_steps(method, operation)


def asynchronous(
    method: Callable[P, T], name: str | None = None
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method that :func:`synchronous` has made.

    Its name, which spans carry, is the method's with an ``a``, unless another is given.
    """
    operation: Callable[P, Steps[T]] = inspect.unwrap(method)

    @wraps(operation)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await adone(operation(*args, **kwargs))

    plain = operation.__name__
    bare = plain.lstrip("_")
    twin.__name__ = plain.replace(bare, f"a{bare}") if name is None else name
    twin.__qualname__ = f"{operation.__qualname__.removesuffix(plain)}{twin.__name__}"
    role = "meth" if "." in operation.__qualname__ else "func"
    twin.__doc__ = f"Do as :{role}:`{plain}` does, without blocking the event loop."
    return _shown_without_steps(twin, operation)


def _shown_without_steps(method: Callable[P, T], operation: Callable[P, Any]) -> Callable[P, T]:
    """Make a method's signature name the result, not the steps that lead to it."""
    signature = inspect.signature(operation)
    returned = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method
