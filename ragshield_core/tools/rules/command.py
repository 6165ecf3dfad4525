"""``ragshield rules``: commands that list, make and revoke rules."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import RuleError
from ragshield_core.model.printing import printable
from ragshield_core.tools.options import AsListing, By, Listing, StoreOptions, takes

rules_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Say what is not to be held, and until when."
)
console = Console()

Reason = Annotated[str, typer.Option(help="Why; kept in the log.")]


@rules_app.command("list")
@takes(StoreOptions)
def list_rules(
    place: StoreOptions,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that are expired, revoked or broken.")
    ] = False,
    form: AsListing = Listing.TABLE,
) -> None:
    """Show the rules that are in force, oldest first."""
    from rich.table import Table

    from ragshield_core.tools.rules.register import NEVER, Rules

    now = dt.datetime.now(dt.UTC)
    found = Rules(place.quarantine()).list(every=every)
    if form is Listing.JSON:
        typer.echo(json.dumps([rule.to_dict(now) for rule in found], indent=2))
        return
    columns = ("rule", "standing", "source", "store", "detectors", "until", "by", "reason")
    table = Table(*columns, title=f"{len(found)} rules")
    for rule in found:
        row = (
            *(str(rule.number), rule.standing(now), rule.source),
            "(all)" if rule.store is None else rule.store or "(unnamed)",
            "(usual)" if rule.detectors is None else ", ".join(rule.detectors),
            NEVER if rule.expires_at is None else f"{rule.expires_at:%Y-%m-%d %H:%M}",
            *(rule.made_by, rule.reason),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


@rules_app.command()
@takes(StoreOptions)
def add(
    place: StoreOptions,
    source: Annotated[str, typer.Argument(help="The lineage to trust.")],
    *,
    by: By,
    reason: Reason,
    expires: Annotated[str, typer.Option(help="30d, a date such as 2030-01-31 (UTC), or never.")],
    detector: Annotated[
        list[str] | None, typer.Option(help="Whose findings; again for more. Default: the usual.")
    ] = None,
) -> None:
    """Trust a source; the rule is in force in every process at its next read or write."""
    from ragshield_core.tools.rules.register import CAUTION, Rules

    rule = Rules(place.quarantine()).add(
        source, reason=reason, by=by, expires_at=_end(expires), detectors=detector
    )
    console.print(Text(f"{rule.told()} is in force. Mind: {CAUTION}."))


@rules_app.command()
@takes(StoreOptions)
def revoke(
    place: StoreOptions,
    number: Annotated[int, typer.Argument(help="Of the rule, as listed.")],
    *,
    by: By,
    reason: Reason,
) -> None:
    """Take a rule back; entries that it let in stay until an audit judges them."""
    from ragshield_core.tools.rules.register import Rules

    rule = Rules(place.quarantine()).revoke(number, by=by, reason=reason)
    console.print(Text(f"{rule.told()} is revoked"))


def _end(expires: str) -> dt.datetime | Literal["never"]:
    from ragshield_core.tools.rules.register import NEVER

    if expires == NEVER:
        return NEVER
    now = dt.datetime.now(dt.UTC)
    try:
        if days := re.fullmatch(r"(\d{1,5})d", expires):
            return now + dt.timedelta(days=int(days[1]))
        end = dt.datetime.fromisoformat(expires)
    except ValueError:
        msg = (
            f"--expires is {printable(expires, 60)!r}, expected days such as 30d, a date such as "
            "2030-01-31, or never."
        )
        raise RuleError(msg) from None
    return end if end.tzinfo is not None else end.replace(tzinfo=dt.UTC)
