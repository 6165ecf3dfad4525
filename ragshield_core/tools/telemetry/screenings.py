"""Spans, metrics and gauges through OpenTelemetry's API, if that package is installed.

They hold ids of entries, hashes and scores, never texts or metadata. Without an SDK, OpenTelemetry
discards them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ragshield_core.hooks import Stage, hookimpl
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import Decision, Report, printable

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Observation
    from opentelemetry.metrics import Counter as OfCounts
    from opentelemetry.trace import Span, Tracer

    from ragshield_core.guard import Guard
    from ragshield_core.learning.status import GuardStatus

logger = logging.getLogger("ragshield")  # names of errors, never their messages

NAME = "ragshield"
# Findings of one batch that become events; the counters include the others.
EVENTS = 128
# Characters of an id.
SHOWN_ID = 200
# Bounds of the histogram: a retrieved set takes milliseconds, a batch of documents seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Seconds for which gauges repeat a guard's status: several readers ask at once.
FRESH = 15.0


class _Instruments(NamedTuple):
    """The tracer, counters and histogram of the process."""

    tracer: Tracer
    entries: OfCounts
    findings: OfCounts
    seconds: Histogram


@cache
def _instruments() -> _Instruments | None:
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - of an extra
    except ImportError:
        return None
    own = version("ragshield")
    meter = metrics.get_meter(NAME, own)
    return _Instruments(
        tracer=trace.get_tracer(NAME, own),
        entries=meter.create_counter(
            "ragshield.entries", unit="{entry}", description="Entries by stage and verdict."
        ),
        findings=meter.create_counter(
            "ragshield.findings", unit="{finding}", description="Findings by stage and detector."
        ),
        seconds=meter.create_histogram(
            "ragshield.screening.duration",
            unit="s",
            description="Of one batch, by stage.",
            explicit_bucket_boundaries_advisory=SECONDS,
        ),
    )


@hookimpl
def screening(
    stage: Stage, n_entries: int, data_source: str | None
) -> AbstractContextManager[Screening] | None:
    """Return a context that spans a screening; ``None`` without OpenTelemetry.

    Parameters
    ----------
    stage
        ``"ingestion"`` or ``"retrieval"``; the latter also gets the attribute of a retrieval in
        OpenTelemetry's conventions for generative AI.
    n_entries
        Number of entries to judge.
    data_source
        Name of the store, if known.
    """
    instruments = _instruments()
    if instruments is None:
        return None
    attributes: dict[str, Any] = {"ragshield.stage": stage, "ragshield.entries": n_entries}
    if stage == "retrieval":
        attributes["gen_ai.operation.name"] = "retrieval"
    if data_source:
        attributes["gen_ai.data_source.id"] = printable(data_source, SHOWN_ID)
    return _spanned(instruments, stage, attributes)


@contextmanager
def _spanned(
    instruments: _Instruments, stage: Stage, attributes: dict[str, Any]
) -> Iterator[Screening]:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - of an extra

    start = time.perf_counter()
    try:
        with instruments.tracer.start_as_current_span(
            f"ragshield {stage}",
            attributes=attributes,
            # Both would record the message, and databases' messages quote the query.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield Screening(stage, instruments, span)
            except Exception:
                span.set_status(StatusCode.ERROR)
                raise
    finally:
        instruments.seconds.record(time.perf_counter() - start, {"ragshield.stage": stage})


class Screening(NamedTuple):
    """One screening, with the instruments and the span that record it."""

    stage: Stage
    instruments: _Instruments
    span: Span

    def found(self, report: Report) -> None:
        """Record the result of the screening."""
        decisions = [*report.remarkable.values(), *report.retroactive]
        counts = Counter(finding.detector for d in decisions for finding in d.findings)
        for detector, count in counts.items():
            self.instruments.findings.add(
                count, {"ragshield.stage": self.stage, "ragshield.detector": detector}
            )
        if not self.span.is_recording():
            return
        self.span.set_attribute("ragshield.quarantined", len(report.quarantined))
        self.span.set_attribute("ragshield.flagged", len(report.flagged))
        self.span.set_attribute("ragshield.recalled", len(report.retroactive))
        for attributes in islice(_events(decisions, report), EVENTS):
            self.span.add_event("ragshield.finding", attributes)


def _events(decisions: Iterable[Decision], report: Report) -> Iterator[dict[str, Any]]:
    """Yield the attributes of each finding, without evidence, which may quote the text."""
    rows = {report.batch.ids[row]: row for row in report.remarkable}
    for decision in decisions:
        row = rows.get(decision.entry_id)
        for finding in decision.findings:
            attributes: dict[str, Any] = {
                "ragshield.entry.id": printable(decision.entry_id, SHOWN_ID),
                "ragshield.verdict": str(decision.verdict),
                "ragshield.detector": finding.detector,
                "ragshield.score": float(finding.score),
                "ragshield.threshold": float(finding.threshold),
                "ragshield.taxonomy": list(finding.taxonomy),
            }
            if row is not None:
                attributes["ragshield.entry.fingerprint"] = report.batch[row].fingerprint
            if finding.p_value is not None:
                attributes["ragshield.p_value"] = float(finding.p_value)
            yield attributes


@hookimpl
def decided(stage: Stage, report: Report) -> None:
    """Count entries by verdict, in a report that includes people's earlier decisions."""
    instruments = _instruments()
    if instruments is None:
        return
    held, flagged = len(report.quarantined), len(report.flagged)
    counts = {
        "admit": len(report.batch) - held - flagged,
        "flag": flagged,
        "quarantine": held,
        "recall": len(report.retroactive),
    }
    for verdict, count in counts.items():
        if count:
            instruments.entries.add(count, {"ragshield.stage": stage, "ragshield.verdict": verdict})


# Unit, description and value of each gauge.
GAUGES: dict[str, tuple[str, str, Callable[[GuardStatus], float | None]]] = {
    "ragshield.quarantine.waiting": (
        "{entry}",
        "Entries that wait for a reviewer.",
        lambda status: None if status.unreachable else status.held,
    ),
    "ragshield.known": ("{entry}", "Entries that the guard knows.", lambda status: status.n_known),
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
    """Gauges of a guard's status for OpenTelemetry's readers.

    A reader never waits, since the guard may be busy with a batch: it gets the last known status,
    and a thread asks the guard for a new one, at most every fifteen seconds.

    Parameters
    ----------
    guard
        The guard to observe.
    store
        Name of its store, an attribute of each figure; ``None`` for none.

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
            "ragshield.namespace": printable(guard.quarantine.namespace, SHOWN_ID)
        }
        if store is not None:
            self._attributes["ragshield.store"] = printable(store, SHOWN_ID)
        self._lock = threading.Lock()
        self._known: GuardStatus | None = None
        self._asked = -FRESH
        meter = metrics.get_meter(NAME)
        for name, (unit, told, of) in GAUGES.items():
            meter.create_observable_gauge(name, [self._observing(of)], unit, told)
        self.refresh()

    def refresh(self) -> None:
        """Ask the guard for its status now."""
        try:
            self._known = self._guard.status()
        except RAGShieldError as error:
            logger.warning("a guard cannot be asked how it stands: %s", type(error).__name__)
        self._asked = time.monotonic()

    def _observing(
        self, of: Callable[[GuardStatus], float | None]
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
