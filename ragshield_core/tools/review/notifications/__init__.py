"""Notifications when something needs a person: to a function, or a signed webhook."""

from ragshield_core.tools.review.notifications.notifier import Kind, Notice, Notifier
from ragshield_core.tools.review.notifications.webhook import Webhook

__all__ = ["Kind", "Notice", "Notifier", "Webhook"]
