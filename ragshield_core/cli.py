"""The command ``ragshield``, which imports a subcommand's modules when it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.printing import printable
from ragshield_core.settings.command import apply_settings, check_settings

# Group of entry points in which other packages name the functions of their commands.
ENTRY_POINT_GROUP = "ragshield.commands"
TOOLS = "ragshield_core.tools"
# Location of each command, and its line in the overview.
COMMANDS = {
    "scan": (f"{TOOLS}.audit.command:scan_command", "Look for poison in a knowledge base."),
    "fit": (f"{TOOLS}.audit.command:fit_command", "Fit a guard on a knowledge base."),
    "guard": (f"{TOOLS}.guard.command:guard_app", "Write into a guarded store, or ask a guard."),
    "evaluate": (
        f"{TOOLS}.evaluate.command:evaluate_command",
        "Plant attacks in a corpus: what is held?",
    ),
    "review": (f"{TOOLS}.review.command:review_command", "Serve the page on which people judge."),
    "attest": (f"{TOOLS}.attest.command:attest_app", "Sign what a scan found, for auditors."),
    "status": ("ragshield_core.sharing.command:status_command", "Say how guards stand."),
    "quarantine": (
        f"{TOOLS}.review.quarantine_command:quarantine_app",
        "Look at held entries and judge them.",
    ),
    "sources": (
        f"{TOOLS}.review.sources_command:sources_app",
        "Decide on new sources, or mass attacks.",
    ),
    "origin": (
        f"{TOOLS}.review.origin_command:origin_app",
        "Say who vouches for entries of a store.",
    ),
    "canary": (f"{TOOLS}.canary.command:canary_app", "Watch what known questions retrieve."),
    "contradictions": (
        f"{TOOLS}.contradictions.command:contradictions_app",
        "Show statements that contradict each other.",
    ),
    "detectors": (
        f"{TOOLS}.detectors_command:detectors_app",
        "Say what detectors look for.",
    ),
    "explain": (
        f"{TOOLS}.review.explain_command:explain_command",
        "Explain a detector, or what became of an entry.",
    ),
    "init": (f"{TOOLS}.init_command:init_command", "Write a file of settings to begin with."),
    "config": ("ragshield_core.settings.command:config_app", "Settings of file and environment."),
    "rules": (
        f"{TOOLS}.rules.command:rules_app",
        "Say what is not to be held, and until when.",
    ),
}


# Extras that install each module.
EXTRAS = {
    "faiss": "langchain,community,minilm",
    "httpx": "webhooks",
    "jinja2": "review",
    "langchain": "agents",
    "langchain_community": "langchain,community,minilm",
    "langchain_core": "langchain,community,minilm",
    "llama_index": "llamaindex",
    "pyarrow": "parquet",
    "ray": "ray",
    "sentence_transformers": "minilm",
    "sklearn": "labels",
    "starlette": "review",
    "torch": "minilm",
    "uvicorn": "review",
    "yaml": "canary",
}

# Lines in the overview for commands of our other packages.
OF_OURS = {"demo": "Watch a guard keep a wrong answer out."}


class Commands(TyperGroup):
    """Group of commands that loads one when it is called, and none for the overview."""

    listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return [*COMMANDS, *sorted(_of_others())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a stub with its name and a line for the overview."""
        if cmd_name in COMMANDS:
            target, line = COMMANDS[cmd_name]
        elif point := _of_others().get(cmd_name):
            target, line = point.value, ""
        else:
            return None
        if self.listing:
            return TyperCommand(cmd_name, help=line or OF_OURS.get(cmd_name, f"Of {target}."))
        module, _, name = target.partition(":")
        try:
            found = getattr(import_module(module), name)
        except ImportError as error:
            _fail(_missing(error))
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name)(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        return _prepared(command, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the overview."""
        self.listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.listing = False


def _prepared(command: Any, root: Any) -> Any:
    """Return a command with plain help, which checks all settings before it runs.

    Frames and columns of types would leave no room for words.
    """
    command.rich_markup_mode = None
    if root is not None and not hasattr(command, "commands"):
        command.callback = _checked(command.callback, root)
    for below in getattr(command, "commands", {}).values():
        # Click wraps a short help that is set, and cuts a derived one.
        below.short_help = " ".join((below.help or "").partition("\n\n")[0].split())
        _prepared(below, root)
    return command


def _checked(run: Callable[..., Any], root: Any) -> Callable[..., Any]:
    @wraps(run)
    def checked(**given: Any) -> Any:
        check_settings(root.obj)
        return run(**given)

    return checked


def _missing(error: ImportError) -> str:
    """Return a message with the extra of a missing module; raise any other error."""
    if "pip install" in str(error):  # RAGShield's own message, with the extra
        return str(error)
    module = (error.name or "").partition(".")[0]
    if not module or module.startswith("ragshield"):
        raise error
    extras = EXTRAS.get(module, "all")
    return f"{module} is not installed; pip install 'ragshield[{extras}]'."


def _of_others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, hostile text among them
    help="Keep poisoned documents out of RAG knowledge bases.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    try:
        app()
    except RAGShieldError as error:
        _fail(str(error))
    except ImportError as error:
        _fail(_missing(error))


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text(f"error: {printable(message, limit=2000)}", style="red"))
    raise SystemExit(2)
