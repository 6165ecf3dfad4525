"""``ragshield sources``: sources that may be new ones or mass attacks, and what people decide."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.calibration.questions import Question
from ragshield_core.database import DEFAULT_URL
from ragshield_core.database.read_only import read_only
from ragshield_core.guard import Guard
from ragshield_core.model.errors import ConfigurationError, StateError
from ragshield_core.model.findings import printable
from ragshield_core.settings.objects import modules_here
from ragshield_core.sharing.standing import namespaces, questions_of
from ragshield_core.tools.audit.command import (
    FOUND,
    NOTHING_FOUND,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.options import AsJson, By, Into, Note, live_store

# Characters of a name in a command: more than a source has.
LONGEST_NAME = 300
# Entries that are released in one transaction: other writers wait for it.
AT_ONCE = 200

sources_app = typer.Typer(
    invoke_without_command=True, help="Decide on sources: new ones, or mass attacks?"
)
console = Console()

Name = Annotated[str | None, typer.Argument(help="Of the source, as the list has it.")]
Unnamed = Annotated[bool, typer.Option("--unnamed", help="What names no source.")]
# An option after "adopt" or "keep" overrides the same one before it. Parameters of these types have
# names of their own, so that settings fill in the options before it only.
Url = Annotated[str | None, typer.Option("--database", help="SQLAlchemy URL.")]
Tenant = Annotated[str | None, typer.Option("--namespace", help="Of the tenant.")]


@sources_app.callback()
def sources_command(
    context: typer.Context,
    *,
    database: Annotated[
        str, typer.Option(envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL.")
    ] = DEFAULT_URL,
    namespace: Annotated[str | None, typer.Option(help="Of the tenant; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """List sources of which far more is held than of clean entries.

    They are new sources, or mass attacks; a person decides by `adopt` or `keep`.
    Exit code 1: there are some. Exit code 2: there is no guard, or it cannot be read.
    """
    if context.invoked_subcommand is not None:
        context.obj = database, namespace
        return
    with no_crash_looks_like_a_finding():
        found = _asked(database, namespace)
    if as_json:
        values = [{"namespace": name} | question.to_dict() for name, question in found]
        typer.echo(json.dumps({"questions": values}, indent=2))  # in ASCII, hostile names escaped
    else:
        _show(found)
    raise typer.Exit(FOUND if found else NOTHING_FOUND)


@sources_app.command()
def adopt(
    context: typer.Context,
    source: Name = None,
    *,
    unnamed: Unnamed = False,
    by: By = "cli",
    note: Note = None,
    own_url: Url = None,
    own_namespace: Tenant = None,
    into: Into = None,
) -> None:
    """Take thresholds for a source that is good, and release what comes free.

    The most suspicious share, as large as the accepted rate, stays held. Without --into, the guard
    admits what is released when it is ingested again.
    """
    _check_named(source, unnamed=unnamed)
    with no_crash_looks_like_a_finding(), modules_here():
        if into is not None:
            store = live_store(into, "adopt_source", "guard", "release")
            named = _named(source, store.guard.questions())
            n_released = len(store.adopt_source(named, by=by, note=note))
            told = " into the store"
        else:
            guard, named = _opened(context, source, own_url, own_namespace)
            free = guard.adopt_source(named, by=by)
            for start in range(0, len(free), AT_ONCE):
                guard.quarantine.release(free[start : start + AT_ONCE], by=by, note=note)
            n_released, told = len(free), "; the guard admits them at the next ingest"
    console.print(Text(f"adopted {_shown(named)}: released {n_released} entries{told}"))


@sources_app.command()
def keep(
    context: typer.Context,
    source: Name = None,
    *,
    unnamed: Unnamed = False,
    by: By = "cli",
    own_url: Url = None,
    own_namespace: Tenant = None,
) -> None:
    """Close the question: what is held stays held, and later entries are judged as before.

    It is asked again once twice as many are held.
    """
    _check_named(source, unnamed=unnamed)
    guard, named = _opened(context, source, own_url, own_namespace)
    if named not in {question.source for question in guard.questions()}:
        msg = (
            f"nothing was done: {_shown(named)} is not asked about; `ragshield sources` lists "
            "those that are."
        )
        raise StateError(msg)
    guard.keep_holding(named, by=by)
    console.print(Text(f"{_shown(named)}: what is held stays held"))


def command_of(choice: str, source: str | None, namespace: str = "default") -> str:
    """Return the command that decides on a source, to be copied into a shell.

    Parameters
    ----------
    choice
        ``"adopt"`` or ``"keep"``.
    source
        Its name; hostile.
    namespace
        Of the guard.

    Examples
    --------
    >>> command_of("adopt", "docs.example; rm -rf ~")
    "ragshield sources adopt --by YOU 'docs.example; rm -rf ~'"
    """
    words = ["ragshield", "sources", choice, "--by", "YOU"]
    words += [] if namespace == "default" else ["--namespace", namespace]
    if source is None:
        return shlex.join([*words, "--unnamed"])
    name = printable(source, LONGEST_NAME)
    return shlex.join([*words, *(["--"] if name.startswith("-") else []), name])


def _asked(url: str, namespace: str | None) -> list[tuple[str, Question]]:
    """Return open questions, each with the namespace of its guard."""
    with read_only(url) as session:
        names = (namespaces(session) or ["default"]) if namespace is None else [namespace]
        return [(name, question) for name in names for question in questions_of(session, url, name)]


def _show(found: Sequence[tuple[str, Question]]) -> None:
    if not found:
        console.print("no source is asked about")
    for namespace, question in found:
        of = "" if namespace == "default" else f"{printable(namespace, 80)}: "
        console.print(Text(f"{of}{question}"))
        for side, ids in (("held", question.held_ids), ("admitted", question.admitted_ids)):
            if ids:
                shown = ", ".join(printable(one, 80) for one in ids)
                console.print(Text(f"  {side}, for example: {shown}"))
        for choice in ("adopt", "keep"):  # whole, to be copied
            command = command_of(choice, question.source, namespace)
            console.print(Text(f"  {command}"), soft_wrap=True)


def _opened(
    context: typer.Context, source: str | None, own_url: str | None, own_namespace: str | None
) -> tuple[Guard, str | None]:
    """Return the guard that a decision is about, and the name of the source."""
    database, namespace = context.obj
    database = own_url if own_url is not None else database
    namespace = own_namespace if own_namespace is not None else namespace
    with read_only(database) as session:
        found = namespaces(session)
        if namespace is None and len(found) > 1:
            msg = f"there are {len(found)} guards; choose one with --namespace."
            raise ConfigurationError(msg)
        namespace = namespace if namespace is not None else next(iter(found), "default")
        questions_of(session, database, namespace)  # raises where there is none: none is made
    guard = Guard.open(database, namespace)
    return guard, _named(source, guard.questions())


def _named(given: str | None, questions: Sequence[Question]) -> str | None:
    """Return the name that was meant: what cannot be typed is given as it is shown."""
    names = [question.source for question in questions if question.source is not None]
    if given is None or given in names:
        return given
    return next((name for name in names if printable(name, LONGEST_NAME) == given), given)


def _check_named(source: str | None, *, unnamed: bool) -> None:
    if (source is None) != unnamed:
        msg = "nothing was done: name a source, or what names none by --unnamed, and not both."
        raise ConfigurationError(msg)


def _shown(source: str | None) -> str:
    return "what names no source" if source is None else f"the source {printable(source, 80)!r}"
