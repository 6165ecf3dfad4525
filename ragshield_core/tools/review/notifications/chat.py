"""Notices as messages for people, shaped for incoming webhooks of Slack and Microsoft Teams.

Both show what they are told as text: names of entries, sources and suites are hostile.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.model.findings import printable
from ragshield_core.tools.review.notifications.notifier import Kind, Notice
from ragshield_core.tools.review.notifications.sending import TRIES, Sender

# Characters of a message, of which Slack takes 3,000 after each became at most five; ids in it.
LONGEST, NAMED = 450, 5
# What is said first, by kind.
TITLES = {
    Kind.GROUP_HELD: "RAGShield holds entries that belong together",
    Kind.QUEUE_LONG: "The quarantine of RAGShield has become long",
    Kind.SOURCE_ASKED: "RAGShield asks about a source",
    Kind.DETECTOR_FAILING: "A detector of RAGShield fails",
    Kind.CANARY_DRIFTED: "Watched questions get other results than before",
    Kind.LOG_BROKEN: "The log of RAGShield was changed",
}
OPEN = "Open the review page"


class ChatWebhook(Sender):
    """Sends notices as messages, with a link to the page where a person decides.

    Parameters
    ----------
    url
        That the chat has given: whoever knows it can write there.
    review_url
        Where ``ragshield review`` is served, such as ``https://review.example``; ``None``, the
        default, for no link.
    tries
        As of :class:`Webhook`.

    Raises
    ------
    ConfigurationError
        If an address could be read on the way, or the review page has none.
    ImportError
        As of :class:`Webhook`.
    """

    def __init__(self, url: str, *, review_url: str | None = None, tries: int = TRIES) -> None:
        super().__init__(url, tries=tries)
        if review_url is not None and urlsplit(review_url).scheme not in ("http", "https"):
            msg = "review_url is no address, expected one such as https://review.example."
            raise ConfigurationError(msg)
        self._review_url = review_url

    def __call__(self, notice: Notice) -> None:
        """Send a notice; returns once it was taken.

        Raises
        ------
        httpx.HTTPError
            If it was not, however often it was tried.
        """
        told = self.message(TITLES[notice.kind], said(notice), link(notice, self._review_url))
        self.send(json.dumps(told).encode(), dict)

    @staticmethod
    @abstractmethod
    def message(title: str, text: str, url: str | None) -> dict[str, Any]:
        """Return the body of a message, as the chat expects it."""


class SlackWebhook(ChatWebhook):
    """Sends notices to an incoming webhook of Slack, as :class:`ChatWebhook`.

    Examples
    --------
    >>> told = SlackWebhook.message("A group", "5 entries of <!channel>", None)
    >>> told["blocks"][1]["text"]["text"]
    '5 entries of &lt;!channel&gt;'
    """

    @staticmethod
    def message(title: str, text: str, url: str | None) -> dict[str, Any]:
        """Return text for notifications, and blocks; nothing hostile is in what Slack formats."""
        blocks = [
            _slack("mrkdwn", f"*{_escaped(title)}*"),
            _slack("plain_text", _escaped(text)),
        ]
        if url is not None:
            blocks.append(_slack("mrkdwn", f"<{_escaped(url)}|{OPEN}>"))
        return {"text": _escaped(title), "blocks": blocks}


class TeamsWebhook(ChatWebhook):
    """Sends notices to a webhook of the Workflows of Microsoft Teams, as :class:`ChatWebhook`.

    Examples
    --------
    >>> told = TeamsWebhook.message("A group", "5 entries", None)
    >>> told["attachments"][0]["content"]["body"][1]["inlines"]
    [{'type': 'TextRun', 'text': '5 entries'}]
    """

    @staticmethod
    def message(title: str, text: str, url: str | None) -> dict[str, Any]:
        """Return an adaptive card; runs of text have no Markdown, as blocks of text have."""
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


def said(notice: Notice) -> str:
    """Return what has happened, in a sentence or two of at most 600 characters."""
    data: Mapping[str, Any] = notice.data
    where = f" In the namespace {printable(notice.namespace, 60)!r}." if notice.namespace else ""
    if notice.kind is Kind.GROUP_HELD:
        told = (
            f"{data['n_waiting']} entries wait for one decision, case {data['case']}, found by "
            f"{', '.join(data['detectors']) or 'a person'}: {_some(data['entry_ids'])}."
        )
    elif notice.kind is Kind.QUEUE_LONG:
        told = f"{data['n_waiting']} entries wait for a decision."
    elif notice.kind is Kind.DETECTOR_FAILING:
        told = f"{data['detector']} fails; what it cannot judge is held."
    elif notice.kind is Kind.CANARY_DRIFTED:
        told = f"{data['n']} of the suite {data['suite']}: {_some(data['canaries'])}."
    else:
        told = str(data.get("said", notice.kind))
    return printable(told, LONGEST)[:LONGEST] + where


def link(notice: Notice, review_url: str | None) -> str | None:
    """Return the address of the page where a person sees to a notice.

    >>> at = "https://review.example/"
    >>> link(Notice(id="1", kind=Kind.LOG_BROKEN, namespace="default"), at)
    'https://review.example/health'
    """
    if review_url is None:
        return None
    page = "health"
    if notice.kind is Kind.GROUP_HELD:
        page = f"cases/{int(notice.data['case'])}"
    elif notice.kind in (Kind.QUEUE_LONG, Kind.SOURCE_ASKED):
        page = ""
    return f"{review_url.rstrip('/')}/{page}"


def _some(names: Sequence[str]) -> str:
    left = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {left} more" if left > 0 else "")


def _slack(kind: str, text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": kind, "text": text}}


def _escaped(text: str) -> str:
    """Return a text of which Slack takes no part for a link, a channel or a person."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
