"""Hooks of the review tool: notices to people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ragshield_core.hooks import hookimpl

if TYPE_CHECKING:
    from ragshield_core.settings import Settings
    from ragshield_core.tools.review.notifications import Notifier


@hookimpl
def notifier(settings: Settings) -> Notifier | None:
    """Return a notifier for the webhook of the settings, if there is one."""
    if settings.webhook is None:
        return None
    from ragshield_core.tools.review.notifications import (  # noqa: PLC0415 - httpx
        SECRET_VARIABLE,
        Notifier,
        Webhook,
    )

    target = Webhook(
        settings.webhook,
        os.environ.get(SECRET_VARIABLE),
        form=settings.webhook_format,
        review_url=settings.review_url,
    )
    return Notifier([target], group=settings.group, longest_queue=settings.longest_queue)
