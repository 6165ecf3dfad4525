"""``ragshield origin``: who vouches for entries, and all entries of a key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import ConfigurationError, SourceError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import modules_here
from ragshield_core.tools.options import AsListing, By, Into, Listing, Note, live_store

SHOWN = 200
# Characters of a line in a log; answers name some tens of documents.
LONGEST_LINE = 1_000_000

origin_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Say who vouches for entries of a store."
)
console = Console()

Key = Annotated[str, typer.Argument(help="Name of the key, as in the settings.")]


@origin_app.command()
def show(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of entries, such as those of an answer.")
    ] = None,
    *,
    into: Into = None,
    form: AsListing = Listing.TABLE,
) -> None:
    """Say who vouches for entries, and how many others come from the same place.

    Without ids, it says so of all entries.
    """
    from rich.table import Table

    store = _store(into)
    every = store.origins()
    found = {i: every[i] for i in dict.fromkeys(ids or every) if i in every}
    places = Counter((one.key, one.source) for one in every.values())
    rows = [
        {
            "id": i,
            "origin": str(one),
            "source": one.source,
            "why": one.why,
            "from_the_same": places[one.key, one.source],
        }
        for i, one in found.items()
    ]
    if form is Listing.JSON:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("entry", "origin", "source", "others", "why")
    for row in rows:
        others = str(max(0, row["from_the_same"] - 1)) if row["source"] else ""
        cells = (row["id"], row["origin"], row["source"] or "", others, row["why"])
        table.add_row(*(Text(printable(str(cell), SHOWN)) for cell in cells))
    console.print(table)
    if missing := len(set(ids or ())) - len(found):
        typer.echo(f"{missing} of the ids are not in the store.")


@origin_app.command("list")
def list_entries(key: Key, *, into: Into = None, form: AsListing = Listing.TABLE) -> None:
    """Print the ids of all entries that a key vouches for, also of a revoked one."""
    found = _store(into).vouched_by(key)
    if form is Listing.JSON:
        typer.echo(json.dumps(found))
        return
    for entry_id in found:
        typer.echo(printable(entry_id, SHOWN))
    typer.echo(f"{len(found)} entries are vouched for by {printable(key, SHOWN)!r}.", err=True)


@origin_app.command()
def recall(key: Key, *, into: Into = None, by: By = "cli", note: Note = None) -> None:
    """Move all entries that a key vouches for to quarantine, such as those of a stolen key."""
    store = _store(into)
    gone = store.recall(store.vouched_by(key), by=by, note=note or f"vouched for by {key}")
    typer.echo(f"{len(gone)} entries were moved to quarantine; ragshield quarantine cases")


@origin_app.command()
def answers(
    log: Annotated[
        Path,
        typer.Argument(
            help='Log of answers: per line {"question": ..., "documents": [ids]} as JSON.'
        ),
    ],
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of entries.")] = None,
    *,
    key: Annotated[str | None, typer.Option(help="All entries of this key, held ones too.")] = None,
    into: Into = None,
    form: AsListing = Listing.TABLE,
) -> None:
    """Print the answers that used certain entries, or those of a key."""
    sought = set(ids or ())
    if key is not None:
        store = _store(into)
        held = store.quarantine.list()
        of_held = store.guard.origins.of_entry
        sought.update(store.vouched_by(key), (h.id for h in held if key in of_held(h.entry).keys))
    if not sought:
        typer.echo("No entries to look for: name ids, or a key with --key.", err=True)
        raise typer.Exit(2 if key is None else 0)
    found = [one for one in _answers_in(log) if sought.intersection(one.documents)]
    if form is Listing.JSON:
        typer.echo(json.dumps([one.model_dump() for one in found], indent=2))
        return
    for one in found:
        used = ", ".join(sorted(sought.intersection(one.documents)))
        typer.echo(f"{printable(one.question, SHOWN)}  <- {printable(used, SHOWN)}")
    typer.echo(f"{len(found)} answers used {len(sought)} entries or some of them.", err=True)


class _Answer(BaseModel):
    question: str
    documents: list[str]


def _answers_in(log: Path) -> Iterator[_Answer]:
    """Yield the answers of a log; raise for a line that holds none, with its number."""
    number = 0
    try:
        with log.open(encoding="utf-8") as lines:
            while line := lines.readline(LONGEST_LINE):
                number += 1
                if line.strip():
                    yield _Answer.model_validate_json(line)
    except (OSError, ValueError) as error:
        at = number + isinstance(error, UnicodeDecodeError)
        where = f", line {at}" if isinstance(error, ValueError) else ""
        msg = (
            f"{printable(str(log))}{where}: {type(error).__name__}; expected a line for each "
            'answer, as JSON: {"question": "...", "documents": ["id", ...]}.'
        )
        raise SourceError(msg) from None


def _store(into: str | None) -> Any:
    if into is None:
        msg = (
            "origins are read from the store; name your guarded store with --into module:object, "
            "or in the settings."
        )
        raise ConfigurationError(msg)
    with modules_here():
        store = live_store(into, "origins", "vouched_by", "recall")
    if not store.guard.origins:
        msg = (
            f"the guard of {into!r} knows no keys; set guard.origins, or [origins.NAME] in the "
            "settings that Guard.from_config reads."
        )
        raise ConfigurationError(msg)
    return store
