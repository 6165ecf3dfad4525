"""Calls with a time limit."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
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
        return self.call_each({name: work}, seconds)[name].result()

    def call_each(
        self, calls: Mapping[str, Callable[[], T]], seconds: float | None
    ) -> dict[str, Future[T]]:
        """Make calls one after the other, each with the time limit; return their ended answers.

        One thread makes them all, since a change of threads takes as long as a quick call. After a
        late call, another thread makes the rest. Parameters as in :meth:`call`, by name.
        """
        answers = dict[str, Future[T]]()
        waiting = dict(calls)
        while waiting:
            for name in tuple(waiting):
                try:
                    self._check(name)
                except OutOfTimeError as error:
                    answers[name] = _failed(error)
                    del waiting[name]
            if waiting:
                answers |= _here(waiting) if seconds is None else self._in_thread(waiting, seconds)
            waiting = {name: work for name, work in waiting.items() if name not in answers}
        return answers

    def _check(self, name: str) -> None:
        if self.late(name) >= MOST_LATE:
            msg = f"it has not ended {MOST_LATE} earlier calls yet, which took too long"
            raise OutOfTimeError(msg)

    def _in_thread(
        self, calls: Mapping[str, Callable[[], T]], seconds: float
    ) -> dict[str, Future[T]]:
        """Make calls until one is late, and return the answers of those that were made."""
        worker = self._idle.pop() if self._idle else _Worker()
        if not worker.thread.is_alive():  # a forked process lacks the threads of its parent
            worker = _Worker()
        began: dict[str, float] = {}
        waiting = {name: worker.ask(partial(_noted, began, name, calls[name])) for name in calls}
        ended: dict[str, Future[T]] = {}
        try:
            _wait_for([*waiting.values()][-1], seconds)  # mostly all end in the time of one
            while waiting:
                name, answer = next(iter(waiting.items()))
                if not answer.done():
                    now = time.monotonic()
                    _wait_for(answer, began.get(name, now) + seconds - now)
                if answer.done():
                    ended[name] = waiting.pop(name)
                elif self._withdraw(waiting):
                    self._note_late(name, answer)
                    ended[name] = _failed(OutOfTimeError(f"it took longer than {seconds:g} s"))
                    return ended
        except BaseException:  # the wait was interrupted
            self._withdraw(waiting)
            for name, answer in waiting.items():
                self._note_late(name, answer)
            raise
        self._idle.append(worker)
        return ended

    @staticmethod
    def _withdraw(waiting: dict[str, Future[T]]) -> bool:
        """Take back all calls but the first; return False if the first has ended meanwhile."""
        for name, answer in [*waiting.items()][1:]:
            if answer.cancel():
                del waiting[name]
        return len(waiting) == 1

    def _note_late(self, name: str, answer: Future[Any]) -> None:
        self._late.setdefault(name, []).append(answer)
        self.times_late += 1


def _here(calls: Mapping[str, Callable[[], T]]) -> dict[str, Future[T]]:
    """Return the answers of calls in this thread."""
    answers = {name: Future[T]() for name in calls}
    for name, work in calls.items():
        try:
            answers[name].set_result(work())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            answers[name].set_exception(error)
    return answers


def _noted(began: dict[str, float], name: str, work: Callable[[], T]) -> T:
    began[name] = time.monotonic()
    return work()


def _failed(error: Exception) -> Future[Any]:
    answer = Future[Any]()
    answer.set_exception(error)
    return answer


def _wait_for(answer: Future[Any], seconds: float) -> None:
    with suppress(TimeoutError):  # of the wait: an error of the work is its answer
        answer.exception(timeout=max(0.0, seconds))


class _Worker:
    """A thread that makes calls; it ends after its last call once this object is collected."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread = threading.Thread(
            target=_work, args=(self.calls,), name="ragshield-detectors", daemon=True
        )
        self.thread.start()
        weakref.finalize(self, self.calls.put, None).atexit = False

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Make a call after the earlier ones; return its answer, which can be cancelled."""
        answer = Future[T]()
        self.calls.put((partial(copy_context().run, work), answer))
        return answer


def _work(calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        work, answer = call
        if answer.set_running_or_notify_cancel():  # else it was taken back
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                answer.set_exception(error)
        del call, work, answer  # keeps no object alive while waiting
