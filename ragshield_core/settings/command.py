"""``ragshield config``, and settings as defaults of other commands' options."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.printing import printable
from ragshield_core.settings.file import file_of, written

if TYPE_CHECKING:
    from ragshield_core.settings.reading import Settings

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
    from rich.table import Table

    from ragshield_core.settings.reading import Settings, listed

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


class _Default:
    """A setting as the default of an option: read when it is used, shown by a help as written."""

    def __init__(self, name: str, value: Any, read: Callable[[], Settings]) -> None:
        self.name, self.value, self.read = name, value, read

    def __call__(self) -> Any:
        return getattr(self.read(), self.name)

    def __str__(self) -> str:
        # The URL of a database may hold a password.
        return "(hidden)" if "@" in str(self.value) else printable(str(self.value), 100)


def apply_settings(context: typer.Context, path: Path | None) -> None:
    """Make the settings of file and environment the defaults of all commands' options.

    Settings that neither sets leave a command's own default.
    """

    @cache
    def read() -> Settings:
        from ragshield_core.settings.reading import Settings

        return Settings.read(path)

    context.obj = path
    said = {name: _Default(name, value, read) for name, value in written(path).items()}
    if called := context.invoked_subcommand:
        group: Any = context.command
        context.default_map = {called: _defaults(group.get_command(context, called), said)}


def check_settings(path: Path | None) -> None:
    """Refuse wrong settings, also those that no option of a command uses."""
    if written(path):
        from ragshield_core.settings.reading import Settings

        Settings.read(path)


def _defaults(command: Any, said: dict[str, _Default]) -> dict[str, Any]:
    """Return defaults by name, for a command and those below it."""
    below = getattr(command, "commands", {})
    own = {one.name: said[one.name] for one in command.params if one.name in said}
    return own | {name: _defaults(each, said) for name, each in below.items()}
