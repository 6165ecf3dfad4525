"""Options that several commands have, and how a command takes them as one value."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain
from typing import Annotated, Any, get_type_hints

import typer
from sqlalchemy import select

from ragshield_core.database.tables import HeldRow
from ragshield_core.model.errors import ConfigurationError, QuarantineError, RAGShieldError
from ragshield_core.quarantine import DEFAULT_URL, Quarantine
from ragshield_core.settings.objects import named_object

By = Annotated[str, typer.Option(help="Who decides; kept in the log.")]
Note = Annotated[str | None, typer.Option(help="Why; kept in the log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Into = Annotated[
    str | None,
    typer.Option(
        help="module:object of your guarded store, or a factory of one: what is released is back "
        "at once. Without it, at the next ingest."
    ),
]


def completed(names: Callable[[Quarantine], Sequence[str]]) -> Any:
    """Return a completion of names for the shell; without a database, it offers none."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        said = context.params
        url = said.get("database") or os.environ.get("RAGSHIELD_DATABASE") or DEFAULT_URL
        try:
            quarantine = Quarantine(url, namespace=said.get("namespace") or "default")
            found = names(quarantine) if quarantine.exists() else ()
        except RAGShieldError:
            return []
        return [name for name in found if name.startswith(incomplete) and name.isprintable()]

    return complete


def _namespaces(quarantine: Quarantine) -> Sequence[str]:
    """Return the namespaces of the database in which anything is or was held."""
    query = select(HeldRow.namespace).distinct().order_by(HeldRow.namespace)
    with quarantine.database.read() as session:
        return session.scalars(query).all()


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """The options that say whose quarantine is meant."""

    database: Annotated[str, typer.Option(envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL.")] = (
        DEFAULT_URL
    )
    namespace: Annotated[
        str, typer.Option(help="Of the tenant.", autocompletion=completed(_namespaces))
    ] = "default"

    def quarantine(self) -> Quarantine:
        """Return the quarantine, which may not exist yet."""
        return Quarantine(self.database, namespace=self.namespace)

    def opened(self) -> Quarantine:
        """Return a quarantine that exists: a mistyped name must not look like an empty one."""
        quarantine = self.quarantine()
        if not quarantine.exists():
            msg = (
                f"{quarantine!r} does not exist: nothing was ever held there, or --database is "
                "wrong."
            )
            raise QuarantineError(msg)
        return quarantine


@dataclass(frozen=True, kw_only=True)
class Place(Tenant):
    """The same, and of which of its stores."""

    store: Annotated[
        str | None, typer.Option(help="Only that of the store of that name; default: of all.")
    ] = None

    def quarantine(self) -> Quarantine:
        """Return the quarantine as the store sees it; it may not exist yet."""
        return Quarantine(self.database, namespace=self.namespace, store=self.store)


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
    """Return the guarded store, index or pipeline that ``module:object`` names.

    Raises
    ------
    ConfigurationError
        If it lacks one of these methods, or is a quarantine.
    """
    found = named_object(name)
    if isinstance(found, Quarantine) or not all(hasattr(found, method) for method in methods):
        msg = (
            f"{name!r} is a {type(found).__name__}, expected a guarded store, index or pipeline "
            f"with {', '.join(methods)}."
        )
        raise ConfigurationError(msg)
    return found
