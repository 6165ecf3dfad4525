"""Calls that are not waited for longer than they may take."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

# So many calls in one name may be left behind at once: a few entries that take too long are no
# reason to judge no others, and what always hangs costs no more threads and waits than that.
MOST_LATE = 4


class OutOfTimeError(Exception):
    """A call took longer than it may."""


class TimeBudget:
    """Makes calls in threads, and leaves a thread behind where its call takes too long.

    Nothing can stop a thread of Python. One that was left behind works on until its call ends, on
    objects that nobody may change meanwhile: who left it goes on with others. It does not keep the
    process from ending. While :data:`MOST_LATE` calls in one name have not ended, none is made in
    that name. A call that never lets go of the interpreter, in C say, cannot be left.

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
        # Kept for the next call: libraries prepare each thread that they are used in.
        self._idle: list[_Worker] = []
        self._late: dict[str, list[Future[Any]]] = {}
        self.times_late = 0  # calls that were left behind so far

    def __reduce__(self) -> tuple[type[TimeBudget], tuple[()]]:
        """Cross a process boundary, or be copied, without the threads."""
        return type(self), ()

    def late(self, name: str) -> int:
        """Return how many calls in that name were left behind, and have not ended."""
        left = [answer for answer in self._late.pop(name, ()) if not answer.done()]
        if left:
            self._late[name] = left
        return len(left)

    def call(self, name: str, seconds: float | None, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises.

        Parameters
        ----------
        name
            In whose name.
        seconds
            Which it may take; ``None`` for any, in the caller's own thread.
        work
            The call.

        Raises
        ------
        OutOfTimeError
            If it takes longer, or too many earlier ones in that name have not ended.
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
        if not worker.thread.is_alive():  # a forked process has none of its parent's
            worker = _Worker()
        answer, context = Future[T](), copy_context()
        worker.calls.put((lambda: context.run(work), answer))
        ended = False
        try:
            ended = bool(wait([answer], timeout=seconds).done)
        finally:  # who waits may be interrupted
            if not ended:
                self._late.setdefault(name, []).append(answer)
                self.times_late += 1
        if not ended:
            msg = f"it took longer than {seconds:g} s"
            raise OutOfTimeError(msg)
        self._idle.append(worker)
        return answer.result()


class _Worker:
    """A thread that makes calls as long as somebody holds this, and ends the last one."""

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
        except BaseException as error:  # noqa: BLE001 - handed to who asked
            answer.set_exception(error)
        del call, work, answer  # nothing stays alive while it waits
