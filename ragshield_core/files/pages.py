"""Passages of a page of HTML, with what a browser does not show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape

from ragshield_core.detectors.hidden.markup import hidden_html
from ragshield_core.detectors.hidden.payload import COMMENT, sureness
from ragshield_core.files.html_text import blocks, texts_and_tags
from ragshield_core.files.passages import Passage

# Fewer words are names and labels.
_FEWEST_WORDS = 4
# What is for browsers without scripts; most of it is a request to let them run.
_NOSCRIPT = 0.7
_REQUEST = re.compile(
    r"[^.!?]{0,200}\b(?:javascript|browser|cookies)\b[^.!?]{0,200}[.!?]?", re.IGNORECASE
)
_ATTRIBUTE = re.compile(
    r"([A-Za-z][A-Za-z:-]{0,30})\s{0,8}=\s{0,8}"
    r"(?:\"([^\"]{0,8000})\"|'([^']{0,8000})'|([^\s\"'>]{1,500}))"
)
_SHOWN_ATTRIBUTES = {"alt": "alternative text", "title": "title", "aria-label": "label"}
_NOTED = re.compile(r"\b(?:alt|title|aria-label|content)\s*=", re.IGNORECASE)
_END = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "noscript")}
_TAGS = re.compile(r"<[^<>]{0,1000}>")


def page(text: str, unit: str = "line") -> Iterator[Passage]:
    """Yield the blocks of a page and marks of what is hidden, in order of place."""
    found: list[tuple[int, str, str, float]] = [(at, block, "", 0.0) for at, block in blocks(text)]
    found += [
        (
            payload.span[0],
            payload.decoded,
            payload.kind,
            # Who takes the text of a page leaves comments out.
            0.0 if payload.kind == COMMENT else sureness(payload),
        )
        for payload in hidden_html(text)
    ]
    found += _beside(text)
    line, last = 1, 0
    for at, said, hidden, sure in sorted(found):
        line += text.count("\n", last, at)
        last = at
        yield Passage(said, unit, line, hidden, sure, beside=bool(hidden))


def _beside(text: str) -> Iterator[tuple[int, str, str, float]]:
    """Yield what stands in attributes and in scripts of data."""
    for _, _, tag in texts_and_tags(text):
        if tag is None or tag.closes:
            continue
        if tag.name == "script" and "ld+json" in tag.inside:
            yield from _data(_inside(text, tag.name, tag.end), tag.end)
        elif tag.name == "noscript":
            said = unescape(_TAGS.sub(" ", _inside(text, tag.name, tag.end)))
            said = _REQUEST.sub(" ", said)
            yield from _prose(said, tag.end, "text for browsers without scripts", _NOSCRIPT)
        if _NOTED.search(tag.inside):
            values = {m[1].lower(): m[2] or m[3] or m[4] for m in _ATTRIBUTE.finditer(tag.inside)}
            names = {"content": "description"} if tag.name == "meta" else _SHOWN_ATTRIBUTES
            for key, kind in names.items():
                yield from _prose(unescape(values.get(key) or ""), tag.end, kind, 0.0)


def _inside(text: str, name: str, start: int) -> str:
    # At most so much: an end that is missing must not be looked for again and again.
    end = _END[name].search(text, start, start + 100_000)
    return text[start : end.start() if end else start + 10_000]


def _data(source: str, at: int) -> Iterator[tuple[int, str, str, float]]:
    try:
        values = [json.loads(source)]
    except (ValueError, RecursionError):
        yield from _prose(source, at, "data for search engines", 0.0)
        return
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield from _prose(value, at, "data for search engines", 0.0)
        elif isinstance(value, dict | list):
            values += reversed([*value.values()] if isinstance(value, dict) else value)


def _prose(said: str, at: int, kind: str, sure: float) -> Iterator[tuple[int, str, str, float]]:
    words = said.split()
    if len(words) >= _FEWEST_WORDS or not said.isascii():
        yield at, " ".join(words), kind, sure
