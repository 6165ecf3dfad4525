"""Access to the review page: sessions, roles, form tokens, rate limits, response headers."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

# No resources from elsewhere, no inline code, no framing of the page and no frames in it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # texts of a knowledge base stay in no cache
}

LOOKS, DECISIONS, LOGINS = "600/minute", "120/minute", "10/minute"
# Characters of a reviewer's name.
LONGEST_NAME = 80


class Role(StrEnum):
    """Rights of a reviewer."""

    VIEW = "view"
    DECIDE = "decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """A person who looks or decides.

    Attributes
    ----------
    name
        Kept in the log with every decision.
    role
        The person's rights.
    """

    name: str
    role: Role = Role.DECIDE


Authenticate = Callable[[Request], Reviewer | None]


class Access:
    """Identifies the reviewer behind a request, and refuses forged forms.

    Either the surrounding application names the sender of a request, or each reviewer logs in with
    a token, and again once the session has lasted ``seconds``, even if it was active.
    """

    def __init__(
        self,
        authenticate: Authenticate | None,
        tokens: Mapping[str, str],
        seconds: float,
    ) -> None:
        self.authenticate, self._tokens, self._seconds = authenticate, dict(tokens), seconds
        # Sessions that were logged out, and when they would have expired.
        self._ended: dict[str, float] = {}
        self._rates = MovingWindowRateLimiter(MemoryStorage())
        self._looks, self._decisions, self._logins = map(parse, (LOOKS, DECISIONS, LOGINS))

    def reviewer(self, request: Request) -> Reviewer | None:
        """Return the reviewer who sends a request, if there is one."""
        session = request.session
        if self.authenticate is not None:
            found = self.authenticate(request)
            if found is None or session.get("name") not in (None, found.name):
                session.clear()
            if found is not None:
                session.setdefault("name", found.name)
                session.setdefault("csrf", secrets.token_urlsafe(24))
            return found
        old = time.time() - session.get("since", 0.0) > self._seconds
        known = session.get("name") in self._tokens
        if old or not known or session.get("csrf") in self._ended:
            session.clear()
            return None
        return Reviewer(name=session["name"])

    def log_in(self, request: Request, form: FormData) -> bool:
        """Begin a session if the form has a reviewer's token; return whether it has one."""
        self._limit(self._logins, "login", "" if request.client is None else request.client.host)
        given = str(form.get("token", "")).strip().encode()
        owners = [n for n, one in self._tokens.items() if hmac.compare_digest(given, one.encode())]
        if owners:
            request.session.clear()
            request.session.update(
                name=owners[0], since=time.time(), csrf=secrets.token_urlsafe(24)
            )
        return bool(owners)

    def log_out(self, request: Request) -> None:
        """End a session; copies of its cookie stop working too."""
        now = time.time()
        self._ended = {one: until for one, until in self._ended.items() if until > now}
        if "since" in request.session:
            self._ended[request.session["csrf"]] = now + self._seconds
        request.session.clear()

    def limit(self, request: Request, reviewer: Reviewer) -> None:
        """Refuse requests that come faster than a person can read or decide.

        Raises
        ------
        HTTPException
            429.
        """
        deciding = request.method == "POST"
        self._limit(self._decisions if deciding else self._looks, request.method, reviewer.name)

    def _limit(self, rate: RateLimitItem, *names: str) -> None:
        if not self._rates.hit(rate, *names):
            msg = "Too many requests; wait a minute. Nothing was done."
            raise HTTPException(429, msg, headers={"retry-after": "60"})

    @staticmethod
    def check_form(request: Request, form: Mapping[str, Any]) -> None:
        """Refuse a form that was sent from a foreign page.

        Raises
        ------
        HTTPException
            403.
        """
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        given, wanted = str(form.get("csrf", "")), request.session.get("csrf")
        if (origin not in (None, "null") and urlsplit(str(origin)).netloc != host) or not (
            wanted and hmac.compare_digest(given.encode(), wanted.encode())
        ):
            msg = "This form is not of your session any more; go back, reload, and decide again."
            raise HTTPException(403, msg)


def is_name(name: str) -> bool:
    """Return whether the log can keep ``name`` as a person's name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()


async def add_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add the headers that make hostile text harmless to an answer."""
    answer = await call_next(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer
