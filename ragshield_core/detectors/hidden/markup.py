"""Finders of text that rendered markup does not show: comments, white LaTeX, hidden HTML."""

# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape

from ragshield_core.detectors.hidden.payload import (
    COMMENT,
    HTML,
    LATEX,
    Payload,
    carrying_prose,
    prose,
    prose_words,
)
from ragshield_core.text.linear import hint

_Colour = tuple[int, int, int]

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
    words = prose_words(decoded) - 4.0  # a remark of this length announces the next part
    if len(set(map(str.lower, _LICENCE.findall(decoded[:2000])))) > 1:
        words = min(words, 0.3)  # of any length
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
        # Browsers show the title of a real link on hover.
        factor = 1.0 if match[1] in _NOWHERE else 0.08
        yield from _comment(match[2] or match[3] or match[4], match.span(), factor)


# LaTeX, as in papers with white text for the models of their reviewers

_LATEX = re.compile(
    r"\\(?:textcolor\s{0,4}\{white\}\s{0,4}\{|color\s{0,4}\{white\}|[hv]?phantom\s{0,4}\{)"
    r"([^{}]{1,4000})"
)


def white_latex(text: str) -> Iterator[Payload]:
    """Yield text that LaTeX sets in white."""
    for match in _LATEX.finditer(text):
        yield from prose(LATEX, match[1], match.span(1))


# HTML. A scanner of tags rather than a parser: only the hiding element matters, and the cost of
# hostile markup must be linear in its length.

_TAG = re.compile(r"<(?:(!--)|(/?)([A-Za-z][A-Za-z0-9:-]{0,40}))")
_NO_CONTENT = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_NO_CONTENT.split())
_ATTRIBUTE = re.compile(
    r"([A-Za-z][A-Za-z-]{0,30})(?:\s{0,8}=\s{0,8}(?:\"([^\"]{0,8000})\"|'([^']{0,8000})'|([^\s\"'>]{1,500})))?"
)
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_END_OF_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_NO_TAG = re.compile(r"<|\n[ \t\r]{0,20}\n")  # after a "<" that means "less than", not a tag
# Hidden text is in a comment, or in an element or attribute whose name contains one of these, or
# depends on an attribute that is written with references ("&#104;idden").
_MAY_HIDE = hint(r"(?i)<!--|&|hidden|style|template|color|width|height")
_LONGEST_TAG = 4000
_DEEPEST = 60  # innermost open elements that a closing tag is compared with


@dataclass(slots=True)
class _Element:
    """An open element, with the start of its content and the colour behind its text."""

    name: str
    start: int
    hidden: float  # how surely it is hidden, 0 if it is shown
    background: _Colour | None


def hidden_html(text: str) -> Iterable[Payload]:
    """Return the parts of a text that HTML would not show."""
    return _scanned(text) if "<" in text and _MAY_HIDE(text) else ()


def _scanned(text: str) -> Iterator[Payload]:  # noqa: C901, PLR0912 - a case per kind of tag
    fenced = "```" in text or "~~~" in text
    fences = [match.start() for match in _FENCE.finditer(text)] if fenced else []
    stack: list[_Element] = []
    hiding: dict[str, float] = {}  # selectors that a style sheet hides
    place = covered = 0  # hidden text up to `covered` was reported already
    while match := _TAG.search(text, place):
        start = match.start()
        if match[1]:
            end = text.find("-->", match.end())
            place = len(text) if end < 0 else end + 3
            decoded = text[match.end() : len(text) if end < 0 else end]
            # A comment that is never closed may be a remark about comments.
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
                hiding |= _hiding_selectors(text[place:end])
            place = end
        elif name == "input":
            values = attributes(text[match.end() : end])
            if values.get("type", "").lower() == "hidden":
                yield from prose(HTML, values.get("value", ""), (start, place))
        elif name not in _VOID and text[end - 1] != "/":
            around = stack[-1].background if stack else None
            sure, behind, selectors = _looks(name, text[match.end() : end], around)
            sure = max([sure, *(hiding.get(selector, 0.0) for selector in selectors)])
            stack.append(_Element(name, place, sure, behind))
    for element in stack:
        placeholder = element.name == "template"  # as in "--format=<template>"
        if element.hidden and element.start >= covered and not placeholder:
            covered = len(text)
            yield from _hidden(text, element, covered, fences)


def _shown_as_code(text: str, place: int, fences: Sequence[int]) -> float:
    """Return a factor, lower for text in a block of code, which renderers show."""
    return 0.15 if bisect(fences, place) % 2 or text[place - 1 : place] == "`" else 1.0


def _close(stack: list[_Element], name: str) -> list[_Element]:
    """Remove the element of this name from the stack, with all open elements inside it."""
    for depth in range(1, min(len(stack), _DEEPEST) + 1):
        if stack[-depth].name == name:
            closed = stack[-depth:]
            del stack[-depth:]
            return closed
    return []


def _hidden(text: str, element: _Element, end: int, fences: Sequence[int]) -> Iterator[Payload]:
    decoded = " ".join(_TAG_OR_ENTITY.sub(" ", text[element.start : end]).split())
    sure = element.hidden * _shown_as_code(text, element.start, fences)
    yield from prose(HTML, decoded, (element.start, end), sure)


def attributes(source: str) -> dict[str, str]:
    """Return the attributes of a tag by name, with references decoded."""
    source = unescape(source) if "&" in source else source
    return {
        match[1].lower(): match[2] or match[3] or match[4] or ""
        for match in _ATTRIBUTE.finditer(source)
    }


# Cached, because pages repeat the same tags.
@lru_cache(maxsize=1024)
def _looks(
    name: str, inside: str, behind: _Colour | None
) -> tuple[float, _Colour | None, tuple[str, ...]]:
    """Return how surely a tag hides its content, the colour behind it, and its CSS selectors."""
    values = {key: value.lower() for key, value in attributes(inside).items()}
    style = _CSS_COMMENT.sub("", values.get("style", ""))
    if "bgcolor" in values:
        style = f"background:{values['bgcolor']};{style}"
    if name == "font" and "color" in values:
        style = f"color:{values['color']};{style}"
    declared = _declarations(style)
    behind = _background(declared) or behind
    sure = max(
        _hides(declared, behind),
        1.0 if "hidden" in values and values["hidden"] != "until-found" else 0.0,
        0.7 if name == "template" else 0.0,
        1.0 if name in ("svg", "div", "iframe") and "0" in map(values.get, _SIZES) else 0.0,
    )
    if values.get("aria-hidden") == "true":  # screen readers skip it, so clipping is not for them
        sure = max(0.2, min(1.0, 2 * sure))
    classes = (f".{c}" for c in values.get("class", "").split()[:20])
    return sure, behind, (name, f"#{values.get('id', '')}", *classes)


# Style that makes text invisible

_CSS_COMMENT = re.compile(r"/\*[^*]{0,500}\*/|\s")


def _declarations(style: str) -> dict[str, str]:
    """Return the declarations of a style: values by property."""
    pairs = (declaration.partition(":") for declaration in style.split(";")[:60])
    return {name: value.replace("!important", "") for name, _, value in pairs}


_LAST_SELECTOR = re.compile(r"[.#]?[\w-]{1,64}$")  # ".note" of "div p.note"


def _background(declared: dict[str, str]) -> _Colour | None:
    """Return the background colour of declarations, if they name one."""
    return _colour(declared.get("background-color") or declared.get("background", ""))


def _hiding_selectors(sheet: str) -> dict[str, float]:
    """Return the hiding selectors of a style sheet, and how surely each hides its elements."""
    found = {}
    for rule in sheet.split("}"):
        selectors, _, body = rule.partition("{")
        declared = _declarations(_CSS_COMMENT.sub("", body).lower())
        if sure := _hides(declared, _background(declared)):
            for selector in selectors.lower().split(",")[:20]:
                if last := _LAST_SELECTOR.search(selector.strip()):
                    found[last[0]] = sure
    return found


_LENGTH = re.compile(r"(-?[0-9]{0,6}\.?[0-9]{0,6})(px|pt|em|rem|ex|vw|vh|cm|mm|in|%|)")
_PIXELS = {"em": 16.0, "rem": 16.0, "ex": 8.0, "vw": 10.0, "vh": 10.0, "%": 0.16, "pt": 1.3}
_OFF_SCREEN = 500.0  # pixels
_OFFSETS = ("left", "right", "top", "bottom", "text-indent", "margin-left", "margin-top")
_SIZES = ("width", "height", "max-width", "max-height")
_NO_ALPHA = re.compile(r"^(?:rgba|hsla)\([^)]{1,60},0?\.?0+%?\)$")


def _pixels(value: str) -> float | None:
    match = _LENGTH.fullmatch(value)
    if not match or not any(c.isdigit() for c in match[1]):
        return None
    return float(match[1]) * _PIXELS.get(match[2], 1.0)


def _hides(declared: dict[str, str], behind: _Colour | None) -> float:
    """Return how surely declarations of CSS hide their text, [0, 1]."""
    size, opacity = _pixels(declared.get("font-size", "")), _pixels(declared.get("opacity", ""))
    boxed = declared.get("overflow") == "hidden"
    transform = declared.get("transform", "")
    if (
        declared.get("display") == "none"
        or declared.get("visibility") in ("hidden", "collapse")
        or (opacity is not None and opacity <= 0.05)
        or (size is not None and 0 <= size <= 2)
        or any((_pixels(declared.get(side, "")) or 0.0) <= -_OFF_SCREEN for side in _OFFSETS)
        or (boxed and any(_pixels(declared.get(side, "")) == 0 for side in _SIZES))
        or ("scale(0" in transform and "scale(0." not in transform)
    ):
        return 1.0
    clip = declared.get("clip", "") + declared.get("clip-path", "")
    if clip.startswith(("rect(0", "rect(1px", "inset(50%", "inset(100%", "circle(0")):
        return 0.6  # mostly text for screen readers
    return _vanishes(declared, behind)


def _vanishes(declared: dict[str, str], behind: _Colour | None) -> float:
    """Return how surely text has the colour of its background, [0, 1]."""
    colour, picture = declared.get("color", ""), declared.get("background", "")
    if colour == "transparent" or _NO_ALPHA.search(colour):
        return 1.0
    front = _colour(colour)
    if front is None or "url(" in picture or "gradient" in picture:
        return 0.0
    # A page without a known background is probably white.
    distance = sum(abs(a - b) for a, b in zip(front, behind or (255, 255, 255), strict=True))
    return (1.0 if behind else 0.6) if distance <= 24 else 0.0


_COLOURS: dict[str, str] = dict(
    named.split()
    for named in (
        *("white fff", "black 000", "snow fffafa", "ivory fffff0", "ghostwhite f8f8ff"),
        *("whitesmoke f5f5f5", "floralwhite fffaf0", "red f00", "blue 00f", "yellow ff0"),
        *("gray 808080", "grey 808080"),
    )
)
_RGB = re.compile(r"rgba?\(([0-9]{1,3})[, ]{1,3}([0-9]{1,3})[, ]{1,3}([0-9]{1,3})")
_HEX = re.compile(r"#([0-9a-f]{3,8})")


def _colour(value: str) -> _Colour | None:
    if match := _HEX.match(f"#{_COLOURS[value]}" if value in _COLOURS else value):
        digits = match[1]
        if len(digits) in (3, 4):
            digits = "".join(2 * c for c in digits)
        if len(digits) in (6, 8):
            return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)
    if value.startswith("hsl") and value.endswith(",100%)"):
        return 255, 255, 255
    if match := _RGB.match(value):
        return int(match[1]), int(match[2]), int(match[3])
    return None
