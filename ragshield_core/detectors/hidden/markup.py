"""Find text that rendered markup does not show: comments, white LaTeX, hidden HTML."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape

from ragshield_core.detectors.hidden.css import (
    CSS_COMMENT,
    SIZES,
    background,
    declarations,
    hides,
    hiding_selectors,
)
from ragshield_core.detectors.hidden.payload import (
    COMMENT,
    HTML,
    LATEX,
    Payload,
    carrying_prose,
    prose_words,
)
from ragshield_core.text.linear import Hint

# Prose in markup

_NOTE = re.compile(
    r"^\[|\b(?:copyright|licen[sc]ed?|spdx|todo|fixme|xxx|hack|eslint|prettier|markdownlint|pylint"
    r"|noqa|do not edit|generated (?:by|from|with)|auto-?generated|google tag|analytics|begin|start"
    r"|end|endif|toc|more|doctoc|vale|textlint|cspell|deprecated)\b",
    re.IGNORECASE,
)
_LICENCE = re.compile(
    r"\b(?:copyright|licen[sc]ed?|warrant(?:y|ies)|rights reserved|redistribut\w{1,5}|spdx)\b",
    re.IGNORECASE,
)
_TAG_OR_ENTITY = re.compile(r"<[^<>]{0,1000}>|&#?\w{1,10};")


def _comment(decoded: str, span: tuple[int, int], factor: float) -> Iterator[Payload]:
    decoded = " ".join(_TAG_OR_ENTITY.sub(" ", decoded).split())
    words = prose_words(decoded) - 4.0  # a remark of that length says what comes next
    if len(set(map(str.lower, _LICENCE.findall(decoded[:2000])))) > 1:
        words = min(words, 0.3)  # however long it is
    elif _NOTE.search(decoded[:80]):
        factor *= 0.1
    if words * factor > 0:
        yield carrying_prose(COMMENT, decoded, span, words * factor)


_MARKDOWN_COMMENT = re.compile(
    r"^[ \t]{0,3}\[[^\]\n]{1,80}\]:[ \t]{0,8}(\S{1,500})[ \t]{1,8}"
    r"(?:\(([^\n]{1,4000})\)|\"([^\n]{1,4000})\"|'([^\n]{1,4000})')[ \t]{0,8}$",
    re.MULTILINE,
)
_NOWHERE = frozenset({"#", "<>", "<#>", ".", "/", "//", "-"})


def markdown_comments(text: str) -> Iterator[Payload]:
    """Yield comments of Markdown that carry prose."""
    for match in _MARKDOWN_COMMENT.finditer(text):
        # The title of a link that leads somewhere is shown when one points at it.
        factor = 1.0 if match[1] in _NOWHERE else 0.08
        yield from _comment(match[2] or match[3] or match[4], match.span(), factor)


# LaTeX, as in papers that address their reviewers' models in white

_LATEX = re.compile(
    r"\\(?:textcolor\s{0,4}\{white\}\s{0,4}\{|color\s{0,4}\{white\}|[hv]?phantom\s{0,4}\{)"
    r"([^{}]{1,4000})"
)


def white_latex(text: str) -> Iterator[Payload]:
    """Yield text that LaTeX sets in white."""
    for match in _LATEX.finditer(text):
        if words := prose_words(match[1]):
            yield carrying_prose(LATEX, match[1], match.span(1), words)


# HTML. A scanner of tags rather than a parser: what is hidden is decided by the element that hides
# it, and hostile markup must not cost more than its length.

_TAG = re.compile(r"<(?:(!--)|(/?)([A-Za-z][A-Za-z0-9:-]{0,40}))")
_NO_CONTENT = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_NO_CONTENT.split())
_ATTRIBUTE = re.compile(
    r"([A-Za-z][A-Za-z-]{0,30})(?:\s{0,8}=\s{0,8}(?:\"([^\"]{0,2000})\"|'([^']{0,2000})'|([^\s\"'>]{1,500})))?"
)
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_END_OF_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_NO_TAG = re.compile(r"<|\n[ \t\r]{0,20}\n")  # within what would be one: a sign for "less than"
# What is not shown is a comment, or in an element or attribute whose name holds one of these, if
# not in an attribute that is written with references ("&#104;idden").
_MAY_HIDE = Hint(r"(?i)<!--|&|hidden|style|template|color|width|height")
_LONGEST_TAG = 4000
_DEEPEST = 60  # open elements among which the one that a closing tag closes is looked for


@dataclass(slots=True)
class _Element:
    """An open element: where its inside starts, what hides it, and the colour behind its text."""

    name: str
    start: int
    hidden: float  # 0 where it is shown, else how sure it is that it is not
    background: tuple[int, int, int] | None


def hidden_html(text: str) -> Iterable[Payload]:
    """Return what HTML would not show."""
    return _scanned(text) if "<" in text and _MAY_HIDE(text) else ()


def _scanned(text: str) -> Iterator[Payload]:  # noqa: C901 - one case per kind of tag
    fenced = "```" in text or "~~~" in text
    fences = [match.start() for match in _FENCE.finditer(text)] if fenced else []
    stack: list[_Element] = []
    hiding: dict[str, float] = {}  # selectors that a style sheet hides
    place = covered = 0  # up to `covered`, hidden text was reported
    while match := _TAG.search(text, place):
        start = match.start()
        if match[1]:
            end = text.find("-->", match.end())
            place = len(text) if end < 0 else end + 3
            decoded = text[match.end() : len(text) if end < 0 else end]
            # A comment that is never closed may be a remark on comments.
            sure = _shown_as_code(text, start, fences) * (0.5 if end < 0 else 1.0)
            yield from _comment(decoded, (start, place), sure)
            continue
        end = text.find(">", match.end(), match.end() + _LONGEST_TAG)
        if end < 0 or _NO_TAG.search(text, match.end(), end):
            place = match.end()
            continue
        place = end + 1
        name = match[3].lower()
        if match[2]:
            for element in _close(stack, name):
                if element.hidden and element.start >= covered:
                    covered = start
                    yield from _hidden(text, element, start, fences)
        elif name in ("script", "style"):
            raw = _END_OF_RAW[name].search(text, place)
            end = raw.start() if raw else len(text)
            if name == "style":
                hiding |= hiding_selectors(text[place:end])
            place = end
        elif name == "input":
            yield from _hidden_input(text[match.end() : end], (start, place))
        elif name not in _VOID and text[end - 1] != "/":
            behind = stack[-1].background if stack else None
            stack.append(_opened(name, place, text[match.end() : end], hiding, behind))
    for element in stack:
        placeholder = element.name == "template"  # as in "--format=<template>"
        if element.hidden and element.start >= covered and not placeholder:
            covered = len(text)
            yield from _hidden(text, element, covered, fences)


def _shown_as_code(text: str, place: int, fences: Sequence[int]) -> float:
    """Return a factor for what stands in a block of code: renderers show it."""
    return 0.15 if bisect(fences, place) % 2 or text[place - 1 : place] == "`" else 1.0


def _close(stack: list[_Element], name: str) -> list[_Element]:
    """Take the element of that name off the stack, with all that is open within it."""
    for depth in range(1, min(len(stack), _DEEPEST) + 1):
        if stack[-depth].name == name:
            closed = stack[-depth:]
            del stack[-depth:]
            return closed
    return []


def _hidden(text: str, element: _Element, end: int, fences: Sequence[int]) -> Iterator[Payload]:
    decoded = " ".join(_TAG_OR_ENTITY.sub(" ", text[element.start : end]).split())
    sure = element.hidden * _shown_as_code(text, element.start, fences)
    if words := prose_words(decoded) * sure:
        yield carrying_prose(HTML, decoded, (element.start, end), words)


def _attributes(source: str) -> dict[str, str]:
    source = unescape(source) if "&" in source else source
    return {
        match[1].lower(): match[2] or match[3] or match[4] or ""
        for match in _ATTRIBUTE.finditer(source)
    }


def _hidden_input(source: str, span: tuple[int, int]) -> Iterator[Payload]:
    values = _attributes(source)
    decoded = values.get("value", "")
    if values.get("type", "").lower() == "hidden" and (words := prose_words(decoded)):
        yield carrying_prose(HTML, decoded, span, words)


def _opened(
    name: str,
    start: int,
    attributes: str,
    hiding: dict[str, float],
    behind: tuple[int, int, int] | None,
) -> _Element:
    sure, behind, selectors = _looks(name, attributes, behind)
    if hiding:
        sure = max([sure, *(hiding.get(selector, 0.0) for selector in selectors)])
    return _Element(name, start, sure, behind)


# Pages have the same tags again and again.
@lru_cache(maxsize=1024)
def _looks(
    name: str, attributes: str, behind: tuple[int, int, int] | None
) -> tuple[float, tuple[int, int, int] | None, tuple[str, ...]]:
    """Return how surely a tag hides what is in it, the colour there, and what selects it."""
    values = {key: value.lower() for key, value in _attributes(attributes).items()}
    style = CSS_COMMENT.sub("", values.get("style", ""))
    if "bgcolor" in values:
        style = f"background:{values['bgcolor']};{style}"
    if name == "font" and "color" in values:
        style = f"color:{values['color']};{style}"
    declared = declarations(style)
    behind = background(declared) or behind
    sure = max(
        hides(declared, behind),
        1.0 if "hidden" in values and values["hidden"] != "until-found" else 0.0,
        0.7 if name == "template" else 0.0,
        1.0 if name in ("svg", "div", "iframe") and "0" in map(values.get, SIZES) else 0.0,
    )
    if values.get("aria-hidden") == "true":  # what is clipped for screen readers is not read either
        sure = max(0.2, min(1.0, 2 * sure))
    classes = (f".{c}" for c in values.get("class", "").split()[:20])
    return sure, behind, (name, f"#{values.get('id', '')}", *classes)
