"""``ragshield contradictions``: statements that contradict each other, and alerts about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ragshield_core.model.errors import SourceError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import modules_here, named_object
from ragshield_core.tools.audit.command import (
    FOUND,
    NOT_ENOUGH,
    NOTHING_FOUND,
    ReadingOptions,
    TrustOptions,
    console,
    no_crash_looks_like_a_finding,
    progress_bar,
    show_contradictions,
)
from ragshield_core.tools.options import AsListing, By, Listing, Tenant, takes

# Characters of a line about an alert.
MOST_SHOWN = 2_000

contradictions_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Show statements that contradict each other.",
)


@contradictions_app.command()
@takes(ReadingOptions, TrustOptions, Tenant)
def check(  # noqa: PLR0913 - options of a command line
    reading: ReadingOptions,
    trust: TrustOptions,
    tenant: Tenant,
    data: Annotated[Path, typer.Argument(help="As of scan.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(help="module:object of a ContradictionModel. Default: altered copies only."),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="Suite of canary questions: alerts about these come first.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Accepted share of clean entries, in (0, 1).")] = 0.01,
    limit: Annotated[int, typer.Option(min=0, help="Alerts to show.")] = 20,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep alerts, in --database. Never by default.")
    ] = False,
    form: AsListing = Listing.TABLE,
) -> None:
    """Compare every entry with those nearest to it, and show the strongest contradictions.

    Trusted entries calibrate and are not judged. Without them all entries do, and the share of
    alerts is the rate in a clean knowledge base as well.

    Exit code 0: no alert; 1: alerts; 2: an error; 3: no alert, but some entries were not compared.
    """
    import numpy as np

    from ragshield_core.tools.canary.suite import CanarySuite
    from ragshield_core.tools.contradictions.checker import ContradictionChecker
    from ragshield_core.tools.contradictions.storage import KeptAlerts

    with no_crash_looks_like_a_finding(), modules_here():
        if trust.baseline is not None:
            msg = "--baseline is of scan; contradictions have no baseline, so leave it out."
            raise SourceError(msg)
        suite = None if canaries is None else CanarySuite.load(canaries)
        with progress_bar(quiet=form is Listing.JSON) as tell:
            knowledge = reading.knowledge_base(data, tell, metadata=True)
            batch = knowledge.batch
            checker = ContradictionChecker(
                batch,
                None if model is None else named_object(model),
                rate=rate,
                per_day=limit,
                kept=KeptAlerts(tenant.quarantine()) if keep else None,
                canaries=() if suite is None else suite.queries,
                embedder=None if knowledge.embedder is None else knowledge.embedder.embed,
            )
            clean = trust.ids(batch, data)
            rows = None
            if clean is not None:
                rows = np.flatnonzero(np.isin(batch.ids, clean))
            tell("comparing", 0, 1)
            checked = checker.check_all(batch, rows)
            tell("comparing", 1, 1)
        if form is Listing.JSON:
            typer.echo(json.dumps(checked.to_dict()))
        else:
            show_contradictions(checked, console)
    told = checked.alerts or checked.over_budget
    raise typer.Exit(FOUND if told else NOT_ENOUGH if checked.unchecked else NOTHING_FOUND)


@contradictions_app.command("list")
@takes(Tenant)
def list_alerts(
    tenant: Tenant,
    *,
    limit: Annotated[int, typer.Option(min=0, help="Alerts to show.")] = 20,
    form: AsListing = Listing.TABLE,
) -> None:
    """Show the open alerts of a database, the most consequential first."""
    from ragshield_core.tools.contradictions.storage import KeptAlerts

    with no_crash_looks_like_a_finding():
        quarantine = tenant.opened()
        found = KeptAlerts(quarantine).list(limit)
        if form is Listing.JSON:
            typer.echo(json.dumps([one.to_dict() for one in found], indent=2))
            return
        console.print(Text(f"{quarantine.open_alerts()} open alerts"))
        for one in found:
            line = f"{one.number}. {one.opened_at[:10]} {one.alert}"
            console.print(Text(printable(line, MOST_SHOWN)), soft_wrap=True)


@contradictions_app.command()
@takes(Tenant)
def close(
    tenant: Tenant,
    number: Annotated[int, typer.Argument(help="Of the alert, as listed.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option(help="What became of it.")],
) -> None:
    """Close an alert; the same two texts raise none again."""
    from ragshield_core.tools.contradictions.storage import KeptAlerts

    with no_crash_looks_like_a_finding():
        closed = KeptAlerts(tenant.opened()).close(number, by=by, reason=reason)
        console.print(Text(f"alert {closed.number} is closed"))
