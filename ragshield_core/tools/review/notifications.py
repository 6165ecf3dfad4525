"""Notices when something needs a person: to a function, a signed webhook, or a chat."""

from __future__ import annotations

import atexit
import base64
import binascii
import datetime as dt
import hashlib
import hmac
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ragshield_core.model.errors import (
    ConfigurationError,
    QuarantineError,
    RAGShieldError,
    TamperedError,
)
from ragshield_core.model.findings import Report, printable

if TYPE_CHECKING:
    from ragshield_core.calibration.arrivals import Question
    from ragshield_core.quarantine import Quarantine

logger = logging.getLogger("ragshield")  # ids and counts, never text

# PoisonedRAG writes as many passages for one question.
GROUP = 5
# Notices that wait for delivery; further ones are dropped, counted and logged.
WAITING = 1_000
# Ids of one notice.
SHOWN_IDS = 20
# Delivered notices that this process remembers, so that it does not repeat them.
REMEMBERED = 10_000
# Seconds that an exiting process waits for undelivered notices.
LAST = 5.0
# Characters of a message, and ids in it. Slack takes 3,000, and escapes one as up to five.
LONGEST, NAMED = 450, 5
# Seconds of one try, and the number of tries: about two minutes with the pauses between.
TIMEOUT, TRIES = 10.0, 6
LONGEST_PAUSE = 60.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECRET_VARIABLE = "RAGSHIELD_WEBHOOK_SECRET"  # noqa: S105 - its name
PREFIX = "whsec_"
# Bytes of a secret, as the standard has them.
SHORTEST_SECRET, LONGEST_SECRET = 24, 64


class Kind(StrEnum):
    """Kind of a notice."""

    GROUP_HELD = "group_held"  # a case has at least `group` waiting entries
    QUEUE_LONG = "queue_long"  # more than `longest_queue` entries wait
    SOURCE_ASKED = "source_asked"  # a new source or a mass attack: a person has to decide
    DETECTOR_FAILING = "detector_failing"
    CANARY_DRIFTED = "canary_drifted"
    LOG_BROKEN = "log_broken"  # somebody changed the log of a quarantine, or its entries


# Titles of messages to people.
TITLES = {
    Kind.GROUP_HELD: "RAGShield holds entries that belong together",
    Kind.QUEUE_LONG: "The quarantine of RAGShield has become long",
    Kind.SOURCE_ASKED: "RAGShield asks about a source",
    Kind.DETECTOR_FAILING: "A detector of RAGShield fails",
    Kind.CANARY_DRIFTED: "Watched questions get other results than before",
    Kind.LOG_BROKEN: "The log of RAGShield was changed",
}
OPEN = "Open the review page"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice to people.

    Attributes
    ----------
    id
        The same from every process for the same event, so that a receiver can drop duplicates.
    kind
        The kind of event.
    said
        The event in a sentence.
    namespace, store
        Of the quarantine; ``None`` for no particular store.
    at
        Time of the notice, UTC.
    data
        JSON-ready: ids, counts, names of detectors.
    page
        Part of the review page where a person can act on it.
    """

    id: str
    kind: Kind
    said: str
    namespace: str = ""
    store: str | None = None
    at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    data: Mapping[str, Any] = field(default_factory=dict)
    page: str = "health"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        own = {"id": self.id, "namespace": self.namespace, "store": self.store, "said": self.said}
        return {
            "type": f"ragshield.{self.kind}",
            "timestamp": self.at.isoformat(),
            "data": {**own, **self.data},
        }


Target = Callable[[Notice], object]


class Notifier:
    """Sends notices to targets, from a thread of its own.

    Parameters
    ----------
    targets
        Each is called with a :class:`Notice`: a function of yours, or a
        :class:`~ragshield_core.tools.review.notifications.Webhook`. If one raises, the log names it
        and the other targets still get the notice.
    group
        Waiting entries from which a case gets a notice; 5 by default, as many texts as PoisonedRAG
        writes for one question. ``None`` sends no notices about cases.
    longest_queue
        Waiting entries above which the queue gets a notice, repeated only after the queue was
        shorter; ``None``, the default, for never.

    Examples
    --------
    >>> heard = []
    >>> notifier = Notifier([heard.append])
    >>> notifier.tell(Notice(id="1", kind=Kind.LOG_BROKEN, said="line 7 is missing"))
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
        """Queue a notice for delivery, once per process, and return at once."""
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
            logger.error(  # noqa: TRY400 - the traceback of a full queue says nothing
                "notice %s is dropped: %d wait for their targets", notice.id, WAITING
            )

    def flush(self, seconds: float = LAST) -> bool:
        """Wait up to some seconds for the delivery of all notices; return whether it is done."""
        end = time.monotonic() + seconds
        while self._waiting.unfinished_tasks:
            if time.monotonic() > end:
                logger.error("%d notices were not delivered", self._waiting.unfinished_tasks)
                return False
            time.sleep(0.01)
        return True

    # Events

    def screened(self, report: Report, quarantine: Quarantine) -> None:
        """Send notices about a guard's decisions; a failed query is repeated the next time.

        Parameters
        ----------
        report
            Of a screening whose suspicious entries are held by now.
        quarantine
            Of these entries.
        """
        self._notice_failures(report, quarantine)
        ids = [d.entry_id for d in (*report.quarantined, *report.retroactive)]
        try:
            if ids and self.group is not None:
                self._notice_groups(ids, self.group, quarantine)
            if self.longest_queue is not None and (ids or self._long):
                self._notice_queue(self.longest_queue, quarantine)
        except RAGShieldError as error:
            logger.warning("no notice of waiting entries could be sent: %s", type(error).__name__)

    def asked(self, questions: Iterable[Question], quarantine: Quarantine) -> None:
        """Send one notice for each source with far more held entries than the accepted rate.

        Parameters
        ----------
        questions
            As :meth:`ragshield_core.learning.calibration.Sources.questions` returns them.
        quarantine
            Of the sources' held entries.
        """
        for question in questions:
            name = None if question.source is None else printable(question.source, 200)
            key, data = f"source {name} {question.since.isoformat()}", question.to_dict()
            told = data | {"source": name}
            self._notice(Kind.SOURCE_ASKED, quarantine, key, str(question), told, page="")

    def drifted(self, report: Any) -> None:
        """Send a notice of drift, for :meth:`ragshield_core.tools.canary.CanaryMonitor.watch`.

        Parameters
        ----------
        report
            A :class:`~ragshield_core.tools.canary.DriftReport`; without drift nothing is sent.
        """
        if not report.flagged:
            return
        names = [printable(canary.name, 80) for canary in report.flagged[:SHOWN_IDS]]
        suite, n = printable(report.suite, 80), len(report.flagged)
        key = f"{report.suite}/{report.checked_at.isoformat()}"
        data = {"suite": suite, "canaries": names, "n": n}
        said = f"{n} of the suite {suite}: {_some(names)}."
        self._notice(Kind.CANARY_DRIFTED, None, key, said, data)

    def verify(
        self, quarantine: Quarantine, anchor: str | None = None, *, by: str | None = None
    ) -> bool:
        """Check log and entries and send a notice of changes; return whether they are unchanged.

        Parameters
        ----------
        quarantine, anchor
            The quarantine, and an earlier head that its log has to contain.
        by
            Name of the person or job that checks, for the log and the health page.
        """
        try:
            quarantine.log.verify(anchor, by=by)
        except QuarantineError as error:
            # The message may change from night to night, as the log grows; the place does not.
            key = error.where if isinstance(error, TamperedError) else str(error)
            self._notice(Kind.LOG_BROKEN, quarantine, key, str(error), {})
            return False
        return True

    # Inside

    def _notice_groups(self, ids: Sequence[str], group: int, quarantine: Quarantine) -> None:
        from ragshield_core.tools.review.cases import Cases  # noqa: PLC0415 - brings SQLAlchemy

        for case in Cases(quarantine).of(ids):
            if case.n_waiting < group:
                continue
            members = Cases(quarantine).members(case.number, limit=SHOWN_IDS)
            names = [printable(one.id, 200) for one in members]
            data = {
                "case": case.number,
                "n_waiting": case.n_waiting,
                "detectors": list(case.detectors),
                "entry_ids": names,
            }
            said = (
                f"{case.n_waiting} entries wait for one decision, case {case.number}, found by "
                f"{', '.join(case.detectors) or 'a person'}: {_some(names)}."
            )
            key, page = f"case {case.number}", f"cases/{case.number}"
            self._notice(Kind.GROUP_HELD, quarantine, key, said, data, page=page)

    def _notice_failures(self, report: Report, quarantine: Quarantine) -> None:
        failing = frozenset(item.detector for item in report.unjudged if item.failed)
        judged = {name for name, column in report.scores.items() if len(column)} - failing
        for name in sorted(failing - self._failing):
            said, data = f"{name} fails; entries that it cannot judge are held.", {"detector": name}
            key = f"{name} {time.time_ns()}"
            self._notice(Kind.DETECTOR_FAILING, quarantine, key, said, data)
        self._failing = (self._failing - judged) | failing

    def _notice_queue(self, longest: int, quarantine: Quarantine) -> None:
        n = quarantine.count()
        if n > longest and not self._long:
            said, key = f"{n} entries wait for a decision.", f"{time.time_ns()}"
            self._notice(Kind.QUEUE_LONG, quarantine, key, said, {"n_waiting": n}, page="")
        self._long = n > longest

    def _notice(
        self,
        kind: Kind,
        quarantine: Quarantine | None,
        key: str,
        said: str,
        data: Mapping[str, Any],
        *,
        page: str = "health",
    ) -> None:
        """Send a notice, once for the same key and quarantine."""
        namespace, store = "", None
        if quarantine is not None:
            namespace, store = quarantine.namespace, quarantine.store
        whole = f"{namespace}/{store}/{kind}/{key}".encode("utf-8", "surrogatepass")
        self.tell(
            Notice(
                id=f"msg_{hashlib.sha256(whole).hexdigest()[:32]}",
                kind=kind,
                said=printable(said, LONGEST)[:LONGEST],
                namespace=printable(namespace, 200),
                store=None if store is None else printable(store, 200),
                data=data,
                page=page,
            )
        )

    def _deliver(self) -> None:
        while True:
            notice = self._waiting.get()
            try:
                for target in self.targets:
                    try:
                        target(notice)
                    except Exception as error:  # noqa: BLE001 - the target is foreign code
                        self.n_failed += 1
                        logger.error(  # noqa: TRY400 - its message may hold secrets
                            "notice %s (%s) did not reach %r: %s",
                            *(notice.id, notice.kind, target, type(error).__name__),
                        )
            finally:
                self._waiting.task_done()


def _some(names: Sequence[str]) -> str:
    left = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {left} more" if left > 0 else "")


class Webhook:
    """Sends notices to an address, with up to six tries until it answers with a 2xx.

    It follows no redirects: the signature, or a secret in the address, is for the named host
    only.

    Parameters
    ----------
    url
        ``https``, or ``http`` on this machine.
    secret
        For the form "signed": the receiver's key to check the sender, ``whsec_`` and 24 to 64
        random bytes in base 64.
    form
        ``"signed"``, the default, for programs: Standard Webhooks. ``"slack"`` and ``"teams"`` for
        messages to people, by an incoming webhook of that chat, whose address is a secret.
    review_url
        Address of ``ragshield review``, such as ``https://review.example``, for a link to the page
        where a person decides. ``None``, the default, for no link.

    Raises
    ------
    ConfigurationError
        If the address is no ``https`` one, the secret is malformed, or ``review_url`` is no
        address.
    ImportError
        If httpx or tenacity is not installed: ``pip install 'ragshield[webhooks]'``.
    """

    def __init__(
        self,
        url: str,
        secret: str | None = None,
        *,
        form: Literal["signed", "slack", "teams"] = "signed",
        review_url: str | None = None,
    ) -> None:
        try:
            import httpx  # noqa: PLC0415, F401 - of an extra
            import tenacity  # noqa: PLC0415, F401
        except ImportError as error:
            msg = f"a webhook needs {error.name}; pip install 'ragshield[webhooks]'."
            raise ImportError(msg) from error
        parts = urlsplit(url)
        if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in LOOPBACK):
            msg = "a webhook's address is no https one: what it says could be read on the way."
            raise ConfigurationError(msg)
        if review_url is not None and urlsplit(review_url).scheme not in ("http", "https"):
            msg = "review_url is no address, expected one such as https://review.example."
            raise ConfigurationError(msg)
        self._url, self._form, self._review_url = url, form, review_url
        self._key = _key_of(secret or "") if form == "signed" else b""
        self.host = parts.hostname or ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host!r})"  # the whole address may be a secret

    def __call__(self, notice: Notice) -> None:
        """Send a notice and return once the receiver has taken it.

        Raises
        ------
        httpx.HTTPError
            If all tries failed.
        """
        import httpx  # noqa: PLC0415
        from tenacity import (  # noqa: PLC0415
            Retrying,
            stop_after_attempt,
            wait_random_exponential,
        )

        told = notice.to_dict()
        if self._form != "signed":
            where = notice.namespace and f" In the namespace {printable(notice.namespace, 60)!r}."
            url = None if self._review_url is None else self._review_url.rstrip("/")
            message = {"slack": slack_message, "teams": teams_message}[self._form]
            told = message(TITLES[notice.kind], notice.said + where, url and f"{url}/{notice.page}")
        body = json.dumps(told).encode()
        with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
            for attempt in Retrying(
                stop=stop_after_attempt(TRIES),
                wait=wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE),
                reraise=True,
            ):
                with attempt:
                    headers = {"content-type": "application/json", "user-agent": "ragshield"}
                    if self._form == "signed":
                        headers |= self._signature(notice.id, int(time.time()), body)
                    answer = client.post(self._url, content=body, headers=headers)
                    if not answer.is_success:
                        msg = f"{self.host} answered {answer.status_code}"
                        raise httpx.HTTPStatusError(msg, request=answer.request, response=answer)

    def _signature(self, notice_id: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return headers for a body: the id, the time, and a signature over both and the body."""
        signed = f"{notice_id}.{seconds}.".encode() + body
        digest = base64.b64encode(hmac.new(self._key, signed, hashlib.sha256).digest()).decode()
        return {
            "webhook-id": notice_id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": f"v1,{digest}",
        }


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not SHORTEST_SECRET <= len(key) <= LONGEST_SECRET:
        msg = (
            f"the secret of a webhook is none, expected {PREFIX} and {SHORTEST_SECRET} to "
            f"{LONGEST_SECRET} random bytes in base 64: {PREFIX}$(openssl rand -base64 32); see "
            f"{SECRET_VARIABLE}."
        )
        raise ConfigurationError(msg)
    return key


def slack_message(title: str, text: str, url: str | None) -> dict[str, Any]:
    """Return text for notifications, and blocks; Slack formats no hostile text.

    >>> told = slack_message("A group", "5 entries of <!channel>", None)
    >>> told["blocks"][1]["text"]["text"]
    '5 entries of &lt;!channel&gt;'
    """
    # In escaped text, Slack finds no link, channel or person.
    title, text = escape(title, quote=False), escape(text, quote=False)
    blocks = [("mrkdwn", f"*{title}*"), ("plain_text", text)]
    if url is not None:
        blocks.append(("mrkdwn", f"<{escape(url, quote=False)}|{OPEN}>"))
    return {
        "text": title,
        "blocks": [
            {"type": "section", "text": {"type": kind, "text": shown}} for kind, shown in blocks
        ],
    }


def teams_message(title: str, text: str, url: str | None) -> dict[str, Any]:
    """Return an adaptive card; text runs, unlike text blocks, have no Markdown.

    >>> told = teams_message("A group", "5 entries", None)
    >>> told["attachments"][0]["content"]["body"][1]["inlines"]
    [{'type': 'TextRun', 'text': '5 entries'}]
    """
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [
            {"type": "TextBlock", "text": title, "weight": "Bolder", "wrap": True},
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]},
        ],
    }
    if url is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": OPEN, "url": url}]
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}
