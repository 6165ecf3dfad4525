"""Sends JSON to an address, and again where it does not answer with a 2xx."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ragshield_core.model.errors import ConfigurationError

if TYPE_CHECKING:
    from ragshield_core.tools.review.notifications.notifier import Notice

# Seconds for one try, and how often it is tried: about two minutes with the pauses between.
TIMEOUT, TRIES = 10.0, 6
LONGEST_PAUSE = 60.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Sender(ABC):
    """What all webhooks have in common. Redirects are not followed.

    Parameters
    ----------
    url
        ``https``, or ``http`` on this machine.
    tries
        How often it is tried, with pauses that grow to a minute.

    Raises
    ------
    ConfigurationError
        If the address could be read on the way.
    ImportError
        If httpx or tenacity is not installed: ``pip install 'ragshield[webhooks]'``.
    """

    def __init__(self, url: str, *, tries: int = TRIES) -> None:
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
        self._url, self._tries = url, tries
        self.host = parts.hostname or ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host!r})"  # addresses hold secrets of their own

    @abstractmethod
    def __call__(self, notice: Notice) -> None:
        """Send a notice; returns once it was taken."""

    def send(self, body: bytes, headers: Callable[[], Mapping[str, str]]) -> None:
        """Send a body; returns once it was taken.

        Parameters
        ----------
        body
            JSON.
        headers
            Made anew for each try.

        Raises
        ------
        httpx.HTTPError
            If it was not taken, however often it was tried.
        """
        import httpx  # noqa: PLC0415
        from tenacity import (  # noqa: PLC0415
            Retrying,
            stop_after_attempt,
            wait_random_exponential,
        )

        usual = {"content-type": "application/json", "user-agent": "ragshield"}
        with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
            for attempt in Retrying(
                stop=stop_after_attempt(self._tries),
                wait=wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE),
                reraise=True,
            ):
                with attempt:
                    answer = client.post(self._url, content=body, headers={**usual, **headers()})
                    if not answer.is_success:
                        msg = f"{self.host} answered {answer.status_code}"
                        raise httpx.HTTPStatusError(msg, request=answer.request, response=answer)
