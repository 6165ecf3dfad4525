"""Passages of an OpenDocument text, with text that its readers are not shown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ragshield_core.files.colours import TINY, WHITE, Colour, alike, from_hex
from ragshield_core.files.packed import Package
from ragshield_core.files.passages import Passage

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, STYLE, OFFICE = (_NAMES % name for name in ("text", "style", "office"))
FO, TABLE, SVG = (_NAMES % name for name in ("xsl-fo-compatible", "table", "svg-compatible"))
_PARAGRAPHS = frozenset({TEXT + "p", TEXT + "h"})
_HIDDEN_FIELDS = frozenset({TEXT + "hidden-text", TEXT + "hidden-paragraph"})
_NOT_TEXT = frozenset({OFFICE + "annotation", TEXT + "tracked-changes"})
_DEEPEST = 10
_POINTS = {"pt": 1.0, "cm": 28.35, "mm": 2.835, "in": 72.0, "px": 0.75}


def open_document(path: Path) -> Iterator[Passage]:
    """Yield the paragraphs of an OpenDocument text, and what stands beside."""
    with Package(path) as package:
        content = package.xml("content.xml")
        roots = [content]
        if "styles.xml" in package.names:
            roots.append(package.xml("styles.xml"))
        looks = _Looks(roots)
        number = 0
        for root in roots:
            for paragraph, behind in _paragraphs(root, looks, WHITE):
                number += 1
                yield from _passages(paragraph, number, looks, behind)
        for root in roots:
            for note in root.iter(OFFICE + "annotation"):
                said = " ".join("".join(p.itertext()) for p in note.iter(TEXT + "p"))
                yield from _beside(said, max(1, number), "comment")
            for kind in ("title", "desc"):
                for element in root.iter(SVG + kind):
                    yield from _beside(element.text or "", max(1, number), "alternative text")


def _beside(said: str, number: int, kind: str) -> Iterator[Passage]:
    if said := " ".join(said.split()):
        yield Passage(said, "paragraph", number, kind, 0.0, beside=True)


def _paragraphs(root: Element, looks: _Looks, behind: Colour) -> Iterator[tuple[Element, Colour]]:
    """Yield paragraphs in order, with the colour of the cell or section around each."""
    waiting = [(root, behind)]
    while waiting:
        element, behind = waiting.pop()
        if element.tag in _NOT_TEXT:
            continue
        if element.tag in _PARAGRAPHS:
            yield element, behind
        style = element.get(TABLE + "style-name")
        inner = looks.background(style) or behind
        waiting += [(child, inner) for child in reversed(element)]


def _passages(paragraph: Element, number: int, looks: _Looks, behind: Colour) -> Iterator[Passage]:
    parts = list(_parts(paragraph, (paragraph.get(TEXT + "style-name"),), looks, behind))
    seen = "".join(text for hidden, text in parts if not hidden)
    if seen.strip():
        yield Passage(" ".join(seen.split()), "paragraph", number)
    for hidden, group in groupby(parts, key=lambda part: part[0]):
        said = " ".join("".join(text for _, text in group).split())
        if hidden and said:
            yield Passage(said, "paragraph", number, hidden)


def _parts(
    element: Element, styles: tuple[str | None, ...], looks: _Looks, behind: Colour
) -> Iterator[tuple[str, str]]:
    """Yield texts of an element in order, each with what hides it; not of paragraphs within it."""
    hidden = looks.hidden(styles, behind)
    if element.tag in _HIDDEN_FIELDS:
        hidden = "hidden field"
        if said := element.get(TEXT + "string-value"):
            yield hidden, said
    if element.text:
        yield hidden, element.text
    for child in element:
        if child.tag in (TEXT + "s", TEXT + "tab", TEXT + "line-break"):
            yield hidden, " "
        elif child.tag not in _PARAGRAPHS and child.tag not in _NOT_TEXT:
            yield from _parts(child, (child.get(TEXT + "style-name"), *styles), looks, behind)
        if child.tail:
            yield hidden, child.tail


class _Looks:
    """What styles say of letters."""

    def __init__(self, roots: list[Element]) -> None:
        self._styles = {
            style.get(STYLE + "name", ""): style
            for root in reversed(roots)
            for style in root.iter(STYLE + "style")
        }

    def hidden(self, styles: tuple[str | None, ...], behind: Colour) -> str:
        """Return what hides text in these styles, the innermost first; empty if it is seen."""
        if self._property(styles, TEXT + "display") == "none":
            return "hidden text"
        if _points(self._property(styles, FO + "font-size")) <= TINY:
            return "letters too small to read"
        front = from_hex(self._property(styles, FO + "color"))
        fill = from_hex(self._property(styles, FO + "background-color")) or behind
        if front and alike(front, fill):
            return "letters of the colour behind them"
        return ""

    def background(self, style: str | None) -> Colour | None:
        """Return the colour that a style puts behind what is in it."""
        return from_hex(self._property((style,), FO + "background-color")) if style else None

    def _property(self, styles: tuple[str | None, ...], name: str) -> str | None:
        for named in styles:
            at: str | None = named
            for _ in range(_DEEPEST):
                style = self._styles.get(at or "")
                if style is None:
                    break
                for properties in style:
                    if (value := properties.get(name)) is not None and value != "transparent":
                        return value
                at = style.get(STYLE + "parent-style-name")
        return None


def _points(size: str | None) -> float:
    """Return a size in points; a share of the usual size, or none, is large."""
    try:
        return float((size or "")[:-2]) * _POINTS.get((size or "")[-2:], float("inf"))
    except ValueError:
        return float("inf")
