"""Checks behind the writes of a guarded store, in a thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ragshield_core.model.entries import Batch
from ragshield_core.tools.alerts import Checked

logger = logging.getLogger("ragshield")  # names of errors, never their messages

# Entries that wait at most: a slow model must not fill the memory. Others are reported unchecked.
MOST_WAITING = 10_000


class Watcher:
    """Checks batches one after the other in a thread that ends when none is left.

    Nothing that happens here reaches the writer. The thread is a daemon: when the process ends,
    batches that wait are lost, so call :meth:`wait` before.
    """

    def __init__(
        self, check: Callable[[Batch], Checked], on_checked: Callable[[Checked], object]
    ) -> None:
        self._check, self._on_checked = check, on_checked
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._n_waiting = 0
        self._working = False

    def put(self, batch: Batch) -> None:
        """Have a batch checked later."""
        with self._changed:
            if full := self._n_waiting + len(batch) > MOST_WAITING:
                logger.error("contradictions: %d entries are not compared", len(batch))
            else:
                self._waiting.append(batch)
                self._n_waiting += len(batch)
                if not self._working:
                    self._working = True
                    threading.Thread(
                        target=self._work, name="ragshield-contradictions", daemon=True
                    ).start()
        if full:
            self._tell(_unchecked(batch, "too many entries wait for the model"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no batch is left, at most ``timeout`` seconds; return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._working, timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._working = False
                    self._changed.notify_all()
                    return
                batch = self._waiting.popleft()
            try:
                outcome = self._check(batch)
            except Exception as error:  # noqa: BLE001 - the entries are written already
                outcome = _unchecked(batch, f"the check failed: {type(error).__name__}")
            self._tell(outcome)
            with self._changed:
                self._n_waiting -= len(batch)

    def _tell(self, outcome: Checked) -> None:
        if not (outcome.alerts or outcome.over_budget or outcome.unchecked):
            return
        try:
            self._on_checked(outcome)
        except Exception as error:  # noqa: BLE001 - of the application
            kind = type(error).__name__
            logger.error("a callback of contradictions failed: %s", kind)  # noqa: TRY400


def _unchecked(batch: Batch, why: str) -> Checked:
    return Checked(n_entries=len(batch), unchecked=dict.fromkeys(batch.ids, why))
