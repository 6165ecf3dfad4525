"""An evaluation as a page of HTML with plots, whole in one file; all that is shown is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.figures import CLEAN, REGIMES, Evaluation, Rate

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #ffffff; --line: #c9d1d9;
  --clean: #2a78b5; --bad: #b3261e; --good: #14713d; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe6ee; --paper: #14191f; --line: #3b4550;
  --clean: #6db3ea; --bad: #f08379; --good: #6fcf97; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; width: 346px; max-width: 100%; }
figcaption { font-size: 13px; } svg { max-width: 100%; height: auto; }
p, li { max-width: 62rem; } p, li, figcaption { overflow-wrap: anywhere; }
svg text { font-size: 11px; fill: var(--ink); } .axis { stroke: var(--line); fill: none; }
.clean { fill: var(--clean); stroke: var(--clean); } .bad { fill: var(--bad); stroke: var(--bad); }
.bars .clean, .bars .bad { stroke: none; opacity: .65; }
.limit { stroke: var(--ink); stroke-dasharray: 4 3; }
"""
# No script runs, and nothing is loaded from anywhere, whatever a text says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
WIDTH, HEIGHT, MARGIN = 290, 150, 28
BINS = 30
# Beyond this quantile of all scores, bars stand at the edge: a few extremes would hide the rest.
EDGE = 0.98


def html_page(found: Evaluation, worse: Sequence[str] = ()) -> str:
    """Return a whole page.

    Parameters
    ----------
    found
        The figures.
    worse
        What is worse than it was, or than it may be.
    """
    fpr = _escaped(found.settings.get("fpr", ""))
    parts = [
        "<h1>How the guard does on this corpus</h1>",
        _paragraph(
            f"{found.n_known:,} entries known, {found.n_clean:,} clean ones came; accepted "
            f"false-positive rate {fpr}. Intervals are exact, 95 %; texts of one target are held "
            "together, so that the true ones are wider."
        ),
    ]
    if found.idle:
        parts.append("<p>Detectors that judged nothing here:</p>")
        parts.append(_list(f"{name}: {why}" for name, why in found.idle.items()))
    if worse:
        parts += ["<h2>Worse than it may be</h2>", _list(worse)]
    false = [
        (regime, *_cells(found.false_positives[regime]))
        for regime in REGIMES
        if regime in found.false_positives
    ]
    by = ", ".join(f"{name} {n}" for name, n in found.false_by.items())
    parts += [
        "<h2>Clean entries that are held</h2>",
        _table(("how they came", "held", "of", "share", "95 %"), false),
        _paragraph(f"In batches, by: {_escaped(by or 'none')}."),
        "<h2>Poison that is held</h2>",
        _paragraph(
            "<b>alone</b>: so many texts of a target at once, and nothing else of the attack is "
            "known. <b>stream</b>: one by one among clean entries, one in a hundred. <b>batch</b>: "
            "all of an attack at once, which flatters."
        ),
        _table(
            ("attack", "texts of a target", "how they came", "held", "of", "share", "95 %", "by"),
            [
                (r.attack, r.size, r.regime, *_cells(r.held), ", ".join(list(r.by)[:3]))
                for r in found.recalls
            ],
        ),
        *_groups_alone(found),
        "<h2>Questions that poison reaches</h2>",
        _table(
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
            _list(f"{name}: {what}" for name, what in found.recipes.items()),
        ]
    parts.append(
        _paragraph(
            f"Fitting took {found.fit_seconds:.1f} s, screening {found.milliseconds:.2f} ms an "
            "entry, embedding left out."
        )
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>RAGShield evaluation</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>"
    )


def _groups_alone(found: Evaluation) -> list[str]:
    """Return a table of what is held of groups, by size."""
    groups = found.groups_alone
    if not groups:
        return []
    sizes = sorted({size for rates in groups.values() for size in rates})
    return [
        "<h2>Groups that are held, by size</h2>",
        _paragraph("So many texts of a target at once, and nothing else of the attack is known."),
        _table(
            ("attack", *(f"{size} of a target" for size in sizes)),
            [
                (name, *(_share(rates.get(size)) for size in sizes))
                for name, rates in groups.items()
            ],
        ),
    ]


def _share(rate: Rate | None) -> str:
    return f"{rate.share:.3f} [{rate.low:.3f}, {rate.high:.3f}]" if rate and rate.n else "–"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_escaped(line)}</li>' for line in lines)}</ul>"


def _cells(rate: Rate) -> tuple[object, ...]:
    if not rate.n:
        return ("–", 0, "–", "–")
    return rate.hits, rate.n, f"{rate.share:.3f}", f"{rate.low:.3f} to {rate.high:.3f}"


def _paragraph(text: str) -> str:
    return f"<p>{text}</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_escaped(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


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
    for values, style in ((clean, "clean"), (poison, "bad")):
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
    caption = _escaped(f"{name}: clean (blue) and poison (red), each of its own highest bar")
    width, below = WIDTH + 2 * MARGIN, HEIGHT + 24
    return (
        f'<figure><svg viewBox="0 0 {width} {HEIGHT + 30}" width="{width}" role="img" '
        f'aria-label="{caption}"><g class="bars">{"".join(bars)}</g>{line}'
        f'<path class="axis" d="M{MARGIN} 10 V{10 + HEIGHT} H{MARGIN + WIDTH}"/>'
        f'<text x="{MARGIN}" y="{below}">{edges[0]:.3g}</text>'
        f'<text x="{MARGIN + WIDTH}" y="{below}" text-anchor="end">{edges[-1]:.3g}</text></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _escaped(value: object, limit: int = 2_000) -> str:
    return html.escape(printable(str(value), limit))
