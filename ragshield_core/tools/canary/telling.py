"""What a check of canaries and a traceback tell: HTML with plots, Markdown and SARIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragshield_core.model.findings import Finding, printable
from ragshield_core.tools.audit.sarif import Located, document_of, entry_location
from ragshield_core.tools.case_report import SUSPECT, CaseReport, ShownCase, ShownText, looked_at
from ragshield_core.tools.case_report import html_page as page_of
from ragshield_core.tools.page import escaped

if TYPE_CHECKING:
    import datetime as dt

    from ragshield_core.tools.canary.drift import CanaryDrift, DriftReport
    from ragshield_core.tools.canary.traceback import Suspect, Traceback

SAID = {
    "canary_drift": "Watched questions that retrieve, or are answered, otherwise than before.",
    "canary_traceback": "Entries that are to blame for such a change.",
}
# Ids that are named in a sentence.
NAMED = 10


def verdict_of(report: DriftReport) -> str:
    """Return what a check found, in a sentence or two."""
    n, flagged = len(report.canaries), len(report.flagged)
    said = f"None of {n} watched questions has changed more than growth explains."
    if flagged:
        have = "has" if flagged == 1 else "have"
        said = f"{flagged} of {n} watched questions {have} changed more than growth explains."
    if report.still_served:
        said += f" {len(report.still_served)} entries in quarantine are still retrieved."
    return said


def told_of_drift(report: DriftReport, traceback: Traceback | None = None) -> CaseReport:
    """Return a check for HTML and Markdown.

    Parameters
    ----------
    report
        The check.
    traceback
        Who is to blame, if it was asked.
    """
    suite = printable(report.suite, 60)
    steps = []
    if report.still_served:
        some = ", ".join(printable(name, 60) for name in report.still_served[:NAMED])
        steps.append(f"Take what is in quarantine out of the knowledge base: {some}.")
    if report.flagged:
        names = ", ".join(printable(drift.name, 60) for drift in report.flagged[:NAMED])
        steps += [
            f"Ask these questions yourself, and read what they retrieve: {names}.",
            (
                "Hold the entries that are to blame: ragshield canary trace --quarantine, with the "
                f"suite {suite} and the options of this check."
            ),
            (
                "If the change is wanted, record a new baseline: ragshield canary baseline, with "
                "the same options."
            ),
        ]
    return CaseReport(
        question="Do watched questions still get what they got?",
        verdict=verdict_of(report),
        style="bad" if report.flagged or report.still_served else "good",
        source=f"suite {suite}, baseline {report.baseline}",
        looked_at=looked_at(f"the first {report.k} results of each question", report.checked_at),
        steps=steps or ["Nothing. Check again after the next change of the knowledge base."],
        heading="Entries that are to blame",
        cases=[] if traceback is None else list(map(_shown, traceback.suspects)),
        n_cases=0 if traceback is None else len(traceback.suspects),
    )


def told_of_suspects(traceback: Traceback, at: dt.datetime) -> CaseReport:
    """Return a traceback for HTML and Markdown; ``at`` is when it was made, in UTC."""
    n = len(traceback.suspects)
    steps = [
        "Read the entries, the first one first. Is what they say true?",
        "Hold those that are not: the same command with --quarantine; then ragshield review.",
    ]
    return CaseReport(
        question="Which entries are to blame?",
        verdict=f"{n} of {len(traceback.candidates)} entries are more likely to blame than not.",
        style="bad" if n else "good",
        source=traceback.subject,
        looked_at=looked_at(f"{len(traceback.candidates)} retrieved entries", at),
        steps=steps if n else ["Nothing here is to blame. Look at the prompt and the model."],
        heading="Entries that are to blame",
        cases=list(map(_shown, traceback.suspects)),
        n_cases=n,
    )


def drift_sarif(report: DriftReport, traceback: Traceback | None = None) -> str:
    """Return flagged canaries and suspects as SARIF; parameters as of :func:`told_of_drift`."""
    drifts = [_drifted(drift, report.suite) for drift in report.flagged]
    suspects = [] if traceback is None else _suspected(traceback)
    notes = [
        ("error", f"{name} is in quarantine and still retrieved") for name in report.still_served
    ]
    return document_of(
        [*drifts, *suspects],
        notes=notes,
        successful=True,
        properties={"verdict": verdict_of(report)},
        said=SAID,
    )


def suspects_sarif(traceback: Traceback) -> str:
    """Return suspects as SARIF."""
    return document_of(
        _suspected(traceback),
        notes=(),
        successful=True,
        properties={"verdict": traceback.summary()},
        said=SAID,
    )


def _shown(suspect: Suspect) -> ShownCase:
    asked = ", ".join(suspect.canaries)
    return ShownCase(
        title=f"{suspect.entry_id} comes at place {suspect.rank}",
        badge=SUSPECT,
        entry_ids=(suspect.entry_id,),
        texts=(ShownText(id=suspect.entry_id, text=suspect.passage.text),),
        evidence=suspect.why,
        by=f"To blame by {suspect.responsibility:.0%}",
        effect=f"It is retrieved for: {asked}." if asked else "",
        beside=suspect.related_ids,
        quote=" ".join(suspect.passage.text.split())[:160],
    )


def _drifted(drift: CanaryDrift, suite: str) -> Located:
    finding = Finding(
        detector="canary_drift",
        entry_id=drift.name,
        score=drift.score,
        threshold=math.nan,  # several figures have one each
        p_value=drift.takeover_p,
        evidence="; ".join(drift.reasons) or "it has changed",
        related_ids=drift.newcomers,
    )
    return Located(finding, "warning", entry_location(drift.name, suite, "canary"), "canary")


def _suspected(traceback: Traceback) -> list[Located]:
    return [
        Located(
            finding,
            "error",
            entry_location(suspect.entry_id, suspect.passage.lineage or "knowledge base"),
        )
        for suspect in traceback.suspects
        for finding in suspect.decision().findings
    ]


# Canaries whose ranks are drawn: the worst ones, so that a page of a thousand stays readable.
DRAWN = 50


def html_report(
    report: DriftReport,
    history: Sequence[DriftReport] = (),
    traceback: Traceback | None = None,
) -> str:
    """Return a whole page.

    Parameters
    ----------
    report
        The check to show.
    history
        Earlier checks of the same suite, oldest first, for the plot over time.
    traceback
        Who is to blame.
    """
    return page_of(told_of_drift(report, traceback), [_plots(report, history)])


def html_body(report: DriftReport, history: Sequence[DriftReport] = ()) -> str:
    """Return what stands in a notebook; parameters as of :func:`html_report`."""
    style = "bad" if report.flagged or report.still_served else "good"
    head = (
        f"<h1>Canaries of {escaped(repr(report.suite))}</h1>"
        f'<p class="{style}">{escaped(report.summary())}</p>'
        f"<p>{report.checked_at:%Y-%m-%d %H:%M} UTC, k = {report.k}, "
        f"rule {escaped(report.rule)}.</p>"
    )
    return head + _plots(report, history)


def _plots(report: DriftReport, history: Sequence[DriftReport]) -> str:
    seen = report.checked_at in {one.checked_at for one in history}
    checks = [*history] if seen else [*history, report]
    parts = ["<h2>Anomaly over time</h2>", _over_time(checks)] if len(checks) > 1 else []
    parts.append("<h2>Canaries</h2>")
    parts += [_canary(drift) for drift in report.flagged[:DRAWN]]
    parts.append(_others(report))
    return "".join(parts)


def _canary(drift: CanaryDrift) -> str:
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>"
        for name, value in drift.figures()
    )
    return (
        f'<details open><summary class="bad">{escaped(drift.name, 120)}</summary>'
        f"<table>{rows}</table>{_ranks(drift)}</details>"
    )


def _others(report: DriftReport) -> str:
    shown = {drift.name for drift in report.flagged[:DRAWN]}
    rows = "".join(
        f'<tr><td class="{"bad" if d.flagged else "good"}">{"yes" if d.flagged else "no"}</td>'
        f"<td>{escaped(d.name, 120)}</td><td>{d.score:.3f}</td></tr>"
        for d in report.canaries
        if d.name not in shown
    )
    return _table("flagged canary anomaly", rows) if rows else ""


def _table(columns: str, rows: str) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns.split())
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _over_time(checks: Sequence[DriftReport]) -> str:
    """Draw each canary's anomaly over the checks; flagged ones with a dot and their name."""
    width, height, left, bottom = 860, 240, 40, 24
    steps = max(1, len(checks) - 1)

    def x(step: int) -> float:
        return left + step * (width - left - 20) / steps

    def y(score: float) -> float:
        return 10 + (1.0 - min(1.0, max(0.0, score))) * (height - bottom - 20)

    parts = [
        f'<line class="axis" stroke="#8a94a0" x1="{left}" x2="{width - 20}" y1="{y(v):.1f}" '
        f'y2="{y(v):.1f}"/>'
        f'<text x="8" y="{y(v) + 4:.1f}">{v:.1f}</text>'
        for v in (0.0, 0.5, 1.0)
    ]
    lines: dict[str, list[tuple[int, CanaryDrift]]] = {}
    for step, check in enumerate(checks):
        for drift in check.canaries:
            lines.setdefault(drift.name, []).append((step, drift))
    ranked = sorted(lines.items(), key=lambda item: -max(d.score for _, d in item[1]))
    for name, line in ranked[:DRAWN]:
        ever = any(drift.flagged for _, drift in line)
        points = " ".join(f"{x(step):.1f},{y(drift.score):.1f}" for step, drift in line)
        kind, colour = ("poison", "#b3261e") if ever else ("clean", "#4a6fa5")
        parts.append(
            f'<polyline class="{kind}" points="{points}" stroke="{colour}" style="fill: none" '
            'stroke-opacity=".6">'
            f"<title>{escaped(name, 120)}</title></polyline>"
        )
        parts += [
            f'<circle class="poison" cx="{x(step):.1f}" cy="{y(drift.score):.1f}" r="3">'
            f"<title>{escaped(name, 120)}: {drift.score:.3f}</title></circle>"
            for step, drift in line
            if drift.flagged
        ]
    for step in sorted({0, len(checks) // 2, len(checks) - 1}):
        parts.append(
            f'<text x="{max(left, x(step) - 60):.1f}" y="{height - 6}">'
            f"{checks[step].checked_at:%m-%d %H:%M}</text>"
        )
    return f'<svg width="{width}" height="{height}" role="img">{"".join(parts)}</svg>'


def _ranks(drift: CanaryDrift) -> str:
    """Draw where entries stood at the baseline, and where they stand now."""
    rows = max(len(drift.ids), len(drift.baseline_ids))
    if not rows:
        return ""
    height = 20 * rows + 30
    new = set(drift.newcomers)
    parts = ['<text x="10" y="16">baseline</text><text x="430" y="16">now</text>']

    def y(row: int) -> int:
        return 36 + 20 * row

    for row, entry_id in enumerate(drift.baseline_ids):
        parts.append(
            f'<text class="clean" x="10" y="{y(row)}">{row + 1}. {escaped(entry_id, 40)}</text>'
        )
        if entry_id in drift.ids and entry_id not in new:
            parts.append(
                f'<line x1="300" x2="420" y1="{y(row) - 4}" y2="{y(drift.ids.index(entry_id)) - 4}"'
                ' class="clean" stroke="#4a6fa5"/>'
            )
    for row, entry_id in enumerate(drift.ids):
        kind = "poison" if entry_id in new else "clean"
        mark = " (new)" if entry_id in new else ""
        parts.append(
            f'<text class="{kind}" x="430" y="{y(row)}">{row + 1}. '
            f"{escaped(entry_id, 40)}{mark}</text>"
        )
    return f'<svg width="760" height="{height}" role="img">{"".join(parts)}</svg>'
