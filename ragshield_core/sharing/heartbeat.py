"""Signs of life of a writer, given by a thread while its writes may be far apart."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

logger = logging.getLogger("ragshield")  # ids and counts, never text


class Heartbeat:
    """Beats while a reason given to :meth:`during` is alive; a forked child does not beat.

    Every write is a heartbeat in itself: a thread runs only while writes may be far apart.

    Parameters
    ----------
    beat
        Called at every heartbeat.
    every
        Seconds between two heartbeats.
    """

    def __init__(self, beat: Callable[[], object], every: float) -> None:
        self._beat, self._every = beat, every
        self._reasons: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def during(self, reason: object) -> None:
        """Beat until :meth:`over`, or until the reason is garbage-collected."""
        with self._lock:
            self._reasons.add(reason)
            if self._thread is None or not self._thread.is_alive():
                run = (weakref.ref(self), self._every)
                self._thread = threading.Thread(
                    target=_run, args=run, name="ragshield-heartbeat", daemon=True
                )
                self._thread.start()

    def over(self, reason: object) -> None:
        """Stop beating for that reason.

        The thread ends when it would beat next and there is no reason: each write has two reasons,
        and a thread for each would cost more than the rest of a short write.
        """
        with self._lock:
            self._reasons.discard(reason)

    def _once(self) -> bool:
        """Beat if there still is a reason; return whether there was."""
        with self._lock:
            if not self._reasons:
                self._thread = None
                return False
        try:
            self._beat()
        except Exception as error:  # noqa: BLE001 - the next beat may succeed; else the write fails
            logger.warning("no sign of life could be given: %s", type(error).__name__)
        return True


def _run(reference: weakref.ref[Heartbeat], every: float) -> None:
    while True:
        time.sleep(every)
        heartbeat = reference()
        if heartbeat is None or not heartbeat._once():  # noqa: SLF001 - in this module
            return
        del heartbeat
