"""Engines that run the tasks of an audit: this process, or the machines of a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from ragshield_core.model.errors import RAGShieldError, SourceError

# Maximum retries of a task whose worker dies; Ray itself waits if memory runs out.
RETRIES = 3
# The least size of Ray's memory for objects: results are files, so it stays nearly empty.
OBJECT_BYTES = 128 * 2**20
ADDRESS = "RAY_ADDRESS"  # Ray's own variable


class Engine:
    """Runs tasks one after the other in this process; most of them write a file."""

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Run a function once for each tuple of arguments; yield the results in any order.

        Raises
        ------
        RAGShieldError
            The first error of a task. Other running tasks come to their end.
        """
        for task in tasks:
            yield function(*task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class RayEngine(Engine):
    """Runs tasks on a Ray cluster; extra ``ray``.

    The cluster is the one that this process is connected to, or that the variable ``RAY_ADDRESS``
    names, such as ``auto`` or ``ray://head:10001``; otherwise one on this machine that ends with
    the work. A task whose worker dies is run again, on any machine.

    Raises
    ------
    SourceError
        If Ray is not installed; names the extra.
    """

    def __init__(self) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            msg = (
                "the engine 'ray' needs Ray, which is not installed; pip install 'ragshield[ray]'."
            )
            raise SourceError(msg) from error
        self._ray, self._started = ray, False

    def __enter__(self) -> Self:
        if self._ray.is_initialized():
            return self
        # Ray would send usage statistics to its makers; users who want that set the variable.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {}
        if ADDRESS not in os.environ:
            options = {"address": "local", "include_dashboard": False}
            options["object_store_memory"] = OBJECT_BYTES
        try:
            # Output of detectors on workers may be hostile.
            self._ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            msg = (
                f"there is no Ray cluster at {os.environ.get(ADDRESS, 'this machine')!r} "
                f"({type(error).__name__}); start one with 'ray start --head', or unset {ADDRESS}."
            )
            raise SourceError(msg) from error
        self._started = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._ray.shutdown()
            self._started = False

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Run the tasks on the cluster."""
        ray = self._ray
        # The function is stored once for all tasks. Each task gets one core: more would be idle in
        # steps other than matrix products.
        shared = ray.put(function)
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
        running = [remote.remote(shared, *task) for task in tasks][::-1]  # pop takes the first task
        try:
            while running:
                yield self._result(running.pop())
        finally:
            for task in running:
                ray.cancel(task)

    def _result(self, task: Any) -> Any:
        """Return the result, or raise an error in our own words: other messages may be hostile."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(task)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, RAGShieldError):
                raise error.cause from None
            msg = f"a task failed with {type(error.cause).__name__}; run the command again."
            raise SourceError(msg) from error
        except (exceptions.WorkerCrashedError, exceptions.OutOfMemoryError) as error:
            msg = (
                f"the worker of a task died {RETRIES + 1} times, perhaps for want of memory; "
                "smaller --partition-rows need less."
            )
            raise SourceError(msg) from error


def _call(function: Callable[..., Any], *task: Any) -> Any:
    """Run a task on a worker: Ray needs a plain function, and resolves the stored one."""
    return function(*task)


def engine_of(engine: str | Engine | None) -> Engine:
    """Return an engine by its name; this process by default."""
    if isinstance(engine, Engine):
        return engine
    if engine == "ray":
        return RayEngine()
    if engine not in (None, "local"):
        msg = f"the engine is {engine!r}, expected 'local' or 'ray'."
        raise SourceError(msg)
    return Engine()
