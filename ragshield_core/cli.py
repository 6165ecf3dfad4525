"""The command ``ragshield``: its parts, quarantine, and the commands that other packages add."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragshield_core.canary.command import canary_app
from ragshield_core.errors import ConfigurationError, QuarantineError, RAGShieldError
from ragshield_core.findings import finding_to_dict, printable
from ragshield_core.knowledge.command import status_command
from ragshield_core.quarantine import DEFAULT_URL, HeldEntry, Quarantine, Status, metadata_json
from ragshield_core.quarantine.digests import KEY_VARIABLE, NEW_KEY_VARIABLE
from ragshield_core.scan.command import scan_command
from ragshield_core.scan.fit_command import fit_command
from ragshield_core.settings.command import apply_settings, config_app
from ragshield_core.settings.objects import modules_here, named_object
from ragshield_core.trials.command import evaluate_command

# A package that brings a command names its function in this group of entry points.
ENTRY_POINT_GROUP = "ragshield.commands"
LIMIT = 50
# Characters of an id that stay on one line, to be copied: those of a UUID.
WHOLE_ID = 36

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, hostile text among them
    help="Keep poisoned documents out of RAG knowledge bases.",
)
quarantine_app = typer.Typer(no_args_is_help=True, help="Look at held entries and judge them.")
app.add_typer(quarantine_app, name="quarantine")
app.command("scan")(scan_command)
app.command("fit")(fit_command)
app.command("evaluate")(evaluate_command)
app.command("status")(status_command)
app.add_typer(canary_app, name="canary")
app.add_typer(config_app, name="config")
console = Console()

Database = Annotated[
    str,
    typer.Option("--database", envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL."),
]
Namespace = Annotated[str, typer.Option(help="Of the tenant.")]
Store = Annotated[str | None, typer.Option(help="Only what is held for the store of that name.")]
Ids = Annotated[list[str], typer.Argument(help="Ids of entries.")]
By = Annotated[str, typer.Option(help="Who decides; kept in the log.")]
Note = Annotated[str | None, typer.Option(help="Why; kept in the log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        console.print(f"ragshield {version('ragshield')}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="RAGSHIELD_CONFIG", help="File of settings; default: ragshield.toml, if there."
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep poisoned documents out of RAG knowledge bases."""
    apply_settings(context, config)


@quarantine_app.command("list")
def list_held(
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    status: Annotated[Status, typer.Option(help="Only those.")] = Status.HELD,
    limit: Annotated[int, typer.Option(min=0, help="Rows to show.")] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """Show what is held, oldest first."""
    quarantine = _opened(database, namespace, store)
    found = quarantine.list(status, limit=limit)
    if as_json:
        _print_json([_summary(held) for held in found])
        return
    count = quarantine.count(status)
    table = _table(f"{count} entries {status}", ("entry", "store", "label", "since", "by", "why"))
    for held in found:
        since = f"{held.held_at:%Y-%m-%d %H:%M}"
        label = held.entry.label or ""
        row = (held.id, _store(held), label, since, held.held_by, _why(held))
        table.add_row(*(Text(printable(cell)) for cell in row))
    if count > len(found):
        table.caption = f"and {count - len(found)} more: --limit"
    console.print(table)


@quarantine_app.command()
def show(
    entry_id: str,
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is kept of one entry; its text is hostile and shown escaped."""
    held = _opened(database, namespace, store).show(entry_id)
    if as_json:
        metadata = json.loads(metadata_json.dumps(held.entry.metadata))
        _print_json(_summary(held) | {"metadata": metadata, "text": held.entry.text})
        return
    table = Table(show_header=False)
    rows = {
        "entry": held.id,
        "status": str(held.status),
        "store": _store(held),
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
    ids: Ids,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
) -> None:
    """Judge held entries poisoned; they are kept as evidence."""
    confirmed = _opened(database, namespace, store).confirm(ids, by=by, note=note)
    console.print(f"confirmed {len(confirmed)} entries")


@quarantine_app.command()
def release(
    ids: Ids,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    into: Annotated[
        str | None,
        typer.Option(
            help="module:object of your guarded store, or a factory of one: they are back at once."
        ),
    ] = None,
) -> None:
    """Judge held entries good: from now on the guard admits them when they are ingested again.

    With --into, they are put back into that store, with the vectors that they were held with.
    """
    if into is not None:
        with modules_here():
            released = _releasing(into)(ids, by=by, note=note)
            console.print(f"released {len(released)} entries into the store")
            return
    released = _opened(database, namespace, store).release(ids, by=by, note=note)
    console.print(f"released {len(released)} entries; the guard admits them at the next ingest")


@quarantine_app.command()
def purge(
    ids: Ids,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
) -> None:
    """Delete entries from quarantine for good."""
    deleted = _opened(database, namespace, store).purge(ids, by=by, note=note)
    console.print(f"deleted {deleted} revisions")


@quarantine_app.command()
def log(
    *, database: Database = DEFAULT_URL, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Show who did what, after checking that the log was not tampered with."""
    quarantine = _opened(database, namespace)
    quarantine.verify_log()
    if as_json:
        _print_json([asdict(line) | {"at": line.at.isoformat()} for line in quarantine.log()])
        return
    columns = ("line", "when", "what", "entry", "revision", "who", "note")
    table = _table("audit log, verified", columns)
    for line in quarantine.log():
        row = (
            *(str(line.seq), f"{line.at:%Y-%m-%d %H:%M:%S}", line.action, line.entry_id),
            *(line.fingerprint, line.actor, line.note or ""),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


@quarantine_app.command()
def verify(
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    head: Annotated[
        bool, typer.Option("--head", help="Print the head of the log only, to keep elsewhere.")
    ] = False,
    anchor: Annotated[
        str | None, typer.Option(help="A head that was printed earlier: nothing before is missing.")
    ] = None,
) -> None:
    """Check that log and entries are as they were written; exit code 1 names what is not.

    Those of all namespaces: they have one log. Of others than the given one, no entry is named.
    With the key of RAGSHIELD_AUDIT_KEY, if they were written with one.
    """
    quarantine = _opened(database, namespace)
    try:
        quarantine.verify(anchor)
    except QuarantineError as error:
        _fail(str(error), code=1)
    told = quarantine.head()
    typer.echo(told if head else f"log and entries are whole; the log's head is {told}")


@quarantine_app.command()
def seal(
    *, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Go on with the new key of RAGSHIELD_AUDIT_KEY, after checking what was written without."""
    quarantine = _opened(database, namespace)
    quarantine.seal(by=by)
    typer.echo(f"sealed; the log's head is {quarantine.head()}")


@quarantine_app.command()
def rekey(
    *, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Exchange the audit key, of all namespaces, for that of RAGSHIELD_NEW_AUDIT_KEY.

    What was written is checked with the key of RAGSHIELD_AUDIT_KEY before, or without one.
    """
    new = os.environ.get(NEW_KEY_VARIABLE)
    if not new:
        _fail(f"there is no new key; set {NEW_KEY_VARIABLE}: openssl rand -hex 32.")
    quarantine = _opened(database, namespace)
    quarantine.rekey(new, by=by)
    typer.echo(
        f"the key is another one now, set {KEY_VARIABLE} to it; the log's head is "
        f"{quarantine.head()}"
    )


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


def _fail(message: str, code: int = 2) -> NoReturn:
    Console(stderr=True).print(Text(f"error: {printable(message, limit=2000)}", style="red"))
    raise SystemExit(code)


def _releasing(name: str) -> Callable[..., Sequence[HeldEntry]]:
    """Return what releases into the store that ``module:object`` names."""
    found = named_object(name)
    release: Callable[..., Sequence[HeldEntry]] | None = getattr(found, "release", None)
    if release is None or isinstance(found, Quarantine):
        msg = (
            f"{name!r} is a {type(found).__name__}, expected a guarded store or pipeline, which "
            "can release into it."
        )
        raise ConfigurationError(msg)
    return release


def _opened(database: str, namespace: str, store: str | None = None) -> Quarantine:
    """Return a quarantine that is there: a mistyped name must not look like an empty one."""
    quarantine = Quarantine(database, namespace=namespace, store=store)
    if not quarantine.exists():
        msg = f"{quarantine!r} does not exist: nothing was ever held there, or --database is wrong."
        raise QuarantineError(msg)
    return quarantine


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """Return a table that keeps ids whole, on a narrow terminal as well."""
    table = Table(title=title)
    for column in columns:
        width = WHOLE_ID if column == "entry" else None
        table.add_column(column, overflow="fold", min_width=width)
    return table


def _summary(held: HeldEntry) -> dict[str, Any]:
    """Return an entry as JSON-ready values, without its text and metadata."""
    return {
        "entry_id": held.id,
        "status": str(held.status),
        "store": held.store,
        "label": held.entry.label,
        "lineage": held.entry.lineage,
        "revision": held.entry.fingerprint,
        "held_at": held.held_at.isoformat(),
        "held_by": held.held_by,
        "reviewed_at": None if held.reviewed_at is None else held.reviewed_at.isoformat(),
        "reviewed_by": held.reviewed_by,
        "note": held.note,
        "findings": [finding_to_dict(finding) for finding in held.findings],
    }


def _print_json(values: list[dict[str, Any]] | Mapping[str, Any]) -> None:
    """Print values; what is not ASCII, control characters among it, is escaped."""
    typer.echo(json.dumps(values, indent=2))


def _store(held: HeldEntry) -> str:
    return "(any)" if held.store is None else held.store or "(unnamed)"


def _why(held: HeldEntry) -> str:
    reasons = [finding.evidence for finding in held.findings]
    return "; ".join(reasons + ([held.note] if held.note else [])) or "held by hand"
