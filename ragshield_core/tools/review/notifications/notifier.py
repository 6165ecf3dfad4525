"""Tells people what needs them, once, and without keeping anybody waiting."""

from __future__ import annotations

import atexit
import datetime as dt
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ragshield_core.model.errors import QuarantineError, RAGShieldError, TamperedError
from ragshield_core.model.findings import Report, printable

if TYPE_CHECKING:
    from ragshield_core.calibration.questions import Question
    from ragshield_core.quarantine import Quarantine

logger = logging.getLogger("ragshield")  # ids and counts, never text

# As many poisoned passages as PoisonedRAG writes for one question.
GROUP = 5
# Notices that wait for their targets; more are dropped, counted, and said in the log.
WAITING = 1_000
# Ids of one notice.
SHOWN_IDS = 20
# Notices of this process that are not told again.
REMEMBERED = 10_000
# Seconds for which a process that ends waits for what is on its way.
LAST = 5.0


class Kind(StrEnum):
    """Kind of a notice."""

    GROUP_HELD = "group_held"  # a case has as many waiting entries as somebody wants to hear of
    QUEUE_LONG = "queue_long"  # more entries wait than somebody wants to
    SOURCE_ASKED = "source_asked"  # a new source or a mass attack: a person has to decide
    DETECTOR_FAILING = "detector_failing"
    CANARY_DRIFTED = "canary_drifted"
    LOG_BROKEN = "log_broken"  # the log of a quarantine, or its entries, were changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice to people.

    Attributes
    ----------
    id
        The same in every process that tells of the same, so that a receiver can drop doubles.
    kind
        What has happened.
    namespace, store
        Where; a store of ``None`` for none in particular.
    at
        When it was noticed, UTC.
    data
        JSON-ready: ids, counts, names of detectors.
    """

    id: str
    kind: Kind
    namespace: str
    store: str | None = None
    at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            "type": f"ragshield.{self.kind}",
            "timestamp": self.at.isoformat(),
            "data": {
                "id": self.id,
                "namespace": self.namespace,
                "store": self.store,
                **self.data,
            },
        }


Target = Callable[[Notice], object]


class Notifier:
    """Tells targets what has happened, from a thread of its own.

    Parameters
    ----------
    targets
        Each is called with a :class:`Notice`: a function of yours, or a
        :class:`~ragshield_core.tools.review.notifications.Webhook`. One that raises is named in the
        log, and keeps no other from hearing.
    group
        Waiting entries of a case from which on it is told of; 5 by default, as many texts as
        PoisonedRAG writes for one question. ``None`` tells of no groups.
    longest_queue
        Waiting entries above which the queue is told of, once until it was shorter again;
        ``None``, the default, for never.

    Examples
    --------
    >>> heard = []
    >>> notifier = Notifier([heard.append])
    >>> notifier.tell(Notice(id="1", kind=Kind.LOG_BROKEN, namespace="default"))
    >>> notifier.flush()
    True
    >>> [str(notice.kind) for notice in heard]
    ['log_broken']
    """

    def __init__(
        self,
        targets: Iterable[Target],
        *,
        group: int | None = GROUP,
        longest_queue: int | None = None,
    ) -> None:
        self.targets = tuple(targets)
        self.group, self.longest_queue = group, longest_queue
        self.n_dropped = self.n_failed = 0
        self._told: dict[str, None] = {}
        self._failing: frozenset[str] = frozenset()
        self._long = False
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Notice] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    def tell(self, notice: Notice) -> None:
        """Tell a notice, once in this process; returns at once."""
        with self._lock:
            if notice.id in self._told:
                return
            self._told[notice.id] = None
            while len(self._told) > REMEMBERED:
                del self._told[next(iter(self._told))]
            if self._thread is None or not self._thread.is_alive():  # a fork has none
                self._thread = threading.Thread(target=self._deliver, daemon=True)
                self._thread.start()
                atexit.unregister(self.flush)
                atexit.register(self.flush)
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self.n_dropped += 1
            logger.error(  # noqa: TRY400 - nothing went wrong but the number of them
                "notice %s is dropped: %d wait for their targets", notice.id, WAITING
            )

    def flush(self, seconds: float = LAST) -> bool:
        """Wait until targets have heard everything, or some seconds; return whether they have."""
        end = time.monotonic() + seconds
        while self._waiting.unfinished_tasks:
            if time.monotonic() > end:
                logger.error("%d notices were not delivered", self._waiting.unfinished_tasks)
                return False
            time.sleep(0.01)
        return True

    # What is noticed

    def screened(self, report: Report, quarantine: Quarantine) -> None:
        """Look at what a guard has decided; what cannot be asked is told the next time.

        Parameters
        ----------
        report
            Of entries that are held by now.
        quarantine
            Where.
        """
        self._notice_failures(report, quarantine)
        ids = [d.entry_id for d in (*report.quarantined, *report.retroactive)]
        try:
            if ids and self.group is not None:
                self._notice_groups(ids, self.group, quarantine)
            if self.longest_queue is not None and (ids or self._long):
                self._notice_queue(self.longest_queue, quarantine)
        except RAGShieldError as error:
            logger.warning("what waits cannot be told of: %s", type(error).__name__)

    def asked(self, questions: Iterable[Question], quarantine: Quarantine) -> None:
        """Tell of sources of which far more is held than accepted, each once.

        Parameters
        ----------
        questions
            As :meth:`ragshield_core.learning.sources.Sources.questions` returns them.
        quarantine
            Where their entries are held.
        """
        for question in questions:
            data = question.to_dict() | {"said": str(question)}
            name = None if question.source is None else printable(question.source, 200)
            key = f"source {name} {question.since.isoformat()}"
            self.tell(_notice(Kind.SOURCE_ASKED, quarantine, key, data | {"source": name}))

    def drifted(self, report: Any) -> None:
        """Tell that canaries drifted, for :meth:`ragshield_core.tools.canary.CanaryMonitor.watch`.

        Parameters
        ----------
        report
            A :class:`~ragshield_core.tools.canary.DriftReport`; nothing is told of one without
            drift.
        """
        if not report.flagged:
            return
        names = [printable(canary.name, 80) for canary in report.flagged[:SHOWN_IDS]]
        key = f"{report.suite}/{report.checked_at.isoformat()}"
        data = {"suite": printable(report.suite, 80), "canaries": names, "n": len(report.flagged)}
        self.tell(Notice(id=_id(key), kind=Kind.CANARY_DRIFTED, namespace="", data=data))

    def verify(
        self, quarantine: Quarantine, anchor: str | None = None, *, by: str | None = None
    ) -> bool:
        """Check log and entries, and tell if they are broken; return whether they are whole.

        Parameters
        ----------
        quarantine, anchor
            Of which, and up to where at the least.
        by
            Who does, such as the name of a job: the log, and the health page, say so then.
        """
        try:
            quarantine.log.verify(anchor, by=by)
        except QuarantineError as error:
            data = {"said": printable(str(error), 500)}  # it names rows, and quotes no text
            # What it says may change from night to night, as the log grows; where it is does not.
            key = error.where if isinstance(error, TamperedError) else str(error)
            self.tell(_notice(Kind.LOG_BROKEN, quarantine, key, data))
            return False
        return True

    # Inside

    def _notice_groups(self, ids: Sequence[str], group: int, quarantine: Quarantine) -> None:
        from ragshield_core.tools.review.cases import Cases  # noqa: PLC0415 - brings SQLAlchemy

        for case in Cases(quarantine).of(ids):
            if case.n_waiting >= group:
                members = Cases(quarantine).members(case.number, limit=SHOWN_IDS)
                data = {
                    "case": case.number,
                    "n_waiting": case.n_waiting,
                    "detectors": list(case.detectors),
                    "entry_ids": [printable(one.id, 200) for one in members],
                }
                self.tell(_notice(Kind.GROUP_HELD, quarantine, f"case {case.number}", data))

    def _notice_failures(self, report: Report, quarantine: Quarantine) -> None:
        failing = frozenset(item.detector for item in report.unjudged if item.failed)
        judged = {name for name, column in report.scores.items() if len(column)} - failing
        for name in sorted(failing - self._failing):
            key = f"{name} {time.time_ns()}"
            data = {"detector": name}
            self.tell(_notice(Kind.DETECTOR_FAILING, quarantine, key, data))
        self._failing = (self._failing - judged) | failing

    def _notice_queue(self, longest: int, quarantine: Quarantine) -> None:
        waiting = quarantine.count()
        if waiting > longest and not self._long:
            data = {"n_waiting": waiting}
            self.tell(_notice(Kind.QUEUE_LONG, quarantine, f"{time.time_ns()}", data))
        self._long = waiting > longest

    def _deliver(self) -> None:
        while True:
            notice = self._waiting.get()
            try:
                for target in self.targets:
                    try:
                        target(notice)
                    except Exception as error:  # noqa: BLE001 - of somebody else's code
                        self.n_failed += 1
                        logger.error(  # noqa: TRY400 - what it says may hold secrets
                            "notice %s (%s) did not reach %r: %s",
                            *(notice.id, notice.kind, target, type(error).__name__),
                        )
            finally:
                self._waiting.task_done()


def _notice(kind: Kind, quarantine: Quarantine, key: str, data: dict[str, Any]) -> Notice:
    place = f"{quarantine.namespace}/{quarantine.store}/{kind}/{key}"
    return Notice(
        id=_id(place),
        kind=kind,
        namespace=printable(quarantine.namespace, 200),
        store=None if quarantine.store is None else printable(quarantine.store, 200),
        data=data,
    )


def _id(key: str) -> str:
    return f"msg_{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
