"""Threads for many small matrix products, each product in one thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Blas:
    """The threads of BLAS; each product gets only one while any caller wants that.

    If a product takes a tenth of a millisecond, threads that share it wait for each other longer
    than they work: on two busy cores 400 products of 30 x 250 rows took ten times as long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._controller: ThreadpoolController | None = None
        self._n_modules = 0  # at the last search for libraries: a later import may bring another
        self._limit: Any = None
        self._users, self._usual = 0, 1

    @contextmanager
    def single(self) -> Iterator[int]:
        """Give products one thread each, and yield their usual number of threads."""
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - looks for libraries

        with self._lock:
            if not self._users:
                _take_control()
                if self._controller is None or self._n_modules != len(sys.modules):
                    self._controller = ThreadpoolController().select(user_api="blas")
                    self._n_modules = len(sys.modules)
                threads = (one["num_threads"] for one in self._controller.info())
                self._usual = max(threads, default=1)
                self._limit = self._controller.limit(limits=1)
            self._users += 1
        try:
            yield self._usual
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    _take_control()  # the last caller to end may not be the first
                    self._limit.restore_original_limits()


_BLAS = _Blas()


def _take_control() -> None:
    """Let this thread set the number of BLAS threads.

    From 3.8 on, threadpoolctl obeys only the first thread that set it, as long as that thread
    lives, and silently ignores the settings of others. Guards screen in long-lived threads, and
    learn in others.
    """
    from threadpoolctl import OpenBLASController  # noqa: PLC0415 - looks for libraries

    if release := getattr(OpenBLASController, "clear_controlling_thread", None):
        release(force=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Do arithmetic in one thread: the result of an optimiser depends on the number of threads.

    Processes that share a guard's state must each learn the same model.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - looks for libraries

    with _BLAS.single(), threadpool_limits(1, user_api="openmp"):
        yield


def in_threads(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of a function for all items, using as many threads as BLAS has.

    Threads have the context of the caller, in which stores find their event loop.
    """
    with _BLAS.single() as n_threads:
        if n_threads == 1 or len(items) == 1:
            return [do(item) for item in items]
        with ThreadPoolExecutor(n_threads) as pool:
            context = copy_context()
            waiting = [pool.submit(context.copy().run, do, item) for item in items]
            return [result.result() for result in waiting]
