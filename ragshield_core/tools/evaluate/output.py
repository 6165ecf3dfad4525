"""What an evaluation found, as tables of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ragshield_core.model.findings import printable
from ragshield_core.tools.audit.command import console
from ragshield_core.tools.evaluate.figures import REGIMES, Evaluation, Rate


def show(found: Evaluation, worse: Sequence[str]) -> None:
    """Print the figures, and what is worse than it was or may be."""
    console.print(_recalls(found))
    if found.groups_alone:
        console.print(_groups(found))
    console.print(_reached(found))
    console.print(
        Text(
            f"Of {found.lost.n} questions about clean entries, {found.lost.hits} miss one that was "
            f"wrongly held. Screening takes {found.milliseconds:.2f} ms an entry, fitting "
            f"{found.fit_seconds:.1f} s. Batches flatter: all of an attack comes at once there."
        )
    )
    for name, why in found.idle.items():
        console.print(Text(printable(f"judged nothing here: {name}: {why}"), style="yellow"))
    for line in worse:
        console.print(Text(printable(f"worse: {line}"), style="red"))


def verdict(found: Evaluation, worse: Sequence[str]) -> str:
    """Return the answer in a sentence or two."""
    shares = _shares(found)
    weakest = weakest_of(found)
    said = f"{len(shares)} attacks were planted into {found.n_known:,} known entries"
    if weakest:
        said += f"; the guard holds the least of {weakest}: {shares[weakest]:.0%}"
    return ". ".join((said, *(f"Worse: {line}" for line in worse))).rstrip(".") + "."


def weakest_of(found: Evaluation) -> str:
    """Return the attack of which the guard holds the least; empty if none was tried."""
    shares = _shares(found)
    return min(shares, key=shares.__getitem__, default="")


def _shares(found: Evaluation) -> dict[str, float]:
    return {rate.attack: rate.held.share for rate in found.main_recalls if rate.held.n}


def _recalls(found: Evaluation) -> Table:
    table = _table("Poison that is held, by how it comes", "attack", "texts", *REGIMES)
    rates = {
        (r.attack, r.regime): r.held for r in found.recalls if r.regime != "alone" or r.size == 1
    }
    for main in found.main_recalls:
        cells = [_brief(rates.get((main.attack, regime))) for regime in REGIMES]
        table.add_row(Text(printable(main.attack)), str(main.size), *cells)
    table.add_section()
    false = [_brief(found.false_positives.get(regime)) for regime in REGIMES]
    table.add_row(Text("clean entries", style="bold"), "1", *false)
    return table


def _groups(found: Evaluation) -> Table:
    groups = found.groups_alone
    sizes = sorted({size for rates in groups.values() for size in rates})
    title = "So many texts of a target at once, nothing else of the attack known"
    table = _table(title, "attack", *map(str, sizes))
    for name, rates in groups.items():
        shares = [f"{rates[size].share:.2f}" if size in rates else "–" for size in sizes]
        table.add_row(Text(printable(name)), *shares)
    return table


def _reached(found: Evaluation) -> Table:
    table = _table("Questions that poison reaches", "attack", "without a guard", "with it")
    for each in found.reached:
        table.add_row(Text(printable(each.attack)), _brief(each.before), _brief(each.after))
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title)
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table


def _brief(rate: Rate | None) -> str:
    """Return a share with its interval, short enough for three in a line of a terminal."""
    return f"{rate.share:.2f} [{rate.low:.2f}, {rate.high:.2f}]" if rate and rate.n else "–"
