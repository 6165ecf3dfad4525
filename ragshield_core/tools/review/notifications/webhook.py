"""A webhook with a signature, as Standard Webhooks describes it (standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.tools.review.notifications.notifier import Notice
from ragshield_core.tools.review.notifications.sending import TRIES, Sender

SECRET_VARIABLE = "RAGSHIELD_WEBHOOK_SECRET"  # noqa: S105 - its name
PREFIX = "whsec_"
# Bytes of a secret, as the standard has them.
SHORTEST, LONGEST = 24, 64


class Webhook(Sender):
    """Sends notices to an address, signed, and again where it does not answer with a 2xx.

    Redirects are not followed: the signature is for who was named.

    Parameters
    ----------
    url
        ``https``, or ``http`` on this machine.
    secret
        With which the receiver checks that it comes from here: ``whsec_`` and 24 to 64 random bytes
        in base 64.
    tries
        How often it is tried, with pauses that grow to a minute; 6 by default.

    Raises
    ------
    ConfigurationError
        If the address could be read on the way, or the secret is none.
    ImportError
        If httpx or tenacity is not installed: ``pip install 'ragshield[webhooks]'``.
    """

    def __init__(self, url: str, secret: str, *, tries: int = TRIES) -> None:
        super().__init__(url, tries=tries)
        self._key = _key_of(secret)

    def __call__(self, notice: Notice) -> None:
        """Send a notice; returns once it was taken.

        Raises
        ------
        httpx.HTTPError
            If it was not, however often it was tried.
        """
        body = json.dumps(notice.to_dict()).encode()
        self.send(body, lambda: self.headers(notice.id, int(time.time()), body))

    def headers(self, notice_id: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return headers for a body: its id, the time, and the signature over all three."""
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
    if not SHORTEST <= len(key) <= LONGEST:
        msg = (
            f"the secret of a webhook is none, expected {PREFIX} and {SHORTEST} to {LONGEST} "
            f"random bytes in base 64: {PREFIX}$(openssl rand -base64 32); see {SECRET_VARIABLE}."
        )
        raise ConfigurationError(msg)
    return key
