"""Notifications when something needs a person: to a function, a signed webhook, or a chat."""

from ragshield_core.tools.review.notifications.chat import SlackWebhook, TeamsWebhook
from ragshield_core.tools.review.notifications.notifier import Kind, Notice, Notifier
from ragshield_core.tools.review.notifications.webhook import Webhook

__all__ = ["Kind", "Notice", "Notifier", "SlackWebhook", "TeamsWebhook", "Webhook"]
