"""Passages of an HTML page, with the text that a browser does not show.

The time is linear in the length of every page. Python's ``html.parser`` takes quadratic time for a
page of ``<!--``, and raises on ``<![foo]>``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from itertools import chain
from typing import NamedTuple

from ragshield_core.detectors.hidden.markup import attributes, hidden_html
from ragshield_core.detectors.hidden.payload import COMMENT, sureness
from ragshield_core.files.passages import FilePassage

# Least words of a text; shorter ones are names and labels.
_FEWEST_WORDS = 4
# How sure text for browsers without scripts is hidden; most of it asks to enable scripts.
_NOSCRIPT = 0.7
_REQUEST = re.compile(
    r"[^.!?]{0,200}\b(?:javascript|browser|cookies)\b[^.!?]{0,200}[.!?]?", re.IGNORECASE
)
_SHOWN_ATTRIBUTES = {"alt": "alternative text", "title": "title", "aria-label": "label"}
_NOTED = re.compile(r"\b(?:alt|title|aria-label|content)\s*=", re.IGNORECASE)
_END = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "noscript")}
_TAGS = re.compile(r"<[^<>]{0,1000}>")


def page(text: str, unit: str = "line") -> Iterator[FilePassage]:
    """Yield the blocks of a page and marks of its hidden text, in order of place."""
    found: list[tuple[int, str, str, float]] = [(at, block, "", 0.0) for at, block in blocks(text)]
    found += [
        (
            payload.span[0],
            payload.decoded,
            payload.kind,
            # Programs that extract the text of a page leave comments out.
            0.0 if payload.kind == COMMENT else sureness(payload),
        )
        for payload in hidden_html(text)
    ]
    found += _beside(text)
    line, last = 1, 0
    for at, said, hidden, sure in sorted(found):
        line += text.count("\n", last, at)
        last = at
        yield FilePassage(said, unit, line, hidden, sure, beside=bool(hidden))


def _beside(text: str) -> Iterator[tuple[int, str, str, float]]:
    """Yield the texts of attributes and of data scripts."""
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
            values = attributes(tag.inside)
            names = {"content": "description"} if tag.name == "meta" else _SHOWN_ATTRIBUTES
            for key, kind in names.items():
                yield from _prose(values.get(key, ""), tag.end, kind, 0.0)


def _inside(text: str, name: str, start: int) -> str:
    # Limited: else each tag without an end would be searched through the whole page.
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


# The text of a page

# Nobody reads the text in these elements; blocks separate words.
_UNREAD = frozenset({"script", "style", "template", "noscript"})
_END_OF_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]"
    "|header|hr|li|main|nav|ol|p|pre|section|table|td|th|title|tr|ul"
)
_MARK = re.compile(r"<(?:(!--)|[!?]|(/?)([a-zA-Z][^\s/>]*))")
_STOP = re.compile("[\"'>]")
# Character references: none has eight digits, and Python refuses thousands of digits.
_NUMBER = re.compile(r"&#0*([0-9]{1,8})[0-9]*")


def shown_in(page: str) -> str:
    r"""Return the text of an HTML page, one paragraph per block.

    Examples
    --------
    >>> shown_in("<h1>A</h1><p>b <i>c</i><script>d</script></p>")
    'A\n\nb c'
    """
    return "\n\n".join(block for _, block in blocks(page))


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yield the blocks of a page with text, each with its place in the page."""
    start = 0
    parts: list[str] = []
    for at, part in chain(_parts(page), ((len(page), "\0"),)):
        if part != "\0":
            if not parts:
                start = at + len(part) - len(part.lstrip())
            parts += [part] if parts or not part.isspace() else []
        elif parts:
            if block := " ".join("".join(parts).split()):
                yield start, block
            parts = []


def _parts(page: str) -> Iterator[tuple[int, str]]:
    """Yield texts, and a NUL for each start and end of a block, with their places."""
    unread: list[str] = []
    opened = Counter[str]()  # open tags by name: a list may be long
    for at, text, tag in texts_and_tags(page):
        if text and not unread:
            yield at, unescape(_NUMBER.sub(r"&#\1", text)).replace("\0", " ")
        if tag is None:
            continue
        if _BLOCK.fullmatch(tag.name):
            yield at, "\0"
        if tag.name in _UNREAD and not tag.closes:
            unread.append(tag.name)
            opened[tag.name] += 1
        while opened[tag.name] and tag.closes:  # closes the unclosed tags inside it
            closed = unread.pop()
            opened[closed] -= 1
            if closed == tag.name:
                break


class Tag(NamedTuple):
    """A tag: its name, the place of its end, and its text after the name."""

    name: str
    closes: bool
    end: int
    inside: str


def texts_and_tags(page: str) -> Iterator[tuple[int, str, Tag | None]]:
    """Yield texts with their places, each with the tag after it, if there is one."""
    ends = _Ends(page)
    start = place = 0  # start of the text, and of the search for the next tag
    while match := _MARK.search(page, place):
        comment, slash, name = match.groups()
        end = ends.of_comment(match.end()) if comment else ends.of_tag(match.end())
        if end is None:  # no end: counts as text, which is safer
            place = match.end()
            continue
        name = (name or "").lower()
        tag = Tag(name, bool(slash), end, page[match.end() : end - 1]) if name else None
        yield start, page[start : match.start()], tag
        start = place = end
        if name in _END_OF_RAW and not slash:
            raw = _END_OF_RAW[name].search(page, end)
            start = place = raw.start() if raw else len(page)
    yield start, page[start:], None


class _Ends:
    """Ends of comments and tags; a missing end is searched only once."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._missing: set[str] = set()
        self._quotes = True  # whether quotes can hide the end of a tag

    def of_comment(self, place: int) -> int | None:
        """Return the end of the comment that begins before a place."""
        if self._page.startswith((">", "->"), place):
            return self._page.index(">", place) + 1
        return self._after("-->", place)

    def of_tag(self, place: int) -> int | None:
        """Return the end of a tag, outside quoted values."""
        at: int | None = place
        while self._quotes and at is not None and (stop := _STOP.search(self._page, at)):
            if stop[0] == ">":
                return stop.end()
            at = self._after(stop[0], stop.end()) or stop.end()
        # If quotes hide all ends, ignore quotes from now on: the search read the whole page.
        self._quotes = False
        return self._after(">", place)

    def _after(self, end: str, place: int) -> int | None:
        found = -1 if end in self._missing else self._page.find(end, place)
        if found < 0:
            self._missing.add(end)
            return None
        return found + len(end)
