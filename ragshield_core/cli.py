"""The command ``ragshield``: quarantine, scan, and the commands that other packages add."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragshield_core.canary.command import canary_app
from ragshield_core.errors import RAGShieldError
from ragshield_core.findings import printable
from ragshield_core.quarantine import DEFAULT_URL, HeldEntry, Quarantine, Status
from ragshield_core.scan.command import scan_command

# A package that brings a command names its function in this group of entry points.
ENTRY_POINT_GROUP = "ragshield.commands"
LIMIT = 50

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, hostile text among them
    help="Keep poisoned documents out of RAG knowledge bases.",
)
quarantine_app = typer.Typer(no_args_is_help=True, help="Look at held entries and judge them.")
app.add_typer(quarantine_app, name="quarantine")
app.command("scan")(scan_command)
app.add_typer(canary_app, name="canary")
console = Console()

Database = Annotated[
    str,
    typer.Option("--database", envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL."),
]
Namespace = Annotated[str, typer.Option(help="Of the tenant.")]
Ids = Annotated[list[str], typer.Argument(help="Ids of entries.")]
By = Annotated[str, typer.Option(help="Who decides; kept in the log.")]


@quarantine_app.command("list")
def list_held(
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    status: Annotated[
        str, typer.Option(help="held, released, confirmed, superseded, readmitted, replaced")
    ] = "held",
    limit: Annotated[int, typer.Option(help="Rows to show.")] = LIMIT,
) -> None:
    """Show what is held, oldest first."""
    quarantine = Quarantine(database, namespace=namespace)
    table = Table(title=f"{quarantine.count(Status(status))} entries {status}")
    for column in ("entry", "label", "since", "by", "why"):
        table.add_column(column)
    for held in quarantine.list(Status(status), limit=limit):
        since = f"{held.held_at:%Y-%m-%d %H:%M}"
        row = (held.id, held.entry.label or "", since, held.held_by, _why(held))
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


@quarantine_app.command()
def show(entry_id: str, database: Database = DEFAULT_URL, namespace: Namespace = "default") -> None:
    """Show all that is kept of one entry; its text is hostile and shown escaped."""
    held = Quarantine(database, namespace=namespace).show(entry_id)
    table = Table(show_header=False)
    rows = {
        "entry": held.id,
        "status": str(held.status),
        "label": held.entry.label or "",
        "lineage": held.entry.lineage or "",
        "metadata": repr(dict(held.entry.metadata)),
        "held": f"{held.held_at:%Y-%m-%d %H:%M:%S} UTC by {held.held_by}",
        "reviewed": f"{held.reviewed_at} by {held.reviewed_by}" if held.reviewed_at else "",
        "why": _why(held),
        "text": held.entry.text,
    }
    for name, value in rows.items():
        table.add_row(name, Text(printable(value, limit=2000)))
    console.print(table)


@quarantine_app.command()
def confirm(
    ids: Ids, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Judge held entries poisoned; they are kept as evidence."""
    confirmed = Quarantine(database, namespace=namespace).confirm(ids, by=by)
    console.print(f"confirmed {len(confirmed)} entries")


@quarantine_app.command()
def release(
    ids: Ids, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Judge held entries good: from now on the guard admits them when they are ingested again.

    To put them back at once, without embedding them again, call release(ids) of the guarded store.
    """
    released = Quarantine(database, namespace=namespace).release(ids, by=by)
    console.print(f"released {len(released)} entries; the guard admits them at the next ingest")


@quarantine_app.command()
def purge(
    ids: Ids, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Delete entries from quarantine for good."""
    deleted = Quarantine(database, namespace=namespace).purge(ids, by=by)
    console.print(f"deleted {deleted} revisions")


@quarantine_app.command()
def log(database: Database = DEFAULT_URL, namespace: Namespace = "default") -> None:
    """Show who did what, after checking that the log was not tampered with."""
    quarantine = Quarantine(database, namespace=namespace)
    quarantine.verify_log()
    table = Table(title="audit log, verified")
    for column in ("line", "when", "what", "entry", "revision", "who", "note"):
        table.add_column(column)
    for line in quarantine.log():
        row = (
            *(str(line.seq), f"{line.at:%Y-%m-%d %H:%M:%S}", line.action, line.entry_id),
            *(line.fingerprint, line.actor, line.note or ""),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def main() -> None:
    """Run the command line; RAGShield's own errors are shown without a traceback."""
    wanted = sys.argv[1:2]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        # Frameworks are slow to import: only for their own commands, and for the overview.
        if wanted in ([point.name], [], ["--help"]):
            try:
                app.command(point.name)(point.load())
            except ImportError as error:
                if wanted == [point.name]:
                    _fail(f"{point.name} needs {error.name}; pip install 'ragshield[all]'.")
    try:
        app()
    except RAGShieldError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    Console(stderr=True).print(Text(f"error: {printable(message, limit=2000)}", style="red"))
    raise SystemExit(2)


def _why(held: HeldEntry) -> str:
    reasons = [finding.evidence for finding in held.findings]
    return "; ".join(reasons + ([held.note] if held.note else [])) or "held by hand"
