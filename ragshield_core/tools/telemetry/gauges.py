"""Gauges of a guard: what waits in its queue, how far this process is behind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ragshield_core.learning.status import Status
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import printable

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from ragshield_core.guard import Guard

logger = logging.getLogger("ragshield")

# Seconds for which what was asked of a guard is told again: several readers ask at once.
FRESH = 15.0

GAUGES: dict[str, tuple[str, str, Callable[[Status], float | None]]] = {
    "ragshield.quarantine.waiting": (
        "{entry}",
        "Entries that wait for a reviewer.",
        lambda status: None if status.unreachable else status.held,
    ),
    "ragshield.known": (
        "{entry}",
        "Entries that the guard knows.",
        lambda status: status.n_known,
    ),
    "ragshield.journal.behind": (
        "{event}",
        "Events of other processes that this one has not read.",
        lambda status: None if status.unreachable else status.behind,
    ),
    "ragshield.detectors.failing": (
        "{detector}",
        "Detectors that failed when they were asked last.",
        lambda status: len(status.failing),
    ),
    "ragshield.unscreened": (
        "{entry}",
        "Entries that were let in although a detector failed on them.",
        lambda status: status.unscreened,
    ),
    "ragshield.reachable": (
        "1",
        "1 where the database answers, 0 where nothing is written.",
        lambda status: 0 if status.unreachable else 1,
    ),
}


class Gauges:
    """Tells OpenTelemetry how a guard stands, whenever its readers ask.

    A reader never waits: it hears what was known last, and the guard is asked by a thread for the
    next one, at most every fifteen seconds. A guard may be busy with a batch for as long.

    Parameters
    ----------
    guard
        Which.
    store
        Name of its store, told with each figure; ``None`` for none.

    Raises
    ------
    ImportError
        If opentelemetry-api is not installed: ``pip install 'ragshield[otel]'``.
    """

    def __init__(self, guard: Guard, *, store: str | None = None) -> None:
        try:
            from opentelemetry import metrics  # noqa: PLC0415 - of an extra
        except ImportError as error:
            msg = "gauges need opentelemetry-api; pip install 'ragshield[otel]'."
            raise ImportError(msg) from error
        self._guard = guard
        self._attributes: dict[str, Any] = {
            "ragshield.namespace": printable(guard.quarantine.namespace, 200)
        }
        if store is not None:
            self._attributes["ragshield.store"] = printable(store, 200)
        self._lock = threading.Lock()
        self._known: Status | None = None
        self._asked = -FRESH
        meter = metrics.get_meter("ragshield")
        for name, (unit, told, of) in GAUGES.items():
            meter.create_observable_gauge(name, [self._observing(of)], unit, told)
        self.refresh()

    def refresh(self) -> None:
        """Ask the guard now."""
        try:
            self._known = self._guard.status()
        except RAGShieldError as error:
            logger.warning("a guard cannot be asked how it stands: %s", type(error).__name__)
        self._asked = time.monotonic()

    def _observing(
        self, of: Callable[[Status], float | None]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                if time.monotonic() - self._asked > FRESH:
                    self._asked = time.monotonic()
                    threading.Thread(target=self.refresh, daemon=True).start()
            value = None if self._known is None else of(self._known)
            return [] if value is None else [Observation(value, self._attributes)]

        return observe
