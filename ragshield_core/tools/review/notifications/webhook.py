"""A webhook with a signature, as Standard Webhooks describes it (standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from urllib.parse import urlsplit

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.tools.review.notifications.notifier import Notice

SECRET_VARIABLE = "RAGSHIELD_WEBHOOK_SECRET"  # noqa: S105 - its name
PREFIX = "whsec_"
# Bytes of a secret, as the standard has them.
SHORTEST, LONGEST = 24, 64
# Seconds for one try, and how often it is tried: about two minutes with the pauses between.
TIMEOUT, TRIES = 10.0, 6
LONGEST_PAUSE = 60.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Webhook:
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
        self._url, self._key, self._tries = url, _key_of(secret), tries
        self.host = parts.hostname or ""

    def __repr__(self) -> str:
        return f"Webhook({self.host!r})"  # addresses hold secrets of their own

    def __call__(self, notice: Notice) -> None:
        """Send a notice; returns once it was taken.

        Raises
        ------
        httpx.HTTPError
            If it was not, however often it was tried.
        """
        import httpx  # noqa: PLC0415
        from tenacity import (  # noqa: PLC0415
            Retrying,
            stop_after_attempt,
            wait_random_exponential,
        )

        body = json.dumps(notice.to_dict()).encode()
        with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
            for attempt in Retrying(
                stop=stop_after_attempt(self._tries),
                wait=wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE),
                reraise=True,
            ):
                with attempt:
                    headers = self.headers(notice.id, int(time.time()), body)
                    answer = client.post(self._url, content=body, headers=headers)
                    if not answer.is_success:
                        msg = f"{self.host} answered {answer.status_code}"
                        raise httpx.HTTPStatusError(msg, request=answer.request, response=answer)

    def headers(self, notice_id: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return the headers of a body: its id, the time, and the signature over all three."""
        signed = f"{notice_id}.{seconds}.".encode() + body
        digest = base64.b64encode(hmac.new(self._key, signed, hashlib.sha256).digest()).decode()
        return {
            "content-type": "application/json",
            "user-agent": "ragshield",
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
