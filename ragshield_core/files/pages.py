"""Passages of a page of HTML, with what a browser does not show.

Read in time linear in the page, whatever it holds. Python's ``html.parser`` takes the square of the
time for a page of ``<!--``, and raises on ``<![foo]>``.
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
from ragshield_core.files.passages import Passage

# Fewer words are names and labels.
_FEWEST_WORDS = 4
# What is for browsers without scripts; most of it is a request to let them run.
_NOSCRIPT = 0.7
_REQUEST = re.compile(
    r"[^.!?]{0,200}\b(?:javascript|browser|cookies)\b[^.!?]{0,200}[.!?]?", re.IGNORECASE
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
            values = attributes(tag.inside)
            names = {"content": "description"} if tag.name == "meta" else _SHOWN_ATTRIBUTES
            for key, kind in names.items():
                yield from _prose(values.get(key, ""), tag.end, kind, 0.0)


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


# The text of a page

# What is in these elements is not read by anybody; behind a block, words do not run together.
_UNREAD = frozenset({"script", "style", "template", "noscript"})
_END_OF_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]"
    "|header|hr|li|main|nav|ol|p|pre|section|table|td|th|title|tr|ul"
)
_MARK = re.compile(r"<(?:(!--)|[!?]|(/?)([a-zA-Z][^\s/>]*))")
_STOP = re.compile("[\"'>]")
# Numbers of characters: there are none of eight digits, and Python refuses thousands of them.
_NUMBER = re.compile(r"&#0*([0-9]{1,8})[0-9]*")


def shown_in(page: str) -> str:
    r"""Return the text of a page of HTML, a paragraph a block.

    Examples
    --------
    >>> shown_in("<h1>A</h1><p>b <i>c</i><script>d</script></p>")
    'A\n\nb c'
    """
    return "\n\n".join(block for _, block in blocks(page))


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yield the blocks of a page that hold text, each with its place in the page."""
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
    opened = Counter[str]()  # how often each stands there: the list may be long
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
        while opened[tag.name] and tag.closes:  # with all that was left open within it
            closed = unread.pop()
            opened[closed] -= 1
            if closed == tag.name:
                break


class Tag(NamedTuple):
    """A tag: the place of its end, and what it holds beside its name."""

    name: str
    closes: bool
    end: int
    inside: str


def texts_and_tags(page: str) -> Iterator[tuple[int, str, Tag | None]]:
    """Yield texts with their places, each with the tag behind it, if one is."""
    ends = _Ends(page)
    start = place = 0  # of the text, and from where the next tag is looked for
    while match := _MARK.search(page, place):
        comment, slash, name = match.groups()
        end = ends.of_comment(match.end()) if comment else ends.of_tag(match.end())
        if end is None:  # never ends: text, to be on the safe side
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
    """Where comments and tags end; what was looked for in vain is not looked for again."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._missing: set[str] = set()
        self._quotes = True  # whether they hide the end of a tag

    def of_comment(self, place: int) -> int | None:
        """Return where a comment ends that begins before a place."""
        if self._page.startswith((">", "->"), place):
            return self._page.index(">", place) + 1
        return self._after("-->", place)

    def of_tag(self, place: int) -> int | None:
        """Return where a tag ends; not within a quoted value."""
        at: int | None = place
        while self._quotes and at is not None and (stop := _STOP.search(self._page, at)):
            if stop[0] == ">":
                return stop.end()
            at = self._after(stop[0], stop.end()) or stop.end()
        # Quotes that hide all ends are read once: it took as long as the rest of the page.
        self._quotes = False
        return self._after(">", place)

    def _after(self, what: str, place: int) -> int | None:
        found = -1 if what in self._missing else self._page.find(what, place)
        if found < 0:
            self._missing.add(what)
            return None
        return found + len(what)
