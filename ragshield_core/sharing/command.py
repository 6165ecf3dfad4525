"""``ragshield status``: the status of a guard in a database, also for programs and alarms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.database.naming import DEFAULT_URL, database_url
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.printing import printable
from ragshield_core.sharing.lease import DEFAULT_LEASE

FINE, LOOK, ERROR = 0, 1, 2

console = Console()


def status_command(
    *,
    database: Annotated[
        str,
        typer.Option(
            envvar="RAGSHIELD_DATABASE",
            parser=database_url,
            metavar="PATH|URL",
            help="SQLite file, or SQLAlchemy URL.",
        ),
    ] = DEFAULT_URL,
    namespace: Annotated[
        str | None, typer.Option(help="Of the tenant; default: the only one, or a list of all.")
    ] = None,
    lease: Annotated[
        float, typer.Option(min=0.0, help="Seconds of silence after which a process crashed.")
    ] = DEFAULT_LEASE,
    form: Annotated[
        Literal["table", "json"], typer.Option("--format", help="json is for programs.")
    ] = "table",
) -> None:
    """Show how a guard that was opened on a database stands; nothing is changed.

    Exit code 1: there is something to look at (not calibrated, drift, a process that crashed).
    Exit code 2: there is no guard, or it cannot be read.
    """
    try:
        code = _shown(database, namespace, lease, as_json=form == "json")
    except RAGShieldError as error:
        code = _failed(str(error))
    except Exception as error:  # noqa: BLE001 - Python's own code for a crash is that of LOOK
        from ragshield_core.database.connecting import shown as url_shown
        from ragshield_core.screening.screening import crash

        code = _failed(f"{url_shown(database)} cannot be read ({crash(error)}).")
    raise typer.Exit(code)


def _shown(url: str, namespace: str | None, lease: float, *, as_json: bool) -> int:
    from ragshield_core.database.read_only import read_only
    from ragshield_core.sharing.standing import namespaces, status_of

    with read_only(url) as session:
        if namespace is None:
            found = namespaces(session)
            if len(found) > 1:
                _list(found, as_json=as_json)
                return FINE
            namespace = next(iter(found), "default")
        status = status_of(session, url, namespace, lease=lease)
    if as_json:
        typer.echo(json.dumps(status.to_dict(), indent=2))  # in ASCII: hostile names are escaped
    else:
        console.print(status)
    return LOOK if status.concerns() else FINE


def _failed(message: str) -> int:
    Console(stderr=True).print(Text(f"error: {printable(message, 2000)}", style="red"))
    return ERROR


def _list(found: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"namespaces": list(found)}, indent=2))
        return
    console.print(Text(f"{len(found)} guards; choose one with --namespace:"))
    for name in found:
        console.print(Text(printable(name)))
