"""Threads for many small matrix products: a thread for some of them each, not all for one."""

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
    """The threads of BLAS, of which each product gets one while any caller wants that.

    Where a product takes a tenth of a millisecond, threads that share it wait for each other longer
    than they work: on two busy cores 400 products of 30 x 250 rows took ten times as long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._controller: ThreadpoolController | None = None
        self._n_modules = 0  # when libraries were looked for last: a later import may bring one
        self._limit: Any = None
        self._users, self._usual = 0, 1

    @contextmanager
    def single(self) -> Iterator[int]:
        """Give products one thread each, and yield how many they have otherwise."""
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
                    _take_control()  # whoever ends last need not be who began
                    self._limit.restore_original_limits()


_BLAS = _Blas()


def _take_control() -> None:
    """Let this thread set how many threads BLAS has.

    From 3.8 on, threadpoolctl leaves that to the first thread that ever did, for as long as it
    lives, and what others set has no effect, without a word. Guards screen in threads that live
    long, and learn in others.
    """
    from threadpoolctl import OpenBLASController  # noqa: PLC0415 - looks for libraries

    if release := getattr(OpenBLASController, "clear_controlling_thread", None):
        release(force=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Do arithmetic in one thread: what an optimiser ends with differs with their number.

    Processes that share what a guard knows learn the same model, each by itself.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - looks for libraries

    with _BLAS.single(), threadpool_limits(1, user_api="openmp"):
        yield


def in_threads(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return what a function returns of each item, in as many threads as BLAS has.

    Threads have the context of the caller: stores find their event loop in it.
    """
    with _BLAS.single() as n_threads:
        if n_threads == 1 or len(items) == 1:
            return [do(item) for item in items]
        with ThreadPoolExecutor(n_threads) as pool:
            context = copy_context()
            waiting = [pool.submit(context.copy().run, do, item) for item in items]
            return [result.result() for result in waiting]
