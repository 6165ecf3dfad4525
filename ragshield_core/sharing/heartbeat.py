"""Signs of life of a writer that is about something that may take long."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

logger = logging.getLogger("ragshield")


class Heartbeat:
    """Beats as long as somebody holds what :meth:`during` was given, and not in a forked child.

    Every write is a sign of life in itself: a thread runs only while one may stay away.

    Parameters
    ----------
    beat
        Gives a sign of life.
    every
        Seconds between two of them.
    """

    def __init__(self, beat: Callable[[], object], every: float) -> None:
        self._beat, self._every = beat, every
        self._reasons: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def during(self, reason: object) -> None:
        """Beat until :meth:`over`, or until nobody holds the reason any more."""
        with self._lock:
            self._reasons.add(reason)
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                run = (weakref.ref(self), self._stop, self._every)
                self._thread = threading.Thread(
                    target=_run, args=run, name="ragshield-heartbeat", daemon=True
                )
                self._thread.start()

    def over(self, reason: object) -> None:
        """Beat no longer for that reason."""
        with self._lock:
            self._reasons.discard(reason)
            if not self._reasons:
                self._stop.set()
                self._thread = None

    def _once(self) -> bool:
        """Beat, if there still is a reason; return whether there was."""
        with self._lock:
            if not self._reasons:
                self._thread = None
                return False
        try:
            self._beat()
        except Exception as error:  # noqa: BLE001 - the next beat may succeed; the write will tell
            logger.warning("no sign of life could be given: %s", type(error).__name__)
        return True


def _run(which: weakref.ref[Heartbeat], stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        heartbeat = which()
        if heartbeat is None or not heartbeat._once():  # noqa: SLF001 - of this very module
            return
        del heartbeat
