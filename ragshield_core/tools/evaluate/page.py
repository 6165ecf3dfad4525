"""An evaluation as a page of HTML with plots, whole in one file, and as Markdown; all escaped."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence

import numpy as np

from ragshield_core.tools.case_report import CaseReport, looked_at, plain
from ragshield_core.tools.case_report import html_page as page_of
from ragshield_core.tools.case_report import markdown as markdown_of
from ragshield_core.tools.evaluate.figures import CLEAN, REGIMES, Evaluation, Rate
from ragshield_core.tools.evaluate.output import verdict, weakest_of
from ragshield_core.tools.page import bullets, escaped, table

WIDTH, HEIGHT, MARGIN = 290, 150, 28
BINS = 30
# Beyond this quantile of all scores, bars stand at the edge: a few extremes would hide the rest.
EDGE = 0.98


def html_page(
    found: Evaluation,
    worse: Sequence[str] = (),
    source: str = "this corpus",
    at: dt.datetime | None = None,
) -> str:
    """Return a whole page.

    Parameters
    ----------
    found
        The figures.
    worse
        What is worse than it was, or than it may be.
    source
        The corpus, as its path.
    at
        When, in UTC; default: now.
    """
    told = _told(found, worse, source, at)
    return page_of(told, _figures(found))


def to_markdown(found: Evaluation, worse: Sequence[str] = (), source: str = "this corpus") -> str:
    """Return the same without plots, as Markdown; parameters as of :func:`html_page`."""
    rows = [
        (main.attack, main.size, main.regime, *_cells(main.held)[:3]) for main in found.main_recalls
    ]
    rows += [
        ("clean entries", 1, regime, *_cells(rate)[:3])
        for regime, rate in found.false_positives.items()
    ]
    heads = ("attack", "texts of a target", "how they came", "held", "of", "share")
    lines = [heads, ("---",) * len(heads), *rows]
    table_of = "\n".join(
        f"| {' | '.join('---' if cell == '---' else plain(str(cell)) for cell in line)} |"
        for line in lines
    )
    return markdown_of(_told(found, worse, source, None), ["## What is held", table_of])


def _told(
    found: Evaluation, worse: Sequence[str], source: str, at: dt.datetime | None
) -> CaseReport:
    steps = [f"Worse than it may be: {line}" for line in worse]
    weakest = weakest_of(found)
    if weakest:
        steps.append(
            f"Of {weakest} the least is held. Watch questions that matter with canaries, and let a "
            "person look at new sources."
        )
    if found.idle:
        steps.append("See below for detectors that judged nothing here: most need more entries.")
    fpr = found.settings.get("fpr", "")
    what = (
        f"{found.n_known:,} entries known, {found.n_clean:,} clean ones came, accepted "
        f"false-positive rate {fpr}"
    )
    return CaseReport(
        question="How the guard does on this corpus",
        verdict=verdict(found, worse),
        style="bad" if worse else "good",
        source=source,
        looked_at=looked_at(what, at or dt.datetime.now(dt.UTC)),
        steps=steps or ["Nothing. Evaluate again when the corpus has grown."],
        heading="",
        cases=(),
        n_cases=0,
    )


def _figures(found: Evaluation) -> list[str]:
    """Return tables and plots."""
    false = [
        (regime, *_cells(found.false_positives[regime]))
        for regime in REGIMES
        if regime in found.false_positives
    ]
    by = ", ".join(f"{name} {n}" for name, n in found.false_by.items())
    parts = [
        _paragraph(
            "Intervals are exact, 95 %; texts of one target are held together, so that the true "
            "ones are wider."
        ),
        "<h2>Clean entries that are held</h2>",
        table(("how they came", "held", "of", "share", "95 %"), false),
        _paragraph(f"In batches, by: {escaped(by or 'none')}."),
        "<h2>Poison that is held</h2>",
        _paragraph(
            "<b>alone</b>: so many texts of a target at once, and nothing else of the attack is "
            "known. <b>stream</b>: one by one among clean entries, one in a hundred. <b>batch</b>: "
            "all of an attack at once, which flatters."
        ),
        table(
            ("attack", "texts of a target", "how they came", "held", "of", "share", "95 %", "by"),
            [
                (r.attack, r.size, r.regime, *_cells(r.held), ", ".join(list(r.by)[:3]))
                for r in found.recalls
            ],
        ),
        *_groups_alone(found),
        "<h2>Questions that poison reaches</h2>",
        table(
            ("attack", "without a guard", "of", "share", "95 %", "with it", "of", "share", "95 %"),
            [(r.attack, *_cells(r.before), *_cells(r.after)) for r in found.reached],
        ),
        _paragraph(
            f"Of {found.lost.n} questions about clean entries, {found.lost.hits} miss a clean "
            "entry among the nearest that was wrongly held."
        ),
        "<h2>Scores</h2>",
        _paragraph("In batches; above the dashed line an entry is held."),
        f'<div class="plots">{"".join(_histogram(found, name) for name in found.scores)}</div>',
    ]
    if found.recipes:
        parts += [
            "<h2>What was planted</h2>",
            bullets(f"{name}: {what}" for name, what in found.recipes.items()),
        ]
    parts.append(
        _paragraph(
            f"Fitting took {found.fit_seconds:.1f} s, screening {found.milliseconds:.2f} ms an "
            "entry, embedding left out."
        )
    )
    if found.idle:
        parts.append("<p>Detectors that judged nothing here:</p>")
        parts.append(bullets(f"{name}: {why}" for name, why in found.idle.items()))
    return parts


def _groups_alone(found: Evaluation) -> list[str]:
    """Return a table of what is held of groups, by size."""
    groups = found.groups_alone
    if not groups:
        return []
    sizes = sorted({size for rates in groups.values() for size in rates})
    return [
        "<h2>Groups that are held, by size</h2>",
        _paragraph("So many texts of a target at once, and nothing else of the attack is known."),
        table(
            ("attack", *(f"{size} of a target" for size in sizes)),
            [
                (name, *(_share(rates.get(size)) for size in sizes))
                for name, rates in groups.items()
            ],
        ),
    ]


def _share(rate: Rate | None) -> str:
    return f"{rate.share:.3f} [{rate.low:.3f}, {rate.high:.3f}]" if rate and rate.n else "–"


def _cells(rate: Rate) -> tuple[object, ...]:
    if not rate.n:
        return ("–", 0, "–", "–")
    return rate.hits, rate.n, f"{rate.share:.3f}", f"{rate.low:.3f} to {rate.high:.3f}"


def _paragraph(text: str) -> str:
    return f"<p>{text}</p>"


def _histogram(found: Evaluation, name: str) -> str:
    clean = np.array(found.scores[name].get(CLEAN, ()))
    planted = [each for kind, each in found.scores[name].items() if kind != CLEAN]
    poison = np.array([score for each in planted for score in each])
    if not len(clean) or not len(poison):
        return ""
    both = np.concatenate([clean, poison])
    threshold = found.thresholds.get(name, math.nan)
    low, high = float(both.min()), float(np.quantile(both, EDGE))
    if math.isfinite(threshold):
        low, high = min(low, threshold), max(high, threshold)
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    bars = []
    step = WIDTH / BINS
    for values, style in ((clean, "clean"), (poison, "poison")):
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        for place, share in enumerate(counts / max(1e-9, counts.max())):
            if share > 0.0:
                size = max(1.0, share * HEIGHT)
                bars.append(
                    f'<rect class="{style}" x="{MARGIN + place * step:.1f}" '
                    f'y="{10 + HEIGHT - size:.1f}" width="{step:.1f}" height="{size:.1f}"/>'
                )
    line = ""
    if math.isfinite(threshold):
        x = MARGIN + (threshold - edges[0]) / (edges[-1] - edges[0]) * WIDTH
        line = f'<line class="limit" x1="{x:.1f}" y1="6" x2="{x:.1f}" y2="{10 + HEIGHT}"/>'
    caption = escaped(f"{name}: clean (blue) and poison (red), each of its own highest bar")
    width, below = WIDTH + 2 * MARGIN, HEIGHT + 24
    return (
        f'<figure><svg viewBox="0 0 {width} {HEIGHT + 30}" width="{width}" role="img" '
        f'aria-label="{caption}"><g class="bars">{"".join(bars)}</g>{line}'
        f'<path class="axis" d="M{MARGIN} 10 V{10 + HEIGHT} H{MARGIN + WIDTH}"/>'
        f'<text x="{MARGIN}" y="{below}">{edges[0]:.3g}</text>'
        f'<text x="{MARGIN + WIDTH}" y="{below}" text-anchor="end">{edges[-1]:.3g}</text></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
