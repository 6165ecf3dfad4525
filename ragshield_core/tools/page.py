"""The shared design of HTML reports; all values are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from ragshield_core.model.findings import printable

# Readable on screens, phones and paper, light and dark.
STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5a6672; --paper: #ffffff;
  --card: #f6f8fa; --line: #d0d7de; --clean: #2a78b5; --bad: #b3261e; --good: #14713d;
  --warn: #8a5a00; --mark: #ffe69c; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe6ee; --soft: #9aa7b4; --paper: #14191f;
  --card: #1d242c; --line: #3b4550; --clean: #6db3ea; --bad: #f08379; --good: #6fcf97;
  --warn: #e0b050; --mark: #6b5200; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.figures td, .figures th { white-space: nowrap; }
p, li { max-width: 62rem; } p, li, td, th, figcaption, pre { overflow-wrap: anywhere; }
.verdict { border-left: .4rem solid; padding: .6rem 1rem; background: var(--card);
  font-size: 1.1rem; }
.bad { color: var(--bad); } .good { color: var(--good); } .warn { color: var(--warn); }
.verdict p { color: var(--ink); margin: .3rem 0; }
.case { border: 1px solid var(--line); border-radius: 6px; padding: .2rem 1rem .6rem;
  margin: 1rem 0; break-inside: avoid; }
.case h3 { margin: .6rem 0 .2rem; } .soft { color: var(--soft); font-size: 13px; }
.badge { border: 1px solid; border-radius: 1rem; padding: 0 .6rem; font-size: 13px;
  margin-right: .5rem; white-space: nowrap; }
.texts { display: flex; flex-wrap: wrap; gap: .8rem; }
.texts > div { flex: 1 1 18rem; min-width: 0; background: var(--card); padding: .4rem .8rem;
  border-radius: 4px; }
.texts pre { white-space: pre-wrap; font: inherit; margin: .2rem 0; }
mark { background: var(--mark); color: inherit; } code { font-size: 13px; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; width: 346px; max-width: 100%; }
figcaption { font-size: 13px; } svg { max-width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--ink); } .axis { stroke: var(--line); fill: none; }
svg .clean { fill: var(--clean); stroke: var(--clean); }
svg .poison { fill: var(--bad); stroke: var(--bad); }
.bars .clean, .bars .poison { stroke: none; opacity: .65; }
.limit { stroke: var(--ink); stroke-dasharray: 4 3; }
summary { cursor: pointer; }
@media print { body { margin: 0; max-width: none; } details:not([open]) > * { display: block; } }
"""
# No script runs and nothing is loaded, even if a text asks for it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def whole_page(title: str, body: Iterable[str]) -> str:
    """Return a page of HTML in one file, with a title of plain text and pieces of HTML."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>"
    )


def escaped(value: object, limit: int = 2_000) -> str:
    """Return any value as text, escaped for HTML and without control characters."""
    return html.escape(printable(str(value), limit))


def verdict_box(head: str, rest: str, style: str) -> str:
    """Return the box of the answer: its first sentence, without the full stop, and the others."""
    return (
        f'<div class="verdict {style}"><b>{escaped(head)}.</b>'
        f"{f'<p>{escaped(rest)}</p>' if rest else ''}</div>"
    )


def bullets(lines: Iterable[object]) -> str:
    """Return a list of plain texts."""
    return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, figures: bool = True) -> str:
    """Return a table of plain values; figures stay on one line."""
    head = "".join(f"<th>{escaped(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    kind = ' class="figures"' if figures else ""
    shown = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{shown}</div>'


def bars(shares: Mapping[str, float], axis: str) -> str:
    """Draw shares in [0, 1] as horizontal bars above an axis with a title."""
    step, left, width = 24, 250, 300
    below = step * len(shares) + 8
    drawn = "".join(
        f'<text x="{left - 8}" y="{step * row + 19}" text-anchor="end">{escaped(name, 60)}</text>'
        f'<rect class="clean" x="{left}" y="{step * row + 6}" height="{step - 8}" '
        f'width="{max(1.0, share * width):.1f}"/>'
        f'<text x="{left + share * width + 6:.1f}" y="{step * row + 19}">{share:.0%}</text>'
        for row, (name, share) in enumerate(shares.items())
    )
    ticks = "".join(
        f'<text x="{left + tick * width:.0f}" y="{below + 14}" text-anchor="middle">{tick:.0%}'
        "</text>"
        for tick in (0.0, 0.5, 1.0)
    )
    return (
        f'<svg viewBox="0 0 {left + width + 50} {below + 36}" width="{left + width + 50}" '
        f'role="img" aria-label="{escaped(axis)}"><g class="bars">{drawn}</g>'
        f'<path class="axis" d="M{left} 2 V{below} H{left + width}"/>{ticks}'
        f'<text x="{left + width / 2:.0f}" y="{below + 30}" text-anchor="middle">{escaped(axis)}'
        "</text></svg>"
    )
