"""Reports of an evaluation: for terminals, as HTML, Markdown and SARIF; all values are escaped."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ragshield_core.model.findings import Finding, printable
from ragshield_core.tools.audit.command import console
from ragshield_core.tools.audit.sarif import MESSAGE, Located, document_of, entry_location
from ragshield_core.tools.case_report import CaseReport, Part, looked_at
from ragshield_core.tools.case_report import html_page as page_of
from ragshield_core.tools.evaluate.figures import REGIMES, Evaluation, Rate

MISSED, WRONGLY_HELD = "missed-poison", "clean-entry-held"
RULES = {
    MISSED: "A planted text that the guard let in and did not take back.",
    WRONGLY_HELD: "A clean entry that the guard held.",
}
NOTE = (
    "Alone: nothing else of the attack is known. Stream: one by one, one poisoned in a hundred "
    "clean entries. Batch: all of an attack at once, which flatters. Intervals are exact, 95 %; "
    "texts of one target are held together, so that the true ones are wider."
)


def tables(found: Evaluation) -> dict[str, list[Sequence[str]]]:
    """Return the tables of all reports by title, each with its heads first."""
    rates = {
        (r.attack, r.regime): r.held for r in found.recalls if r.regime != "alone" or r.size == 1
    }
    held: list[Sequence[str]] = [("attack", "texts", *REGIMES)]
    for main in found.main_recalls:
        cells = [_told(rates.get((main.attack, regime))) for regime in REGIMES]
        held.append((main.attack, str(main.size), *cells))
    false = found.false_positives
    held.append(("clean entries", "1", *(_told(false.get(regime)) for regime in REGIMES)))
    groups = found.groups_alone
    sizes = sorted({size for by_size in groups.values() for size in by_size})
    by_size: list[Sequence[str]] = [("attack", *map(str, sizes))]
    for name, one in groups.items():  # without intervals, which would not fit into a terminal
        shares = (f"{one[size].share:.2f}" if size in one else "–" for size in sizes)
        by_size.append((name, *shares))
    reached: list[Sequence[str]] = [("attack", "without a guard", "with it")]
    reached += [(each.attack, _told(each.before), _told(each.after)) for each in found.reached]
    objecting: list[Sequence[str]] = [("attack", "texts that each objects to")]
    for name, by in (
        *((r.attack, r.by) for r in found.main_recalls),
        ("clean entries", found.false_by),
    ):
        objecting.append((name, ", ".join(f"{kind} {n}" for kind, n in by.items()) or "–"))
    return {
        "Poison that is held, by how it comes": held,
        "So many texts of a target at once, nothing else of the attack known": by_size,
        "Questions that poison reaches": reached,
        "Detectors that object": objecting,
    }


def _told(rate: Rate | None) -> str:
    """Return a share with its interval, short enough for three in a terminal line."""
    return f"{rate.share:.2f} [{rate.low:.2f}, {rate.high:.2f}]" if rate and rate.n else "–"


def notes(found: Evaluation) -> list[str]:
    """Return the sentences below the tables."""
    lost = f"Of {found.lost.n} questions about clean entries, {found.lost.hits}"
    took = f"Fitting took {found.fit_seconds:.1f} s, screening {found.milliseconds:.2f} ms an entry"
    return [
        f"{lost} miss one that was wrongly held. {took}, embedding left out.",
        NOTE,
    ]


def weakest_of(found: Evaluation) -> tuple[str, float] | None:
    """Return the attack with the lowest share of held texts, and that share; None without any."""
    shares = [(rate.attack, rate.held.share) for rate in found.main_recalls if rate.held.n]
    return min(shares, key=lambda each: each[1], default=None)


def verdict(found: Evaluation, worse: Sequence[str]) -> str:
    """Return the answer in a sentence or two."""
    n = len({rate.attack for rate in found.main_recalls if rate.held.n})
    said = f"{n} attacks were planted into {found.n_known:,} known entries"
    if weakest := weakest_of(found):
        said += f"; the guard holds the least of {weakest[0]}: {weakest[1]:.0%}"
    return ". ".join((said, *(f"Worse: {line}" for line in worse))).rstrip(".") + "."


def show(found: Evaluation, worse: Sequence[str]) -> None:
    """Print the figures, and those that are worse than the baseline or a bound."""
    for title, (heads, *rows) in tables(found).items():
        if rows:
            shown = Table(title=title)
            for column, head in enumerate(heads):
                shown.add_column(head, justify="right" if column and len(heads) > 2 else "left")  # noqa: PLR2004
            for row in rows:
                shown.add_row(*(Text(printable(cell)) for cell in row))
            console.print(shown)
    console.print(Text(" ".join(notes(found))))
    for name, why in found.idle.items():
        console.print(Text(printable(f"judged nothing here: {name}: {why}"), style="yellow"))
    for line in worse:
        console.print(Text(printable(f"worse: {line}"), style="red"))


def case_report(
    found: Evaluation, worse: Sequence[str] = (), source: str = "this corpus"
) -> CaseReport:
    """Return an evaluation of the corpus ``source`` for HTML and Markdown.

    ``worse`` are the sentences of :func:`~ragshield_core.tools.evaluate.worse_than`.
    """
    steps = [f"Worse than it may be: {line}" for line in worse]
    if weakest := weakest_of(found):
        steps.append(
            f"Of {weakest[0]} the least is held. Watch questions that matter with canaries, and "
            "let a person look at new sources."
        )
    if found.idle:
        steps.append("See below for detectors that judged nothing here: most need more entries.")
    what = (
        f"{found.n_known:,} entries known, {found.n_clean:,} clean ones came, accepted "
        f"false-positive rate {found.settings.get('fpr', '')}"
    )
    shares = {main.attack: main.held.share for main in found.main_recalls if main.held.n}
    parts = [Part(shares=shares, axis="share of the texts of each attack that is held")]
    parts += [
        Part(title, heads=heads, rows=rows, figures=True)
        for title, (heads, *rows) in tables(found).items()
        if rows
    ]
    parts += [Part("", note) for note in notes(found)]
    for title, heads, told in (
        ("Planted texts", ("attack", "recipe"), found.recipes),
        ("Detectors that judged nothing here", ("detector", "reason"), found.idle),
    ):
        if told:
            parts.append(Part(title, heads=heads, rows=list(told.items())))
    return CaseReport(
        question="How the guard does on this corpus",
        verdict=verdict(found, worse),
        style="bad" if worse else "good",
        source=source,
        looked_at=looked_at(what, dt.datetime.now(dt.UTC)),
        steps=steps or ["Nothing. Evaluate again when the corpus has grown."],
        parts=parts,
    )


def html_page(found: Evaluation, worse: Sequence[str] = (), source: str = "this corpus") -> str:
    """Return a whole page; parameters as in :func:`case_report`."""
    return page_of(case_report(found, worse, source))


def to_sarif(found: Evaluation, source: str) -> str:
    """Return missed poison as errors and wrongly held clean entries as warnings: ids, no texts.

    A missed text is a fact about the guard, not about the file: planted ids are not in the file. A
    result's fingerprint is made of attack and text, or of a clean entry's id, so that a text that
    is missed again in the next evaluation keeps its fingerprint.

    Parameters
    ----------
    found
        The result of :func:`~ragshield_core.tools.evaluate.evaluate`.
    source
        Path of the corpus, with forward slashes; results are located in it.
    """

    def located(rule: str, entry_id: str, said: str, mark: str = "", **more: object) -> Located:
        finding = Finding(
            detector=rule,
            entry_id=entry_id,
            score=math.nan,
            threshold=math.nan,
            p_value=None,
            evidence=said,
        )
        level = "error" if rule == MISSED else "warning"
        return Located(finding, level, entry_location(entry_id, source), mark=mark, more=more)

    results = []
    for each in found.missed:
        attack = printable(each.attack, MESSAGE)
        how = "alone" if each.regime == "alone" else f"in a {each.regime}"
        said = f"{attack}, planted {how}, was let in and stayed"
        results.append(
            located(MISSED, each.entry_id, said, each.mark, attack=attack, regime=each.regime)
        )
    for entry_id, detectors in found.wrongly_held.items():
        said = f"clean, and held by {', '.join(detectors) or 'no detector that acts'}"
        results.append(located(WRONGLY_HELD, entry_id, said, detectors=list(detectors)))
    return document_of(
        results,
        notes=[("note", f"judged nothing here: {name}: {why}") for name, why in found.idle.items()],
        successful=True,
        properties={"entries": found.n_known + found.n_clean, "fpr": found.settings.get("fpr")},
        said=RULES,
    )
