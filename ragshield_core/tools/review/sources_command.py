"""``ragshield sources``: decisions on sources that may be new ones or mass attacks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import ConfigurationError, StateError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import modules_here
from ragshield_core.tools.audit.command import (
    FOUND,
    NOTHING_FOUND,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.options import (
    AsListing,
    By,
    Guards,
    Into,
    Listing,
    Note,
    live_store,
    takes,
)

if TYPE_CHECKING:
    from ragshield_core.calibration.arrivals import Question

# Characters of a name in a command: no source has as many.
LONGEST_NAME = 300
# Entries of one transaction of a release: other writers wait for it.
AT_ONCE = 200

sources_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Decide on sources: new ones, or mass attacks?"
)
console = Console()


@dataclass(frozen=True, kw_only=True)
class Decided(Guards):
    """The options of a decision: the guard, the source and the reviewer."""

    source: Annotated[
        str | None, typer.Argument(help="Name of the source, as the list has it.")
    ] = None
    unnamed: Annotated[bool, typer.Option("--unnamed", help="The entries without a source.")] = (
        False
    )
    by: By = "cli"

    def check(self) -> None:
        """Refuse options that name no source, or two."""
        if (self.source is None) != self.unnamed:
            msg = "nothing was done: name a source, or what names none by --unnamed, and not both."
            raise ConfigurationError(msg)

    def among(self, questions: Sequence[Question]) -> str | None:
        """Return the source's name; a name with unprintable characters is typed as it is shown."""
        names = [question.source for question in questions if question.source is not None]
        if self.source is None or self.source in names:
            return self.source
        meant = (name for name in names if printable(name, LONGEST_NAME) == self.source)
        return next(meant, self.source)


@sources_app.command("list")
@takes(Guards)
def list_sources(guards: Guards, *, form: AsListing = Listing.TABLE) -> None:
    """List sources whose share of held entries is far above that of clean entries.

    They are new sources, or mass attacks; a person decides by `adopt` or `keep`.
    Exit code 1: there are some. Exit code 2: there is no guard, or it cannot be read.
    """
    from ragshield_core.database.read_only import read_only
    from ragshield_core.sharing.standing import namespaces, questions_of

    url = guards.database
    with no_crash_looks_like_a_finding(), read_only(url) as session:
        names = [guards.namespace] if guards.namespace else namespaces(session) or ["default"]
        found = [(name, one) for name in names for one in questions_of(session, url, name)]
    if form is Listing.JSON:
        values = [{"namespace": name} | question.to_dict() for name, question in found]
        typer.echo(json.dumps({"questions": values}, indent=2))  # in ASCII, hostile names escaped
    elif not found:
        console.print("no source is asked about")
    else:
        for name, question in found:
            of = "" if name == "default" else f"{printable(name, 80)}: "
            lines = [f"{of}{question}"]
            for side, ids in (("held", question.held_ids), ("admitted", question.admitted_ids)):
                shown = ", ".join(printable(one, 80) for one in ids)
                lines += [f"  {side}, for example: {shown}"] if ids else []
            for choice in ("adopt", "keep"):
                lines.append(f"  {command_of(choice, question.source, name)}")
            console.print(Text("\n".join(lines)), soft_wrap=True)  # commands stay whole
    raise typer.Exit(FOUND if found else NOTHING_FOUND)


@sources_app.command()
@takes(Decided)
def adopt(decided: Decided, *, note: Note = None, into: Into = None) -> None:
    """Set thresholds for a good source, and release its entries below them.

    The most suspicious share, as large as the accepted rate, stays held. Without --into, the guard
    admits released entries when they are ingested again.
    """
    decided.check()
    with no_crash_looks_like_a_finding(), modules_here():
        if into is not None:
            store = live_store(into, "adopt_source", "guard", "release")
            source = decided.among(store.guard.sources.questions())
            n_released = len(store.adopt_source(source, by=decided.by, note=note))
            told = " into the store"
        else:
            guard = decided.opened()
            source = decided.among(guard.sources.questions())
            free = guard.sources.adopt(source, by=decided.by)
            for start in range(0, len(free), AT_ONCE):
                guard.quarantine.release(free[start : start + AT_ONCE], by=decided.by, note=note)
            n_released, told = len(free), "; the guard admits them at the next ingest"
    console.print(Text(f"adopted {_shown(source)}: released {n_released} entries{told}"))


@sources_app.command()
@takes(Decided)
def keep(decided: Decided) -> None:
    """Close the question: held entries stay held, and later ones are judged as before.

    The question returns once twice as many are held.
    """
    decided.check()
    guard = decided.opened()
    questions = guard.sources.questions()
    source = decided.among(questions)
    if source not in {question.source for question in questions}:
        msg = (
            f"nothing was done: {_shown(source)} is not asked about; `ragshield sources list` "
            "has those that are."
        )
        raise StateError(msg)
    guard.sources.keep_holding(source, by=decided.by)
    console.print(Text(f"{_shown(source)}: held entries stay held"))


def command_of(choice: str, source: str | None, namespace: str = "default") -> str:
    """Return the command that decides on a source, with a hostile name quoted for the shell.

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


def _shown(source: str | None) -> str:
    return (
        "the entries without a source"
        if source is None
        else f"the source {printable(source, 80)!r}"
    )
