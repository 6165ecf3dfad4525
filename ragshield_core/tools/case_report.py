"""Report of a tool's cases as HTML and as Markdown: verdict, next steps, cases, texts."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import version
from typing import Any

from ragshield_core.model.findings import Finding, printable
from ragshield_core.model.severity import MEANINGS, Severity
from ragshield_core.tools.page import bars, bullets, escaped, table, verdict_box, whole_page

# Maximum number of cases and texts on a page: thousands help nobody.
SHOWN_CASES, SHOWN_TEXTS = 200, 6
# Maximum number of characters of a text, around its suspicious sentence.
SHOWN = 900
SUSPECT = "suspect"  # in place of an unknown severity
BADGES: dict[str, str] = {
    Severity.CRITICAL: "bad",
    Severity.HIGH: "bad",
    Severity.MEDIUM: "warn",
    SUSPECT: "bad",
}
# Maximum number of cases in Markdown, of ids of a case, and of characters of a quoted text.
LISTED_CASES, LISTED_IDS, QUOTED = 50, 10, 300
# Characters with a meaning in Markdown.
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~&!@])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """A text of a case; ``span`` is its suspicious part."""

    id: str
    text: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCase:
    """A case as reports show it."""

    title: str
    severity: str  # its severity, or SUSPECT
    entry_ids: tuple[str, ...]  # of the known entries, worst first
    texts: tuple[ShownText, ...]  # of the first entries
    evidence: str
    by: str
    effect: str = ""
    beside: tuple[str, ...] = ()  # ids to look at as well
    quote: str = ""  # the suspicious words
    advice: str = ""
    n_entries: int = 0  # in the whole case; 0 if `entry_ids` has them all

    detectors: tuple[str, ...] = ()  # names of detectors that found any of the entries

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON-ready values, without texts."""
        names = ("severity", "title", "entry_ids", "beside", "detectors", "evidence", "effect")
        return {name: getattr(self, name) for name in (*names, "advice")}

    def n_more(self, shown: int) -> int:
        """Return the number of entries beyond the ``shown`` ones."""
        return max(self.n_entries, len(self.entry_ids)) - shown


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a report, which shows its non-empty fields in this order."""

    heading: str = ""
    text: str = ""
    _: KW_ONLY
    shares: Mapping[str, float] = field(default_factory=dict)  # in [0, 1], drawn as bars
    axis: str = ""  # of the bars
    heads: Sequence[str] = ()  # of the table
    rows: Sequence[Sequence[object]] = ()
    figures: bool = False  # whether cells of the table stay on one line
    cases: Sequence[ShownCase] = ()
    lines: Sequence[str] = ()

    def html(self) -> str:
        """Return the part as HTML."""
        return "".join(
            (
                f"<h2>{escaped(self.heading)}</h2>" if self.heading else "",
                f"<p>{escaped(self.text)}</p>" if self.text else "",
                bars(self.shares, self.axis) if self.shares else "",
                table(self.heads, self.rows, figures=self.figures) if self.rows else "",
                *(_case(number, case) for number, case in enumerate(self.cases, start=1)),
                bullets(self.lines) if self.lines else "",
            )
        )

    def markdown(self) -> str:
        """Return the part as Markdown."""
        shown = [f"## {self.heading}"] if self.heading else []
        shown += [plain(self.text)] if self.text else []
        if self.rows:
            rows = [f"| {' | '.join(plain(str(each)) for each in row)} |" for row in self.rows]
            head = f"| {' | '.join(map(plain, self.heads))} |"
            shown.append("\n".join([head, "|" + "---|" * len(self.heads), *rows]))
        if self.cases:
            shown.append("\n".join(_listed(n, case) for n, case in enumerate(self.cases, start=1)))
        lines = [f"- {plain(name)}: {share:.0%}" for name, share in self.shares.items()]
        lines += [f"- {code(one)}" for one in self.lines]
        if lines:
            shown.append("\n".join(lines))
        return "\n\n".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """Content of a report of cases."""

    question: str  # the heading: the question that the report answers
    verdict: str  # the answer; its first sentence is shown large
    style: str  # `"good"`, `"warn"` or `"bad"`
    source: str  # name of the data: hostile
    looked_at: str  # number of entries, time and version; see looked_at
    steps: Sequence[str]  # next steps, a sentence each
    heading: str = ""  # of the cases
    # The first cases, and the number of all cases
    cases: Sequence[ShownCase] = ()
    n_cases: int = 0
    parts: Sequence[Part] = ()  # shown after the cases

    @property
    def answers(self) -> tuple[str, str]:
        """The first sentence of the verdict, and the others."""
        head, _, rest = self.verdict.partition(". ")
        return head.rstrip("."), rest


def looked_at(what: str, at: dt.datetime) -> str:
    """Return a phrase with the data, the time and the version; ``at`` is in UTC."""
    return f"{what}, looked at on {at:%Y-%m-%d %H:%M} UTC by RAGShield {version('ragshield')}"


def sentence(text: str) -> str:
    """Return a text with a capital letter in front and a full stop at the end.

    >>> sentence("it opens with a question")
    'It opens with a question.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def span_of(findings: Sequence[Finding]) -> tuple[int, int] | None:
    """Return the suspicious part of a text, if one is known."""
    return next((f.span for f in findings if f.span is not None and not f.beside), None)


def html_page(report: CaseReport, more: Iterable[str] = ()) -> str:
    """Return a whole page; ``more`` are pieces of HTML at its end."""
    body = [
        f"<h1>{escaped(report.question)}</h1>",
        verdict_box(*report.answers, report.style),
        f'<p class="soft">{escaped(report.source)}, {escaped(report.looked_at)}.</p>',
        "<h2>What to do next</h2>",
        bullets(report.steps),
    ]
    if report.cases:
        body.append(f"<h2>{escaped(report.heading)} ({report.n_cases})</h2>")
        body.append(f'<p class="soft">{escaped(_legend(report))}</p>')
        shown = report.cases[:SHOWN_CASES]
        body += [_case(number, case) for number, case in enumerate(shown, start=1)]
        if (left := report.n_cases - len(shown)) > 0:
            body.append(f"<p>{left:,} more cases are in the JSON report.</p>")
    body += [part.html() for part in report.parts]
    return whole_page(f"RAGShield: {report.question}", [*body, *more])


def _legend(report: CaseReport) -> str:
    """Return the meanings of the severities in a report."""
    badges = {case.severity for case in report.cases}
    return "; ".join(f"{one}: {MEANINGS[one]}" for one in Severity if one in badges & {*MEANINGS})


def _case(number: int, case: ShownCase) -> str:
    style = BADGES.get(case.severity, "soft")
    texts = "".join(map(_text, case.texts[:SHOWN_TEXTS]))
    parts = [
        (
            f'<h3><span class="badge {style}">{escaped(case.severity)}</span>'
            f"{number}. {escaped(case.title)}</h3>"
        ),
        f"<p>{escaped(case.effect)}</p>" if case.effect else "",
        f"<p><b>Why:</b> {escaped(sentence(case.evidence))}</p>" if case.evidence else "",
        f"<p><b>What to do:</b> {escaped(case.advice)}</p>" if case.advice else "",
        f'<div class="texts">{texts}</div>',
    ]
    if (left := case.n_more(len(case.texts[:SHOWN_TEXTS]))) > 0:
        parts.append(f"<p>{left:,} more entries are in this case.</p>")
    if case.beside:
        beside = ", ".join(escaped(entry_id, 100) for entry_id in case.beside[:SHOWN_TEXTS])
        parts.append(f"<p>Look at these as well, which are no findings: {beside}.</p>")
    parts.append(f'<p class="soft">{escaped(sentence(case.by))}</p>')
    return f'<section class="case">{"".join(parts)}</section>'


def _text(shown: ShownText) -> str:
    """Return the id of an entry and its text, with the suspicious part marked."""
    text = shown.text
    start, end = shown.span or (0, 0)
    begin = max(0, min(start - SHOWN // 3, len(text) - SHOWN))
    part = text[begin : begin + SHOWN]
    start, end = max(0, start - begin), min(len(part), end - begin)
    cut = [part[:start], part[start:end], part[end:]]
    before, marked, after = (html.escape(_lines(each)) for each in cut)
    dots = ("… " if begin else "", " …" if begin + SHOWN < len(text) else "")
    inside = f"<mark>{marked}</mark>" if marked else ""
    return (
        f'<div><span class="soft">{escaped(shown.id, 200)}</span>'
        f"<pre>{dots[0]}{before}{inside}{after}{dots[1]}</pre></div>"
    )


def _lines(text: str) -> str:
    """Return a text with hidden characters made visible; line breaks stay."""
    return "\n".join(printable(line, SHOWN * 4) for line in text.split("\n"))


def markdown(report: CaseReport) -> str:
    """Return a report without whole texts, for a comment or a summary in CI."""
    head, rest = report.answers
    lines = [
        f"# {report.question}",
        f"**{plain(head)}.** {plain(rest)}".rstrip(),
        f"{code(report.source)}, {plain(report.looked_at)}.",
    ]
    if report.cases:
        lines.append(f"## {report.heading} ({report.n_cases})")
        lines.append(_legend(report))
        shown = report.cases[:LISTED_CASES]
        lines.append("\n".join(_listed(n, case) for n, case in enumerate(shown, start=1)))
        if (left := report.n_cases - len(shown)) > 0:
            lines.append(f"{left} more cases are in the JSON report.")
    steps = (f"- {plain(step)}" for step in report.steps)
    lines += [part.markdown() for part in report.parts]
    lines += ["## What to do next", "\n".join(steps)]
    return "\n\n".join(filter(None, lines)) + "\n"


def plain(text: str) -> str:
    r"""Return a sentence escaped for Markdown.

    >>> print(plain("1 < 2 *here*"))
    1 \< 2 \*here\*
    """
    return _MARKS.sub(r"\\\1", printable(text, limit=4000))


def code(text: str) -> str:
    """Return hostile text as code, so that it makes no link, no picture and no mention.

    >>> code("a `b` @team")
    '`` a `b` @team ``'
    """
    shown = printable(text, limit=QUOTED)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if fence != "`" else f"`{shown}`"


def _listed(number: int, case: ShownCase) -> str:
    ids = ", ".join(code(entry_id) for entry_id in case.entry_ids[:LISTED_IDS])
    left = case.n_more(len(case.entry_ids[:LISTED_IDS]))
    told = [
        f"{number}. **{plain(case.severity)}**: {plain(case.title)}. {plain(case.effect)}".rstrip(),
        f"   - entries: {ids}{f' and {left:,} more' if left > 0 else ''}",
        f"   - says: {code(case.quote)}" if case.quote else "",
        f"   - evidence: {code(case.evidence)}" if case.evidence else "",
        f"   - what to do: {plain(case.advice)}" if case.advice else "",
    ]
    return "\n".join(filter(None, told))
