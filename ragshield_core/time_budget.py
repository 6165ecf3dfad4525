"""Calls with a time limit."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

# Late calls that one name may have at once. A few slow entries must not stop the judgement of
# others, and a detector that always hangs costs no more threads and waits than this.
MOST_LATE = 4


class OutOfTimeError(Exception):
    """A call exceeded its time limit."""


class TimeBudget:
    """Makes calls in threads, and stops waiting for calls that take too long.

    Nothing can stop a thread of Python. A late thread works on until its call ends, and uses
    objects that must not change meanwhile: the caller goes on with copies. It does not keep the
    process from ending. While :data:`MOST_LATE` late calls in one name have not ended, no further
    call is made in that name. A call in C that holds the interpreter lock has no time limit.

    Examples
    --------
    >>> from threading import Event
    >>> budget, never = TimeBudget(), Event()
    >>> budget.call("quick", 60.0, lambda: 42)
    42
    >>> budget.call("slow", 0.01, never.wait)
    Traceback (most recent call last):
    ...
    ragshield_core.time_budget.OutOfTimeError: it took longer than 0.01 s
    >>> budget.late("slow")
    1
    >>> never.set()
    """

    def __init__(self) -> None:
        # Reused by later calls: libraries initialise every thread that uses them.
        self._idle: list[_Worker] = []
        self._late: dict[str, list[Future[Any]]] = {}
        self.times_late = 0  # number of late calls so far

    def __reduce__(self) -> tuple[type[TimeBudget], tuple[()]]:
        """Pickle and copy without the threads."""
        return type(self), ()

    def late(self, name: str) -> int:
        """Return how many late calls in that name have not ended."""
        left = [answer for answer in self._late.pop(name, ()) if not answer.done()]
        if left:
            self._late[name] = left
        return len(left)

    def call(self, name: str, seconds: float | None, work: Callable[[], T]) -> T:
        """Return the result of ``work``, or raise its exception.

        Parameters
        ----------
        name
            Name under which late calls are counted, such as a detector's.
        seconds
            Time limit; ``None`` for no limit, in the caller's own thread.
        work
            The call.

        Raises
        ------
        OutOfTimeError
            If it takes longer, or too many earlier calls in that name have not ended.
        """
        if self.late(name) >= MOST_LATE:
            msg = f"it has not ended {MOST_LATE} earlier calls yet, which took too long"
            raise OutOfTimeError(msg)
        if seconds is None:
            return work()
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker()
        if not worker.thread.is_alive():  # a forked process lacks the threads of its parent
            worker = _Worker()
        answer, context = Future[T](), copy_context()
        worker.calls.put((lambda: context.run(work), answer))
        ended = False
        try:
            with suppress(TimeoutError):  # of the wait: an error of the work is its answer
                answer.exception(timeout=seconds)
            ended = answer.done()
        finally:  # the wait may be interrupted
            if not ended:
                self._late.setdefault(name, []).append(answer)
                self.times_late += 1
        if not ended:
            msg = f"it took longer than {seconds:g} s"
            raise OutOfTimeError(msg)
        self._idle.append(worker)
        return answer.result()


class _Worker:
    """A thread that makes calls; it ends after its last call once this object is collected."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread = threading.Thread(
            target=_work, args=(self.calls,), name="ragshield-detectors", daemon=True
        )
        self.thread.start()
        weakref.finalize(self, self.calls.put, None).atexit = False


def _work(calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        work, answer = call
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            answer.set_exception(error)
        del call, work, answer  # keeps no object alive while waiting
