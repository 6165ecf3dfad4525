"""The command ``ragshield``: its parts, and the commands that other packages add."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.errors import RAGShieldError
from ragshield_core.findings import printable
from ragshield_core.knowledge.command import status_command
from ragshield_core.settings.command import apply_settings, config_app
from ragshield_core.tools.audit.command import scan_command
from ragshield_core.tools.audit.fit_command import fit_command
from ragshield_core.tools.canary.command import canary_app
from ragshield_core.tools.evaluate.command import evaluate_command
from ragshield_core.tools.review.command import review_command
from ragshield_core.tools.review.quarantine_command import quarantine_app
from ragshield_core.tools.review.sources_command import sources_app
from ragshield_core.tools.rules.command import rules_app

# A package that brings a command names its function in this group of entry points.
ENTRY_POINT_GROUP = "ragshield.commands"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, hostile text among them
    help="Keep poisoned documents out of RAG knowledge bases.",
)
app.add_typer(quarantine_app, name="quarantine")
app.command("scan")(scan_command)
app.command("fit")(fit_command)
app.command("evaluate")(evaluate_command)
app.command("review")(review_command)
app.command("status")(status_command)
app.add_typer(sources_app, name="sources")
app.add_typer(canary_app, name="canary")
app.add_typer(config_app, name="config")
app.add_typer(rules_app, name="rules")
console = Console()


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


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text(f"error: {printable(message, limit=2000)}", style="red"))
    raise SystemExit(2)
