"""Options that commands share, in groups that a command takes as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.database.naming import DEFAULT_URL, database_url
from ragshield_core.model.errors import ConfigurationError, QuarantineError, SourceError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import named_object

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.quarantine import Quarantine

By = Annotated[str, typer.Option(help="Who decides; kept in the log.")]
Note = Annotated[str | None, typer.Option(help="Why; kept in the log.")]


class Listing(StrEnum):
    """Form of a printed list."""

    TABLE = "table"
    JSON = "json"


class Form(StrEnum):
    """Form of a printed report."""

    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"
    HTML = "html"
    MARKDOWN = "markdown"


# Form of a written report, by the ending of its file.
ENDINGS = {
    ".json": "json",
    ".sarif": "sarif",
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
}
AsListing = Annotated[Listing, typer.Option("--format", help="json is for programs.")]
DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="RAGSHIELD_DATABASE",
        parser=database_url,
        metavar="PATH|URL",
        help="SQLite file, or SQLAlchemy URL.",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        help="module:object of your guarded store, or a factory of one: released entries are back "
        "at once. Without it, at the next ingest."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """The options that choose a tenant's quarantine."""

    database: DatabaseUrl = DEFAULT_URL
    namespace: Annotated[str, typer.Option(help="Of the tenant.")] = "default"

    def quarantine(self) -> Quarantine:
        """Return the quarantine, which may not exist yet."""
        from ragshield_core.quarantine import Quarantine

        return Quarantine(self.database, namespace=self.namespace)

    def opened(self) -> Quarantine:
        """Return an existing quarantine: a mistyped name must not look like an empty one."""
        quarantine = self.quarantine()
        if not quarantine.exists():
            msg = (
                f"{quarantine!r} does not exist: nothing was ever held there, or --database is "
                "wrong."
            )
            raise QuarantineError(msg)
        return quarantine


@dataclass(frozen=True, kw_only=True)
class StoreOptions(Tenant):
    """The options that choose a tenant's quarantine and one of its stores."""

    store: Annotated[
        str | None, typer.Option(help="Only that of the store of that name; default: of all.")
    ] = None

    def quarantine(self) -> Quarantine:
        """Return the quarantine as the store sees it; it may not exist yet."""
        from ragshield_core.quarantine import Quarantine

        return Quarantine(self.database, namespace=self.namespace, store=self.store)


@dataclass(frozen=True, kw_only=True)
class Guards:
    """The options that choose guards."""

    database: DatabaseUrl = DEFAULT_URL
    namespace: Annotated[
        str | None, typer.Option(help="Of the tenant; default: all in a list, or the only one.")
    ] = None

    def opened(self) -> Guard:
        """Return the chosen guard; a missing one is an error, never created."""
        from ragshield_core.database.read_only import read_only
        from ragshield_core.guard import Guard
        from ragshield_core.sharing.standing import namespaces, questions_of

        with read_only(self.database) as session:
            found = namespaces(session)
            if self.namespace is None and len(found) > 1:
                msg = f"there are {len(found)} guards; choose one with --namespace."
                raise ConfigurationError(msg)
            chosen = self.namespace or next(iter(found), "default")
            questions_of(session, self.database, chosen)  # raises if there is no guard
        return Guard.open(self.database, chosen)


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The options that choose a report's form and its files."""

    form: Annotated[
        Form,
        typer.Option("--format", metavar="FORM", help="What is printed: " + ", ".join(Form) + "."),
    ] = Form.TABLE
    output: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write the report there as well; the ending (.json, .sarif, .html, .md) "
            "says how. Repeatable.",
        ),
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdict only, and no progress.")
    ] = False

    def check(self) -> None:
        """Refuse files that cannot be written, before an hour of work."""
        for path in self.output or ():
            check_folder_of(path)
            if path.suffix.lower() not in ENDINGS:
                endings = ", ".join(ENDINGS)
                msg = f"--output {path.name}: expected a name that ends in one of {endings}."
                raise SourceError(msg)

    def give(
        self,
        forms: Mapping[str, Callable[[], str]],
        verdict: str,
        table: Callable[[], None],
        console: Console,
    ) -> None:
        """Write the files, and print the report in the chosen form.

        ``forms`` make the report, ``table`` prints it for people, and the verdict is the answer in
        one or two sentences.
        """
        text = cache(lambda form: forms[form]())
        for path in self.output or ():
            path.write_text(text(ENDINGS[path.suffix.lower()]), encoding="utf-8", newline="")
        if self.form is not Form.TABLE:
            typer.echo(text(str(self.form)).rstrip("\n"))
        elif self.quiet:
            console.print(Text(printable(verdict, limit=2000)), soft_wrap=True)
        else:
            table()


def check_folder_of(path: Path) -> None:
    """Refuse a file in a missing folder, before an hour of work."""
    if not path.parent.is_dir():
        msg = f"{path.parent} is not a folder, so {path.name} cannot be written; make it."
        raise SourceError(msg)


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the fields of dataclasses as options.

    Parameters
    ----------
    groups
        The command gets an instance of each, in this order, before its own parameters.
    """
    options = [_options_of(group) for group in groups]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(command, eval_str=True).parameters.values())[len(groups) :]

        @wraps(command)
        def called(**given: Any) -> None:
            made = [
                group(**{option.name: given.pop(option.name) for option in mine})
                for group, mine in zip(groups, options, strict=True)
            ]
            command(*made, **given)

        called.__signature__ = Signature([*own, *chain(*options)])  # type: ignore[attr-defined]
        return called

    return decorate


def _options_of(group: type[Any]) -> list[Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in fields(group)
    ]


def live_store(name: str, *methods: str) -> Any:
    """Return the guarded store, index or pipeline of a ``module:object`` name.

    Raises
    ------
    ConfigurationError
        If it lacks one of these methods, or is a quarantine.
    """
    from ragshield_core.quarantine import Quarantine

    found = named_object(name)
    if isinstance(found, Quarantine) or not all(hasattr(found, method) for method in methods):
        msg = (
            f"{name!r} is a {type(found).__name__}, expected a guarded store, index or pipeline "
            f"with {', '.join(methods)}."
        )
        raise ConfigurationError(msg)
    return found
