"""``ragshield review``: the page on which people judge held entries, for one machine."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import modules_here
from ragshield_core.tools.options import Into, StoreOptions, live_store, takes

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.store.guarded import Guarded

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORT = 8642
# Bytes of a token: too many to guess.
TOKEN_BYTES = 24


@dataclass(frozen=True, kw_only=True)
class People:
    """The options that name the reviewers."""

    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="Name of a reviewer, who gets a token; can be repeated."),
    ] = None
    two_persons: Annotated[
        bool, typer.Option("--two-persons", help="A release needs a second person.")
    ] = False
    hours: Annotated[
        float, typer.Option(min=0.01, help="After which people have to log in again.")
    ] = 8.0


@takes(StoreOptions, People)
def review_command(
    place: StoreOptions,
    people: People,
    *,
    into: Into = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = PORT,
    tls_cert: Annotated[str | None, typer.Option(help="File of the certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="File of its key.")] = None,
) -> None:
    """Serve the page on which people judge held entries, and print the tokens that open it.

    Each reviewer has a token, and the log records decisions under the token's name.
    Without a certificate the page serves this machine only: the network could read texts and
    tokens. For many people, mount ragshield_core.tools.review.review_app in an application that
    knows them.
    """
    try:
        import uvicorn

        from ragshield_core.tools.review.app import review_app
    except ImportError as error:
        msg = f"the review page needs {error.name}; pip install 'ragshield[review]'."
        raise ConfigurationError(msg) from None
    secure = tls_cert is not None and tls_key is not None
    if host not in LOOPBACK and not secure:
        msg = (
            f"--host {printable(host, 60)} can be reached from other machines, and what is sent "
            "would be readable on the way; give --tls-cert and --tls-key, or mount review_app in "
            "an application that has TLS."
        )
        raise ConfigurationError(msg)
    reviewed: Quarantine | Guarded
    if into is not None:
        with modules_here():
            reviewed = live_store(into, "guard", "quarantine", "release", "standing")
    else:
        reviewed = place.opened()
    names = people.reviewer or ["reviewer"]
    tokens = {name: secrets.token_urlsafe(TOKEN_BYTES) for name in names}
    try:
        app = review_app(
            reviewed,
            tokens=tokens,
            two_persons=people.two_persons,
            hours=people.hours,
            https=secure,
            hosts=[host, *LOOPBACK, "[::1]"] if host in LOOPBACK else None,
        )
    except ValueError as error:
        msg = f"{error} On the command line: --reviewer NAME for each person."
        raise ConfigurationError(msg) from None
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    with _bound(host, port) as bound:  # first: no token is shown if the port is taken
        shown = f"[{host}]" if ":" in host else host
        console = Console()
        console.print(Text(f"http{'s' if secure else ''}://{shown}:{bound.getsockname()[1]}/"))
        for name, token in tokens.items():
            console.print(Text(f"token of {name}: {token}"))
        uvicorn.Server(config).run(sockets=[bound])


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host and port.

    Raises
    ------
    ConfigurationError
        If it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        msg = (
            f"the review page cannot listen on {printable(host, 60)}, port {port} "
            f"({error.strerror or type(error).__name__}); name another --port."
        )
        raise ConfigurationError(msg) from None
