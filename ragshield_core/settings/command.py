"""``ragshield config``, and settings as defaults of other commands' options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragshield_core.settings.reading import Settings, file_of, listed

config_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Settings of file and environment."
)
console = Console()


@config_app.callback()
def _options() -> None:
    """Look at settings of file and environment."""


@config_app.command("show")
def show_config(
    context: typer.Context,
    *,
    form: Annotated[
        Literal["table", "json"], typer.Option("--format", help="json is for programs.")
    ] = "table",
) -> None:
    """Show every setting and its origin; passwords and keys are hidden."""
    path = context.obj
    found = list(listed(Settings.read(path), path))
    if form == "json":
        values = {name: {"value": value, "from": origin} for name, value, origin in found}
        typer.echo(json.dumps(values, indent=2))
        return
    table = Table(title=Text(f"settings of {file_of(path) or 'no file'}"))
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for each in found:
        table.add_row(*map(Text, each))
    console.print(table)


def apply_settings(context: typer.Context, path: Path | None) -> None:
    """Make the settings of file and environment the defaults of all commands' options.

    Settings that neither sets leave a command's own default.
    """
    context.obj = path
    settings = Settings.read(path)
    said = {name: getattr(settings, name) for name in settings.model_fields_set}
    context.default_map = _of(context.command, said)
    if called := context.invoked_subcommand:
        group: Any = context.command
        command = group.get_command(context, called)
        context.default_map[called] = _defaults(command, said)


def _of(command: Any, said: dict[str, Any]) -> dict[str, Any]:
    return {one.name: said[one.name] for one in command.params if one.name in said}


def _defaults(command: Any, said: dict[str, Any]) -> dict[str, Any]:
    """Return defaults by name, for a command and those below it."""
    below = getattr(command, "commands", {})
    return _of(command, said) | {name: _defaults(each, said) for name, each in below.items()}
