"""``ragshield contradictions``: statements of a knowledge base that contradict each other."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)
from ragshield_core.tools.options import AsListing, Listing, takes

if TYPE_CHECKING:
    from ragshield_core.tools.contradictions.alerts import Checked

# Characters of a line about an alert.
MOST_SHOWN = 2_000


@takes(ReadingOptions, TrustOptions)
def contradictions_command(
    reading: ReadingOptions,
    trust: TrustOptions,
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
                canaries=() if suite is None else suite.queries,
                embedder=None if knowledge.embedder is None else knowledge.embedder.embed,
            )
            clean = trust.ids(batch, data)
            known = frozenset(batch.ids if clean is None else clean)
            trusted = np.array([one in known for one in batch.ids], dtype=np.bool_)
            tell("calibrating", 0, 1)
            checker.calibrate(batch.take(trusted))
            tell("comparing", 0, 1)
            checked = checker.check(batch if clean is None else batch.take(~trusted))
            tell("comparing", 1, 1)
        if form is Listing.JSON:
            typer.echo(json.dumps(checked.to_dict()))
        else:
            _show(checked)
    told = checked.alerts or checked.over_budget
    raise typer.Exit(FOUND if told else NOT_ENOUGH if checked.unchecked else NOTHING_FOUND)


def _show(checked: Checked) -> None:
    show = partial(console.print, soft_wrap=True)
    show(Text(printable(checked.summary(), MOST_SHOWN)))
    for alert in checked.alerts:
        show(Text(printable(str(alert), MOST_SHOWN)))
    reasons = dict.fromkeys(checked.unchecked.values())
    for reason in reasons:
        show(Text(printable(f"not compared: {reason}"), style="yellow"))
